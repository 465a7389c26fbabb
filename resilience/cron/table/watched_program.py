"""Supervises one program and its descendants: collects output, enforces the timeout, reaps leftovers.

The supervisor is the parent of every orphan (PR_SET_CHILD_SUBREAPER, prctl(2)). So when it has no child left, no
process of the program is left, whatever it forked and whatever process group or session that joined.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from resilience.base.processes import descendants
from resilience.cron.table.bounded import Bounded
from resilience.cron.table.ended import Cause
from resilience.cron.table.launch import Launched

KILL_AFTER_S = 10.0
"""Between SIGTERM and SIGKILL."""

LINGER_S = 5.0
"""Leftover processes get this long to end by themselves after the program has ended."""

GIVE_UP_S = 5.0
"""A process that survives SIGKILL for this long is stuck in the kernel, and is abandoned."""

SECOND_S = 1.0
"""Maximum age of unwritten output of an active run."""

_AGAIN_S = 0.05
_CHUNK_BYTES = 2**18
_DRAIN = 64
_LONGEST_S = 300.0


class StopRequests:
    """Signals to a supervisor: SIGTERM ends its run, a second one at once; SIGUSR1 ends it for a newer run.

    Attributes:
        cause: why the run is to end.
        asked: number of requests to stop.
        is_done: whether the program has ended by itself: it is not cut short any more, and its leftovers end sooner.
        hurries: whether any end is requested.
        wake: readable after a signal.
    """

    def __init__(self) -> None:
        """Install the signal handlers, and unblock the signals."""
        self.cause, self.asked, self.is_done, self.hurries = Cause.NONE, 0, False, False
        self.wake, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGTERM, lambda *_: self._hurry(Cause.STOPPED))
        signal.signal(signal.SIGUSR1, lambda *_: self._hurry(Cause.REPLACED))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _hurry(self, cause: Cause) -> None:
        self.hurries = True
        self.asked += cause is Cause.STOPPED
        if not self.is_done:
            self.cause = self.cause or cause


class Watched(NamedTuple):
    """How a program ended.

    Attributes:
        status: as of os.waitstatus_to_exitcode; None: it has not ended.
        problem: why it could not be started, for launch.py's `explain`; empty: it was started.
        left: number of leftover processes that were killed.
        stuck: number of processes that could not be killed.
    """

    status: int | None
    problem: bytes = b""
    left: int = 0
    stuck: int = 0


class _Phase(Enum):
    """Progress of the end of a run. `_moment` is when the next phase begins."""

    RUNS = "the program runs"
    LINGERS = "the program has ended, and processes of it remain"
    TERMED = "SIGTERM was sent"
    KILLED = "SIGKILL was sent"


class Watch:
    """Supervision of one program."""

    def __init__(self, program: Launched, timeout_s: float, output: Bounded, requests: StopRequests) -> None:
        """`timeout_s`: 0 means none. `output` receives the output."""
        self._program, self._output, self._requests = program, output, requests
        self._phase, self._kills_again = _Phase.RUNS, 0.0
        self._moment = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")
        self._status: int | None = None
        self._problem = b""
        self._left = 0
        self._alone = self._gave_up = False

    def keep(self, each_second: Callable[[float], None]) -> Watched:
        """Return when no process of the program is left, or nothing more can be done.

        `each_second` is called about once a second while there is output, with the monotonic time.
        """
        second = time.monotonic() + SECOND_S
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._program.output, self._program.problem, self._requests.wake):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                for ready, _ in selector.select(self._pause(second)):
                    if not self._receive(ready.fd):
                        selector.unregister(ready.fd)
                self._reap()
                if self._status is not None and self._alone:
                    break
                now = time.monotonic()
                self._decide(now)
                if self._gave_up:
                    break
                if now >= second:
                    second = now + SECOND_S
                    each_second(now)
        for _ in range(_DRAIN):  # the rest in the pipe; limited, because another process may keep it open
            if not self._receive(self._program.output, at_end=True):
                break
        while self._receive(self._program.problem, at_end=True):
            pass
        stuck = len(descendants(os.getpid())) if self._gave_up else 0
        return Watched(self._status, self._problem, self._left, stuck)

    def _pause(self, second: float) -> float:
        moment = self._moment
        if self._phase is _Phase.KILLED:
            moment = min(moment, self._kills_again)
        if self._output.has_head:
            moment = min(moment, second)
        return min(max(0.0, moment - time.monotonic()), _LONGEST_S)

    def _receive(self, descriptor: int, *, at_end: bool = False) -> bool:
        """Read available data; return whether more may come (at the end: whether there was data)."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return not at_end
        if descriptor == self._program.output:
            self._output.add(chunk)
        elif descriptor == self._program.problem:
            self._problem += chunk
        return bool(chunk)

    def _reap(self) -> None:
        """Reap the program, and orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                return
            if pid == self._program.pid:
                self._status = os.waitstatus_to_exitcode(status)
                if self._phase is _Phase.RUNS:  # it ended by itself
                    self._requests.is_done, self._requests.cause = True, Cause.NONE

    def _decide(self, now: float) -> None:
        """Do what is due: SIGTERM, SIGKILL, or give up."""
        is_time = now >= self._moment
        if self._phase is _Phase.RUNS and self._status is not None:
            self._phase, self._moment, is_time = _Phase.LINGERS, now + LINGER_S, False
        elif self._phase is _Phase.RUNS and is_time and self._requests.cause is Cause.NONE:
            self._requests.cause = Cause.TIMEOUT
        if self._phase in (_Phase.RUNS, _Phase.LINGERS) and (is_time or self._requests.hurries):
            if self._status is not None:
                self._left = len(descendants(os.getpid()))
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process handles no other signal
            self._phase, self._moment, is_time = _Phase.TERMED, now + KILL_AFTER_S, False
        if self._phase is _Phase.TERMED and (is_time or self._requests.asked > 1):
            self._phase, self._moment, is_time = _Phase.KILLED, now + GIVE_UP_S, False
        if self._phase is _Phase.KILLED and now >= self._kills_again:  # repeatedly: it may be starting others
            self._signal_all(signal.SIGKILL)
            self._kills_again = now + _AGAIN_S
        self._gave_up = self._phase is _Phase.KILLED and is_time

    def _signal_all(self, number: int) -> None:
        """Signal the process group, and each process that has left it."""
        group = self._program.pid if self._status is None else 0  # its number may be reused after that
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                if not group or os.getpgid(pid) != group:
                    os.kill(pid, number)
