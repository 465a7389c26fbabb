"""`resil cron job`: what a job of the scheduler's chain does. It sees to its successors first, then ticks, then again.

What asks the queue runs in a process of its own: a controller that hangs must not keep a tick waiting.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

from resilience.cron.chain import EXIT_ENDED, Words, keep, parse_words, say
from resilience.errors import EX_TEMPFAIL, ResilError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation

DRIVER = "slurm"
LOOK_EVERY_S = 300.0
"""So often the daemon looks whether its successors still wait: a controller may have lost its state. Squeue's manual
asks not to be run in loops."""
RETRY_S = 60.0
"""So soon after a refusal the successors are tried again; doubled each time, up to LOOK_EVERY_S."""
FIRST_LOOK_S = 15.0
"""So long a tick waits for the successors to be queued first; after that both go on side by side."""
KEEP_WITHIN_S = 200.0
"""Sbatch's deadline, three looks for what came of it, and as much again."""
HAND_OVER_S = 3600.0
"""So long before its end a daemon begins to look for a moment in which nothing runs, and leaves then: what is started
by its successor has all its time before it. A quarter of a short time limit."""
ENDED_EVERY_S = 10.0


def main(cron: CronProject, words: Sequence[str]) -> int:
    """Be a job of the chain, and return the exit code: 0: there are successors, or shall be none; else bash acts."""
    told = parse_words(words)
    installation = cron.state.installation()
    if installation is None or installation.token != told.token:
        say("this installation is not the one that counts any more: no successor")
        return EXIT_ENDED if told.keep else 0
    if told.keep:
        return keep(cron, installation, told)
    return _Job(cron, installation, told).work()


@dataclass
class _Job:
    """One job of the chain at work.

    Attributes:
        told: what the batch script said.
        end: when SLURM ends the job, seconds since the epoch.
        leaving: when it was told that its end is near; None: it was not.
        ended: there shall be no chain any more.
        is_told_to_go: it was sent SIGTERM.
        keeper: the process that sees to the successors; None: there is none.
        keeper_since: when it was started.
        next_look: when the next one is.
        next_glance: when it is looked next whether the scheduler is stopped.
        troubles: how many of them in a row could not do all they should.
    """

    cron: CronProject
    installation: Installation
    told: Words
    end: float = math.inf
    limit_s: float = 0.0
    leaving: float | None = None
    ended: bool = False
    is_told_to_go: bool = False
    keeper: int | None = None
    keeper_since: float = 0.0
    next_look: float = 0.0
    next_glance: float = 0.0
    troubles: int = 0
    waiting: Callable[[float], None] = field(default=time.sleep)

    def work(self) -> int:
        """Do it, and return the exit code."""
        from resilience.cron.drivers._slurm.chain import Mode
        from resilience.cron.drivers._slurm.keeper import mode_of
        from resilience.cron.drivers._slurm.script import lead_s, time_limit_s

        mode = mode_of(self.installation, self.cron.settings)
        environ = self.cron.project.system.environ
        self.limit_s = time_limit_s(self.cron.settings, mode)
        self.end = _end_time(environ.get("SLURM_JOB_END_TIME", ""), environ.get("SLURM_JOB_START_TIME", ""),
                             self.limit_s, self._now())  # fmt: skip
        signal.signal(signal.SIGUSR1, self._told_of_end)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._told_to_go)
        self._start_keeper()
        self._wait_for_keeper(min(FIRST_LOOK_S, self.limit_s / 4))
        until = self.end - lead_s(self.limit_s)
        try:
            if mode is Mode.PULSE:
                self._pulse(until)
            else:
                self._tick_on(until)
        finally:
            code = self._settle()
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # a late one would kill the interpreter as it shuts down
        return code

    def _pulse(self, until: float) -> None:
        from resilience.cron.run import run

        # By this node's clock the slot may be a moment away still.
        early_s = self.told.slot - self._now()
        if 0 < early_s < 60:
            self.cron.project.system.clock.sleep(early_s)
        ran = run(self.cron, driver=DRIVER, once=True, until=until, stop=self._glance, say=say)
        say(f"one tick: {ran.why}")

    def _tick_on(self, until: float) -> None:
        from resilience.cron.run import run

        ran = run(self.cron, driver=DRIVER, until=until, stop=self._is_time_to_go, say=say)
        say(f"{ran.ticks} ticks: {ran.why}")

    def _glance(self) -> bool:
        self._tend_keeper()
        return self.is_told_to_go

    def _is_time_to_go(self) -> bool:
        """Asked by the loop all the time: sees to the successors by the way."""
        now = self._now()
        self._tend_keeper()
        if now >= self.next_look and self.keeper is None:
            self._start_keeper()
        if now >= self.next_glance:
            self.next_glance = now + min(ENDED_EVERY_S, self._look_every_s)
            self.ended = self.ended or self._is_ended()
        near = now >= self.end - min(HAND_OVER_S, self.limit_s / 4)
        if self.is_told_to_go:
            return True
        if not (near or self.ended or self.leaving is not None):
            return False
        if self.leaving is not None and now >= self.leaving:
            return True
        return not self._anything_runs()

    def _is_ended(self) -> bool:
        with suppress(ResilError):
            counts = self.cron.state.installation()
            stopped = self.cron.state.stopped() is not None
            if stopped or counts is None or counts.token != self.installation.token:
                return True
            if counts.mode != self.installation.mode and self.leaving is None:
                self.leaving = math.inf  # as soon as nothing runs; its successors are of the other kind
        return False

    def _anything_runs(self) -> bool:
        from resilience.cron.table.running import here, liveness, marks
        from resilience.job import Liveness

        with suppress(ResilError):
            at = here()
            return any(
                mark.host == at.host
                and mark.end is None
                and liveness(mark, now=self._now(), at=at)[0] is Liveness.ALIVE
                for mark in marks(self.cron.state)
            )
        return False

    def _told_of_end(self, _number: int, _frame: FrameType | None) -> None:
        """SLURM says that the end is near, or `resil cron stop` that there is no more to do."""
        from resilience.cron.drivers._slurm.script import lead_s

        if self.leaving is None:
            self.leaving = self._now() + lead_s(self.limit_s) / 2

    def _told_to_go(self, _number: int, _frame: FrameType | None) -> None:
        """Scancel, or the time limit itself: KillWait (30 s, mostly) is left."""
        self.is_told_to_go = True

    # ---- the successors ---------------------------------------------------------------------------------------

    @property
    def _look_every_s(self) -> float:
        return max(5.0, min(LOOK_EVERY_S, self.limit_s / 20))

    def _start_keeper(self) -> None:
        """A copy of this process, which has one thread and all modules: a new interpreter would take half a second."""
        self.keeper_since = self._now()
        self.next_look = self.keeper_since + self._look_every_s
        try:
            self.keeper = os.fork()
        except OSError as error:
            say(f"the successors cannot be seen to: {error}")
            return
        if self.keeper == 0:
            code = EX_TEMPFAIL
            try:
                for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                counts = self.cron.state.installation() or self.installation  # its mode may be another by now
                code = keep(self.cron, counts, self.told)
            except BaseException as error:
                say(f"the successors cannot be seen to: {type(error).__name__}: {error}")
            finally:
                os._exit(code)

    def _tend_keeper(self) -> int | None:
        """Its exit code if it has just ended."""
        if self.keeper is None:
            return None
        try:
            pid, status = os.waitpid(self.keeper, os.WNOHANG)
        except ChildProcessError:  # somebody else has waited for it
            pid, status = self.keeper, EX_TEMPFAIL << 8
        if pid == 0:
            if self._now() - self.keeper_since > KEEP_WITHIN_S:
                os.kill(self.keeper, signal.SIGKILL)
            return None
        code = os.waitstatus_to_exitcode(status)
        self.keeper = None
        self.ended = self.ended or code == EXIT_ENDED
        self.troubles = 0 if code in (0, EXIT_ENDED) else self.troubles + 1
        if self.troubles:
            pause_s = RETRY_S * 2 ** min(self.troubles - 1, 8)
            self.next_look = self._now() + min(pause_s, self._look_every_s)
        return code

    def _wait_for_keeper(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while self.keeper is not None and time.monotonic() < until:
            code = self._tend_keeper()
            if code is not None:
                return code
            self.waiting(0.02)
        return None

    def _settle(self) -> int:
        """At the end: are there successors? The exit code."""
        self._wait_for_keeper(5)
        self._end_keeper()  # one that hangs since before
        if self.ended:
            return 0
        self._start_keeper()
        code = self._wait_for_keeper(15)
        self._end_keeper()
        return 0 if code in (0, EXIT_ENDED) else EX_TEMPFAIL

    def _end_keeper(self) -> None:
        if self.keeper is not None:
            os.kill(self.keeper, signal.SIGKILL)
            os.waitpid(self.keeper, 0)
            self.keeper = None

    def _now(self) -> float:
        return self.cron.project.system.clock.now()


def _end_time(end: str, start: str, limit_s: float, now: float) -> float:
    """When the job ends. SLURM says so from 22.05 on; else its start and its limit do. Pure."""
    if end.isdigit() and int(end) > 0:
        return float(end)
    return (float(start) if start.isdigit() and int(start) > 0 else now) + limit_s
