"""`resil breaker`: shows which runs are stopped because their attempts failed one after another; closes and opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    RunArgument,
    RunOrAllArgument,
    SchedulerOption,
    open_project,
)
from resilience.cli.output import clean, paint, print_json
from resilience.errors import EX_TEMPFAIL

if TYPE_CHECKING:
    from resilience.attempts.acting import Done

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(
    invoke_without_command=True,
    epilog="Examples: resil breaker; resil breaker close gpt; resil breaker open gpt --why 'wait for the new data'",
)
def breaker_group(context: typer.Context) -> None:
    """Show, close or open the breaker of a run, which holds its jobs when attempts fail one after another.

    Without a command: `resil breaker status`.
    """
    if context.invoked_subcommand is None:
        status()


@app.command(epilog="Examples: resil breaker status; resil breaker status gpt --json")
def status(run: RunOrAllArgument = "", as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show each run's breaker: closed or open, since when, why, and when another attempt may try."""
    from resilience.attempts.breaker import decide, looked_at
    from resilience.attempts.ledger import read_ledger
    from resilience.runs.breaker_file import describe_breaker, last_closed, read_breaker

    project = open_project(config)
    now, settings = project.system.clock.now(), project.loaded.settings.act
    found = []
    for directory in (project.existing(run),) if run else project.runs():
        state = None if directory.is_finished() else read_breaker(directory)
        rows = read_ledger(directory, newest=looked_at(settings))
        decision = decide(rows, settings, now, closed_after=last_closed(directory))
        found.append({"run": directory.run, "open": state, "decision": decision})
        if as_json:
            continue
        if state is None:
            print(f"{clean(directory.run)}  {paint('closed', 'green')}: {clean(decision.reason)}")
        else:
            print(f"{clean(directory.run)}  {paint(clean(describe_breaker(state, now)), 'red')}")
            print(f"  see why: resil why {clean(directory.run)}; continue: resil breaker close {clean(directory.run)}")
    if as_json:
        print_json("breaker", {"enabled": settings.enabled, "runs": found})
    elif not found:
        print("no run has been submitted here yet")
    elif not settings.enabled:
        print("breakers only tell: to let them hold jobs, set enabled = true under [act] in resil.toml")


@app.command(epilog="Examples: resil breaker close; resil breaker close gpt")
def close(run: RunArgument = "", config: ConfigOption = None, scheduler: SchedulerOption = "") -> None:
    """Close the breaker of a run: its held jobs may start, and earlier attempts count no more."""
    from resilience.attempts.acting import close_by_hand

    project = open_project(config, scheduler)
    directory = project.existing(run)
    done = close_by_hand(project, directory)
    print(f"the breaker of {directory.run} is closed")
    _show(done, "released")
    if not done.jobs:
        print(f"  no job of it was held; if none is queued any more: resil submit {directory.run}")


@app.command("open", epilog="Examples: resil breaker open; resil breaker open gpt --why 'wait for the new data'")
def open_it(
    run: RunArgument = "",
    why: Annotated[str, typer.Option("--why", "-m", metavar="TEXT", help="The reason, for other users.")] = "",
    config: ConfigOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Open the breaker of a run: hold its queued jobs. The running job continues; no job is cancelled."""
    from resilience.attempts.acting import open_by_hand

    project = open_project(config, scheduler)
    directory = project.existing(run)
    done = open_by_hand(project, directory, why)
    print(f"the breaker of {directory.run} is open: jobs that start end at once, until: resil breaker close")
    _show(done, "held")


def _show(done: Done, verb: str) -> None:
    if done.jobs:
        print(f"  {verb}: {', '.join(map(str, done.jobs))}")
    if done.changed:
        print(f"  {clean(done.changed)}")
    if done.error:
        print(f"  not all jobs were {verb}: {clean(done.error)}")
        raise typer.Exit(EX_TEMPFAIL)
