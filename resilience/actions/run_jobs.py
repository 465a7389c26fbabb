"""Which jobs of a queue belong to which run. Pure, but for asking the scheduler once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from resilience.errors import RunAlive
from resilience.model.job import Job
from resilience.model.submission import split_comment
from resilience.system.submissions import Intent, submitted_ids


def jobs_of_run(jobs: Iterable[Job], run: str, intents: Sequence[Intent]) -> tuple[Job, ...]:
    """Given a queue and a run's journal, return the jobs of the run: those that carry one of its tokens.

    The run's name in the comment is not enough: two projects, or two people, may call their runs alike, and nobody's
    `resil cancel` may end the other's. It counts only where the journal knows no intent at all. A job with another
    token is never ours, even under an id that we remember: after a controller's crash SLURM may give an id away twice.
    A site may overwrite comments; the id is for that case.
    """
    tokens = {intent.token for intent in intents}
    remembered = {job_id.array for job_id in submitted_ids(intents)}
    ours = []
    for job in jobs:
        mark = split_comment(job.comment)
        if mark is None and job.id.array in remembered:
            ours.append(job)
        if mark is not None and (mark[1] in tokens if tokens else mark[0] == run):
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
