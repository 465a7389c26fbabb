"""The options of `resil watch NAME`: made of the fields of the plugin's Settings, their help of its docstring. Pure."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from resilience.errors import UsageError
from resilience.quantities import format_bytes, format_duration

_ATTRIBUTE = re.compile(r"^(\w+(?:, ?\w+)*):\s*(.*)$")
_METAVARS = {"_s": "DURATION", "_bytes": "SIZE", "_percent": "PERCENT"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        field: the field of Settings.
        flag: as it is typed: `--warn-percent`. A duration and a size are typed without their unit, `--grace 10m`.
        kind: `switch` (--x/--no-x), `text`, `list` (may be repeated) or `table` (KEY=VALUE, may be repeated).
        metavar: what its value is, for the help.
        help: what it does.
        default: as a person reads it; empty where there is none.
    """

    field: str
    flag: str
    kind: str
    metavar: str
    help: str
    default: str


def options_of(owner: type) -> tuple[Option, ...]:
    """Given a plugin's Settings, return its options, in the order of the fields.

    Raise UsageError if it is no dataclass, or a field has no default: a watchdog works without configuration.
    """
    try:
        its_fields, types_of = fields(owner), typing.get_type_hints(owner)
    except TypeError as error:
        raise UsageError(f"{owner.__name__} is no dataclass: {error}") from None
    helps = parse_attributes(owner.__doc__ or "")
    options = []
    for field in its_fields:
        if field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{owner.__name__}.{field.name} has no default")
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        kind = _kind(types_of[field.name])
        metavar = "KEY=VALUE" if kind == "table" else _metavar(field.name, types_of[field.name])
        options.append(
            Option(
                field.name, flag_of(field.name), kind, metavar, helps.get(field.name, ""), _shown(field.name, default)
            )
        )
    return tuple(options)


def flag_of(field: str) -> str:
    """Given a field, return its option. For instance, `max_pending_s` is `--max-pending`."""
    return "--" + shorter(field.replace("_", "-"))


def shorter(name: str) -> str:
    """Given an option as it may be typed, return it without its unit: both ways are understood."""
    name = name.replace("_", "-")
    for unit in ("-s", "-bytes"):
        if name.endswith(unit) and len(name) > len(unit):
            return name.removesuffix(unit)
    return name


def parse_attributes(docstring: str) -> dict[str, str]:
    """Given a docstring with a section `Attributes:`, return what it says of each, on one line."""
    _, found, section = docstring.partition("Attributes:\n")
    helps: dict[str, str] = {}
    names: list[str] = []
    depth: int | None = None
    for line in section.split("\n") if found else ():
        text = line.strip()
        if not text:
            continue
        indent = len(line) - len(line.lstrip())
        depth = indent if depth is None else depth
        if indent < depth:
            break
        match = _ATTRIBUTE.match(text) if indent == depth else None
        if match is not None:
            names = [name.strip() for name in match[1].split(",")]
            helps |= dict.fromkeys(names, match[2])
        else:
            helps |= {name: f"{helps[name]} {text}" for name in names}
    return {name: text.replace("`", "").strip() for name, text in helps.items()}


def parse_pairs(option: Option, texts: Sequence[str]) -> dict[str, str]:
    """Given `KEY=VALUE` texts, return the table. Raise UsageError if one is none."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option.flag} {text!r} is no KEY=VALUE", hint=f"{option.flag} {option.field}=...")
        pairs[key] = value
    return pairs


def from_here(overrides: Mapping[str, object], fields: Sequence[str], here: Path) -> dict[str, object]:
    """Given what was typed, return it with relative paths in `fields` as from the current directory, where shells
    count.

    `~`, `$VARIABLE` and what is empty are left as they are: the plugin knows.
    """

    def whole(text: str) -> str:
        is_left = not text.strip() or text.startswith(("/", "~", "$")) or "$" in str(here)
        return text if is_left else str(here / text)

    found = dict(overrides)
    for name in set(fields) & overrides.keys():
        value = overrides[name]
        found[name] = [whole(str(text)) for text in value] if isinstance(value, list | tuple) else whole(str(value))
    return found


def _kind(wanted: Any) -> str:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if bool in options:
        return "switch"
    origins = {typing.get_origin(option) for option in options}
    if Mapping in origins or dict in origins:
        return "table"
    return "list" if tuple in origins else "text"


def _metavar(field: str, wanted: Any) -> str:
    for unit, metavar in _METAVARS.items():
        if field.endswith(unit):
            return metavar
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    return "NUMBER" if int in options or float in options else "TEXT"


def _shown(field: str, default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, int | float):
        if field.endswith("_s"):
            return format_duration(default)
        if field.endswith("_bytes"):
            return format_bytes(default)
        return f"{default:g}%" if field.endswith("_percent") else f"{default:g}"
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return default if isinstance(default, str) else ""
