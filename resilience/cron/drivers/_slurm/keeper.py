"""Maintains the chain of the scheduler's jobs: queries the queue, submits missing jobs, cancels surplus jobs."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resilience.cron.drivers._slurm.chain import JobRequest, Mode, Plan, QueuedJob, Surplus, Token, plan_chain
from resilience.cron.drivers._slurm.script import ON_ONE_MACHINE, SCRIPT, WHERE, comment_mark, job_name, sbatch_options
from resilience.cron.records import RUN_NAME, Installation
from resilience.cron.state_directory import CronDirectory
from resilience.errors import ResilError, SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId
from resilience.pending_reason import explain_reason
from resilience.schedulers import Scheduler
from resilience.settings.cron_settings import CronSettings
from resilience.submission import Submission
from resilience.system.ports import Clock

OTHER_BACKEND_HINT = (
    "use another backend: resil cron uninstall, then on a login node "
    "resil cron install --backend crontab, or --backend foreground (in tmux)"
)
"""Hint if sbatch does not work inside a job, because it is refused or not installed on compute nodes."""

MOST_ROUNDS = 3
"""Maximum number of rounds of query and submission: after a first round, jobs of other callers may appear."""


class Kept(NamedTuple):
    """Result of maintaining the chain.

    Attributes:
        waiting: number of pending jobs, as far as known; None: the queue did not answer.
        submitted, cancelled: ids.
        problem: the error, one sentence; empty: none.
        hint: what to try.
        is_stuck: a pending job will never start by itself, and blocks the others.
        is_refused: the scheduler rejected a job, or there is none here; it did answer.
        ended: why no chain is wanted any more (stopped, uninstalled); empty: it is.
    """

    waiting: int | None
    submitted: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    problem: str = ""
    hint: str = ""
    is_refused: bool = False
    ended: str = ""
    is_stuck: bool = False


def mode_of(installation: Installation, settings: CronSettings) -> Mode:
    """Return the mode of the installation's jobs, as installed."""
    return Mode(installation.mode or settings.mode)


def token_in(job: Job) -> Token | None:
    """Return the token in a job's comment. The embedded sbatch and some sites add words of their own."""
    mark = comment_mark()
    for word in job.comment.split():
        if word.startswith(mark) and (token := Token.parse(word.removeprefix(mark))) is not None:
            return token
    return None


@dataclass(frozen=True, slots=True)
class Keeper:
    """Maintains the chain of one installation.

    Attributes:
        own: id of the calling job; 0 from outside.
        slot: slot of the calling pulse.
        script: absolute path of the batch script.
        me: login name of the caller; empty: the owner of the chain.
    """

    directory: CronDirectory
    installation: Installation
    settings: CronSettings
    scheduler: Scheduler
    clock: Clock
    own: int = 0
    slot: int = 0
    script: str = ""
    me: str = ""

    @property
    def is_mine(self) -> bool:
        """Return whether the caller owns the chain. The `squeue --me` of other users omits its jobs."""
        return self.me in ("", self.installation.by)

    @property
    def name(self) -> str:
        """Job name of the chain."""
        return job_name(self.installation)

    def jobs(self, *, finished: bool = False) -> tuple[Job, ...]:
        """Return the jobs of the chain. Raise SchedulerError if the queue does not answer."""
        users = None if self.is_mine else [self.installation.by]
        found = self.scheduler.jobs(users=users, names=[self.name], finished=finished)
        return tuple(job for job in found if token_in(job) is not None)

    def queued_jobs(self) -> tuple[QueuedJob, ...]:
        """Return the jobs as the planner needs them, including finished ones."""
        return self._seen(self.jobs(finished=True))

    @staticmethod
    def _seen(jobs: Sequence[Job]) -> tuple[QueuedJob, ...]:
        found = []
        for job in jobs:
            token = token_in(job)
            if token is not None:
                found.append(QueuedJob(job.id.array, token, job.state.is_alive, job.state.is_waiting))
        return tuple(found)

    def plan(self, seen: Sequence[QueuedJob]) -> Plan:
        """Return what is missing in the queue."""
        return plan_chain(
            seen,
            self.clock.now(),
            installation=self.installation.token,
            mode=mode_of(self.installation, self.settings),
            pulse_s=self.settings.pulse_s,
            own=self.own,
            slot=self.slot,
        )

    def ended(self) -> str:
        """Return why no chain is wanted, or an empty string. Raise StateDirectoryError if that is unreadable."""
        if self.directory.stopped() is not None:
            return "the scheduler was stopped"
        counts = self.directory.installation()
        if counts is None:
            return "the scheduler was uninstalled"
        if counts.token != self.installation.token:
            return f"the scheduler was reinstalled by {counts.by} on {counts.host}"
        return ""

    def keep(self) -> Kept:
        """Submit missing jobs and cancel surplus ones. Scheduler errors are part of the result, not raised.

        Checks for a stop before and after: `stop` writes its file first and cancels then, so one of the two cancels a
        job submitted in between.
        """
        submitted: list[int] = []
        cancelled: list[int] = []
        waiting: int | None = None
        try:
            if why := self.ended():
                return Kept(None, ended=why)
            for _ in range(MOST_ROUNDS):
                jobs = self.jobs(finished=True)
                plan = self.plan(self._seen(jobs))
                waiting = plan.waiting
                if not plan.submit and not plan.cancel:
                    break
                for request in plan.submit:
                    submitted.append(self._submit(request))
                    waiting += 1
                if plan.cancel:
                    cancelled += self._cancel(plan.cancel)
                if why := self.ended():
                    self._cancel([Surplus(job_id, why) for job_id in submitted])
                    return Kept(0, ended=why)
        except ResilError as error:
            refused = isinstance(error, SchedulerError) and not error.transient
            problem, hint = error.message, error.hint
            if (
                self.own
                and refused
                and (isinstance(error, SchedulerUnavailable) or "ermission denied" in error.message)
            ):
                problem, hint = f"jobs apparently cannot submit jobs here: {error.message}", OTHER_BACKEND_HINT
            return Kept(waiting, tuple(submitted), tuple(cancelled), problem, hint, refused)
        problem, hint = self._stuck(jobs)
        return Kept(waiting, tuple(submitted), tuple(cancelled), problem, hint, is_stuck=bool(problem))

    def _stuck(self, jobs: Sequence[Job]) -> tuple[str, str]:
        """Return why a job can never start, and what to try: `singleton` makes later jobs wait for it."""
        for job in sorted(jobs, key=lambda job: job.id.array):
            token = token_in(job)
            if job.state.is_waiting and token is not None and token.installation == self.installation.token:
                why = explain_reason(job.reason, str(job.id))
                if why.blocks_for_ever:
                    return (
                        f"job {job.id} is pending and will never start by itself: {why.words} ({job.reason})",
                        why.advice,
                    )
        return "", ""

    def submission(self, request: JobRequest) -> Submission:
        """Return the submission. `--begin` is relative to now, in seconds.

        sbatch would read a date in the submitter's time zone, which is ambiguous once a year; the delay is computed
        anew from the slot each time, so errors do not add up. Of the user's SBATCH_* variables only those for the
        destination apply: SBATCH_ARRAY_INX would start several schedulers, and SBATCH_WAIT would block.
        """
        options = sbatch_options(self.name, self.settings, mode_of(self.installation, self.settings))
        if self.scheduler.name == "local":
            options |= ON_ONE_MACHINE
        if request.begin is not None and (wait_s := math.ceil(request.begin - self.clock.now())) > 0:
            options["begin"] = f"now+{wait_s}"
        script = self.script or str(self.directory.path / SCRIPT)
        slot = (f"slot={request.token.seed}",) if request.token.mode is Mode.PULSE else ()
        return Submission(str(request.token), RUN_NAME, script, slot, options=options, directory="/", variables=WHERE)

    def _submit(self, request: JobRequest) -> int:
        return self.scheduler.submit(self.submission(request)).id.array

    def _cancel(self, surplus: Sequence[Surplus]) -> list[int]:
        """Cancel pending jobs; a job that has started meanwhile continues, and ends by itself."""
        ids = [one.job_id for one in surplus]
        if ids:
            self.scheduler.cancel([JobId(number) for number in ids], pending_only=True)
        return ids

    def signal_exit(self) -> tuple[int, ...]:
        """Signal running jobs (usually one) to exit. Raise as `jobs`."""
        signalled = []
        for job in self.jobs():
            if job.id.array != self.own and not job.state.is_waiting and job.state != "COMPLETING":
                with suppress(SchedulerError):  # it has just ended
                    self.scheduler.signal(job.id, "USR1", batch=True)
                signalled.append(job.id.array)
        return tuple(signalled)

    def cancel_all(self, *, running: bool, patience_s: float = 30.0) -> tuple[int, ...]:
        """Cancel every job of the chain; pending jobs first, as they would start otherwise.

        Raise SchedulerUnavailable if some jobs remain after a while, SchedulerError if the queue does not answer.
        """
        cancelled: dict[int, None] = {}
        until = self.clock.monotonic() + patience_s
        while True:
            alive = [job for job in self.jobs() if job.id.array != self.own]
            waiting = [job.id.whole for job in alive if job.state.is_waiting]
            begun = [job.id.whole for job in alive if not job.state.is_waiting and job.state != "COMPLETING"]
            ids = waiting or (begun if running else [])
            if not ids:
                return tuple(cancelled)
            if self.clock.monotonic() > until:
                raise SchedulerUnavailable(
                    f"jobs {', '.join(map(str, ids))} of the scheduler were not cancelled in time",
                    hint=f"scancel -n {self.name}",
                )
            if cancelled.keys() >= {job_id.array for job_id in ids}:
                self.clock.sleep(0.2)
            self.scheduler.cancel(ids, pending_only=bool(waiting))
            cancelled |= dict.fromkeys(job_id.array for job_id in ids)


def script_path(directory: CronDirectory, copy: str) -> str:
    """Return the batch script, or SLURM's copy of it if the original is unreadable."""
    own = directory.path / SCRIPT
    return copy if copy and not os.access(own, os.R_OK) and Path(copy).exists() else str(own)
