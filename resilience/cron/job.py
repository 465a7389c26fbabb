"""`resil cron job`: ticks in one job of the scheduler's chain, and decides when the job leaves.

The batch script that calls it (drivers/_slurm/scheduler.bash) keeps the successors queued at the same time, without
Python. Two jobs of a chain may run at once, because each slot is claimed by one of them: the newer one stays.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError, UsageError
from resilience.system.files import read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation

DRIVER = "slurm"
NEWEST = "driver/newest"
"""In the state directory: start and id of the newest job that has ticked."""
LOOK_EVERY_S = 5.0
"""Interval at which the job checks whether it must leave."""


class Words(NamedTuple):
    """Arguments of `resil cron job`: installation token, scheduler, slot of a pulse, end of the job (0: an earlier
    release wrote the batch script)."""

    token: str
    scheduler: str
    slot: int = 0
    end: int = 0


def parse_words(words: Sequence[str]) -> Words:
    """Parse the arguments. Pure. Raise UsageError for others: only the batch script calls `resil cron job`."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    if set(words[::2]) - {"--token", "--scheduler", "--slot", "--end"} or not given.get("--token"):
        raise UsageError("only the scheduler's batch script calls `resil cron job`", hint="resil cron install")
    slot, end = (int(text) if text.isdigit() else 0 for text in (given.get("--slot", ""), given.get("--end", "")))
    return Words(given["--token"], given.get("--scheduler", ""), slot, end)


def main(cron: CronProject, words: Sequence[str]) -> int:
    """Run a job of the chain until its end, and return its exit code. Raise ResilError if nothing can run."""
    arguments = parse_words(words)
    installation = cron.state.installation()
    if installation is None or installation.token != arguments.token:
        say("this installation was replaced: no successor")
        return 0
    if not arguments.end:
        return _replace_old_script(cron, installation)
    return Job.of(cron, installation, arguments).work()


def _replace_old_script(cron: CronProject, installation: Installation) -> int:
    """Have a job with the new batch script run instead of this one, whose script does not keep the chain."""
    from resilience.cron.drivers.slurm import DRIVER
    from resilience.watch.watchdogs import context_of

    for line in DRIVER.install(installation, cron.settings, context_of(cron.project)):
        say(line)
    return 0


class _Leaving(CronDirectory):
    """The state directory as a job sees it that leaves: stopped, so that it starts nothing and waits for its runs."""

    why = ""

    def stopped(self) -> Mapping[str, Any] | None:
        return {"leaves": self.why} if self.why else super().stopped()


@dataclass
class Job:
    """A running job of the chain.

    Attributes:
        job_id, start: of this job, as SLURM counts.
        until: when the ticks end: LEAD_S before SLURM ends the job.
        deadline: when to exit after notice of the end, even if something runs.
        is_terminated: SIGTERM was received.
    """

    cron: CronProject
    state: _Leaving
    installation: Installation
    slot: int
    job_id: int
    start: int
    until: float
    lead_s: float
    deadline: float = math.inf
    is_terminated: bool = False
    next_look: float = 0.0
    has_ticked: bool = False

    @classmethod
    def of(cls, cron: CronProject, installation: Installation, arguments: Words) -> Job:
        """Return the job that this process is."""
        from resilience.cron.drivers._slurm.script import lead_s

        system = cron.project.system
        job_id, start = (system.environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_JOB_START_TIME"))
        began = int(start) if start.isdigit() else int(system.clock.now())
        state = _Leaving(cron.state.path.parent, cron.state.group)
        lead = lead_s(arguments.end - began)
        return cls(replace(cron, state=state), state, installation, arguments.slot,
                   int(job_id) if job_id.isdigit() else 0, began, arguments.end - lead, lead)  # fmt: skip

    def work(self) -> int:
        """Tick, and return the exit code."""
        from resilience.cron.run import run

        signal.signal(signal.SIGUSR1, self._on_end_notice)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_terminate)
        is_pulse = self._mode(self.installation) == "pulse"
        try:
            early_s = self.slot - self._now()
            if is_pulse and 0 < early_s < 60:  # by this node's clock the slot may be slightly in the future
                self.cron.project.system.clock.sleep(early_s)
            stop = (lambda: self.is_terminated) if is_pulse else self.must_exit
            ran = run(self.cron, driver=DRIVER, once=is_pulse, until=self.until, stop=stop, say=say)
            say(f"{ran.ticks} ticks: {self.state.why or ran.why}")
        finally:
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # a late one would kill the interpreter as it shuts down
        return 0

    def must_exit(self) -> bool:
        """Return whether the tick loop must end now. Called all the time, first after the first tick."""
        now = self._now()
        if self.is_terminated or now >= self.deadline:
            return True
        if now >= self.next_look or self.deadline < math.inf:
            self.next_look = now + LOOK_EVERY_S
            with suppress(ResilError, ValueError):
                self.state.why = self.state.why or self.why_leave()
        return bool(self.state.why) and not _has_children()

    def why_leave(self) -> str:
        """Return why this job leaves when nothing of its own runs; empty: it stays. Raise ResilError if unreadable."""
        if self.deadline < math.inf:
            return "SLURM or `resil cron stop` announced the end"
        if CronDirectory.stopped(self.state) is not None:
            return "the scheduler is stopped"
        now = self.state.installation()
        if now is None or now.token != self.installation.token:
            return "this installation was replaced"
        if self._mode(now) != self._mode(self.installation):
            return "the jobs of the chain are of another kind now"
        if not self.has_ticked:
            beat = self.state.heartbeat()
            self.has_ticked = beat is not None and (beat.job_id, beat.pid) == (str(self.job_id), os.getpid())
        found = read_regular(self.state.path / NEWEST, 100)
        start, job_id = map(int, found[0].split()) if found is not None else (0, 0)
        if self.has_ticked and (start, job_id) < (self.start, self.job_id):
            write_atomic(self.state.path / NEWEST, f"{self.start} {self.job_id}\n", mode=self.state.file_mode)
        elif (start, job_id) > (self.start, self.job_id) and start <= self._now() + LOOK_EVERY_S:
            return f"job {job_id} ticks now"
        return ""

    def _mode(self, installation: Installation) -> str:
        return installation.mode or self.cron.settings.mode

    def _on_end_notice(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGUSR1: SLURM announces the time limit, or `resil cron stop` asks the job to exit."""
        self.deadline = min(self.deadline, self._now() + self.lead_s / 2)

    def _on_terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: scancel, or the time limit itself; KillWait (usually 30 s) remains."""
        self.is_terminated = True

    def _now(self) -> float:
        return self.cron.project.system.clock.now()


def _has_children() -> bool:
    """Return whether a child of this process is alive: a run's supervisor, or a submission."""
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def say(line: str) -> None:
    """Write a line to the job's output; ignore errors, because the output may be gone."""
    with suppress(OSError, ValueError):
        os.write(1, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n".encode("utf-8", "backslashreplace"))
