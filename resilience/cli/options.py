"""Typer parts that several commands share: common options, completions, and the project that a command works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from resilience.errors import QuantityError, UsageError
from resilience.quantities import LONGEST_S, format_duration, parse_duration_s, parse_in_unit, parse_number
from resilience.runs.project import Project
from resilience.system.ports import System

Completion = Callable[[str], list[str]]


def single_command(epilog: str, **options: Any) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a Typer app of one function: a top-level command of `resil`."""

    def make(function: Callable[..., None]) -> typer.Typer:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(epilog=epilog, **options)(function)
        return app

    return make


def ascii_numbers(command: Any) -> Any:
    """Make a command and its subcommands refuse numbers that only Python reads: `1_0`, the digits of other scripts."""

    def convert(kind: Any, value: Any, parameter: Any, context: Any) -> Any:
        if isinstance(value, str):
            try:
                parse_number(value)
            except ValueError:
                kind.fail(f"{value!r} is not a valid {'float' if 'float' in kind.name else 'int'}.", parameter, context)
        return type(kind).convert(kind, value, parameter, context)

    for parameter in command.params:
        if parameter.type.name.startswith(("int", "float")):
            parameter.type.convert = partial(convert, parameter.type)
    for one in getattr(command, "commands", {}).values():
        ascii_numbers(one)
    return command


def completion(names: Callable[[], Iterable[str]]) -> Completion:
    """Make a tab completion of a function that lists names. No error reaches the shell's prompt."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:
            return []

    return complete


@completion
def complete_runs() -> Iterable[str]:
    """Return the names of runs, from local state only, never from the scheduler."""
    return [directory.run for directory in open_project().runs()]


@completion
def complete_templates() -> Iterable[str]:
    """Return the names of templates."""
    from resilience.runs.templates.script import template_library

    return [info.name for info in template_library(open_project()).list()]


ConfigOption = Annotated[
    Path | None,
    # Not Typer's parser: it checks the file, which may be on a disk that hangs.
    typer.Option("--config", "-c", metavar="FILE", parser=Path, help="Settings file instead of the resil.toml found."),
]
SchedulerOption = Annotated[
    str, typer.Option("--scheduler", metavar="NAME", help="slurm, local (the embedded one) or auto.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]


def _run_argument(default: str) -> Any:
    return typer.Argument(
        metavar="[RUN]",
        help=f"Name of the run, or a path to its directory. Default: {default}.",
        autocompletion=complete_runs,
        show_default=False,
    )


RunArgument = Annotated[str, _run_argument("this project's run")]
RunOrAllArgument = Annotated[str, _run_argument("all runs")]


def scheduler_override(scheduler: str) -> Mapping[str, str]:
    """Return the setting that `--scheduler` overrides."""
    return {"scheduler.name": scheduler} if scheduler else {}


def open_project(config: Path | None = None, scheduler: str = "", *, banner: bool = True) -> Project:
    """Read the settings and open the project. Raise StateDirectoryError if the state directory does not respond.

    `banner` warns of dead letters; without it, the state directory may hang: `resil alert` uses the fallback directory.
    """
    from resilience.runs.open_project import check_responding, open_in_child

    project = open_in_child(System(), path=config, overrides=scheduler_override(scheduler))
    if banner:
        from resilience.cli.output import warn_of_dead_letters

        check_responding(project)
        warn_of_dead_letters(project, in_child=False)
    return project


def duration_s(
    option: str, text: str, *, least_s: float = 0.0, most_s: float = LONGEST_S, is_plain: bool = False
) -> float:
    """Return the value of an option in seconds; with `is_plain`, a bare number is seconds.

    Raise UsageError, which names the option, if the text is no duration or not within the bounds.
    """
    try:
        seconds = parse_in_unit("_s", text.strip()) if is_plain else parse_duration_s(text)
    except QuantityError as error:
        raise UsageError(f"{option} {text}: {error.message}", hint=error.hint) from None
    if not least_s <= seconds <= most_s:
        raise UsageError(
            f"{option} {text} must be at least {least_s:g} s and at most {format_duration(most_s)}",
            hint=f"{option} {max(10, round(least_s))}s",
        )
    return seconds
