"""One value of a TOML table or an environment variable to the type of a dataclass's field. Pure."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from resilience.errors import QuantityError, SettingsError
from resilience.quantities import parse_bytes, parse_duration_s, parse_percent

_WHOLE = r"\s*-?[0-9]{1,18}\s*"
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
_UNITS: dict[str, tuple[Callable[[str], float], str]] = {
    "_s": (parse_duration_s, 'a duration such as "10m", or a number of seconds'),
    "_bytes": (parse_bytes, 'a size such as "40TiB", or a number of bytes'),
    "_percent": (parse_percent, 'a percentage such as "85%"'),
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
    from difflib import get_close_matches  # only for those who mistype

    from resilience.settings.sections import tables_with

    near = get_close_matches(key.replace("-", "_"), known, n=1, cutoff=0.5)
    homes = " or ".join(f"[{table}]" for table in tables_with(key))
    if homes:
        hint = f"{key} belongs below {homes}{f'; or did you mean {near[0]}?' if near else ''}"
    else:
        hint = f"did you mean {near[0]}?" if near else f"it may have: {', '.join(known)}"
    return SettingsError(f"unknown key {key!r} in {where}", hint=hint)


def convert_value(name: str, value: object, wanted: Any, where: str) -> Any:
    """Given a value, return it as the type wanted. Texts from the environment are understood as well."""
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    for suffix, (parse, example) in _UNITS.items():
        if name.endswith(suffix):
            return _quantity(name, value, parse, example, where)
    if value is None and type(None) in options:
        return None
    if bool in options:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
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
        if isinstance(value, str) and _is_number(value):
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


def _quantity(name: str, value: object, parse: Callable[[str], float], example: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    text = str(value)
    try:
        # A bare number is in the unit that the field's name carries; sizes and percentages read theirs themselves.
        number = float(text) if name.endswith("_s") and _is_number(text) else parse(text)
    except QuantityError as error:
        raise SettingsError(f"{name} = {value!r} in {where}: {error.message}", hint=error.hint) from None
    if not 0 <= number < float("inf"):
        raise SettingsError(f"{name} = {value!r} in {where} must be {example}")
    return number


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
