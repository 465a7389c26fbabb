"""`resil cron`: entries and their results, and the driver that makes the ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import ConfigOption, JsonOption, completion, duration_s
from resilience.errors import EX_TEMPFAIL, UsageError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject


def open_cron_project(config: Path | None = None, overrides: Mapping[str, str] | None = None) -> CronProject:
    """Return the project's cron. `overrides` are settings given on the command line."""
    from resilience.cron.project import open_cron
    from resilience.runs.open_project import open_in_child
    from resilience.system.ports import System

    return open_cron(open_in_child(System(), path=config, overrides=overrides))


@completion
def complete_entries() -> Iterable[str]:
    """Return the names of entries: of the table, and of those that have run."""
    from resilience.cron.entries import known_names

    return known_names(open_cron_project())


@completion
def complete_backends() -> Iterable[str]:
    """Return the names of backends."""
    from resilience.cron.driver_choice import AUTO, drivers

    return (AUTO, *drivers().names())


_Name = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="The entry: cron.hourly/backup, or backup alone if that is unambiguous.",
        autocompletion=complete_entries,
        show_default=False,
    ),
]


_Driver = Annotated[str, typer.Option("--driver", metavar="NAME", help="Name of the caller, for the heartbeat.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")]


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(
    invoke_without_command=True,
    epilog="Examples: resil cron install; resil cron add backup --daily -- ./backup.sh; resil cron; resil cron doctor",
)
def cron_group(context: typer.Context) -> None:
    """Schedule commands where there is no cron: drop a file into cron/cron.hourly, or add a line to cron/crontab.

    Without a command: `resil cron status`.
    """
    if context.invoked_subcommand is None:
        status()


def _command(examples: str, name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command. The first sentence of its docstring is its line in the list, in the order of a workflow."""
    return app.command(name, epilog=f"Examples: {examples}")


@_command("resil cron install; resil cron install --backend slurm --mode pulse; resil cron install --dry-run")
def install(
    backend: Annotated[
        str,
        typer.Option(
            "--backend", "-b", metavar="NAME", autocompletion=complete_backends,
            help="Driver of the ticks: auto, scrontab, crontab, systemd, slurm or foreground. Default: [cron] backend.",
        ),
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="MODE",
            help="For the backend slurm: daemon (one small job that ticks) or pulse (a short job for each tick).",
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="First uninstall another backend that is installed.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Install the best driver that is available here. Print the choice and its reason.

    Installing twice changes nothing; after `resil cron stop` it restarts the scheduler. Crontab lines of others stay.
    """
    from resilience.cli.show_cron import show_install

    cron = open_cron_project(config, {"cron.mode": mode} if mode else {})
    show_install(cron, backend=backend, replace=replace, dry_run=dry_run, as_json=as_json)


@_command("resil cron status; resil cron status --json")
def status(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show scheduler health, delay, next runs and results.

    Exits with 0 when ticks are on time, 1 when not (late, dead, stopped, not installed), 75 when the health is unknown.
    """
    from resilience.cli.show_cron import show_status
    from resilience.cron.status import cron_status

    found = cron_status(open_cron_project(config))
    show_status(found, as_json=as_json)
    raise typer.Exit(found.judgement.exit_code)


@_command("resil cron list; resil cron list --json", name="list")
def list_entries(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """List the entries and their next runs. Every line of the crontab and every drop-in is an entry."""
    from resilience.cli.show_cron import show_listing
    from resilience.cron.entries import list_entries as read_entries

    cron = open_cron_project(config)
    show_listing(read_entries(cron), cron.project.system.clock.now(), cron.directory, as_json=as_json)


@_command(
    "resil cron add backup --daily -- rsync -a out/ /safe/out; "
    'resil cron add probe --cron "*/10 7-18 * * 1-5" --timeout 2m -- ./probe.sh; '
    "resil cron add eval --hourly --submit -- python eval.py"
)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command to run.")] = None,
    minutely: Annotated[bool, typer.Option("--minutely", help="Every minute.")] = False,
    quarter_hourly: Annotated[bool, typer.Option("--quarter-hourly", help="At :00, :15, :30 and :45.")] = False,
    hourly: Annotated[bool, typer.Option("--hourly", help="At the full hour.")] = False,
    daily: Annotated[bool, typer.Option("--daily", help="At midnight.")] = False,
    weekly: Annotated[bool, typer.Option("--weekly", help="On Sunday at midnight.")] = False,
    monthly: Annotated[bool, typer.Option("--monthly", help="On the first at midnight.")] = False,
    schedule: Annotated[
        str, typer.Option("--cron", metavar="SCHEDULE", help='Five fields, or "@every 90s", "@reboot", "@daily" ...')
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="End it after this time.")] = "",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="POLICY", help="While the previous run lasts: skip, allow or replace.")
    ] = "",
    catch_up: Annotated[
        str, typer.Option("--catch-up", metavar="POLICY", help="Missed slots: none, once, or all<=N.")
    ] = "",
    jitter: Annotated[str, typer.Option("--jitter", metavar="DURATION", help="Delay by up to this time.")] = "",
    ok: Annotated[str, typer.Option("--ok", metavar="CODES", help="Exit codes that count as success: 0-3.")] = "",
    rerun: Annotated[bool, typer.Option("--rerun", help="Safe to repeat: rerun after an interruption.")] = False,
    shell: Annotated[bool, typer.Option("--shell", help="Run the command as one line of /bin/sh.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the command as a job, with sbatch.")] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Schedule a command, and show its next runs. It becomes a drop-in or, with --cron, a line of the crontab."""
    from resilience.cli.show_cron import show_add
    from resilience.cron.edit import NewEntry

    directories = {"minutely": minutely, "quarter_hourly": quarter_hourly, "hourly": hourly,
               "daily": daily, "weekly": weekly, "monthly": monthly}  # fmt: skip
    options = {"timeout": timeout, "overlap": overlap, "catch_up": catch_up, "jitter": jitter, "ok": ok}
    entry = NewEntry(
        name=name,
        command=tuple(command or ()),
        directories=tuple(directory for directory, is_set in directories.items() if is_set),
        schedule=schedule,
        options={key: value for key, value in options.items() if value} | ({"rerun": ""} if rerun else {}),
        shell=shell,
        submit=submit,
    )
    show_add(open_cron_project(config), entry, dry_run=dry_run, as_json=as_json)


@_command("resil cron remove backup; resil cron remove cron.hourly/backup")
def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Entries.", autocompletion=complete_entries)
    ],
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Remove entries. Of a symbolic link, only the link is removed.

    Running entries finish; histories and outputs stay until `resil cron prune`.
    """
    from resilience.cli.show_cron import show_remove

    show_remove(open_cron_project(config), names, dry_run=dry_run, as_json=as_json)


@_command("resil cron history; resil cron history backup -n 50; resil cron history backup --json")
def history(
    name: _Name = "",
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="Number of slots.")] = 20,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show the results of recent slots. The newest is last, with time, delay, duration, and outcome.

    Without a name: of all entries.
    """
    from resilience.cli.show_cron import show_history
    from resilience.cron.entries import histories

    cron = open_cron_project(config)
    runs, now = histories(cron, name, last), cron.project.system.clock.now()
    show_history(runs, of_one=bool(name), now=now, as_json=as_json)


@_command(
    "resil cron logs backup; resil cron logs backup --last 3; resil cron logs backup -f; "
    "less $(resil cron logs backup --path)"
)
def logs(
    name: _Name = "",
    slot: Annotated[
        str, typer.Option("--slot", metavar="TIME", help="Of this slot: 2026-12-24T18:00, 18:00, or as in history.")
    ] = "",
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="Of the last N runs.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep following until the run ends.")] = False,
    path_only: Annotated[bool, typer.Option("--path", help="Print only the path of the file.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the output of an entry's last run. Of a submitted entry, it is the output of its job."""
    from resilience.cli.show_cron import show_logs

    if not name:
        raise UsageError("no entry was named", hint="resil cron logs NAME; the names: resil cron list")
    if slot and last != 1:
        raise UsageError("--slot and --last cannot be given together", hint="omit one of them")
    show_logs(open_cron_project(config), name, slot=slot, last=last, follows=follow, path_only=path_only)


@_command("resil cron doctor; resil cron doctor --environment; resil cron doctor --json")
def doctor(
    environment: Annotated[bool, typer.Option("--environment", help="Show only the environment of entries.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Check the scheduler and report problems. These keep entries from running or alerts from being delivered.

    Exits with 1 when an entry cannot run, 75 when a check could not be made, else 0.
    """
    from resilience.cli.show_cron import show_environment, show_examination
    from resilience.doctor.cron import environment_of, examine_cron

    cron = open_cron_project(config)
    if environment:
        show_environment(environment_of(cron), cron.named_variables(), as_json=as_json)
        return
    found = examine_cron(cron)
    show_examination(found, as_json=as_json)
    raise typer.Exit(1 if found.is_broken else EX_TEMPFAIL if found.is_unknown else 0)


@_command("resil cron run; tmux new -d 'resil cron run'; resil cron run backup")
def run(
    name: _Name = "",
    once: Annotated[bool, typer.Option("--once", help="Make one tick, and wait for its entries.")] = False,
    driver: _Driver = "",
    config: ConfigOption = None,
) -> None:
    """Run the scheduler, or one entry now.

    The scheduler runs in the foreground: in tmux, in a container, on a login node. SIGTERM and Ctrl-C end it cleanly.
    Several may run at once: each slot runs once.

    With a NAME, run this entry alone, once and now, as the scheduler would run it; print its output, and exit with its
    exit code (75: an earlier run is still active). The slots of its schedule are not affected.
    """
    from resilience.cli.run_cron import run_loop, run_one

    if name and (once or driver):
        raise UsageError("an entry that runs now needs neither --once nor --driver", hint=f"resil cron run {name}")
    cron = open_cron_project(config)
    raise typer.Exit(run_one(cron, name) if name else run_loop(cron, driver=driver, once=once))


@_command("resil cron tick; resil cron tick --dry-run; * * * * * /path/to/resil cron tick --config /my/resil.toml")
def tick(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when every started entry has ended.")] = True,
    driver: _Driver = "",
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Make one tick, for any other scheduler to call. Run and submit due entries, and write the heartbeat.

    Exits with 0 even if an entry failed: alerts and `resil cron history` report failures.
    """
    from resilience.cli.run_cron import run_tick

    cron = open_cron_project(config)
    raise typer.Exit(run_tick(cron, driver=driver, wait=wait, dry_run=dry_run, as_json=as_json))


@_command("resil cron stop; resil cron stop --why 'maintenance until Friday'; restart: resil cron install")
def stop(
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for colleagues.")] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Stop the scheduler, until `resil cron install`. No entry starts, and queued jobs of it are cancelled.

    Running entries finish.
    """
    from resilience.cli.show_cron import show_stop

    show_stop(open_cron_project(config), why=why, as_json=as_json)


@_command("resil cron uninstall; resil cron uninstall --dry-run")
def uninstall(
    force: Annotated[
        bool, typer.Option("--force", help="Remove the record even if the driver cannot be removed: its host is gone.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Undo `resil cron install`. The ticks end; the cron directory and the histories stay."""
    from resilience.cli.show_cron import show_uninstall

    show_uninstall(open_cron_project(config), force=force, dry_run=dry_run, as_json=as_json)


@_command("resil cron prune; resil cron prune --dry-run")
def prune(dry_run: _DryRun = False, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Remove old outputs and histories. Files of entries removed 30 days ago and of dead runs are removed too."""
    from resilience.cli.show_cron import show_prune

    show_prune(open_cron_project(config), dry_run=dry_run, as_json=as_json)


@_command("resil cron canary; resil cron canary --wait 5m")
def canary(
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for the delivery.")] = "5m",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Have the scheduler send a test alert. Wait until it is delivered: an end-to-end check of the alerts.

    Exits with 0 when it was delivered, 1 when a channel rejected it, 75 when it was not delivered in time.
    """
    from resilience.cli.show_cron import show_canary

    wait_s = duration_s("--wait", wait)
    raise typer.Exit(show_canary(open_cron_project(config), wait_s=wait_s, as_json=as_json))


@_command("resil cron digest; every day: digest_at in [cron]")
def digest(config: ConfigOption = None) -> None:
    """Send the daily digest now. Print it, too: the entry resil/digest runs this every day at [cron] digest_at."""
    from resilience.cli.output import clean
    from resilience.cron.digest import send_digest

    sent = send_digest(open_cron_project(config))
    for line in (*sent.body, sent.title):  # the last line is the summary of its run in the history
        print(clean(line))


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def job(context: typer.Context, config: ConfigOption = None) -> None:
    """Run the scheduler's own job. The batch script of the backend slurm calls this."""
    from resilience.cron.job import main

    raise typer.Exit(main(open_cron_project(config), context.args))
