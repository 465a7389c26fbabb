"""The guard of free-threaded interpreters. Here the interpreter has its lock: only the choice and the answers show."""

from __future__ import annotations

import sys

import pytest

from resilience.guard.training_guard import LockedTrainingGuard
from tests.guard.guards import Wisher, make_guard, train, wait_until


@pytest.fixture(autouse=True)
def no_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def test_it_is_chosen_where_there_is_no_interpreter_lock() -> None:
    guard = make_guard()
    assert isinstance(guard, LockedTrainingGuard)
    assert guard.lock is not None


def test_it_counts_and_decides_like_the_other() -> None:
    with make_guard(triggers=[wisher := Wisher()]) as guard:
        assert not any(guard.step() for _ in range(1000))
        assert (guard.count, guard.beat[0]) == (1000, 1000)
        wisher.wish = "enough"
        wait_until(lambda: guard.poll().stop)
        assert train(guard).save


def test_its_limits_are_written_and_its_position_read_under_the_lock() -> None:
    guard = make_guard()
    guard.start()
    try:
        with guard.lock:
            assert guard.lock.locked()
        guard.hold(5, 6)
        assert (guard.limit, guard.poll_limit) == (5, 6)
        assert guard.position() == (0, 0)
    finally:
        guard.close()
