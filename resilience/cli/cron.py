"""`resil cron`: what runs when, who makes the ticks, and what became of it. This file: the commands that look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from resilience.cli import cron_steer, cron_write
from resilience.cli.cron_options import CronNameArgument, open_cron_project
from resilience.cli.options import ConfigOption, JsonOption
from resilience.errors import EX_TEMPFAIL, UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_Name = Annotated[str, CronNameArgument]


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
    """Say whether the scheduler lives, how late it is, what runs next, and what became of what ran last.

    Exits with 0 when ticks come as they should, 1 when they do not (late, dead, stopped, not installed), 75 when nobody
    could look.
    """
    from resilience.cli.output import print_json
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
    from resilience.cli.output import print_json
    from resilience.cli.show_cron import listing_to_json, show_listing
    from resilience.cron.entries import list_entries as look

    cron = open_cron_project(config)
    found = look(cron)
    if as_json:
        print_json("cron-list", listing_to_json(found))
    else:
        show_listing(found, cron.project.world.clock.now(), cron.folder)


def history(
    name: _Name = "",
    last: Annotated[int, typer.Option("--last", "-n", metavar="N", min=1, help="How many slots.")] = 20,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show what became of the last slots of an entry, newest last: when, how late, how long, and how it ended.

    Without a name: of all entries together.
    """
    from resilience.cli.output import print_json
    from resilience.cli.show_cron_runs import history_to_json, show_history
    from resilience.cron.entries import histories

    cron = open_cron_project(config)
    runs = histories(cron, name, last)
    if as_json:
        print_json("cron-history", history_to_json(runs))
    else:
        show_history(runs, of_one=bool(name), now=cron.project.world.clock.now())


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
    """Show what an entry wrote when it last ran; of a submitted one, what its job wrote."""
    from resilience.cli.show_cron_runs import show_logs

    if not name:
        raise UsageError("whose logs?", hint="resil cron logs NAME; which there are: resil cron list")
    if slot and last != 1:
        raise UsageError("--slot and --last at once: which runs are meant?", hint="leave one of them out")
    show_logs(open_cron_project(config), name, slot=slot, last=last, follows=follow, path_only=path_only)


def doctor(
    environment: Annotated[
        bool, typer.Option("--environment", help="Show the environment that what is run gets, and nothing else.")
    ] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Say what would keep something from running, or people from hearing of it, and what to do.

    Exits with 1 when something that somebody means to run does not, else 0.
    """
    from resilience.cli.output import print_json
    from resilience.cli.show_cron_doctor import environment_to_json, examination_to_json, show_environment, show_found
    from resilience.doctor.cron import examine_cron
    from resilience.doctor.cron_entry import environment_of

    cron = open_cron_project(config, apart=True)
    if environment:
        variables, secret = environment_of(cron), cron.named_variables()
        if as_json:
            print_json("cron-environment", environment_to_json(variables, secret))
        else:
            show_environment(variables, secret)
        return
    found = examine_cron(cron)
    if as_json:
        print_json("cron-doctor", examination_to_json(found))
    else:
        show_found(found)
    if found.is_broken:
        raise typer.Exit(1)
    if found.is_unknown:
        raise typer.Exit(EX_TEMPFAIL)


_COMMANDS: tuple[tuple[str, Callable[..., Any], str, str], ...] = (
    ("install", cron_steer.install, "Have ticks made from now on, by the best of this site.",
     "Examples: resil cron install; resil cron install --backend slurm --mode pulse; resil cron install --dry-run"),
    ("status", status, "Say whether the scheduler lives, and what runs next.",
     "Examples: resil cron status; resil cron status --json"),
    ("list", list_entries, "List what runs when.",
     "Examples: resil cron list; resil cron list --json"),
    ("add", cron_write.add, "Schedule a command.",
     'Examples: resil cron add backup --daily -- rsync -a out/ /safe/out; '
     'resil cron add probe --cron "*/10 7-18 * * 1-5" --timeout 2m -- ./probe.sh; '
     "resil cron add eval --hourly --submit -- python eval.py"),
    ("remove", cron_write.remove, "Schedule something no more.",
     "Examples: resil cron remove backup; resil cron remove cron.hourly/backup"),
    ("history", history, "Show what became of the last slots.",
     "Examples: resil cron history; resil cron history backup -n 50; resil cron history backup --json"),
    ("logs", logs, "Show what an entry wrote when it last ran.",
     "Examples: resil cron logs backup; resil cron logs backup --last 3; resil cron logs backup -f; "
     "less $(resil cron logs backup --path)"),
    ("doctor", doctor, "Say what does not run, why, and what to do.",
     "Examples: resil cron doctor; resil cron doctor --environment; resil cron doctor --json"),
    ("run", cron_steer.run, "Be the scheduler, here in the foreground.",
     "Examples: resil cron run; resil cron run --once; tmux new -d 'resil cron run'"),
    ("tick", cron_steer.tick, "Look once, for any other scheduler to call.",
     "Examples: resil cron tick; resil cron tick --dry-run; "
     "* * * * * /path/to/resil cron tick --config /my/resil.toml"),
    ("stop", cron_steer.stop, "Stop it, until `resil cron install`.",
     'Examples: resil cron stop; resil cron stop --why "maintenance until Friday"; go on: resil cron install'),
    ("uninstall", cron_steer.uninstall, "Undo `resil cron install`.",
     "Examples: resil cron uninstall; resil cron uninstall --dry-run"),
    ("prune", cron_write.prune, "Remove old outputs and histories.",
     "Examples: resil cron prune; resil cron prune --dry-run"),
    ("canary", cron_steer.canary, "Have the scheduler send an alert, to see it arrive.",
     "Examples: resil cron canary; resil cron canary --wait 5m"),
)  # fmt: skip
"""In the order in which people need them."""

for _name, _command, _short, _examples in _COMMANDS:
    app.command(_name, short_help=_short, epilog=_examples)(_command)
app.command("job", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    cron_steer.job
)
