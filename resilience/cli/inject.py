"""`resil inject`: one command per fault, generated from its plugin; and what is on, and undoing it."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from resilience.cli.inject_records import row_of
from resilience.cli.options import (
    ConfigOption,
    JsonOption,
    ascii_numbers,
    complete_runs,
    completion,
    duration_s,
    open_project,
)
from resilience.cli.output import clean, folded, print_json, say
from resilience.cli.plugin_options import overrides_of, parameter, parameter_of
from resilience.errors import ResilError
from resilience.inject import fault_plugins, typed, written
from resilience.messages import nearest
from resilience.quantities import format_duration
from resilience.watch.options import options_of, without_unit

if TYPE_CHECKING:
    from resilience.inject.injecting import Prepared, Running
    from resilience.runs.injections import Injection
    from resilience.runs.project import Project
    from resilience.runs.run_directory import RunDirectory

EPILOG = "Examples: resil inject kill --rank 3; resil inject list; resil inject undo --all; resil inject kill --help"
RESERVED = frozenset({"--for", "--dry-run", "--json", "--config", "--help"})
"""Options of every fault: no field of its Settings may have such a name."""
OTHERS: dict[str, tuple[str, str]] = {
    "checkpoint": ("resilience.cli.inject_checkpoint:app", "Alter a copy of a checkpoint bit by bit."),
    "preload": ("resilience.cli.inject_preload:app", "Start a command whose file operations can be made to fail."),
    "list": ("resilience.cli.inject_records:listing", "Show the faults that are on, and those that were."),
    "undo": ("resilience.cli.inject_records:undoing", "Undo faults that are still on."),
}
"""Commands that are no faults of this kind: module and Typer app, and summary. Imported when they are called."""

_For = Annotated[str, typer.Option("--for", metavar="DURATION", help="How long the fault lasts.", show_default=False)]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


class InjectGroup(TyperGroup):
    """Lists the faults: plugins, and the commands beside them, which the reference of commands describes."""

    fixed = tuple(OTHERS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return [*map(typed, fault_plugins().names()), *OTHERS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a fault; None for an unknown name."""
        if cmd_name in OTHERS:
            module, _, app = OTHERS[cmd_name][0].partition(":")
            command = ascii_numbers(typer.main.get_command(getattr(import_module(module), app)))
            command.name = cmd_name
            return command
        return (
            _command_of(cmd_name, fault_plugins().load(written(cmd_name)))
            if cmd_name in self.list_commands(ctx)
            else None
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command, or fail with the nearest name."""
        if args and args[0] not in (names := self.list_commands(ctx)) and not args[0].startswith("-"):
            near = nearest(args[0], names, cutoff=0.6)
            ctx.fail(f"there is no fault {args[0]!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries."""
        rows = []
        for name in fault_plugins().names():
            try:
                summary = fault_plugins().load(name).summary
            except ResilError as error:
                summary = error.message
            rows.append((typed(name), summary[:1].upper() + summary[1:] + "."))
        with formatter.section("Faults"):
            formatter.write_dl(rows)
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in OTHERS.items()])


app = typer.Typer(cls=InjectGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback(epilog=EPILOG, subcommand_metavar="NAME [ARGS]...")
def inject_group() -> None:
    """Break a run of your own on purpose, to see what survives; and undo that.

    Faults only hit runs with allow_inject = true below [run]; checkpoint alters copies, and needs no permission. Each
    fault is undone at the end of its time, at Ctrl-C, and if this command is killed.
    """


def _command_of(name: str, fault: Any) -> Any:
    """Make the command of one fault."""
    options = [option for option in options_of(fault.Settings) if option.flag not in RESERVED]
    parameters = []
    if fault.argument:
        help_text = next(option.help for option in options if option.field == fault.argument)
        argument = typer.Argument(
            metavar=fault.argument.upper(), show_default=False, help=help_text,
            autocompletion=completion(lambda: getattr(fault, "choices", ())),
        )  # fmt: skip
        parameters.append(parameter(f"field_{fault.argument}", Annotated[str, argument]))
        options = [option for option in options if option.field != fault.argument]
    run = typer.Argument(
        metavar="[RUN]", help="Name of the run, or a path to its directory. Default: this project's run.",
        autocompletion=complete_runs, show_default=False,
    )  # fmt: skip
    parameters.append(parameter("run", Annotated[str, run], ""))
    parameters += [parameter_of(option, is_plain=True) for option in options]
    if fault.length_s:
        for_text = f"How long the fault lasts (default: {format_duration(fault.length_s)})"
        option = typer.Option("--for", metavar="DURATION", help=for_text, show_default=False)
        parameters.append(parameter("length", Annotated[str, option], ""))
    parameters.append(parameter("dry_run", _DryRun, False))
    parameters.append(parameter("as_json", JsonOption, False))
    parameters.append(parameter("config", ConfigOption, None))

    def command(**given: Any) -> None:
        overrides = overrides_of(options_of(fault.Settings), "", given)
        project = open_project(given["config"])
        directory = project.existing(given["run"])
        length_s = duration_s("--for", given["length"], least_s=0.1, is_plain=True) if given.get("length") else None
        _inject(project, directory, name, overrides, length_s, is_dry=given["dry_run"], as_json=given["as_json"])

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__doc__ = f"{fault.summary[:1].upper()}{fault.summary[1:]}."
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    decorate: Any = made.command(
        name, epilog=f"Examples: {fault.example}", context_settings={"token_normalize_func": without_unit}
    )
    decorate(command)
    return ascii_numbers(typer.main.get_command(made))


def _inject(
    project: Project,
    directory: RunDirectory,
    name: str,
    overrides: Mapping[str, object],
    length_s: float | None,
    *,
    is_dry: bool,
    as_json: bool,
) -> None:
    from resilience.inject.injecting import inject, prepare, undo_overdue

    if not is_dry:
        for one in undo_overdue(project, directory):
            say(f"undone, as nobody had: {one.id}, {one.undoes}")
    prepared = prepare(project, directory, name, overrides, length_s)
    if is_dry:
        if as_json:
            print_json("injection", {"dry_run": True, "run": directory.run, "fault": prepared.name,
                                     "length_s": prepared.length_s, **_plan(prepared)})  # fmt: skip
        else:
            _print_plan(prepared, directory.run)
        return
    with _interrupted_by_signals():
        injection = _keep(inject(prepared), prepared, is_quiet=as_json)
    if as_json:
        print_json(
            "injection", {"dry_run": False, "run": directory.run, **row_of(injection), "notes": prepared.plan.notes}
        )
    elif injection.until is not None:
        print(f"undone: {clean(injection.undoes)}")
    if injection.how == _INTERRUPTED:
        raise typer.Exit(130)


_INTERRUPTED = "its injector was interrupted"


def _keep(running: Running, prepared: Prepared, *, is_quiet: bool) -> Injection:
    """Wait until the fault's time is over, or undo it at Ctrl-C. A signal before that is the keeper's to see."""
    try:
        if not is_quiet:
            _print_begun(prepared, running.injection)
        return running.wait()
    except KeyboardInterrupt:
        return running.undo(_INTERRUPTED)
    except BaseException:  # a closed pipe of standard output, for instance
        with suppress(ResilError):
            running.undo("its injector failed")
        raise


class _interrupted_by_signals:
    """SIGTERM and SIGHUP end the wait as Ctrl-C does, so that the fault is undone before this command ends."""

    def __enter__(self) -> None:
        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        self._before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _plan(prepared: Prepared) -> dict[str, Any]:
    plan = prepared.plan
    return {"target": plan.target, "does": plan.does, "undoes": plan.undoes, "notes": plan.notes, "job": prepared.job,
            "attempt": prepared.attempt}  # fmt: skip


def _print_plan(prepared: Prepared, run: str) -> None:
    plan = prepared.plan
    lines = [f"would do to run {run}: {prepared.name}", f"  {plan.does}"]
    if prepared.length_s:
        lines.append(f"  after {format_duration(prepared.length_s)}: {plan.undoes}")
    _print_lines([*lines, *(f"  {note}" for note in plan.notes)])


def _print_begun(prepared: Prepared, injection: Injection) -> None:
    lines = [f"{injection.id}: {injection.does}", *(f"  {note}" for note in prepared.plan.notes)]
    if injection.is_on:
        length = format_duration(prepared.length_s)
        lines.append(f"  for {length}, then: {injection.undoes}. Ctrl-C undoes it now")
    _print_lines(lines)


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        indent = len(line) - len(line.lstrip())
        print("\n".join(folded(clean(line.strip()), indent)), flush=True)
