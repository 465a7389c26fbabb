"""What is written waits for the disk; who has it written does not."""

from __future__ import annotations

import threading
import time

import pytest

from resilience.cron.table.watched_run import Write
from resilience.errors import StateDirectoryError


def test_writes_come_one_after_the_other_and_a_hung_one_blocks_no_caller() -> None:
    begun, hangs, done = threading.Event(), threading.Event(), list[int]()

    def hang() -> None:
        begun.set()
        hangs.wait(60)
        done.append(1)

    first = Write("write one", hang)
    assert begun.wait(60)
    second = Write("write two", lambda: done.append(2))
    assert first.why_not(time.monotonic() + 0.05) == "cannot write one: the file system does not respond"
    assert (second.is_over, done) == (False, [])
    hangs.set()
    assert second.why_not(time.monotonic() + 60) == "" and done == [1, 2]
    assert first.why_not() == ""


def test_an_error_is_reported_and_ends_no_other_write() -> None:
    def full() -> None:
        raise StateDirectoryError("cannot write /x: No space left on device")

    first, second = Write("write one", full), Write("write two", lambda: 1 / 0)
    third = Write("write three", lambda: None)
    assert third.why_not(time.monotonic() + 60) == ""
    assert first.why_not() == "cannot write /x: No space left on device"
    assert second.why_not() == "cannot write two: ZeroDivisionError: division by zero"


def test_where_there_is_no_room_for_a_thread_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    done: list[int] = []
    assert Write("write", lambda: done.append(1)).is_over and done == [1]
