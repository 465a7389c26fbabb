"""`resil cron`: what runs when, who makes the ticks, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilience.cli.options import ConfigOption, JsonOption, completion, duration_s
from resilience.cli.output import chosen, print_json
from resilience.errors import EX_TEMPFAIL, UsageError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject


def open_cron_project(
    config: Path | None = None, *, apart: bool = False, overrides: Mapping[str, str] | None = None
) -> CronProject:
    """The cron of the project that the command line means; `overrides` are its settings that the command line gives.

    `apart`: read the settings in a child with a deadline, for commands that must answer whatever hangs.
    """
    from resilience.cron.project import open_cron
    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.system.ports import System

    system = System()
    if apart:
        from resilience.watch.watchdogs import open_in_child

        return open_cron(open_in_child(system, path=config, overrides=overrides))
    return open_cron(Project(system, load(system, named=config, overrides=overrides)))


@completion
def complete_entries() -> Iterable[str]:
    """Names of entries: those of the table, and those that ran once."""
    from resilience.cron.entries import known_names

    return known_names(open_cron_project())


@completion
def complete_backends() -> Iterable[str]:
    """Names of backends."""
    from resilience.cron.driver_choice import AUTO, drivers

    return (AUTO, *drivers().names())


_Name = Annotated[
    str,
    typer.Argument(
        metavar="[NAME]",
        help="The entry: cron.hourly/backup, or backup alone where only one is called so.",
        autocompletion=complete_entries,
        show_default=False,
    ),
]


_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the changes, and make none.")]


def install(
    backend: Annotated[
        str,
        typer.Option(
            "--backend", "-b", metavar="NAME", autocompletion=complete_backends,
            help="Who makes the ticks: auto, scrontab, crontab, systemd, slurm or foreground. Default: [cron] backend.",
        ),
    ] = "",
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="MODE",
            help="Of the backend slurm: daemon, one small job that ticks, or pulse, a short job for each tick.",
        ),
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Take out what is installed already, if it is another backend.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Have ticks made from now on, by the best that this site offers, and say what was chosen and why.

    Doing it again does nothing; after `resil cron stop` it goes on. Never touches a line that it did not write.
    """
    from resilience.cli.show_cron import show_install

    overrides = {"cron.mode": mode} if mode else {}
    cron = open_cron_project(config, overrides=overrides)
    raise typer.Exit(show_install(cron, backend=backend, replace=replace, dry_run=dry_run, as_json=as_json))


def uninstall(
    force: Annotated[
        bool, typer.Option("--force", help="Forget it also where it could not be taken out: its host is gone.")
    ] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Undo `resil cron install`: no tick comes any more. The cron directory and the histories stay."""
    from resilience.cli.show_cron import show_uninstall

    raise typer.Exit(show_uninstall(open_cron_project(config), force=force, dry_run=dry_run, as_json=as_json))


def stop(
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for colleagues.")] = "",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Stop for good: nothing runs any more, queued scheduler jobs are cancelled, and none is submitted again.

    Running entries may end. The scheduler stays stopped until `resil cron install`.
    """
    from resilience.cli.show_cron import show_stop

    raise typer.Exit(show_stop(open_cron_project(config), why=why, as_json=as_json))


def run(
    once: Annotated[bool, typer.Option("--once", help="One tick, and wait for what it started.")] = False,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="The caller, for the heartbeat.")] = "",
    config: ConfigOption = None,
) -> None:
    """Be the scheduler, here in the foreground: for tmux, a container, a login node. SIGTERM and Ctrl-C end it cleanly.

    A second one does no harm: each slot runs once.
    """
    from resilience.cli.run_cron import run_loop

    raise typer.Exit(run_loop(open_cron_project(config), driver=driver, once=once))


def tick(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when every started entry has ended.")] = True,
    driver: Annotated[str, typer.Option("--driver", metavar="NAME", help="The caller, for the heartbeat.")] = "",
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """One tick: run and submit due entries, and write the heartbeat. Any other scheduler can call it.

    Exits with 0 also when an entry failed: alerts and `resil cron history` report failures.
    """
    from resilience.cli.run_cron import run_tick

    cron = open_cron_project(config)
    raise typer.Exit(run_tick(cron, driver=driver, wait=wait, dry_run=dry_run, as_json=as_json))


def canary(
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for the delivery.")] = "5m",
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Have the scheduler itself send an alert, and wait until it has arrived: proof that the whole way works.

    Exits with 0 when it was delivered, 1 when a channel refused it, 75 when it did not come in time.
    """
    from resilience.cli.show_cron import show_canary

    wait_s = duration_s("--wait", wait)
    raise typer.Exit(show_canary(open_cron_project(config), wait_s=wait_s, as_json=as_json))


def job(context: typer.Context, config: ConfigOption = None) -> None:
    """Be the scheduler's own job: what the batch script of the backend slurm calls."""
    from resilience.cron.job import main

    raise typer.Exit(main(open_cron_project(config), context.args))


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What to run.")] = None,
    minutely: Annotated[bool, typer.Option("--minutely", help="Every minute.")] = False,
    quarter_hourly: Annotated[bool, typer.Option("--quarter-hourly", help="At :00, :15, :30 and :45.")] = False,
    hourly: Annotated[bool, typer.Option("--hourly", help="At the full hour.")] = False,
    daily: Annotated[bool, typer.Option("--daily", help="At midnight.")] = False,
    weekly: Annotated[bool, typer.Option("--weekly", help="On Sunday at midnight.")] = False,
    monthly: Annotated[bool, typer.Option("--monthly", help="On the first at midnight.")] = False,
    schedule: Annotated[
        str, typer.Option("--cron", metavar="SCHEDULE", help='Five fields, or "@every 90s", "@reboot", "@daily" ...')
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", metavar="DURATION", help="End it after so long.")] = "",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="POLICY", help="While the last still runs: skip, allow or replace.")
    ] = "",
    catch_up: Annotated[
        str, typer.Option("--catch-up", metavar="POLICY", help="Missed slots: none, once, or all<=N.")
    ] = "",
    jitter: Annotated[str, typer.Option("--jitter", metavar="DURATION", help="Start up to so long after.")] = "",
    ok: Annotated[str, typer.Option("--ok", metavar="CODES", help="Exit codes that are no failure: 0-3.")] = "",
    rerun: Annotated[bool, typer.Option("--rerun", help="Safe to repeat: run again what was cut short.")] = False,
    shell: Annotated[bool, typer.Option("--shell", help="The command is one line for /bin/sh.")] = False,
    submit: Annotated[bool, typer.Option("--submit", help="As a job of its own, with sbatch.")] = False,
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Schedule a command: as a drop-in of a directory, or with --cron as a line of the crontab. Shows its next runs."""
    from resilience.cli.show_cron import show_add
    from resilience.cron.edit import NewEntry

    directories = {"minutely": minutely, "quarter_hourly": quarter_hourly, "hourly": hourly,
               "daily": daily, "weekly": weekly, "monthly": monthly}  # fmt: skip
    options = {"timeout": timeout, "overlap": overlap, "catch_up": catch_up, "jitter": jitter, "ok": ok}
    wanted = NewEntry(
        name=name,
        command=tuple(command or ()),
        directories=tuple(directory for directory, is_wanted in directories.items() if is_wanted),
        schedule=schedule,
        options={key: value for key, value in options.items() if value} | ({"rerun": ""} if rerun else {}),
        shell=shell,
        submit=submit,
    )
    show_add(open_cron_project(config), wanted, dry_run=dry_run, as_json=as_json)


def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Entries.", autocompletion=complete_entries)
    ],
    dry_run: _DryRun = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Remove entries: the drop-in (of a symbolic link, the link alone) or the crontab's line.

    Running entries may end; histories and outputs stay until `resil cron prune`.
    """
    from resilience.cli.show_cron import show_remove

    show_remove(open_cron_project(config), names, dry_run=dry_run, as_json=as_json)


def prune(dry_run: _DryRun = False, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Remove expired files: old outputs and histories, files of entries gone for 30 days, and marks of dead runs."""
    from resilience.cli.show_cron import show_prune

    show_prune(open_cron_project(config), dry_run=dry_run, as_json=as_json)


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(
    invoke_without_command=True,
    epilog="Examples: resil cron install; resil cron add backup --daily -- ./backup.sh; resil cron; resil cron doctor",
)
def cron_group(context: typer.Context) -> None:
    """Run things at times where there is no cron: drop a file into cron/cron.hourly, or write a line of cron/crontab.

    Without a command: `resil cron status`.
    """
    if context.invoked_subcommand is None:
        status()


def status(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show scheduler health, delay, next runs and recent results.

    Exits with 0 when ticks come as they should, 1 when they do not (late, dead, stopped, not installed), 75 when
    the health is unknown.
    """
    from resilience.cli.show_cron import show_status, status_to_json
    from resilience.cron.status import cron_status

    found = cron_status(open_cron_project(config, apart=True))
    if as_json:
        print_json("cron-status", status_to_json(found))
    else:
        show_status(found)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def list_entries(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """List what runs when: every line of the crontab and every drop-in, with its next run."""
    from resilience.cli.show_cron import listing_to_json, show_listing
    from resilience.cron.entries import list_entries as look

    cron = open_cron_project(config)
    found = look(cron)
    if as_json:
        print_json("cron-list", listing_to_json(found))
    else:
        show_listing(found, cron.project.system.clock.now(), cron.directory)


def history(
    name: _Name = "",
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="How many slots.")] = 20,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show the results of an entry's recent slots, newest last: time, delay, duration, and outcome.

    Without a name: of all entries together.
    """
    from resilience.cli.show_cron import history_to_json, show_history
    from resilience.cron.entries import histories

    cron = open_cron_project(config)
    runs = histories(cron, name, last)
    if as_json:
        print_json("cron-history", history_to_json(runs))
    else:
        show_history(runs, of_one=bool(name), now=cron.project.system.clock.now())


def logs(
    name: _Name = "",
    slot: Annotated[
        str, typer.Option("--slot", metavar="TIME", help="Of this slot: 2026-12-24T18:00, 18:00, or as history says.")
    ] = "",
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="Of the last N runs.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on while it runs, until it has ended.")] = False,
    path_only: Annotated[bool, typer.Option("--path", help="Write the path of the file, nothing else.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the output of an entry's last run; of a submitted entry, its job's output."""
    from resilience.cli.show_cron import show_logs

    if not name:
        raise UsageError("whose logs?", hint="resil cron logs NAME; which there are: resil cron list")
    if slot and last != 1:
        raise UsageError("--slot and --last at once: which runs are meant?", hint="leave one of them out")
    show_logs(open_cron_project(config), name, slot=slot, last=last, follows=follow, path_only=path_only)


def doctor(
    environment: Annotated[bool, typer.Option("--environment", help="Show only the environment of entries.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Report problems that would keep an entry from running, or its alerts from arriving, each with advice.

    Exits with 1 when an entry that is meant to run does not, else 0.
    """
    from resilience.cli.show_cron import show_environment, show_examination
    from resilience.doctor.cron import environment_of, examine_cron

    cron = open_cron_project(config, apart=True)
    if environment:
        show_environment(environment_of(cron), cron.named_variables(), as_json=as_json)
        return
    found = examine_cron(cron)
    if as_json:
        print_json("cron-doctor", chosen(found, "is_broken", "diagnoses", "ignored"))
    else:
        show_examination(found)
    if found.is_broken:
        raise typer.Exit(1)
    if found.is_unknown:
        raise typer.Exit(EX_TEMPFAIL)


_COMMANDS: tuple[tuple[str, Callable[..., Any], str, str], ...] = (
    ("install", install, "Have ticks made from now on, by the best of this site.",
     "Examples: resil cron install; resil cron install --backend slurm --mode pulse; resil cron install --dry-run"),
    ("status", status, "Show scheduler health, and next runs.",
     "Examples: resil cron status; resil cron status --json"),
    ("list", list_entries, "List what runs when.",
     "Examples: resil cron list; resil cron list --json"),
    ("add", add, "Schedule a command.",
     'Examples: resil cron add backup --daily -- rsync -a out/ /safe/out; '
     'resil cron add probe --cron "*/10 7-18 * * 1-5" --timeout 2m -- ./probe.sh; '
     "resil cron add eval --hourly --submit -- python eval.py"),
    ("remove", remove, "Remove entries.",
     "Examples: resil cron remove backup; resil cron remove cron.hourly/backup"),
    ("history", history, "Show the results of recent slots.",
     "Examples: resil cron history; resil cron history backup -n 50; resil cron history backup --json"),
    ("logs", logs, "Show the output of an entry's last run.",
     "Examples: resil cron logs backup; resil cron logs backup --last 3; resil cron logs backup -f; "
     "less $(resil cron logs backup --path)"),
    ("doctor", doctor, "Report entries that do not run, with advice.",
     "Examples: resil cron doctor; resil cron doctor --environment; resil cron doctor --json"),
    ("run", run, "Be the scheduler, here in the foreground.",
     "Examples: resil cron run; resil cron run --once; tmux new -d 'resil cron run'"),
    ("tick", tick, "Make one tick, for any other scheduler to call.",
     "Examples: resil cron tick; resil cron tick --dry-run; "
     "* * * * * /path/to/resil cron tick --config /my/resil.toml"),
    ("stop", stop, "Stop it, until `resil cron install`.",
     'Examples: resil cron stop; resil cron stop --why "maintenance until Friday"; go on: resil cron install'),
    ("uninstall", uninstall, "Undo `resil cron install`.",
     "Examples: resil cron uninstall; resil cron uninstall --dry-run"),
    ("prune", prune, "Remove old outputs and histories.",
     "Examples: resil cron prune; resil cron prune --dry-run"),
    ("canary", canary, "Have the scheduler send an alert, to see it arrive.",
     "Examples: resil cron canary; resil cron canary --wait 5m"),
)  # fmt: skip
"""In the order in which people need them."""

for _name, _command, _short, _examples in _COMMANDS:
    app.command(_name, short_help=_short, epilog=_examples)(_command)
app.command("job", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(job)
