"""No process that a test starts outlives it, however the test ends. Standard library only.

A process can leave its parent, its session, its environment and its user behind (two forks, `setsid`, `env -i`,
`setpriv`), but it inherits its resource limits through all of them. So each pytest process that runs tests gives itself
a soft RLIMIT_LOCKS of its own: Linux enforces that limit no more since 2.4.25 (setrlimit(2)), and /proc/PID/limits
shows it to everybody.

Two look for this mark. The fixtures of tests/conftest.py look after each test, module and session; what is left is
killed, and the test fails with its command line. A sweeper outlives a pytest process that was killed itself, and kills
whatever has its mark. Where PAM starts a session (su, cron) pam_limits takes the mark away; such a process is found
only as the descendant of one that has it. The daemons of tests/slurm take it off: their own keeper ends them.
"""

from __future__ import annotations

import os
import resource
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lab.slurm.processes import Process, ancestors, descendants, kill_all, pids

RLIMIT_LOCKS = 10
"""The kernel's number (asm-generic/resource.h); the module `resource` has no name for it."""

OURS = int.from_bytes(b"resil")
"""The first bytes of each mark; three random ones follow."""

GRACE_S = 10.0
"""A process that was told to end as the test ended may take so long on a busy machine."""

shared: set[int] = set()
"""Processes that a test may leave to the next ones of its module: a fixture of the module ends them."""

LOOK_EVERY_S = 0.5
REPOSITORY = Path(__file__).parents[2]


def own_mark() -> int | None:
    """Return the mark that this process has; None: it has none."""
    soft, _ = resource.getrlimit(RLIMIT_LOCKS)
    return soft if soft >> 24 == OURS else None


def unmark() -> None:
    """Take the mark off this process and its future children."""
    _, hard = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (hard, hard))


@contextmanager
def marked() -> Iterator[int]:
    """Mark this process and its future children, and start the sweeper; yield the mark.

    A pytest that a test starts keeps the mark of that test and starts no sweeper: what it leaves, the test has left.
    """
    if (inherited := own_mark()) is not None:
        yield inherited
        return
    _, hard = resource.getrlimit(RLIMIT_LOCKS)
    mark = OURS << 24 | secrets.randbits(24)
    me = Process.of(os.getpid())
    assert me is not None
    argv = [sys.executable, "-m", __name__, str(me.pid), str(me.started), str(mark)]
    subprocess.run(argv, cwd="/", env={"PYTHONPATH": str(REPOSITORY)}, stdin=subprocess.DEVNULL, check=True)
    resource.setrlimit(RLIMIT_LOCKS, (mark, hard))
    yield mark
    unmark()


def has_mark(pid: int, mark: int) -> bool:
    """Return whether a process has this mark; False where it is gone."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as limits:
            return b"%d" % mark in limits.read()
    except OSError:
        return False


class Look:
    """What was there when a test, a module or a session began; all that is new at its end was left by it.

    `spared` are pids that are nobody's leftovers, as the set is at the end.
    """

    def __init__(self, mark: int, spared: Collection[int] = ()) -> None:
        self._mark = mark
        self._spared = spared
        self._before = pids()

    def left(self) -> set[Process]:
        """Return the processes with the mark that were started since, and not by one that was there already.

        A server that a fixture of the module started may start others for itself: they end with it.
        """
        new = {pid for pid in pids() - self._before if has_mark(pid, self._mark)}
        return {process for pid in new if not self._is_of_an_older_one(pid) and (process := Process.of(pid))}

    def _is_of_an_older_one(self, pid: int) -> bool:
        spared = (self._before - {os.getpid()}).union(self._spared)
        return any(older in spared and has_mark(older, self._mark) for older in ancestors(pid))

    def end_what_is_left(self) -> list[str]:
        """Give what is left the time to end, then kill it; return the command lines of what had to be killed."""
        deadline = time.monotonic() + GRACE_S
        while left := self.left():
            if time.monotonic() > deadline:
                names = sorted(map(name_of, left))
                kill_all(lambda: {process.pid for process in self.left()})
                return names
            time.sleep(0.02)
        return []


def name_of(process: Process) -> str:
    """Return a process's pid and command line, for a person."""
    argv: Collection[str] = ()
    with suppress(OSError):
        argv = Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    return f"{process.pid}: {shlex.join(argv)}"


def main(pid: int, started: int, mark: int) -> int:
    """Wait, as nobody's child, for the end of a pytest process, and kill whatever has its mark then."""
    if os.fork():
        return 0
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    tests = Process(pid, started)
    while tests.alive:
        time.sleep(LOOK_EVERY_S)

    def left() -> set[int]:
        found = {pid for pid in pids() if has_mark(pid, mark) and Process.of(pid)}
        return found | descendants(found)

    kill_all(left)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
