"""Keeps the chain of the scheduler's jobs: looks at the queue, submits what is missing, cancels what is too much."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from resilience.cron.drivers._slurm.chain import Mode, Plan, Seen, Surplus, Token, Wish, plan_chain
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

ELSEWHERE = (
    "have something else make the ticks: resil cron uninstall, then on a login node "
    "resil cron install --backend crontab, or --backend foreground (in tmux)"
)
"""What to do where sbatch does not work inside a job: it is refused, or not installed on compute nodes."""

ROUNDS = 3
"""So often the queue is looked at and made good: after a first round somebody else's jobs may be seen as well."""


class Kept(NamedTuple):
    """What keeping the chain came to.

    Attributes:
        waiting: how many of its jobs wait now, as far as is known; None: nobody answered.
        submitted, cancelled: ids.
        trouble: what is not as it should be, one sentence; empty: nothing.
        hint: what to try.
        is_stuck: the trouble is that one of those that wait will never start by itself, and holds up the others.
        is_refused: the trouble is that the scheduler said no, or there is none here; not that it did not answer.
        ended: why there is no chain any more (stopped, uninstalled); empty: there is one.
    """

    waiting: int | None
    submitted: tuple[int, ...] = ()
    cancelled: tuple[int, ...] = ()
    trouble: str = ""
    hint: str = ""
    is_refused: bool = False
    ended: str = ""
    is_stuck: bool = False


def mode_of(installation: Installation, settings: CronSettings) -> Mode:
    """How the installation's jobs work: as it was installed."""
    return Mode(installation.mode or settings.mode)


def token_in(job: Job) -> Token | None:
    """What the comment of a job says. The embedded sbatch, and some sites, put words of their own around ours."""
    mark = comment_mark()
    for word in job.comment.split():
        if word.startswith(mark) and (token := Token.parse(word.removeprefix(mark))) is not None:
            return token
    return None


@dataclass(frozen=True, slots=True)
class Keeper:
    """The chain of one installation.

    Attributes:
        own: the id of the job that asks; 0 from outside.
        slot: of a pulse that asks: its slot.
        script: the batch script, absolute.
        me: login name of who asks; empty: whose the chain is.
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
        """Whether who asks is whose the chain is. Others may operate the project, and their `squeue --me` lacks it."""
        return self.me in ("", self.installation.by)

    @property
    def name(self) -> str:
        """The name of its jobs."""
        return job_name(self.installation)

    def jobs(self, *, finished: bool = False) -> tuple[Job, ...]:
        """The jobs of the chain. Raise SchedulerError if nobody answered."""
        users = None if self.is_mine else [self.installation.by]
        found = self.scheduler.jobs(users=users, names=[self.name], finished=finished)
        return tuple(job for job in found if token_in(job) is not None)

    def look(self) -> tuple[Seen, ...]:
        """The same as the planner wants them, ended ones included."""
        return self._seen(self.jobs(finished=True))

    @staticmethod
    def _seen(jobs: Sequence[Job]) -> tuple[Seen, ...]:
        found = []
        for job in jobs:
            token = token_in(job)
            if token is not None:
                found.append(Seen(job.id.array, token, job.state.is_alive, job.state.is_waiting))
        return tuple(found)

    def plan(self, seen: Sequence[Seen]) -> Plan:
        """What the queue lacks."""
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
        """Why there shall be no chain, or nothing. Raise StateDirectoryError if that cannot be read."""
        if self.directory.stopped() is not None:
            return "the scheduler was stopped"
        counts = self.directory.installation()
        if counts is None:
            return "the scheduler was uninstalled"
        if counts.token != self.installation.token:
            return f"the scheduler was installed anew, by {counts.by} on {counts.host}"
        return ""

    def keep(self) -> Kept:
        """Have the right jobs wait. Raises nothing of the scheduler's: that is trouble, and told.

        Whether the scheduler is stopped is looked at before and after: who stops it writes that down first and cancels
        then, so that a job submitted in between is cancelled by one of the two.
        """
        submitted: list[int] = []
        cancelled: list[int] = []
        waiting: int | None = None
        try:
            if why := self.ended():
                return Kept(None, ended=why)
            for _ in range(ROUNDS):
                jobs = self.jobs(finished=True)
                plan = self.plan(self._seen(jobs))
                waiting = plan.waiting
                if not plan.submit and not plan.cancel:
                    break
                for wish in plan.submit:
                    submitted.append(self._submit(wish))
                    waiting += 1
                if plan.cancel:
                    cancelled += self._cancel(plan.cancel)
                if why := self.ended():
                    self._cancel([Surplus(job_id, why) for job_id in submitted])
                    return Kept(0, ended=why)
        except ResilError as error:
            refused = isinstance(error, SchedulerError) and not error.transient
            trouble, hint = error.message, error.hint
            if (
                self.own
                and refused
                and (isinstance(error, SchedulerUnavailable) or "ermission denied" in error.message)
            ):
                trouble, hint = f"jobs may not submit jobs here, it seems: {error.message}", ELSEWHERE
            return Kept(waiting, tuple(submitted), tuple(cancelled), trouble, hint, refused)
        trouble, hint = self._stuck(jobs)
        return Kept(waiting, tuple(submitted), tuple(cancelled), trouble, hint, is_stuck=bool(trouble))

    def _stuck(self, jobs: Sequence[Job]) -> tuple[str, str]:
        """What keeps one of the jobs from ever starting, and what to do: `singleton` has the later ones wait for it."""
        for job in sorted(jobs, key=lambda job: job.id.array):
            token = token_in(job)
            if job.state.is_waiting and token is not None and token.installation == self.installation.token:
                why = explain_reason(job.reason, str(job.id))
                if why.blocks_for_ever:
                    return f"job {job.id} waits, and will never start by itself: {why.words} ({job.reason})", why.advice
        return "", ""

    def submission(self, wish: Wish) -> Submission:
        """What is handed to the scheduler. `--begin` counts from now, in seconds.

        A date would be read in the time zone of whoever runs sbatch, and twice a year twice; the number of seconds is
        made of the slot anew each time, so nothing adds up. Of the person's SBATCH_* only where jobs go counts:
        SBATCH_ARRAY_INX would make several schedulers of one job, and SBATCH_WAIT have us wait for its end.
        """
        options = sbatch_options(self.name, self.settings, mode_of(self.installation, self.settings))
        if self.scheduler.name == "local":
            options |= ON_ONE_MACHINE
        if wish.begin is not None and (wait_s := math.ceil(wish.begin - self.clock.now())) > 0:
            options["begin"] = f"now+{wait_s}"
        script = self.script or str(self.directory.path / SCRIPT)
        slot = (f"slot={wish.token.seed}",) if wish.token.mode is Mode.PULSE else ()
        return Submission(str(wish.token), RUN_NAME, script, slot, options=options, directory="/", variables=WHERE)

    def _submit(self, wish: Wish) -> int:
        return self.scheduler.submit(self.submission(wish)).id.array

    def _cancel(self, surplus: Sequence[Surplus]) -> list[int]:
        """Cancel what waits; what has begun meanwhile goes on, and ends by itself."""
        ids = [one.job_id for one in surplus]
        if ids:
            self.scheduler.cancel([JobId(number) for number in ids], pending_only=True)
        return ids

    def tell_to_leave(self) -> tuple[int, ...]:
        """Tell the jobs that run (there is one, mostly) that there is no more to do. Raise as `jobs`."""
        told = []
        for job in self.jobs():
            if job.id.array != self.own and not job.state.is_waiting and job.state != "COMPLETING":
                with suppress(SchedulerError):  # it has just ended
                    self.scheduler.signal(job.id, "USR1", batch=True)
                told.append(job.id.array)
        return tuple(told)

    def cancel_all(self, *, running: bool, patience_s: float = 30.0) -> tuple[int, ...]:
        """Cancel every job of the chain: first what waits, or it would begin.

        Raise SchedulerUnavailable if some are still there after a while, SchedulerError if nobody answered.
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
                    f"jobs {', '.join(map(str, ids))} of the scheduler do not go away", hint=f"scancel -n {self.name}"
                )
            if cancelled.keys() >= {job_id.array for job_id in ids}:
                self.clock.sleep(0.2)
            self.scheduler.cancel(ids, pending_only=bool(waiting))
            cancelled |= dict.fromkeys(job_id.array for job_id in ids)


def script_path(directory: CronDirectory, copy: str) -> str:
    """The batch script, or SLURM's copy of it where the first cannot be read."""
    own = directory.path / SCRIPT
    return copy if copy and not os.access(own, os.R_OK) and Path(copy).exists() else str(own)
