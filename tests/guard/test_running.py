"""The life of a guard: one in a process, closed at the end whatever happens then."""

from __future__ import annotations

from pathlib import Path

import pytest

import resilience.guard
from tests.guard.guards import make_guard, make_run


def test_the_guard_of_this_process_can_be_found_until_it_is_closed() -> None:
    with make_guard() as guard:
        assert resilience.guard.active() is guard
    assert resilience.guard.active() is None


def test_a_fault_while_closing_does_not_turn_a_success_into_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    guard = make_guard(make_run(tmp_path), say=said.append)
    guard.start()
    assert guard._runtime is not None
    closed = guard._runtime.close

    def close_and_fail() -> None:
        closed()
        raise OSError("stale file handle")

    monkeypatch.setattr(guard._runtime, "close", close_and_fail)
    guard.close()
    assert guard.exit_code == 0
    assert any("stale file handle" in sentence for sentence in said)


def test_closing_twice_is_closing_once() -> None:
    guard = make_guard()
    guard.start()
    guard.close()
    guard.close()
    assert resilience.guard.active() is None


def test_a_guard_that_was_never_started_closes_in_silence() -> None:
    make_guard().close()
