"""Watches over one program and all that it starts: takes its words, ends it when its time is up, reaps what it leaves.

The process that does so is the parent of every orphan (PR_SET_CHILD_SUBREAPER, prctl(2)). So when it has no child left,
nothing of the program is left, whatever it forked, and wherever that went: no group or session needs to be believed.
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
"""What a run leaves behind may take so long to end by itself, when its program has ended."""

GIVE_UP_S = 5.0
"""Who is still there so long after SIGKILL waits in the kernel, and is left there."""

SECOND_S = 1.0
"""Whoever looks at the output of a run under way sees what is older than this."""

_AGAIN_S = 0.05
_CHUNK_BYTES = 2**18
_DRAIN = 64
_LONGEST_S = 300.0


class Wishes:
    """What others ask of a supervisor: SIGTERM ends its run, a second one at once; SIGUSR1 ends it for a newer one.

    Attributes:
        cause: why the run is to end.
        asked: how often it was asked to stop.
        is_done: whether the program has ended by itself: then nobody cuts it short any more, and its rest goes sooner.
        hurries: whether anybody wants an end.
        wake: readable when a signal came.
    """

    def __init__(self) -> None:
        """Take the signals; they may be blocked until then."""
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
        status: as os.waitstatus_to_exitcode gives it; None: it has not ended.
        trouble: why it could not be started, as launch.py's `explain` reads it; empty: it was.
        left: how many processes it had left behind, that were ended.
        stuck: how many processes could not be ended.
    """

    status: int | None
    trouble: bytes = b""
    left: int = 0
    stuck: int = 0


class _Phase(Enum):
    """How far the end of a run is. `_moment` is when the next phase begins."""

    RUNS = "its program runs"
    LINGERS = "its program has ended, and something of it is still there"
    TERMED = "it was asked to end"
    KILLED = "it is killed"


class Watch:
    """The watch over one program."""

    def __init__(self, program: Launched, timeout_s: float, words: Bounded, wishes: Wishes) -> None:
        """`timeout_s`: 0 is for ever. `words` gets what it writes."""
        self._program, self._words, self._wishes = program, words, wishes
        self._phase, self._kills_again = _Phase.RUNS, 0.0
        self._moment = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")
        self._status: int | None = None
        self._trouble = b""
        self._left = 0
        self._alone = self._gave_up = False

    def keep(self, each_second: Callable[[float], None]) -> Watched:
        """Return when nothing of the program is left, or nothing can be done any more.

        `each_second` is called about so often, with the monotonic clock's time, while it writes.
        """
        second = time.monotonic() + SECOND_S
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._program.output, self._program.trouble, self._wishes.wake):
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
        for _ in range(_DRAIN):  # what lies in the pipe; not for ever: somebody else may hold it
            if not self._receive(self._program.output, at_end=True):
                break
        while self._receive(self._program.trouble, at_end=True):
            pass
        stuck = len(descendants(os.getpid())) if self._gave_up else 0
        return Watched(self._status, self._trouble, self._left, stuck)

    def _pause(self, second: float) -> float:
        moment = self._moment
        if self._phase is _Phase.KILLED:
            moment = min(moment, self._kills_again)
        if self._words.has_head:
            moment = min(moment, second)
        return min(max(0.0, moment - time.monotonic()), _LONGEST_S)

    def _receive(self, descriptor: int, *, at_end: bool = False) -> bool:
        """Take what has come; return whether more may come (at the end: whether something had come)."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return not at_end
        if descriptor == self._program.output:
            self._words.add(chunk)
        elif descriptor == self._program.trouble:
            self._trouble += chunk
        return bool(chunk)

    def _reap(self) -> None:
        """Take note of ends: of the program, and of all that has lost its parent."""
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
                if self._phase is _Phase.RUNS:  # nobody has ended it
                    self._wishes.is_done, self._wishes.cause = True, Cause.NONE

    def _decide(self, now: float) -> None:
        """Do what is due: SIGTERM, SIGKILL, or give up."""
        is_time = now >= self._moment
        if self._phase is _Phase.RUNS and self._status is not None:
            self._phase, self._moment, is_time = _Phase.LINGERS, now + LINGER_S, False
        elif self._phase is _Phase.RUNS and is_time and self._wishes.cause is Cause.NONE:
            self._wishes.cause = Cause.TIMEOUT
        if self._phase in (_Phase.RUNS, _Phase.LINGERS) and (is_time or self._wishes.hurries):
            if self._status is not None:
                self._left = len(descendants(os.getpid()))
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # who is stopped hears nothing else
            self._phase, self._moment, is_time = _Phase.TERMED, now + KILL_AFTER_S, False
        if self._phase is _Phase.TERMED and (is_time or self._wishes.asked > 1):
            self._phase, self._moment, is_time = _Phase.KILLED, now + GIVE_UP_S, False
        if self._phase is _Phase.KILLED and now >= self._kills_again:  # again and again: it may be starting others
            self._signal_all(signal.SIGKILL)
            self._kills_again = now + _AGAIN_S
        self._gave_up = self._phase is _Phase.KILLED and is_time

    def _signal_all(self, number: int) -> None:
        """To the process group, and to each that has left it."""
        group = self._program.pid if self._status is None else 0  # its number may be another's after that
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                if not group or os.getpgid(pid) != group:
                    os.kill(pid, number)
