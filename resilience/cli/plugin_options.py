"""The options of commands that are made for plugins, from the fields of their Settings: watchdogs and faults."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from resilience.watch.options import Option, parse_pairs


def parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter of a command that is made for a plugin."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def parameter_of(option: Option, *, is_plain: bool = False) -> inspect.Parameter:
    """Return the parameter of an option; with `is_plain`, a switch has no `--no-x`."""
    text = f"{option.help} (default: {option.default})" if option.default else option.help
    name = f"field_{option.field}"
    if option.kind == "switch":
        flags = typer.Option(
            option.flag if is_plain else f"{option.flag}/--no-{option.flag[2:]}",
            help=option.help if is_plain else text, show_default=False,
        )  # fmt: skip
        return parameter(name, Annotated[bool | None, flags], None)
    described = typer.Option(option.flag, help=text, metavar=option.metavar, show_default=False)
    is_many = option.kind in ("list", "table")
    return parameter(name, Annotated[(list[str] if is_many else str) | None, described], None)


def overrides_of(options: Sequence[Option], argument: str, given: dict[str, Any]) -> dict[str, object]:
    """Return the fields of the settings that the command line overrides."""
    overrides: dict[str, object] = {}
    for option in options:
        value = given.get(f"field_{option.field}")
        if option.kind in ("list", "table") and value:
            overrides[option.field] = parse_pairs(option, value) if option.kind == "table" else list(value)
        elif value is not None and value != []:
            overrides[option.field] = value
    if words := given.get("words"):
        overrides[argument] = [*words, *overrides.get(argument, [])]  # type: ignore[misc]
    return overrides
