"""Confirms that jobs missing from the queue's answer are gone: one empty answer is no proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.errors import ResilError
from resilience.job import Job, JobId, JobState, Liveness
from resilience.schedulers import Scheduler
from resilience.system.ports import Clock
from resilience.watch.checks._job.subjects import QueueAnswer

MOST_LOOKED_UP = 3
"""The most subjects looked up by the id of their last job, which takes seconds each; the others share one query."""
SECOND_QUERY_S = 2.0
"""How long to wait before the second query of the queue."""
EARLIER_S = 30.0
"""A subject missing from a probe this long ago is confirmed as missing."""
_MAY_COME_BACK = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL})


@dataclass(frozen=True, slots=True)
class Missing:
    """One subject without a live job in a successful answer.

    Attributes:
        ids: its known jobs and arrays, oldest first.
        ended: its rows in that answer, all of them ended.
        is_ours: returns whether a job belongs to this subject: SLURM may reuse an id after a crash.
        mine: whether its jobs belong to the current user, to whom they are always visible.
        missing_since: when it was first missing.
    """

    subject: str
    ids: tuple[int, ...]
    ended: tuple[Job, ...]
    is_ours: Callable[[Job], bool]
    mine: bool
    missing_since: float | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The result of the second sources for one subject.

    Attributes:
        gone: the evidence that there is no job; empty if not confirmed.
        unsure: why that is not confirmed.
        job: a live job that a second source found.
        last: the record of its last job, which has ended.
    """

    gone: str = ""
    unsure: str = ""
    job: Job | None = None
    last: Job | None = None


class Confirmer:
    """Queries second sources until the deadline.

    Args:
        again: queries the queue once more, for all subjects.
        sort: returns the jobs of each subject in an answer.
        until: the monotonic time after which no more queries are made.
    """

    def __init__(
        self,
        client: Scheduler,
        clock: Clock,
        again: Callable[[], QueueAnswer],
        sort: Callable[[Sequence[Job]], Mapping[str, Sequence[Job]]],
        until: float,
    ) -> None:
        self._client, self._clock, self._again, self._sort, self._until = client, clock, again, sort, until

    def confirm(self, missing: Sequence[Missing]) -> dict[str, Confirmation]:
        """Return the result for each subject."""
        found = {one.subject: certain for one in missing if (certain := confirm_by_rows(one)) is not None}
        known = [one for one in missing if one.subject not in found and one.ids]
        for one in known[:MOST_LOOKED_UP]:
            found[one.subject] = self._look_up(one)
        found |= self._by_history(known[MOST_LOOKED_UP:])
        left = [one for one in missing if one.subject not in found]
        if left:
            found |= self._by_second_query(left)
        return self._find_out_who_cancelled(found)

    def _has_time(self) -> bool:
        return self._clock.monotonic() < self._until

    def _look_up(self, one: Missing) -> Confirmation:
        if not self._has_time():
            return Confirmation(unsure="no time left to look up its last job")
        presence = self._client.presence(JobId(one.ids[-1]), mine=one.mine)
        if presence.liveness is Liveness.UNKNOWN:
            return Confirmation(unsure=presence.reason)
        if presence.liveness is Liveness.ALIVE and presence.job is not None and one.is_ours(presence.job):
            return Confirmation(job=presence.job)
        if presence.liveness is Liveness.ALIVE:
            return Confirmation(gone=f"the id {one.ids[-1]} belongs to another job now")
        return Confirmation(gone=presence.reason, last=presence.job)

    def _find_out_who_cancelled(self, found: dict[str, Confirmation]) -> dict[str, Confirmation]:
        """Return the confirmations, each with the accounting record of a last job that was cancelled: only this record
        names the user."""
        cancelled = {
            subject: one.last
            for subject, one in found.items()
            if one.last is not None and one.last.state is JobState.CANCELLED and not one.last.cancelled_by
        }
        if not cancelled or not self._has_time():
            return found
        try:
            past = self._client.history([job.id.whole for job in cancelled.values()])
        except ResilError:
            return found
        for subject, job in cancelled.items():
            rows = [row for row in past if row.raw_id == job.raw_id or row.id == job.id]
            found[subject] = replace(found[subject], last=rows[-1] if rows else job)
        return found

    def _by_history(self, missing: Sequence[Missing]) -> dict[str, Confirmation]:
        if not missing or not self._has_time():
            return {}
        try:
            past = self._client.history([JobId(one.ids[-1]) for one in missing])
        except ResilError:
            return {}
        last: dict[int, dict[tuple[JobId, int], Job]] = {}
        for job in past:
            for number in {job.id.array, job.raw_id}:
                last.setdefault(number, {})[job.id, job.raw_id] = job
        found = {}
        for one in missing:
            rows = tuple(last.get(one.ids[-1], {}).values())
            if rows and all(job.state.is_final and job.state not in _MAY_COME_BACK for job in rows):
                found[one.subject] = Confirmation(
                    gone=f"accounting reports that job {rows[-1].id} ended: {rows[-1].state}", last=rows[-1]
                )
        return found

    def _by_second_query(self, missing: Sequence[Missing]) -> dict[str, Confirmation]:
        if not self._has_time():
            return {one.subject: Confirmation(unsure="no time left for a second query") for one in missing}
        now = self._clock.now()
        self._clock.sleep(SECOND_QUERY_S)
        answer = self._again()
        if answer.error:
            return {one.subject: Confirmation(unsure=f"the second query failed: {answer.error}") for one in missing}
        hides = self._hides_jobs() if any(not one.mine for one in missing) else ""
        rows = self._sort(answer.jobs)
        found = {}
        for one in missing:
            job = next((job for job in rows.get(one.subject, ()) if job.state.is_alive), None)
            if job is not None:
                found[one.subject] = Confirmation(job=job)
            elif hides and not one.mine:
                found[one.subject] = Confirmation(unsure=hides)
            elif one.ids and (one.missing_since is None or now - one.missing_since < EARLIER_S):
                found[one.subject] = Confirmation(unsure="it was queued before; the next probe confirms")
            else:
                found[one.subject] = Confirmation(gone="two queries of the queue found no job")
        return found

    def _hides_jobs(self) -> str:
        """Return why other users' jobs may be hidden (PrivateData, slurm.conf(5)); empty if they are visible."""
        try:
            private = self._client.config().raw.get("PrivateData", "")
        except ResilError as error:
            return f"cannot determine whether this cluster hides other users' jobs: {error.message}"
        return "this cluster hides other users' jobs (PrivateData)" if "jobs" in private.split(",") else ""


def confirm_by_rows(one: Missing) -> Confirmation | None:
    """Return the confirmation from the answer's own rows: the last known job has ended. None if not. Pure.

    A job that lost its node or was preempted may be requeued in a moment.
    """
    newest = one.ids[-1] if one.ids else None
    rows = [job for job in one.ended if newest is None or newest in (job.id.array, job.raw_id)]
    if not rows:
        return None
    job = max(rows, key=lambda job: (job.end_time or 0.0, job.raw_id))
    if any(row.state in _MAY_COME_BACK for row in rows):
        return None
    return Confirmation(gone=f"the queue reports that job {job.id} ended: {job.state}", last=job)
