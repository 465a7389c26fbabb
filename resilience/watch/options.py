"""The options of `resil watch NAME`: one for each field of the plugin's Settings, documented by its docstring. Pure."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
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
        flag: `--warn-percent`. Durations and sizes have no unit in their flag: `--grace 10m`.
        kind: `switch` (--x/--no-x), `text`, `list` (may be repeated) or `table` (KEY=VALUE, may be repeated).
        metavar: the placeholder of the value in the help.
        help: the help text.
        default: the default, formatted for the help; empty without one.
    """

    field: str
    flag: str
    kind: str
    metavar: str
    help: str
    default: str


def options_of(owner: type) -> tuple[Option, ...]:
    """Return the options for a plugin's Settings, in the order of the fields.

    Raise UsageError if Settings is not a dataclass or a field has no default: a watchdog works without configuration.
    """
    try:
        its_fields, types_of = fields(owner), typing.get_type_hints(owner)
    except TypeError as error:
        raise UsageError(f"{owner.__name__} is not a dataclass: {error}") from None
    helps = attributes_of(owner)
    options = []
    for field in its_fields:
        if field.default is MISSING and field.default_factory is MISSING:
            raise UsageError(f"{owner.__name__}.{field.name} has no default")
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        kind = _kind(types_of[field.name])
        metavar = "KEY=VALUE" if kind == "table" else _metavar(field.name, types_of[field.name])
        options.append(
            Option(
                field.name,
                flag_of(field.name),
                kind,
                metavar,
                helps.get(field.name, ""),
                _format_default(field.name, default),
            )
        )
    return tuple(options)


def flag_of(field: str) -> str:
    """Return the flag for a field. For instance, `max_pending_s` is `--max-pending`."""
    return "--" + without_unit(field.replace("_", "-"))


def without_unit(name: str) -> str:
    """Return an option name without its unit: `--grace-s` is accepted as `--grace`."""
    name = name.replace("_", "-")
    for unit in ("-s", "-bytes"):
        if name.endswith(unit) and len(name) > len(unit):
            return name.removesuffix(unit)
    return name


def attributes_of(owner: type) -> dict[str, str]:
    """Return the texts of the fields of a dataclass, from its docstring and those of its bases."""
    return {name: text for one in reversed(owner.__mro__) for name, text in parse_attributes(one.__doc__ or "").items()}


def parse_attributes(docstring: str) -> dict[str, str]:
    """Return the texts of a docstring's section `Attributes:` by field, each as one line."""
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
    return {name: _as_help(text, helps) for name, text in helps.items()}


def _as_help(text: str, fields: Collection[str]) -> str:
    """Return the text of a setting as the sentence of an option: other settings are named by their options."""
    named = re.sub(r"`(\w+)`", lambda match: flag_of(match[1]) if match[1] in fields else match[1], text)
    plain = named.replace("`", "").strip()
    return plain[:1].upper() + plain[1:]


def parse_pairs(option: Option, texts: Sequence[str]) -> dict[str, str]:
    """Return `KEY=VALUE` texts as a table. Raise UsageError if one has another form."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{option.flag} {text!r} is not KEY=VALUE", hint=f"{option.flag} {option.field}=...")
        pairs[key] = value
    return pairs


def absolute_paths(overrides: Mapping[str, object], fields: Sequence[str], here: Path) -> dict[str, object]:
    """Return the overrides with the relative paths in `fields` made absolute, from the current directory `here`.

    Empty texts and those with `~` or `$VARIABLE` are left to the plugin.
    """

    def whole(text: str) -> str:
        is_left = not text.strip() or text.startswith(("/", "~", "$")) or "$" in str(here)
        return text if is_left else str(here / text)

    found = dict(overrides)
    for name in set(fields) & overrides.keys():
        value = overrides[name]
        found[name] = [whole(str(text)) for text in value] if isinstance(value, list | tuple) else whole(str(value))
    return found


def _kind(annotation: Any) -> str:
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if bool in options:
        return "switch"
    origins = {typing.get_origin(option) for option in options}
    if Mapping in origins or dict in origins:
        return "table"
    return "list" if tuple in origins else "text"


def _metavar(field: str, annotation: Any) -> str:
    for unit, metavar in _METAVARS.items():
        if field.endswith(unit):
            return metavar
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return "NUMBER" if int in options or float in options else "TEXT"


def _format_default(field: str, default: Any) -> str:
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
