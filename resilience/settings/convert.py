"""Tables of resil.toml, values of the environment and of the command line to the dataclasses of their owners. Pure."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from resilience.errors import GuardError, QuantityError, SettingsError
from resilience.messages import nearest
from resilience.quantities import parse_bool, parse_in_unit
from resilience.settings.sections import PluginTable, tables_with

if TYPE_CHECKING:
    from resilience.guard.settings import GuardSettings

_WHOLE = r"\s*-?[0-9]{1,18}\s*"
_UNITS = {
    "_s": 'a duration such as "10m", or a number of seconds',
    "_bytes": 'a size such as "40TiB", or a number of bytes',
    "_percent": 'a percentage such as "85%"',
}


def convert_table(owner: type, table: Mapping[str, Any], where: Callable[[str], str]) -> dict[str, Any]:
    """Given a table, return the constructor arguments of its owner.

    Raise SettingsError if a key is unknown, naming the nearest, or a value has the wrong type. `where` names the
    place of a key in messages: `[run] (resil.toml)`.
    """
    types_of = typing.get_type_hints(owner)
    known = {field.name for field in fields(owner)}
    arguments: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise unknown_key(key, sorted(known), where(key))
        arguments[key] = convert_value(key, value, types_of[key], where(key))
    return arguments


def unknown_key(key: str, known: Sequence[str], where: str) -> SettingsError:
    """The error for a key that its table does not have, with the table that does, or else the nearest name."""
    near = nearest(key.replace("-", "_"), known)
    homes = " or ".join(f"[{table}]" for table in tables_with(key))
    if homes:
        hint = f"{key} belongs below {homes}{f'; or did you mean {near}?' if near else ''}"
    else:
        hint = f"did you mean {near}?" if near else f"it may have: {', '.join(known)}"
    return SettingsError(f"unknown key {key!r} in {where}", hint=hint)


def convert_value(name: str, value: object, wanted: Any, where: str) -> Any:
    """Given a value, return it as the type wanted. Texts from the environment are understood as well."""
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
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
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and re.fullmatch(_WHOLE, value):
            return int(value)
        raise SettingsError(f"{name} = {value!r} in {where} must be a whole number")
    if float in options:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        with suppress(ValueError):
            if isinstance(value, str):
                return float(value)
        raise SettingsError(f"{name} = {value!r} in {where} must be a number")
    origins = {typing.get_origin(option) for option in options}
    if Mapping in origins:
        if isinstance(value, dict) and all(isinstance(item, str | int | float) for item in value.values()):
            return {key: str(item) for key, item in value.items()}
        raise SettingsError(f"{name} in {where} must be a table of texts", hint=f'{name} = {{ key = "value" }}')
    if tuple in origins:
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise SettingsError(f"{name} in {where} must be a list of texts", hint=f'{name} = ["...", "..."]')
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # array = 10 is what people write
    raise SettingsError(f"{name} = {value!r} in {where} must be a text", hint=f'{name} = "..."')


def _quantity(name: str, value: object, example: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    try:
        number = parse_in_unit(name, str(value))
    except QuantityError as error:
        raise SettingsError(f"{name} = {value!r} in {where}: {error.message}", hint=error.hint) from None
    if not 0 <= number < float("inf"):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    return number


def read_table(section: str, name: str, table: Mapping[str, Any], where: str) -> PluginTable:
    """Given a table as it was written, return it with its kind. Its keys are looked at when its plugin reads it.

    Raise SettingsError if the name cannot be typed on a command line, a key is written twice, or the kind is no text.
    """
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SettingsError(f"[{section}.{name}] in {where}: a name has letters, digits, - and _ only")
    kind = table.get("kind", name)
    if not isinstance(kind, str) or not kind:
        raise SettingsError(f"kind = {kind!r} in [{section}.{name}] ({where}) must be a text")
    values: dict[str, Any] = {}
    for key, value in table.items():
        written = key.replace("-", "_")
        if written in values:
            raise SettingsError(
                f"{written!r} in [{section}.{name}] ({where}) is written twice", hint="with - and with _"
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
    """Given a plugin's dataclass and its table (None: none was written), return its settings.

    `overrides` are the command line's and win. Raise SettingsError if a key is unknown, naming the nearest, or a value
    has the wrong type.
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
    """Given the table, return the guard's settings.

    Raise SettingsError if a key is unknown, naming the nearest, or if the guard would refuse its value. `where` names
    the place of a key in messages: `[guard] (resil.toml)`.
    """
    from resilience.guard.settings import GuardSettings, read_settings  # a watchdog needs nothing of it

    known = sorted(field.name for field in fields(GuardSettings))
    for key, value in table.items():
        if key not in known:
            raise unknown_key(key, known, where(key))
        try:  # one by one, so that the message can name the place of this very key
            read_settings({}, **{key: value})
        except GuardError as error:
            raise SettingsError(f"{error.message}, in {where(key)}", hint=error.hint) from error
    return read_settings({}, **table)
