"""Schedulers: each file is a plugin that exports SCHEDULER, an implementation of `Scheduler`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from resilience.cluster import ClusterConfig, Node
    from resilience.job import Job, JobId, JobUpdate, Presence
    from resilience.submission import Submission, Submitted

Keep = Callable[[int, str, str], bool]
"""A filter of the queue: return True to keep a job, given its (or its array's) id, name and comment."""


class Scheduler(Protocol):
    """The interface of every scheduler. The contract tests in tests/contract run against every implementation.

    Every method returns within its deadline. A method raises SchedulerUnavailable if the scheduler gave no reliable
    answer, SchedulerError if the scheduler rejected the request, NotSupported if the operation is not supported.
    """

    @property
    def name(self) -> str:
        """Return the plugin's name: `slurm`, `local`."""
        ...

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job. Look up the job by its token before any retry.

        Raise SubmissionUncertain if the submission was sent and its outcome is unknown.
        """
        ...

    def test(self, submission: Submission) -> str:
        """Return whether and when the job would start, without queueing it (`sbatch --test-only`)."""
        ...

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """Return the argv that `submit` would run."""
        ...

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """Return the jobs of a user (default: the current user) with this token, including ended jobs."""
        ...

    def find_past(self, token: str, *, since: float, user: str = "") -> tuple[Job, ...]:
        """Return the jobs of a user with this token that accounting has, submitted after `since`.

        Raise NotSupported if there is no accounting.
        """
        ...

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """Return the queue by one query: jobs of the current user, or of `users` (an empty collection: all users).

        `names` selects jobs with exactly these names; `keep` filters, which makes a few of 100,000 jobs cheap.
        `finished` includes ended jobs that are still in the queue.
        """
        ...

    def job(self, job_id: JobId) -> Job:
        """Return a job in detail. Raise NoSuchJob if a successful answer does not contain the job."""
        ...

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Return whether a job exists: ALIVE, GONE or UNKNOWN. Never raises. `mine`: the job is the current user's."""
        ...

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """Return the accounting records. Raise NotSupported if there is no accounting."""
        ...

    def cpu_seconds(self, job_id: JobId) -> float:
        """Return the CPU time that the processes of the running steps of a job have used, in seconds.

        The sum decreases when a step ends. Raise NotSupported if the scheduler does not measure the CPU time.
        """
        ...

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """Cancel jobs. Ended jobs are ignored."""
        ...

    def hold(self, job_id: JobId) -> None:
        """Hold a job."""
        ...

    def release(self, job_id: JobId) -> None:
        """Release a held job."""
        ...

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Requeue a running or ended job. Reject a whole array, of which every task would be restarted."""
        ...

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job."""
        ...

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal (`USR1`) to the steps, to the batch shell (`batch`), or to all processes (`full`)."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the cluster."""
        ...

    def config(self) -> ClusterConfig:
        """Return the limits and features of the cluster."""
        ...
