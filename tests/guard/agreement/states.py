"""Copies and keys of the protocol's objects, made of all attributes that they have: none can be forgotten."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.decision import Decision, Request
from resilience.guard.gate import Gate

PLAIN = frozenset((int, float, str, bool, type(None)))
NEVER_CHANGED = frozenset((*PLAIN, tuple, Request, Decision, AgreementEvent))
"""By convention: whoever wants another one makes another one."""

FOR_OTHERS = frozenset(("beat", "lock"))
"""Attributes of a gate that the protocol neither reads nor writes."""

SAID = frozenset(("verdict", "_done", "_goodbye"))
"""Attributes that hold a table as it travels. Such tables are shared, because nobody changes them once they are made:
`changed_tables` tells whether that is so."""

DEADLINES = frozenset(("deadline", "retry_at"))
MOMENTS = frozenset(("_missing_since", "_skewed_since"))
TIMES = DEADLINES | MOMENTS
"""Attributes that hold a time. What lies ahead of it is the same in an hour, so keys count from now."""

# What has slots holds plain things and tuples of these alone.
_read_slots: dict[type, Any] = {
    kind: operator.attrgetter(*(name for name in kind.__slots__ if name not in FOR_OTHERS))
    for kind in (Gate, Request, Decision)
}
_written: dict[int, tuple[Any, str]] = {}


def copied(thing: Any) -> Any:
    """A copy that can be changed without changing `thing`. Raise TypeError for what is nobody's state."""
    kind = type(thing)
    if kind in NEVER_CHANGED:
        return thing
    if kind is dict:
        return {name: copied(value) for name, value in thing.items()} if thing else {}
    if kind is list:
        return [copied(value) for value in thing] if thing else []
    if kind is set:
        return set(thing)
    if kind is Gate:
        gate = Gate.__new__(Gate)
        for name in Gate.__slots__:
            setattr(gate, name, getattr(thing, name))
        return gate
    attributes = vars(thing)  # without attributes it is no state: TypeError
    other = object.__new__(kind)
    mine = other.__dict__
    mine.update(attributes)
    for name, value in attributes.items():
        if type(value) not in NEVER_CHANGED and name not in SAID:
            mine[name] = copied(value)
    return other


def key_of(thing: Any, now: float = 0.0) -> Hashable:
    """Something that is equal for things which behave equally from `now` on."""
    kind = type(thing)
    if kind in PLAIN:
        return thing  # type: ignore[no-any-return]
    if kind is tuple or kind is list:
        return tuple([value if type(value) in PLAIN else key_of(value, now) for value in thing])
    if kind is dict:
        return frozenset([(name, key_of(value, now)) for name, value in thing.items()]) if thing else None
    if kind is set:
        return frozenset(thing) if thing else None
    if kind in _read_slots:
        return _read_slots[kind](thing)  # type: ignore[no-any-return]
    return tuple(
        [
            value if type(value) in PLAIN and name not in TIMES else _key_of_attribute(name, value, now)
            for name, value in vars(thing).items()
        ]
    )


def _key_of_attribute(name: str, value: Any, now: float) -> Hashable:
    if name in SAID:
        return written(value)
    if name in DEADLINES:
        return max(0.0, float(value) - now)
    if name in MOMENTS:
        return None if value is None else float(value) - now
    return key_of(value, now)


def written(table: Any) -> str:
    """A table as text, remembered by identity."""
    known = _written.get(id(table))
    if known is None or known[0] is not table:
        known = _written[id(table)] = (table, repr(table))
    return known[1]


def changed_tables() -> list[tuple[Any, str]]:
    """Tables that were changed after they had been made, and what they were."""
    return [(table, text) for table, text in _written.values() if repr(table) != text]
