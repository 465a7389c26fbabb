"""Makes sure of what the queue does not show: one empty answer is not dead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from resilience.errors import ResilError
from resilience.job import Job, JobId, JobState, Liveness
from resilience.schedulers import Scheduler
from resilience.system.ports import Clock
from resilience.watch.checks._job.subjects import QueueAnswer

LOOKED_UP = 3
"""So many subjects are looked up by the id of their last job, which takes seconds each; all others share one query."""
SECOND_LOOK_S = 2.0
"""How long to wait before a queue that does not show somebody is asked again."""
EARLIER_S = 30.0
"""A look that long ago which did not show it either is a second look."""
_MAY_COME_BACK = frozenset({JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL})


@dataclass(frozen=True, slots=True)
class Missing:
    """One subject of which a successful answer shows no living job.

    Attributes:
        ids: the jobs and arrays it is known to have had, oldest first.
        ended: its rows in that answer, all of them over.
        is_ours: whether a job found by its id is this subject's: SLURM gives ids away twice after a crash.
        mine: whether its jobs are one's own, which are never hidden.
        missing_since: when it was first seen to be missing.
    """

    subject: str
    ids: tuple[int, ...]
    ended: tuple[Job, ...]
    is_ours: Callable[[Job], bool]
    mine: bool
    missing_since: float | None


@dataclass(frozen=True, slots=True)
class Certainty:
    """What a second source said of one subject.

    Attributes:
        gone: how it is known that it has no job; empty while that is not known.
        unsure: why it is not known.
        job: a living job that turned up after all.
    """

    gone: str = ""
    unsure: str = ""
    job: Job | None = None


class Confirmer:
    """Asks second sources, for as long as there is time.

    Args:
        again: asks the queue once more, for all at once.
        sort: the jobs of each subject in an answer.
        until: the monotonic time at which no more questions are asked.
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

    def confirm(self, missing: Sequence[Missing]) -> dict[str, Certainty]:
        """What is known of each, by subject."""
        found = {one.subject: certain for one in missing if (certain := by_rows(one)) is not None}
        known = [one for one in missing if one.subject not in found and one.ids]
        for one in known[:LOOKED_UP]:
            found[one.subject] = self._look_up(one)
        found |= self._by_history(known[LOOKED_UP:])
        left = [one for one in missing if one.subject not in found]
        if left:
            found |= self._by_second_look(left)
        return found

    def _has_time(self) -> bool:
        return self._clock.monotonic() < self._until

    def _look_up(self, one: Missing) -> Certainty:
        if not self._has_time():
            return Certainty(unsure="there was no time left to look it up")
        presence = self._client.presence(JobId(one.ids[-1]), mine=one.mine)
        if presence.liveness is Liveness.UNKNOWN:
            return Certainty(unsure=presence.reason)
        if presence.liveness is Liveness.ALIVE and presence.job is not None and one.is_ours(presence.job):
            return Certainty(job=presence.job)
        if presence.liveness is Liveness.ALIVE:
            return Certainty(gone=f"job {one.ids[-1]} is somebody else's now")
        return Certainty(gone=presence.reason)

    def _by_history(self, missing: Sequence[Missing]) -> dict[str, Certainty]:
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
                found[one.subject] = Certainty(gone=f"accounting says that job {rows[-1].id} ended: {rows[-1].state}")
        return found

    def _by_second_look(self, missing: Sequence[Missing]) -> dict[str, Certainty]:
        if not self._has_time():
            return {one.subject: Certainty(unsure="there was no time left for a second look") for one in missing}
        now = self._clock.now()
        self._clock.sleep(SECOND_LOOK_S)
        answer = self._again()
        if answer.error:
            return {one.subject: Certainty(unsure=f"the second look failed: {answer.error}") for one in missing}
        hides = self._hides_jobs() if any(not one.mine for one in missing) else ""
        rows = self._sort(answer.jobs)
        found = {}
        for one in missing:
            job = next((job for job in rows.get(one.subject, ()) if job.state.is_alive), None)
            if job is not None:
                found[one.subject] = Certainty(job=job)
            elif hides and not one.mine:
                found[one.subject] = Certainty(unsure=hides)
            elif one.ids and (one.missing_since is None or now - one.missing_since < EARLIER_S):
                found[one.subject] = Certainty(unsure="it was there before; the next look makes sure")
            else:
                found[one.subject] = Certainty(gone="two looks at the queue found no job of it")
        return found

    def _hides_jobs(self) -> str:
        """Why others' jobs may be there and not be shown (PrivateData, slurm.conf(5)); empty when they are shown."""
        try:
            private = self._client.config().raw.get("PrivateData", "")
        except ResilError as error:
            return f"whether this cluster hides other people's jobs is not known: {error.message}"
        return "this cluster hides other people's jobs (PrivateData)" if "jobs" in private.split(",") else ""


def by_rows(one: Missing) -> Certainty | None:
    """What the answer's own rows prove: that what was known last is over. None when they do not. Pure.

    A job that lost its node, or gave way, may be back in the queue in a moment.
    """
    newest = one.ids[-1] if one.ids else None
    rows = [job for job in one.ended if newest is None or newest in (job.id.array, job.raw_id)]
    if not rows:
        return None
    job = max(rows, key=lambda job: (job.end_time or 0.0, job.raw_id))
    if any(row.state in _MAY_COME_BACK for row in rows):
        return None
    return Certainty(gone=f"the queue says that job {job.id} ended: {job.state}")
