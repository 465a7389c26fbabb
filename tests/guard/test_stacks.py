"""A separate process writes the stacks, so that a hung file system does not delay the exit."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from resilience.guard import stacks
from resilience.guard.stacks import show_stacks, write_stacks
from tests.lab.disks import needs_fuse
from tests.lab.hung import hung_directory


def test_all_threads_are_appended_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "12.0.stacks"
    assert write_stacks(str(path), "first", 20.0)
    assert write_stacks(str(path), "second", 20.0)
    told = path.read_text()
    assert told.startswith("first\n") and "\nsecond\n" in told
    assert told.count("in test_all_threads_are_appended_to_the_file") == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "fifo", "nothing"])
def test_nothing_but_a_regular_file_is_written_to(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "stacks"
    if kind == "link":
        (tmp_path / "victim").write_text("mine")
        path.symlink_to(tmp_path / "victim")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path = tmp_path / "gone" / "stacks"
    assert not write_stacks(str(path), "head", 20.0)
    if kind == "link":
        assert (tmp_path / "victim").read_text() == "mine"


@needs_fuse
def test_a_dead_file_system_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    known = {child.pid for child in psutil.Process().children()}
    with hung_directory(tmp_path / "hung") as hung:
        known |= {child.pid for child in psutil.Process().children()}
        began = time.monotonic()
        assert not write_stacks(str(hung / "stacks"), "head", 0.3)
        assert time.monotonic() - began < 30.0
    # The directory is released: the writer ends. Other children of this process are other tests'.
    writers = [child for child in psutil.Process().children() if child.pid not in known]
    assert len(writers) == 1
    os.waitpid(writers[0].pid, 0)


def test_a_closed_stderr_loses_only_the_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr("sys.__stderr__", closed)
    monkeypatch.setattr("sys.stderr", closed)
    monkeypatch.setattr("resilience.guard.stacks.stderr_descriptor", lambda: 987_654)
    show_stacks()


@pytest.mark.parametrize(("scope", "named"), [("1\n", [(0x59616D61, 77)]), ("0\n", []), ("3\n", []), (None, [])])
def test_a_reader_is_named_only_where_yama_asks_for_it(
    scope: str | None, named: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if scope is not None:
        (tmp_path / "scope").write_text(scope)
    monkeypatch.setattr(stacks, "PTRACE_SCOPE", str(tmp_path / "scope"))
    calls: list[tuple[int, int]] = []

    class Library:
        def prctl(self, option: int, pid: ctypes.c_ulong, *rest: int) -> int:
            calls.append((option, pid.value))
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    stacks.allow_reader(77)
    assert calls == named


def test_on_a_signal_only_the_main_thread_is_written_since_others_change_while_they_are_read() -> None:
    """With `all_threads=True` one of some thousand signals ended a process with busy threads by SIGSEGV."""
    program = """
import os, signal, threading, time
from resilience.guard.stacks import StacksOnDemand
stacks = StacksOnDemand()
stacks.keep()
def busy():
    while True:
        sorted([3, 1, 2], key=lambda one: -one)
def main():
    for _ in range(300):
        os.kill(os.getpid(), stacks.signal)
threading.Thread(target=busy, daemon=True).start()
main()
print(os.pread(stacks.descriptor, 2**20, 0).decode(), flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and done.stdout.count(" in main\n") == 300 and " in busy" not in done.stdout
