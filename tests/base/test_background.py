"""A call that hangs delays its caller by the timeout at most."""

from __future__ import annotations

import threading
import time

import pytest

from resilience.base.background import BackgroundCall

PATIENCE_S = 30.0


def test_a_value_is_returned_and_an_error_is_raised() -> None:
    assert BackgroundCall(lambda: 7, "resil-test").result(PATIENCE_S) == 7
    none: BackgroundCall[None] = BackgroundCall(lambda: None, "resil-test")
    assert none.result(PATIENCE_S) is None

    def fail() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        BackgroundCall(fail, "resil-test").result(PATIENCE_S)


def test_a_call_that_hangs_is_left_behind_and_may_be_asked_again() -> None:
    go = threading.Event()
    call = BackgroundCall(lambda: go.wait(PATIENCE_S), "resil-test")
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        call.result(0.05)
    assert time.monotonic() - started < PATIENCE_S / 2 and not call.is_over
    go.set()
    assert call.result(PATIENCE_S) is True and call.is_over


def test_a_call_that_was_started_is_polled_without_waiting() -> None:
    call = BackgroundCall(lambda: 3, "resil-test").start()
    deadline = time.monotonic() + PATIENCE_S
    while not call.is_over and time.monotonic() < deadline:
        time.sleep(0.001)
    assert call.result() == 3


def test_the_value_of_a_call_that_was_given_up_is_disposed_of() -> None:
    go, disposed = threading.Event(), threading.Event()
    values: list[str] = []

    def work() -> str:
        go.wait(PATIENCE_S)
        return "late"

    def late(value: str) -> None:
        values.append(value)
        disposed.set()

    with pytest.raises(TimeoutError):
        BackgroundCall(work, "resil-test", late=late).result(0.01)
    go.set()
    assert disposed.wait(PATIENCE_S) and values == ["late"]


def test_the_value_of_a_call_in_time_is_not() -> None:
    values: list[int] = []
    assert BackgroundCall(lambda: 1, "resil-test", late=values.append).result(PATIENCE_S) == 1
    time.sleep(0.01)
    assert values == []
