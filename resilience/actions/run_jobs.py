"""Which jobs of a queue belong to which run. Pure, but for asking the scheduler once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from resilience.errors import RunAlive
from resilience.model.job import Job, JobId
from resilience.model.submission import split_comment


def jobs_of_run(jobs: Iterable[Job], run: str, ids: Collection[JobId] = ()) -> tuple[Job, ...]:
    """Given a queue, return the jobs of a run: those that carry it in their comment, and those we remember by id.

    A job with another run's comment is never ours, even under an id that we remember: after a controller's crash
    SLURM may give an id away twice. A site may overwrite comments; the id is for that case.
    """
    remembered = {job_id.array for job_id in ids}
    ours = []
    for job in jobs:
        mark = split_comment(job.comment)
        if mark[0] == run if mark is not None else job.id.array in remembered:
            ours.append(job)
    return tuple(ours)


def newest(jobs: Collection[Job]) -> Job | None:
    """The job submitted last, among those given."""
    return max(jobs, key=lambda job: (job.submit_time or 0.0, job.id.array), default=None)


def refuse_if_alive(run: str, alive: Collection[Job]) -> None:
    """Raise RunAlive, naming the jobs and what to do, if there are any."""
    if not alive:
        return
    ids = ", ".join(sorted({str(job.id.whole) for job in alive}))
    raise RunAlive(
        f"run {run} is alive already: job {ids}",
        hint=f"queue behind it: --after auto; beside it, at your own risk: --force; end it: resil cancel {run}",
    )
