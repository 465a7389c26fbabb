"""Dataclasses as JSON and back, by the types of their fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, partial
from math import isfinite
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

OwnerT = TypeVar("OwnerT")


def to_record(value: Any) -> Any:
    """Given a dataclass, return it as JSON's own types: a dict, with enums as their values and tuples as lists."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_record(item) for item in value]
    if is_dataclass(value):
        return {name: to_record(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def from_record(owner: type[OwnerT], record: Any, *, lenient: bool = False) -> OwnerT:
    """The dataclass that `to_record` wrote. Raise TypeError or ValueError for any other record.

    Keys of a later version are ignored. `lenient`: a field that cannot be read has its default.
    """
    if not isinstance(record, Mapping):
        raise TypeError(f"{str(record)[:80]!r} is no {owner.__name__}")
    given = {}
    for name, read in _readers(cast("Any", owner)).items():
        if name in record:
            try:
                given[name] = read(record[name])
            except (TypeError, ValueError) as error:
                if not lenient:
                    raise type(error)(f"{name}: {error}") from None
    return owner(**given)


@cache
def _readers(owner: Any) -> dict[str, Callable[[Any], Any]]:
    return {name: _reader(hint) for name, hint in get_type_hints(owner).items()}


def _reader(hint: Any) -> Callable[[Any], Any]:
    if get_origin(hint) is UnionType:  # `X | None`
        (some,) = (_reader(kind) for kind in get_args(hint) if kind is not type(None))
        return lambda value: None if value is None else some(value)
    if get_origin(hint) is tuple:
        item = _reader(get_args(hint)[0])
        return lambda value: tuple(map(item, _typed(list, value)))
    if hint is float:
        return _number
    if is_dataclass(hint):
        return lambda value: from_record(cast("type", hint), value)
    return hint if issubclass(hint, Enum) else partial(_typed, hint)


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:80]!r} is no {kind.__name__}")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{str(value)[:80]!r} is no number")
    try:
        if isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError("the number is not finite")
