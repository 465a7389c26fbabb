"""`resil inject list` and `resil inject undo`: the faults that are on, and those that were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from resilience.cli.options import ConfigOption, JsonOption, RunOrAllArgument, completion, open_project
from resilience.cli.output import clean, print_json, print_table
from resilience.errors import NoSuchJob, ResilError, UsageError
from resilience.quantities import format_duration
from resilience.system.ports import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resilience.runs.injections import Injection

listing = typer.Typer(add_completion=False, rich_markup_mode=None)
undoing = typer.Typer(add_completion=False, rich_markup_mode=None)


@listing.command(epilog="Examples: resil inject list; resil inject list gpt --json")
def list_injections(run: RunOrAllArgument = "", as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show the faults that are on, and those that were, of all runs or of one."""
    from resilience.runs.attempts import clock_time
    from resilience.runs.injections import read_injections

    project = open_project(config)
    found = [
        (directory.run, one)
        for directory in ((project.existing(run),) if run else project.runs())
        for one in read_injections(directory)
    ]
    if as_json:
        print_json("injections", {"injections": [{"run": name, **row_of(one)} for name, one in found]})
        return
    if not found:
        print("no fault was injected")
        return
    now = SystemClock().now()  # not the project's: a fault may shift that
    rows = [
        (one.id, name, clock_time(one.begun, now), _state(one, now), one.target)
        for name, one in found
    ]  # fmt: skip
    print_table(("ID", "RUN", "BEGUN", "STATE", "TARGET"), rows)


def _state(one: Injection, now: float) -> str:
    if not one.is_on:
        return "failed" if one.error else "done" if one.until is None else "undone"
    if one.is_overdue(now):
        return "on, overdue"
    return f"on, {format_duration(max(0.0, (one.until or now) - now))} left"


@completion
def complete_ids() -> Iterable[str]:
    """Return the ids of faults that are on."""
    from resilience.runs.injections import read_injections

    return [one.id for directory in open_project().runs() for one in read_injections(directory) if one.is_on]


@undoing.command(epilog="Examples: resil inject undo kill-3fa2; resil inject undo --all")
def undo_injections(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="The fault: see resil inject list.", show_default=False, autocompletion=complete_ids
        ),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Undo all faults of all runs.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Undo a fault that is still on, or all: also those whose injector and keeper were killed."""
    from resilience.inject.injecting import BY_HAND, undo
    from resilience.runs.injections import read_injections

    if bool(name) == everything:
        raise UsageError("name one fault, or all", hint="resil inject undo ID; resil inject undo --all")
    project = open_project(config)
    found = [(directory, one) for directory in project.runs() for one in read_injections(directory)]
    chosen = [(directory, one) for directory, one in found if one.is_on and (everything or one.id == name)]
    if name and not chosen:
        known = next((one for _, one in found if one.id == name), None)
        if known is None:
            raise NoSuchJob(f"there is no injected fault {name}", hint="see: resil inject list")
    undone, failed = [], list[ResilError]()
    for directory, one in chosen:
        try:
            undone.append((directory.run, undo(project, directory, one, BY_HAND)))
        except ResilError as error:  # the others are undone
            failed.append(error)
    if as_json:
        print_json("injections", {"injections": [{"run": run, **row_of(one)} for run, one in undone]})
    else:
        for run, one in undone:
            print(f"{clean(run)}: {clean(one.id)} undone" + (f": {clean(one.undoes)}" if one.undoes else ""))
        if not undone and not failed:
            print("nothing is on" if everything else f"{clean(name)} is not on")
    if failed:
        raise ResilError("; ".join(error.message for error in failed), hint=failed[0].hint)


def row_of(one: Injection) -> dict[str, Any]:
    """Return what the JSON of commands has of an injection."""
    return {"id": one.id, "fault": one.fault, "target": one.target, "does": one.does, "undoes": one.undoes,
            "begun": one.begun, "until": one.until, "ended": one.ended, "how": one.how, "error": one.error,
            "by": one.by, "host": one.host, "job": one.job, "attempt": one.attempt}  # fmt: skip
