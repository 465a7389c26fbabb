"""The parent of every daemon of a test cluster, so that nothing outlives the tests, however they end.

A test run can be killed with SIGKILL, slurmstepd and many jobs turn themselves into daemons, and a job's children may
leave every session and group. So the daemons are children of this small process, which is their *subreaper*
(PR_SET_CHILD_SUBREAPER, prctl(2)): whatever loses its parent becomes its child, and the whole cluster stays one tree.
It reads orders from a pipe. When the pipe ends, or its own parent changes, it kills the tree, removes the cluster's
directory and cgroups, and ends. Should somebody kill the keeper itself, the daemons get SIGKILL (PR_SET_PDEATHSIG).

Run as `python -m tests.lab.slurm.keeper DIRECTORY`; one JSON object per line each way:
{"argv": [...], "env": {...}, "log": "..."} -> {"pid": 1};  {"stop": true} -> {"left": []}
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.leftovers import unmark
from tests.lab.slurm.processes import PATIENCE_S, Process, belonging, descendants, kill_all, remove_cgroups, thaw

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KEEP_EVERY_S = 0.5
PREFIX = "resil-slurm-"
NOTE = "keeper"  # a file of the cluster's directory: the keeper's pid and start time

_libc = ctypes.CDLL(None)


def _prepare() -> None:
    """In the new daemon: die with the keeper, and have the signals a daemon expects."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def spawn(order: dict[str, Any]) -> int:
    """Start a daemon in a session of its own, its output appended to a log, and return its pid."""
    with open(order["log"], "ab") as log:
        child = subprocess.Popen(
            order["argv"], env=order["env"], cwd="/", umask=0o022, start_new_session=True, preexec_fn=_prepare,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    child.returncode = 0  # reaped below with all other children, not by this object
    return child.pid


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def clean_up(root: Path) -> set[int]:
    """Kill the whole tree and whoever else uses the directory; remove what it left; return the survivors."""

    def find() -> set[int]:
        reap()
        return descendants([os.getpid()]) or belonging(root)

    left = remove(root, find)
    reap()
    return left


def remove(root: Path, find: Callable[[], set[int]]) -> set[int]:
    """Kill whom `find` finds, then remove a cluster's cgroups and directory; return the survivors."""

    def thawed() -> set[int]:
        thaw(root.name)
        return find()

    left = kill_all(thawed)
    remove_cgroups(root.name)
    shutil.rmtree(root, ignore_errors=True)
    return left


def sweep(directory: Path) -> None:
    """Remove what is left of clusters here whose keeper was killed together with its tests."""
    for note in directory.glob(f"{PREFIX}*/{NOTE}"):
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, note.read_text().split())
            if note.stat().st_uid == 0 and not Process(pid, started).alive:
                root = note.parent
                remove(root, lambda root=root: belonging(root))  # type: ignore[misc]


def orders(parent: int) -> Any:
    """Yield orders until the pipe ends or the parent is gone, reaping in between."""
    buffer = b""
    while os.getppid() == parent:
        reap()
        if not select.select([0], [], [], KEEP_EVERY_S)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        yield from map(json.loads, lines)


def main() -> int:
    root = Path(sys.argv[1])
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    unmark()  # a pytest that is killed leaves this process the time to remove directory and cgroups
    answer: dict[str, Any]
    if me := Process.of(os.getpid()):
        (root / NOTE).write_text(f"{me.pid} {me.started}\n")
    try:
        for order in orders(parent):
            if "stop" in order:
                break
            try:
                answer = {"pid": spawn(order)}
            except OSError as error:
                answer = {"error": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")
    finally:
        left = clean_up(root)
    with contextlib.suppress(OSError):
        os.write(1, json.dumps({"left": sorted(left)}).encode() + b"\n")
    return 1 if left else 0


class Keeper:
    """The caller's end of the pipe to a keeper."""

    def __init__(self, root: Path, keep_open: int) -> None:
        """Start a keeper for this directory; it holds `keep_open` (a lock's descriptor) as long as it lives."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.slurm.keeper", str(root)],
            cwd="/", env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(Path(__file__).parents[3])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, pass_fds=[keep_open],
        )  # fmt: skip
        self.pid = self._process.pid

    def spawn(self, argv: list[str], env: dict[str, str], log: Path) -> int:
        """Have the keeper start a daemon; return its pid. Raise RuntimeError when it cannot."""
        answer = self._ask({"argv": argv, "env": env, "log": str(log)})
        if "pid" not in answer:
            raise RuntimeError(f"cannot start {argv[0]}: {answer}")
        return int(answer["pid"])

    def stop(self) -> list[int]:
        """Have everything killed and removed; return the pids that could not be killed."""
        left = self._ask({"stop": True}).get("left", [])
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait(PATIENCE_S)
        return [int(pid) for pid in left]

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline() or b"{}")
        except BrokenPipeError:
            return {}
        return answer


if __name__ == "__main__":
    raise SystemExit(main())
