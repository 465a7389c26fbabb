"""`resil cron job`: one job of the scheduler's chain. Queues its successors first, then ticks.

Queue commands run in a process of their own, so that a hung controller cannot delay a tick.
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
KEEP_EVERY_S = 300.0
"""Interval at which a daemon checks that its successors are still queued: a controller may lose its state. The manual
of squeue asks not to run it in loops."""
RETRY_S = 60.0
"""Delay before the first retry to queue successors; doubled each time, up to LOOK_EVERY_S."""
FIRST_KEEP_S = 15.0
"""Time that the first tick waits for the successors to be queued; afterwards both run in parallel."""
KEEP_WITHIN_S = 200.0
"""Time limit of the keeper process: the deadline of sbatch, three queries for its result, and as much again."""
HAND_OVER_S = 3600.0
"""A daemon begins to look for an idle moment this long before its end, and exits then, so that the successor's runs
have its whole time limit. With a short time limit, a quarter of it."""
STOP_CHECK_EVERY_S = 10.0


def main(cron: CronProject, words: Sequence[str]) -> int:
    """Run a job of the chain, and return its exit code: 0 if successors are queued or none is wanted; else the batch
    shell takes over."""
    arguments = parse_words(words)
    installation = cron.state.installation()
    if installation is None or installation.token != arguments.token:
        say("this installation was replaced: no successor")
        return EXIT_ENDED if arguments.keep else 0
    if arguments.keep:
        return keep(cron, installation, arguments)
    return _Job(cron, installation, arguments).work()


@dataclass
class _Job:
    """A running job of the chain.

    Attributes:
        arguments: arguments from the batch script.
        end: when SLURM ends the job, seconds since the epoch.
        leaving: when to exit after notice of the end; None: no notice yet.
        ended: no successor is wanted any more.
        is_terminated: SIGTERM was received.
        keeper: pid of the process that queues successors; None: not running.
        keeper_since: when that process was started.
        next_keep: when to start the next one.
        next_check: when to check next whether the scheduler is stopped.
        failures: number of consecutive failures to queue all successors.
    """

    cron: CronProject
    installation: Installation
    arguments: Words
    end: float = math.inf
    limit_s: float = 0.0
    leaving: float | None = None
    ended: bool = False
    is_terminated: bool = False
    keeper: int | None = None
    keeper_since: float = 0.0
    next_keep: float = 0.0
    next_check: float = 0.0
    failures: int = 0
    waiting: Callable[[float], None] = field(default=time.sleep)

    def work(self) -> int:
        """Run the job, and return the exit code."""
        from resilience.cron.drivers._slurm.chain import Mode
        from resilience.cron.drivers._slurm.keeper import mode_of
        from resilience.cron.drivers._slurm.script import lead_s, time_limit_s

        mode = mode_of(self.installation, self.cron.settings)
        environ = self.cron.project.system.environ
        self.limit_s = time_limit_s(self.cron.settings, mode)
        self.end = _end_time(environ.get("SLURM_JOB_END_TIME", ""), environ.get("SLURM_JOB_START_TIME", ""),
                             self.limit_s, self._now())  # fmt: skip
        signal.signal(signal.SIGUSR1, self._on_end_notice)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_terminate)
        self._start_keeper()
        self._wait_for_keeper(min(FIRST_KEEP_S, self.limit_s / 4))
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

        # By this node's clock the slot may be slightly in the future.
        early_s = self.arguments.slot - self._now()
        if 0 < early_s < 60:
            self.cron.project.system.clock.sleep(early_s)
        ran = run(self.cron, driver=DRIVER, once=True, until=until, stop=self._check_keeper, say=say)
        say(f"one tick: {ran.why}")

    def _tick_on(self, until: float) -> None:
        from resilience.cron.run import run

        ran = run(self.cron, driver=DRIVER, until=until, stop=self._must_exit, say=say)
        say(f"{ran.ticks} ticks: {ran.why}")

    def _check_keeper(self) -> bool:
        self._poll_keeper()
        return self.is_terminated

    def _must_exit(self) -> bool:
        """Return whether the tick loop must end. Called all the time, so it also maintains the successors."""
        now = self._now()
        self._poll_keeper()
        if now >= self.next_keep and self.keeper is None:
            self._start_keeper()
        if now >= self.next_check:
            self.next_check = now + min(STOP_CHECK_EVERY_S, self._keep_every_s)
            self.ended = self.ended or self._is_ended()
        near = now >= self.end - min(HAND_OVER_S, self.limit_s / 4)
        if self.is_terminated:
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
                self.leaving = math.inf  # as soon as nothing runs; its successors have the new mode
        return False

    def _anything_runs(self) -> bool:
        from resilience.cron.book import State
        from resilience.job import Liveness

        with suppress(ResilError):
            book, now = self.cron.state.book, self._now()
            return any(
                run.state is State.RUNNING and run.is_here and book.liveness(run, now)[0] is Liveness.ALIVE
                for run in book.active()
            )
        return False

    def _on_end_notice(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGUSR1: SLURM announces the time limit, or `resil cron stop` asks the job to exit."""
        from resilience.cron.drivers._slurm.script import lead_s

        if self.leaving is None:
            self.leaving = self._now() + lead_s(self.limit_s) / 2

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: scancel, or the time limit itself; KillWait (usually 30 s) remains."""
        self.is_terminated = True

    # ---- the successors ---------------------------------------------------------------------------------------

    @property
    def _keep_every_s(self) -> float:
        return max(5.0, min(KEEP_EVERY_S, self.limit_s / 20))

    def _start_keeper(self) -> None:
        """Fork a keeper process; a new interpreter would take half a second."""
        self.keeper_since = self._now()
        self.next_keep = self.keeper_since + self._keep_every_s
        try:
            self.keeper = os.fork()
        except OSError as error:
            say(f"cannot queue the successors: {error}")
            return
        if self.keeper == 0:
            code = EX_TEMPFAIL
            try:
                for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_DFL)
                counts = self.cron.state.installation() or self.installation  # its mode may have changed
                code = keep(self.cron, counts, self.arguments)
            except BaseException as error:
                say(f"cannot queue the successors: {type(error).__name__}: {error}")
            finally:
                os._exit(code)

    def _poll_keeper(self) -> int | None:
        """Return the exit code of the keeper process if it has just ended."""
        if self.keeper is None:
            return None
        try:
            pid, status = os.waitpid(self.keeper, os.WNOHANG)
        except ChildProcessError:  # already reaped
            pid, status = self.keeper, EX_TEMPFAIL << 8
        if pid == 0:
            if self._now() - self.keeper_since > KEEP_WITHIN_S:
                os.kill(self.keeper, signal.SIGKILL)
            return None
        code = os.waitstatus_to_exitcode(status)
        self.keeper = None
        self.ended = self.ended or code == EXIT_ENDED
        self.failures = 0 if code in (0, EXIT_ENDED) else self.failures + 1
        if self.failures:
            pause_s = RETRY_S * 2 ** min(self.failures - 1, 8)
            self.next_keep = self._now() + min(pause_s, self._keep_every_s)
        return code

    def _wait_for_keeper(self, seconds: float) -> int | None:
        until = time.monotonic() + seconds
        while self.keeper is not None and time.monotonic() < until:
            code = self._poll_keeper()
            if code is not None:
                return code
            self.waiting(0.02)
        return None

    def _settle(self) -> int:
        """Make sure of the successors before the end; return the exit code."""
        self._wait_for_keeper(5)
        self._end_keeper()  # one that hangs
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
    """Return when the job ends: from SLURM (22.05 and later), else from its start and its limit. Pure."""
    if end.isdigit() and int(end) > 0:
        return float(end)
    return (float(start) if start.isdigit() and int(start) > 0 else now) + limit_s
