"""Converts dataclasses and named tuples to plain JSON values and back. Pure.

Records of earlier and later versions are accepted: a missing field has its default, and unknown keys are ignored.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import partial
from math import isfinite
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")
Converter = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, type(None))
_NESTED = (list, tuple, dict)


def to_record(value: Any, *, complete: bool = False) -> dict[str, Any]:
    """Return the fields of a dataclass or named tuple that differ from their defaults, as JSON values.

    Enumerations become their values, nested dataclasses become records. `complete`: include all fields, for readers
    that do not know the defaults.
    """
    return {
        name: item if type(item) in _PLAIN else _plain(item, complete)
        for name, default in defaults_of(type(value)).items()
        if (item := getattr(value, name)) != default or complete
    }


def to_json(record: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Return a record as JSON with a line end, unescaped where possible so that `cat` shows readable text."""
    layout: dict[str, Any] = {"indent": indent, "separators": None if indent else (",", ":")}
    try:
        return json.dumps(record, ensure_ascii=False, **layout).encode() + b"\n"
    except UnicodeEncodeError:  # a file name that is not valid text
        return json.dumps(record, **layout).encode() + b"\n"


def from_record(
    owner: type[ValueT], record: Mapping[str, Any], *, strict: bool = False, lenient: bool = False
) -> ValueT:
    """Return the value of a record from `to_record`, also after a JSON round trip; lists become tuples.

    A field annotated as enumeration, dataclass or named tuple (also `X | None`, `tuple[X, ...]`) is converted. Raise
    TypeError if a field without default is missing (a record of another version), or a nested value is not a record;
    ValueError if an enumeration has no such value.

    `strict`: also raise TypeError if a value has the wrong type, and ValueError if a number is not finite.
    `lenient`: use the default of a field whose value is invalid.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"{type(record).__name__} is not a record of {owner.__name__}")
    names, converters = defaults_of(owner), _converters_of(owner, strict)
    values = {}
    for key, value in record.items():
        if key in converters:
            try:
                values[key] = converters[key](value)
            except (TypeError, ValueError) as error:
                if not lenient:
                    raise type(error)(f"{key}: {error}") from None
        elif key in names:
            values[key] = _tupled(value) if type(value) in _NESTED else value
    return owner(**values)


_defaults: dict[type, dict[str, Any]] = {}
_converters: dict[tuple[type, bool], dict[str, Converter]] = {}


def defaults_of(owner: type) -> Mapping[str, Any]:
    """Return the fields of a dataclass or named tuple with their defaults; MISSING for fields without default.

    A `default_factory` does not count: such a field is always written. Raise TypeError if `owner` is neither.
    """
    if owner not in _defaults:  # cached: ten thousand readings have the same class
        if is_dataclass(owner):
            _defaults[owner] = {field.name: field.default for field in fields(owner) if field.init}
        elif hasattr(owner, "_field_defaults"):
            _defaults[owner] = {name: owner._field_defaults.get(name, MISSING) for name in owner._fields}  # type: ignore[attr-defined]
        else:
            raise TypeError(f"{owner.__name__} is neither a dataclass nor a named tuple")
    return _defaults[owner]


def _converters_of(owner: type, strict: bool) -> Mapping[str, Converter]:
    """Return the converters of the fields that need one. If annotations cannot be resolved, no field is converted."""
    if (owner, strict) not in _converters:
        try:
            hints = typing.get_type_hints(owner)
        except (NameError, AttributeError, TypeError, SyntaxError):  # names imported for type checking only
            if strict:
                raise
            hints = {}
        found = {name: _converter(hint, strict) for name, hint in hints.items() if name in defaults_of(owner)}
        _converters[owner, strict] = {name: converter for name, converter in found.items() if converter is not None}
    return _converters[owner, strict]


def _converter(hint: Any, strict: bool) -> Converter | None:
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        options = [option for option in arguments if option is not types.NoneType]
        inner = [found for option in options if (found := _converter(option, strict)) is not None]
        return (lambda value: None if value is None else inner[0](value)) if len(inner) == 1 else None
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is ...:
        each = _converter(arguments[0], strict)
        if each is None:
            return None
        return lambda value: tuple(each(item) for item in (_typed(list, value) if strict else value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if isinstance(hint, type) and (is_dataclass(hint) or hasattr(hint, "_field_defaults")):
        return lambda value: from_record(hint, value, strict=strict)
    if not strict:
        return None
    return _finite if hint is float else partial(_typed, hint)


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:80]!r} is no {kind.__name__}")
    return value


def _finite(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{str(value)[:80]!r} is no number")
    try:
        if isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError("the number is not finite")


def _plain(value: Any, complete: bool) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) or hasattr(value, "_field_defaults"):
        return to_record(value, complete=complete)
    if isinstance(value, list | tuple):
        return [_plain(item, complete) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, complete) for key, item in value.items()}
    return value


def _tupled(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tupled(item) for item in value)
    if isinstance(value, dict):
        return {key: _tupled(item) for key, item in value.items()}
    return value
