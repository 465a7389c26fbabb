"""Decides from evidence whether a job is ALIVE, GONE or UNKNOWN. Pure.

GONE triggers actions: a successor starts, a lock is released. Therefore GONE requires a row with an end state, or the
agreement of all sources that there is no row; everything else is UNKNOWN.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilience.job import Job, JobId, JobState, Liveness, Presence
from resilience.schedulers._slurm.queue import concerns

SETTLED_AFTER_S = 10.0
"""Age at which a controller has contacted all nodes. Before, jobs missing in its saved state may still run as orphans,
until the nodes report and SLURM kills them."""
_MAY_COME_BACK = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL})
"""End states after which SLURM may requeue: sacct shows them until the job starts again."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about a job.

    Attributes:
        queue: rows of the job in a successful query of all states.
        past: rows of the job in accounting; empty without accounting, or if accounting did not respond.
        confirmed: whether the controller is up, and `queue` is the second query without a row.
        hides_jobs: whether the cluster shows users only their own jobs (PrivateData).
        controller_age_s: seconds since the start of the controller; None if unknown.
    """

    queue: tuple[Job, ...]
    past: tuple[Job, ...] = ()
    confirmed: bool = False
    hides_jobs: bool = False
    controller_age_s: float | None = None


def judge(job_id: JobId, evidence: Evidence) -> Presence | None:
    """Return whether the job exists, with a reason; None if there is no row and more evidence is needed."""
    rows = [job for job in evidence.queue if concerns(job, job_id)]
    live = [job for job in rows if job.state.is_alive]
    if live:
        job = max(live, key=lambda job: job.state.may_have_processes)
        return Presence(Liveness.ALIVE, f"squeue shows job {job.id}{_tasks(job)} as {job.state}", job)
    if evidence.queue and not rows:
        return Presence(
            Liveness.UNKNOWN, f"squeue truncated the tasks of array {job_id.array}, so {job_id} may be among them"
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
        return Presence(Liveness.UNKNOWN, f"squeue shows no job {job_id}, but this cluster hides other users' jobs")
    age = evidence.controller_age_s
    if age is not None and age < SETTLED_AFTER_S:
        return Presence(
            Liveness.UNKNOWN, f"squeue has no job {job_id}, but the controller started only {age:.0f} s ago"
        )
    return Presence(Liveness.GONE, f"two queries of the whole queue, with the controller up, found no job {job_id}")


def _last_runs(past: tuple[Job, ...]) -> tuple[Job, ...]:
    """Return the latest record of each task: a requeued job has several."""
    last = {(job.id, job.raw_id): job for job in past}
    return tuple(last.values())


def _tasks(job: Job) -> str:
    return f"_[{job.tasks}]" if job.tasks else ""
