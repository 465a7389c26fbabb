"""The newest of a run's jobs, and the refusal to start beside living ones. Pure."""

from __future__ import annotations

from collections.abc import Collection

from resilience.errors import RunAlive
from resilience.job import Job


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
