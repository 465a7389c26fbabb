"""The search forgets nothing: every attribute of the protocol's objects is copied, and tells two worlds apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.rounds import OpenRound
from resilience.guard.decision import Decision
from resilience.guard.gate import Gate
from tests.guard.agreement.explorer import Case, explore
from tests.guard.agreement.sample_messages import SAVE, done, join, prepare, promise
from tests.guard.agreement.states import FOR_OTHERS, SAID, changed_tables, copied, key_of

Place = tuple[Any, str]


def busy_coordinator() -> Coordinator:
    """Rank 0 in the middle of everything: each of its parts is there, and has something in it."""
    members = [Member(Gate(), rank, f"life{rank}") for rank in range(3)]
    coordinator = Coordinator(3)
    for rank, member in enumerate(members):
        for message in member.join():
            coordinator.receive(rank, message, 0.0)
    for message in members[1].request(SAVE):
        coordinator.receive(1, message, 0.0)
    for rank in range(3):
        coordinator.receive(rank, promise(rank), 0.0)
    coordinator.receive(0, done(), 0.0)
    coordinator.receive(2, join(2, "later", round=7, state="promised"), 0.0)
    coordinator.decide_start(Decision())
    coordinator.events = []  # the host has taken them
    assert isinstance(coordinator._open, OpenRound)
    assert coordinator._open.is_committed
    return coordinator


def busy_member() -> Member:
    member = Member(Gate(), 1, "life1")
    member.gate.count = 5
    member.request(SAVE)
    member.receive(prepare())
    return member


def places(thing: Any, path: str = "") -> Iterator[Place]:
    """Every attribute of an object and of its parts: whose it is, and its name."""
    names = (
        [name for name in type(thing).__slots__ if name not in FOR_OTHERS] if isinstance(thing, Gate) else vars(thing)
    )
    for name in names:
        value = getattr(thing, name)
        yield thing, name
        if isinstance(value, Gate) or hasattr(value, "__dict__"):
            yield from places(value)


def change(value: Any) -> Any:
    """Another value, as different as one move can make it."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return 1.0 if value == float("-inf") else value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, 1)
    if isinstance(value, list):
        return [*value, "x"]
    if isinstance(value, set):
        return value | {99}
    if isinstance(value, dict):
        return {**value, "x": 1}
    return None


@pytest.mark.parametrize("make", [busy_coordinator, busy_member])
def test_two_worlds_that_differ_in_one_attribute_have_different_keys(make: Callable[[], Any]) -> None:
    count = len(list(places(make())))
    assert count > 15
    for index in range(count):
        thing = make()
        before = key_of(thing)
        owner, name = list(places(thing))[index]
        setattr(owner, name, change(getattr(owner, name)))
        assert key_of(thing) != before, f"{type(owner).__name__}.{name} is not in the key"


@pytest.mark.parametrize("make", [busy_coordinator, busy_member])
def test_to_change_a_copy_changes_no_other_world(make: Callable[[], Any]) -> None:
    thing = make()
    before = key_of(thing)
    assert key_of(copied(thing)) == before
    count = len(list(places(thing)))
    for index in range(count):
        owner, name = list(places(copied(thing)))[index]
        value = getattr(owner, name)
        if isinstance(value, dict) and name not in SAID:
            for inner in value.values():
                if isinstance(inner, list | dict | set):
                    inner.clear()
            value.clear()
        elif isinstance(value, list | set):
            value.clear()
        else:
            setattr(owner, name, change(value))
        assert key_of(thing) == before, f"{type(owner).__name__}.{name} is shared"


def test_tables_that_travel_are_changed_by_nobody() -> None:
    """Copies share them, and the search remembers them as text."""
    explore(Case(ranks=2, steps=2, requests=((1, SAVE),), breaks=1))
    assert changed_tables() == []


def test_a_time_is_the_same_to_all_who_wait_equally_long() -> None:
    early, late = (OpenRound(deadline) for deadline in (10.0, 110.0))
    assert key_of(early, 5.0) == key_of(late, 105.0) != key_of(early, 6.0)
    assert key_of(early, 11.0) == key_of(early, 12.0), "it is over"


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(TypeError):
        copied(object())
