"""A child that nobody waits for: what it does delays nobody, and it outlives whoever started it.

Forked twice, so that its end is init's to note and no zombie stays; in a session of its own, with nothing of ours open.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Detached:
    """A child that goes its own way."""

    def __init__(self, alive: int) -> None:
        """`alive`: a pipe that ends with the child."""
        self._alive = alive

    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so long at most; return whether it has ended."""
        if self._alive < 0:
            return True
        poll = select.poll()
        poll.register(self._alive, select.POLLIN | select.POLLHUP)
        try:
            if not poll.poll(max(0.0, seconds) * 1000):
                return False
        except InterruptedError:
            return False
        os.close(self._alive)
        self._alive = -1
        return True

    def forget(self) -> None:
        """Let it be."""
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def start_detached(work: Callable[[], None], limit_s: float, *, keep: int = -1, keep_stderr: bool = False) -> Detached:
    """Have a child do something; it is killed after `limit_s`, and whatever it raises is lost.

    `keep`: a descriptor that it shall still have; all others are closed there. `keep_stderr`: what it says on standard
    error appears there; whoever reads from a pipe then waits for its end. Raise OSError if there is no room for
    another process.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    # No handler of ours may run in the child: it would believe itself the parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        middle = _fork()
        if middle == 0:
            _begin(work, limit_s, {writing, keep}, keep_stderr)
    except OSError:
        os.close(reading)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writing)
    with contextlib.suppress(ChildProcessError):  # somebody else here takes note of all children
        os.waitpid(middle, 0)
    return Detached(reading)


def _fork() -> int:
    if tuple(sys.version_info) < (3, 12):
        return os.fork()
    import warnings

    with warnings.catch_warnings():  # as system/child.py: no thread of ours holds a lock that a child takes
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _begin(work: Callable[[], None], limit_s: float, keep: set[int], keep_stderr: bool) -> NoReturn:
    code = 1
    try:
        os.setsid()
        if _fork() != 0:
            os._exit(0)
        for number in (*_BLOCKED, signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, limit_s)  # SIGALRM ends us, whatever we wait for
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        gc.disable()
        _cut_loose(keep, keep_stderr)
        work()
        code = 0
    finally:
        os._exit(code)


def _cut_loose(keep: set[int], keep_stderr: bool) -> None:
    """Let go of everything that our maker had open; what it has written and not flushed yet stays its own."""
    import io

    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(2 if keep_stderr else 3):
        os.dup2(nowhere, descriptor)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names only
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    sys.stdout = sys.stderr = io.StringIO()
    if keep_stderr:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
