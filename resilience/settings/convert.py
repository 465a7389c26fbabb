"""Converts tables of resil.toml, environment variables and command-line values to settings dataclasses. Pure."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from resilience.errors import GuardError, QuantityError, SettingsError
from resilience.messages import cut, nearest
from resilience.quantities import LARGEST_BYTES, LONGEST_S, parse_bool, parse_in_unit, parse_number
from resilience.settings.sections import PluginTable, tables_with

if TYPE_CHECKING:
    from resilience.checkpoints.settings import CheckpointSettings
    from resilience.guard.settings import GuardSettings

_WHOLE = r"\s*-?[0-9]{1,18}\s*"
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
LARGEST_NUMBER = 10**9
"""No count and no factor in the settings is larger."""
_MOST = {"_s": LONGEST_S, "_days": LONGEST_S / 86400, "_bytes": LARGEST_BYTES}
_POSITIVE = frozenset({"beat_s", "deadline_s", "tick_s", "pulse_s"})
"""Of no length, these would make every call fail, or a loop without a pause."""
_UNITS = {
    "_s": 'a duration such as "10m", or a number of seconds',
    "_bytes": 'a size such as "40TiB", or a number of bytes',
    "_percent": 'a percentage such as "85%"',
}


def convert_table(owner: type, table: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, Any]:
    """Return the constructor arguments of the dataclass `owner` for a table.

    Raise SettingsError for an unknown key, naming the nearest, or for a value of the wrong type. `where` returns the
    location of a key for messages: `[run] (resil.toml)`.
    """
    types_of = typing.get_type_hints(owner)
    defaults = {field.name: field.default for field in fields(owner)}
    arguments: dict[str, Any] = {}
    for key, value in table.items():
        if key not in defaults:
            raise unknown_key(key, sorted(defaults), where(key))
        arguments[key] = convert_value(key, value, types_of[key], where(key))
        _refuse_negative(key, arguments[key], defaults[key], where(key))
    return arguments


def _refuse_negative(key: str, value: object, default: object, where: str) -> None:
    """Raise SettingsError for a number below zero, unless the default is one as well: a temperature."""
    known = default if isinstance(default, int | float) else 0
    if isinstance(value, int | float) and value < 0 <= known:
        raise SettingsError(f"{key} = {value:g} in {where} must not be negative", hint=f"{key} = {known:g}")


def refuse_control_characters(name: str, value: object, where: str) -> None:
    """Raise SettingsError for a text with NUL or another control character, except tabs and line ends."""
    if isinstance(value, str) and not value.isprintable() and re.search(_CONTROL, value):
        raise SettingsError(f"{name} = {cut(value, 200)!r} in {where} contains a control character", hint="remove it")


_SYNONYMS = {"directory": "folder", "dir": "folder", "path": "folder"}
"""Words that users write for a key whose spelling is not similar."""


def unknown_key(key: str, known: Sequence[str], where: str) -> SettingsError:
    """Return the error for an unknown key. The hint names the table that has the key, or else the nearest name."""
    written = key.replace("-", "_")
    near = _SYNONYMS.get(written, "")
    near = near if near in known else nearest(written, known)
    is_of_plugin = "." in where.partition("]")[0]  # [channel.pager], [watch.fs]
    homes = "" if is_of_plugin else " or ".join(f"[{table}]" for table in tables_with(key))
    if homes:
        hint = f"{key} belongs below {homes}{f'; or did you mean {near}?' if near else ''}"
    else:
        hint = f"did you mean {near}?" if near else f"known keys: {', '.join(known)}"
    return SettingsError(f"unknown key {key!r} in {where}", hint=hint)


def convert_value(name: str, value: object, expected: Any, where: str) -> Any:
    """Return a value converted to the type `expected`. Strings from the environment are parsed.

    Numbers are finite and within bounds, and texts have no control characters. Raise SettingsError for others.
    """
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,):
        refuse_control_characters(name, item, where)
    options = typing.get_args(expected) if isinstance(expected, types.UnionType) else (expected,)
    if example := next((example for suffix, example in _UNITS.items() if name.endswith(suffix)), ""):
        return _quantity(name, value, example, where)
    if value is None and type(None) in options:
        return None
    if bool in options:
        if isinstance(value, bool):
            return value
        with suppress(ValueError):
            if isinstance(value, str):
                return parse_bool(value)
        raise SettingsError(f"{name} = {value!r} in {where} must be true or false")
    if int in options:
        if isinstance(value, str) and re.fullmatch(_WHOLE, value):
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return _bounded(name, value, where)
        raise SettingsError(f"{name} = {value!r} in {where} must be a whole number")
    if float in options:
        with suppress(ValueError, OverflowError):
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                return float(_bounded(name, parse_number(str(value)), where))
        raise SettingsError(f"{name} = {value!r} in {where} must be a number")
    origins = {typing.get_origin(option) for option in options}
    if Mapping in origins:
        if isinstance(value, dict) and all(isinstance(item, str | int | float) for item in value.values()):
            return {key: str(item) for key, item in value.items()}
        raise SettingsError(f"{name} in {where} must be a table of strings", hint=f'{name} = {{ key = "value" }}')
    if tuple in origins:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"{name} in {where} must be a list of strings", hint=f'{name} = ["...", "..."]')
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # array = 10, without quotes
    raise SettingsError(f"{name} = {value!r} in {where} must be a string", hint=f'{name} = "..."')


def _bounded(name: str, number: float, where: str) -> float:
    most = next((most for suffix, most in _MOST.items() if name.endswith(suffix)), LARGEST_NUMBER)
    if abs(number) > most:
        raise SettingsError(f"{name} = {number:g} in {where} must be at most {most:g}")
    return number


def _quantity(name: str, value: object, example: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    try:
        number = parse_in_unit(name, str(value))
    except QuantityError as error:
        raise SettingsError(f"{name} = {value!r} in {where}: {error.message}", hint=error.hint) from None
    if not 0 <= number <= (LONGEST_S if name.endswith("_s") else LARGEST_BYTES):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    if number == 0 and name in _POSITIVE:
        raise SettingsError(f"{name} = {value!r} in {where} must be more than zero", hint=example)
    return number


def read_table(section: str, name: str, table: Mapping[str, Any], where: str) -> PluginTable:
    """Return a plugin's table with its kind. The keys are checked later, when the plugin reads its table.

    Raise SettingsError if the name is not usable on a command line, a key is given twice, or `kind` is not a string.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SettingsError(f"[{section}.{name}] in {where}: a name has letters, digits, - and _ only")
    kind = table.get("kind", name)
    if not isinstance(kind, str) or not kind:
        raise SettingsError(f"kind = {kind!r} in [{section}.{name}] ({where}) must be a string")
    values: dict[str, Any] = {}
    for key, value in table.items():
        written = key.replace("-", "_")
        if written in values:
            raise SettingsError(
                f"{written!r} in [{section}.{name}] ({where}) is given twice", hint="once with - and once with _"
            )
        values[written] = value
    values.pop("kind", None)
    return PluginTable(kind, values)


def plugin_settings(
    owner: type,
    section: str,
    name: str,
    table: PluginTable | None,
    *,
    origins: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Any:
    """Return a plugin's settings as its dataclass `owner`. `table` is None if the file has no such table.

    `overrides` come from the command line and take precedence. Raise SettingsError for an unknown key, naming the
    nearest, or for a value of the wrong type.
    """
    values = dict(table.values) if table is not None else {}
    places = {key: (origins or {}).get(f"{section}.{name}.{key}", "resil.toml") for key in values}
    for key, value in (overrides or {}).items():
        values[key] = value
        places[key] = "command line"

    def where(key: str) -> str:
        return f"[{section}.{name}] ({places[key]})"

    return owner(**convert_table(owner, values, where))


def convert_guard_table(table: Mapping[str, Any], where: Callable[[str], str]) -> GuardSettings:
    """Return the guard's settings for the table [guard].

    Raise SettingsError for an unknown key, naming the nearest, or for a value that the guard rejects. `where` returns
    the location of a key for messages: `[guard] (resil.toml)`.
    """
    from resilience.guard.settings import GuardSettings, read_settings  # watchdogs do not need the guard's settings

    _check_keys(GuardSettings, lambda one: read_settings({}, **one), table, where)
    return read_settings({}, **table)


def convert_checkpoints_table(table: Mapping[str, Any], where: Callable[[str], str]) -> CheckpointSettings:
    """Return the store's settings for the table [checkpoints]; as `convert_guard_table`."""
    from resilience.checkpoints.settings import CheckpointSettings, read_store_settings

    rule = {"every_steps": 1}  # latest = 0 is valid beside another rule
    _check_keys(CheckpointSettings, lambda one: read_store_settings({}, **{**rule, **one}), table, where)
    try:
        return read_store_settings({}, **table)
    except SettingsError as error:  # keys that contradict each other
        raise SettingsError(f"{error.message}, in {where(next(iter(table)))}", hint=error.hint) from None


def _check_keys(
    owner: type, read: Callable[[dict[str, Any]], object], table: Mapping[str, Any], where: Callable[[str], str]
) -> None:
    """Read each key alone, so that the message names the location of this key."""
    known = sorted(field.name for field in fields(owner))
    for key, value in table.items():
        if key not in known:
            raise unknown_key(key, known, where(key))
        refuse_control_characters(key, value, where(key))
        try:
            read({key: value})
        except (GuardError, SettingsError) as error:
            raise SettingsError(f"{error.message}, in {where(key)}", hint=error.hint) from error
