"""A project with a state directory of its own, in which something is to happen: for drills and for tests of users.

Nothing of it touches the runs of the project that it was made from, and `close` ends all that it has started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from resilience.errors import ResilError, UsageError
from resilience.inject.injecting import Running, inject, prepare
from resilience.job import Job, JobId
from resilience.quantities import format_duration
from resilience.ranks.beats import RankBeat, read_beats
from resilience.runs import submit
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.runs.run_jobs import jobs_of_run
from resilience.runs.submissions import read_intents
from resilience.runs.submit_plan import SubmitRequest
from resilience.schedulers.local import LocalScheduler

ValueT = TypeVar("ValueT")
SPOOL, IDLE = "RESIL_LOCAL_SPOOL", "RESIL_LOCAL_IDLE_S"
END_S = 60.0
"""How long `close` waits for the end of cancelled jobs: KillWait of SLURM is 30 s."""
LOCAL_POLL_S, SLURM_POLL_S = 0.1, 1.0


class NotInTime(ResilError):
    """Something did not happen within its time limit."""


def own_environ(environ: Mapping[str, str], own: Mapping[str, str], spool: Path | None) -> dict[str, str]:
    """Return the environment of a stage: not that of a surrounding run, with settings `own` and, for the embedded
    scheduler, a spool of its own and nothing of SLURM. Pure."""
    foreign = ("RESIL_RUN", "RESIL_RUN_DIR", "RESIL_GUARD", "RESIL_ATTEMPT", "RESIL_END_TIME")
    kept = {name: text for name, text in environ.items() if name not in foreign}
    if spool is not None:
        kept = {name: text for name, text in kept.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    own = {**own, "RESIL_RUN__ALLOW_INJECT": "true"}
    mine = {} if spool is None else {SPOOL: str(spool), IDLE: kept.get(IDLE, "1")}
    return {**kept, **mine, **own}


@dataclass(slots=True)
class Stage:
    """A project of its own.

    Attributes:
        project: its settings, with a state directory of its own.
        submitted: the jobs that were queued, in order.
    """

    project: Project
    submitted: list[JobId] = field(default_factory=list)

    @property
    def is_local(self) -> bool:
        """Return whether the embedded scheduler runs the jobs."""
        return self.project.scheduler_name() == "local"

    def run(self, name: str) -> RunDirectory:
        """Return the directory of a run."""
        return self.project.directory(name)

    def submit(self, request: SubmitRequest) -> JobId:
        """Queue a run. Raise as `resil submit`."""
        result = submit.perform(self.project, submit.prepare(self.project, request))
        self.submitted += result.ids
        return result.ids[0]

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs of all runs, also those that have ended and the scheduler still knows.

        Raise SchedulerUnavailable if the scheduler does not answer.
        """
        runs = [(directory, read_intents(directory)) for directory in self.project.runs()]
        if not any(intents for _, intents in runs):
            return ()
        jobs = self.project.scheduler().jobs(finished=True)
        return tuple(job for directory, intents in runs for job in jobs_of_run(jobs, directory.run, intents))

    def until(self, found: Callable[[], ValueT], timeout_s: float, what: str) -> ValueT:
        """Call a function until its result is true, and return the result. Raise NotInTime, naming `what`."""
        clock = self.project.system.clock
        deadline = clock.monotonic() + timeout_s
        while not (value := found()):
            if clock.monotonic() > deadline:
                raise NotInTime(f"{what} did not happen within {format_duration(timeout_s)}")
            clock.sleep(LOCAL_POLL_S if self.is_local else SLURM_POLL_S)
        return value

    def ranks(self, name: str) -> dict[int, tuple[str, RankBeat]]:
        """Return host and heartbeat of each rank of the newest attempt of a run; empty before its first heartbeat."""
        directory = self.run(name)
        attempts = read_attempts(directory, 1)
        if not attempts:
            return {}
        beats = read_beats(directory, job_id=str(attempts[-1].job_id))
        return {
            rank.rank: (beat.host, rank) for beat in beats if beat.attempt == attempts[-1].number for rank in beat.ranks
        }

    def inject(self, run: str, name: str, options: Mapping[str, Any], length_s: float | None = None) -> Running:
        """Inject a fault into a run, as `resil inject` does; `undo` of the answer takes it back. Raise as that does."""
        return inject(prepare(self.project, self.run(run), name, options, length_s))

    def close(self) -> list[str]:
        """End all jobs, and the daemon of the embedded scheduler; return a sentence for each thing that is left."""
        left = []
        try:
            self._end_jobs()
        except ResilError as error:
            ids = ", ".join(str(job_id) for job_id in self.submitted)
            left.append(f"jobs {ids} may still run: {error.message}")
        scheduler = self.project.scheduler() if self.is_local else None
        if isinstance(scheduler, LocalScheduler) and SPOOL in self.project.system.environ:
            scheduler.stop_daemon()
        return left

    def _end_jobs(self) -> None:
        """Cancel until no job is alive: a job may queue its successor meanwhile. Raise NotInTime."""

        def are_gone() -> bool:
            live = [job for job in self.jobs() if job.state.is_alive]
            if live:
                with suppress(UsageError):
                    self.project.scheduler().cancel(sorted({job.id.whole for job in live}))
            return not live

        self.until(are_gone, END_S, "the end of the cancelled jobs")
