"""Schedulers: each file is one, and exports it as SCHEDULER. All of them implement `Scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from resilience.cluster import ClusterConfig, Node
    from resilience.job import Job, JobId, JobUpdate, Presence
    from resilience.submission import Submission, Submitted

Keep = Callable[[int, str, str], bool]
"""A filter of the queue: True to return a job, by its (or its array's) id, its name and its comment."""


class Scheduler(Protocol):
    """The interface of every scheduler. One contract suite (tests/contract) runs against every implementation.

    Every method answers within its deadline. A method raises SchedulerUnavailable when there was no answer that
    can be trusted, SchedulerError when the scheduler refused, NotSupported when it cannot do that at all.
    """

    @property
    def name(self) -> str:
        """The plugin's name: `slurm`, `local`."""
        ...

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job. Look it up by its token before any retry.

        Raise SubmissionUncertain when the job was sent and could not be looked up.
        """
        ...

    def test(self, submission: Submission) -> str:
        """Return whether and when it would start, without queueing it (`sbatch --test-only`)."""
        ...

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """The exact argv that `submit` would run, for people to read."""
        ...

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """The jobs of a user (empty: mine), ended ones included while remembered, that carry this token."""
        ...

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """The queue, by one query: my own jobs, or those of `users` (an empty collection: everybody's).

        `names` selects jobs with exactly these names; `keep` selects those for which it returns True: a few of 100,000
        cost little. `finished` adds the ended jobs still remembered.
        """
        ...

    def job(self, job_id: JobId) -> Job:
        """One job in detail. Raise NoSuchJob when a successful answer lacks it."""
        ...

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Say if it exists: ALIVE, GONE or UNKNOWN. Never raises. `mine`: my own jobs are never hidden from me."""
        ...

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """The accounting records. Raise NotSupported, plainly, where there is no accounting."""
        ...

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them. Already ended ones are no error."""
        ...

    def hold(self, job_id: JobId) -> None:
        """Keep it from starting."""
        ...

    def release(self, job_id: JobId) -> None:
        """Undo `hold`."""
        ...

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put a running or ended job back into the queue. Refuse an array as a whole: it would start every task."""
        ...

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job."""
        ...

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal (`USR1`) to its steps, to the batch shell (`batch`), or to both and all below (`full`)."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """The nodes."""
        ...

    def config(self) -> ClusterConfig:
        """The limits and features of the cluster."""
        ...
