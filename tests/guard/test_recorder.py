"""The recorder never waits, never fails, and keeps a bounded number of events."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import MAX_EVENTS, Recorder, say_on_stderr


def a_recorder() -> tuple[Recorder, list[str]]:
    said: list[str] = []
    return Recorder(RankInfo(rank=3, attempt=2, host="n1"), said.append), said


def test_an_event_has_time_rank_and_host() -> None:
    recorder, _ = a_recorder()
    recorder.event("save", step=7, seconds=0.5)
    [record] = recorder.take()
    assert record.pop("time") > 1.7e9
    assert record == {"event": "save", "attempt": 2, "rank": 3, "host": "n1", "step": 7, "seconds": 0.5}
    assert recorder.take() == []


def test_the_oldest_events_go_first_and_are_counted() -> None:
    recorder, _ = a_recorder()
    for number in range(MAX_EVENTS + 5):
        recorder.event("phase", number=number)
    taken = recorder.take()
    assert (len(taken), recorder.dropped, taken[0]["number"]) == (MAX_EVENTS, 5, 5)


def test_no_event_is_lost_or_doubled_between_threads() -> None:
    recorder, _ = a_recorder()
    taken: list[int] = []
    over = threading.Event()

    def note(first: int) -> None:
        for number in range(first, first + 1000):
            recorder.event("x", number=number)

    def collect() -> None:
        while not over.is_set():
            taken.extend(record["number"] for record in recorder.take())

    collector = threading.Thread(target=collect)
    writers = [threading.Thread(target=note, args=(1000 * index,)) for index in range(4)]
    for thread in (collector, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    collector.join()
    taken.extend(record["number"] for record in recorder.take())
    assert sorted(taken) == list(range(4000))


def test_a_signal_handler_may_note_something_while_its_thread_does() -> None:
    recorder, _ = a_recorder()

    def handler(number: int, frame: FrameType | None) -> None:
        recorder.warn("a signal came", key="signal")
        recorder.event("signal")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(20_000):
            recorder.event("x")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert any(record["event"] == "signal" for record in recorder.take())


def test_a_warning_with_a_key_is_printed_once_by_all_threads_together() -> None:
    recorder, said = a_recorder()
    threads = [threading.Thread(target=recorder.warn, args=("the disk is full", "disk")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.warn("another", key="other")
    recorder.warn("no key")
    recorder.warn("no key")
    assert said == ["warning: the disk is full", "warning: another", "warning: no key", "warning: no key"]
    assert [record["text"] for record in recorder.take()] == ["the disk is full", "another", "no key", "no key"]


def test_a_users_say_that_fails_is_recorded() -> None:
    def say(text: str) -> None:
        raise RuntimeError("the dashboard is down")

    recorder = Recorder(RankInfo(), say)
    recorder.warn("the disk is full")
    assert [record["text"] for record in recorder.take()] == [
        "the disk is full", "say() failed: RuntimeError('the dashboard is down')",
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [None, "closed", "full"])
def test_a_full_stderr_does_not_fail(monkeypatch: pytest.MonkeyPatch, stream: str | None) -> None:
    if stream == "full":
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stderr", full)
            say_on_stderr("hello")
            monkeypatch.undo()
            os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # so that close() can flush
        return
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stream else None)
    say_on_stderr("hello")


def test_a_broken_pipe_behind_stderr_is_no_reason_to_fail(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from resilience.guard.recorder import say_on_stderr\n"
        "read, write = os.pipe(); os.dup2(write, 2); os.close(write); os.close(read)\n"
        "say_on_stderr('hello'); say_on_stderr('again')\n"
        "os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
