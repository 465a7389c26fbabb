"""Decides whether a job is ALIVE, GONE or UNKNOWN from what was seen. Pure.

GONE makes others act: start a successor, free a lock. So it needs a row that says "ended", or every source
agreeing that there is none; all else is UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilience.job import Job, JobId, JobState, Liveness, Presence
from resilience.schedulers._slurm.queue import concerns

SETTLED_AFTER_S = 10.0
"""A controller younger than this may not have heard from all nodes yet: jobs that its last state save missed still
run there, as orphans, until the nodes report and SLURM kills them."""
_MAY_COME_BACK = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL})
"""Ends after which SLURM requeues: sacct shows them as the last record until the job starts again."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The observations of one job.

    Attributes:
        queue: its rows in a successful query of all states.
        past: its rows in accounting; empty when there is none or it did not answer.
        confirmed: whether the controller was up, and `queue` is the second look without a row.
        hides_jobs: whether this cluster shows users their own jobs only (PrivateData).
        controller_age_s: seconds since the controller started; None if unknown.
    """

    queue: tuple[Job, ...]
    past: tuple[Job, ...] = ()
    confirmed: bool = False
    hides_jobs: bool = False
    controller_age_s: float | None = None


def judge(job_id: JobId, evidence: Evidence) -> Presence | None:
    """Say whether the job exists and how we know; None if there is no row and more must be looked at."""
    rows = [job for job in evidence.queue if concerns(job, job_id)]
    living = [job for job in rows if job.state.is_alive]
    if living:
        job = max(living, key=lambda job: job.state.may_have_processes)
        return Presence(Liveness.ALIVE, f"squeue shows job {job.id}{_tasks(job)} as {job.state}", job)
    if evidence.queue and not rows:
        return Presence(
            Liveness.UNKNOWN, f"squeue cut the tasks of array {job_id.array}, so {job_id} may be among them"
        )
    if rows:
        job = rows[-1]
        return Presence(Liveness.GONE, f"squeue shows that job {job.id} ended: {job.state}", job)
    last = _last_runs(evidence.past)
    ended = last and all(job.state.is_final and job.end_time is not None for job in last)
    returning = any(job.state in _MAY_COME_BACK for job in last)
    if ended and (not returning or (evidence.confirmed and not evidence.hides_jobs)):
        job = last[-1]
        return Presence(Liveness.GONE, f"squeue has no job {job_id}, and sacct says that it ended: {job.state}", job)
    if not evidence.confirmed:
        return None
    if last and not ended:
        return Presence(
            Liveness.UNKNOWN,
            f"squeue has no job {job_id}, but sacct says it is {last[-1].state}: its processes may be orphans",
            last[-1],
        )
    if evidence.hides_jobs:
        return Presence(Liveness.UNKNOWN, f"squeue shows no job {job_id}, but this cluster hides other people's jobs")
    age = evidence.controller_age_s
    if age is not None and age < SETTLED_AFTER_S:
        return Presence(
            Liveness.UNKNOWN, f"squeue has no job {job_id}, but the controller started only {age:.0f} s ago"
        )
    return Presence(Liveness.GONE, f"two looks at the whole queue, with the controller up, found no job {job_id}")


def _last_runs(past: tuple[Job, ...]) -> tuple[Job, ...]:
    """The latest record of each task: a requeued job has several."""
    last = {(job.id, job.raw_id): job for job in past}
    return tuple(last.values())


def _tasks(job: Job) -> str:
    return f"_[{job.tasks}]" if job.tasks else ""
