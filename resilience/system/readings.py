"""Readings as plain data, to pass from a child and to remember from tick to tick."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

ReadingT = TypeVar("ReadingT")


def to_record(reading: Any) -> dict[str, Any]:
    """The fields of a reading. Its values are plain already: see ports.Check."""
    return {field.name: getattr(reading, field.name) for field in fields(reading)}


def from_record(owner: type[ReadingT], record: dict[str, Any]) -> ReadingT:
    """The reading that `to_record` took apart; JSON's lists become tuples again, and unknown keys are passed over.

    Raise TypeError if a field without a default is missing: the record is of another version.
    """
    known = {field.name for field in fields(owner)}  # type: ignore[arg-type]
    return owner(**{key: _tupled(value) for key, value in record.items() if key in known})


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value
