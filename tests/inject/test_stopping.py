"""The program on the node that stops processes and lets them go on: by itself, with nobody left to ask it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import descendants, is_stopped, start_ticks
from resilience.inject import stopping
from tests.lab.waiting import until


@contextmanager
def stopped(
    record: Path, *, left_s: float = 600.0, shift: int = 0, factor: float = 0.0
) -> Iterator[tuple[Any, Any, str]]:
    """A process that was stopped, the program that did it, and what that says. `shift`: of the start it is told."""
    record.write_text('{"ended": null, "how": ""}')
    victim = subprocess.Popen(["sleep", "600"])
    pids = {"n1": [[victim.pid, (start_ticks(victim.pid) or 0) + shift]]}
    order = {"record": str(record), "left_s": left_s, "pids": pids, "factor": factor}
    holder = subprocess.Popen(
        [sys.executable, "-m", "resilience.inject.stopping", json.dumps(order), "n1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        yield victim, holder, holder.stdout.readline()
    finally:
        for pid in (victim.pid, holder.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for one in (holder.stdin, holder.stdout):
            one.close()  # type: ignore[union-attr]
        victim.wait()
        holder.wait()


def end_record(holder: Any, record: Path) -> None:
    record.with_suffix(".new").write_text('{"ended": null, "how": "undone by hand"}')
    record.with_suffix(".new").rename(record)


WAYS: dict[str, Callable[[Any, Path], None]] = {
    "the injector or its srun has closed the pipe": lambda holder, record: holder.stdin.close(),
    "the record says so": end_record,
    "SIGTERM": lambda holder, record: holder.terminate(),
    "SIGHUP": lambda holder, record: holder.send_signal(signal.SIGHUP),
    "SIGKILL": lambda holder, record: holder.kill(),
    "SIGKILL of its twin": lambda holder, record: os.kill(descendants(holder.pid)[0], signal.SIGKILL),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_process_goes_on_whatever_becomes_of_those_who_asked_for_it(way: str, tmp_path: Path) -> None:
    record = tmp_path / "stop-1.json"
    with stopped(record) as (victim, holder, said):
        assert said == "ready\n"
        until(lambda: is_stopped(victim.pid), "the process to stop")
        WAYS[way](holder, record)
        until(lambda: not is_stopped(victim.pid), "the process to go on")
        until((tmp_path / "stop-1.n1").exists, "the answer that it goes on")
        holder.wait()
        assert victim.poll() is None


def test_a_stopped_process_goes_on_at_the_end_of_the_time(tmp_path: Path) -> None:
    with stopped(tmp_path / "stop-1.json", left_s=0.2) as (victim, holder, _):
        assert holder.wait(timeout=60) == 0 and not is_stopped(victim.pid)


def test_a_stopped_process_goes_on_although_the_run_directory_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w"):
        monkeypatch.setattr(stopping, "LATE_S", 0.0)
        monkeypatch.setattr(stopping, "read_regular", lambda *_, **__: os.read(read, 1))
        victim = subprocess.Popen(["sleep", "600"])
        order = {"record": str(tmp_path / "stop-1.json"), "left_s": 0.5, "factor": 0.0,
                 "pids": {"n1": [[victim.pid, start_ticks(victim.pid)]]}}  # fmt: skip

        def main() -> None:
            os.dup2(read, 0)
            stopping.main(json.dumps(order), "n1")

        program = multiprocessing.get_context("fork").Process(target=main)
        program.start()
        program.join()
        assert "ready" in capfd.readouterr().out and not is_stopped(victim.pid)
        victim.kill()
        victim.wait()
    os.close(read)


def test_a_slow_process_is_stopped_and_works_in_turn_and_goes_on_in_the_end(tmp_path: Path) -> None:
    with stopped(tmp_path / "slow-1.json", factor=2.0) as (victim, holder, _):
        for _ in range(2):
            until(lambda: is_stopped(victim.pid), "its pause")
            until(lambda: not is_stopped(victim.pid), "its turn")
        holder.terminate()
        assert holder.wait() == 0 and not is_stopped(victim.pid)


def test_a_pid_that_another_process_has_got_is_left_alone(tmp_path: Path) -> None:
    with stopped(tmp_path / "stop-1.json", shift=1) as (victim, holder, said):
        assert "have ended before they got the signal" in said
        assert holder.wait() == 0 and not is_stopped(victim.pid)
