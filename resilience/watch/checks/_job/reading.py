"""What the job watchdog saw of one subject, as plain values, and what it keeps from the look before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from resilience.job import Job, JobState
from resilience.pending_reason import PendingReason, explain_reason
from resilience.watch.reading import Timed

SHOWN = 50
"""So many jobs that run are kept in a reading, and so many groups of jobs that wait alike."""
STALE_S = 86400.0
"""What was seen longer ago than this says nothing about how long something lasts."""

_HELD_STATES = {
    JobState.REQUEUE_HOLD: PendingReason("was requeued and held", "release it: scontrol release {job}", True),
    JobState.SPECIAL_EXIT: PendingReason(
        "ended with an exit code that this cluster holds", "find out why, then: scontrol release {job}", True
    ),
    JobState.RESV_DEL_HOLD: PendingReason("held, for its reservation was deleted", "submit again without it", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """One job, or the jobs of one subject that wait for the same reason.

    Attributes:
        label: the id as people write it: `12`, `12_3`, `12_[4-9%1]`.
        raw: the number SLURM keeps it under.
        count: how many jobs or tasks this stands for.
        start: when it began; of a waiting job, when it is expected to. Seconds since the epoch, or None.
    """

    label: str
    raw: int
    name: str
    user: str
    state: str
    reason: str = ""
    count: int = 1
    partition: str = ""
    nodes: str = ""
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    restarts: int = 0

    @property
    def job_state(self) -> JobState:
        """Its state as a word."""
        return JobState.parse(self.state)

    @property
    def waits(self) -> bool:
        """Whether it has no processes."""
        return self.job_state.is_waiting

    @property
    def why(self) -> PendingReason:
        """Why it waits, in words."""
        job = self.label.partition("_[")[0]
        held = _HELD_STATES.get(self.job_state)
        if held is None:
            return explain_reason(self.reason, job)
        return PendingReason(held.words, held.advice.replace("{job}", job), blocks_for_ever=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """What was seen of one subject: a run, a name, or the queue itself.

    Attributes:
        kind: `run`, `name`, `queue` or `none` (there is no run here).
        scheduler: whose queue was asked.
        asked: when, in seconds since the epoch.
        rows: how many rows of the queue are this subject's; of the queue, how many were kept.
        took_s: how long the query took.
        jobs: the live jobs: running ones first, the one that ends last at the front, then waiting ones.
        ended: what ended last, in words; empty when nothing is known of that.
        last_end: when that was.
        ids: the newest ids known, to look them up when the queue shows none.
        over: why nothing needs to live: `finished`, or who killed it on purpose.
        over_since: when that was said.
        trouble: why it could not be looked at.
        gone: how it is known that there is none; empty while it is not.
        unsure: why it is not known.
        since: since when it is so, by what is so: `missing`, `waiting`, `blocked`, `unreachable`, `suspended:12`.
        starts: when attempts began lately.
        failures: when jobs failed or were requeued lately.
        restarts: how often each job was requeued, by its raw id.
        is_chain: whether it ever was more than one job.
        own: the name of the watchdog's own job, when it is one of those watched.
        pulse: why no line could be added to pulse_file.
        attempts: what is worth showing of the newest attempts.
        looked: what was looked at, and how.
    """

    kind: str
    scheduler: str = ""
    asked: float = 0.0
    rows: int = 0
    took_s: float = 0.0
    jobs: tuple[SeenJob, ...] = ()
    ended: str = ""
    last_end: float | None = None
    ids: tuple[int, ...] = ()
    over: str = ""
    over_since: float | None = None
    trouble: str = ""
    gone: str = ""
    unsure: str = ""
    since: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[float, ...] = ()
    failures: tuple[float, ...] = ()
    restarts: Mapping[str, int] = field(default_factory=dict)
    is_chain: bool = False
    own: str = ""
    pulse: str = ""
    attempts: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()


def fold(jobs: Iterable[Job]) -> tuple[SeenJob, ...]:
    """Given the living jobs of a subject, return what has processes one by one, and what waits alike together.

    The components of a heterogeneous job are one job, under their leader's id.
    """
    whole: dict[tuple[int, int | None, str], Job] = {}
    for job in jobs:
        key = job.id.array, job.id.task, job.tasks
        if key not in whole or (whole[key].state.is_waiting and not job.state.is_waiting):
            whole[key] = job
    running = sorted(
        (job for job in whole.values() if not job.state.is_waiting),
        key=lambda job: (job.state is not JobState.RUNNING, -(job.end_time or float("inf")), job.raw_id),
    )
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in sorted((job for job in whole.values() if job.state.is_waiting), key=lambda job: job.id):
        groups.setdefault((job.state.value, job.reason), []).append(job)
    waiting = [_seen(group[0], sum(job.task_count for job in group), group) for group in groups.values()]
    return (*(_seen(job, 1, [job]) for job in running[:SHOWN]), *waiting[:SHOWN])


def lasting(before: Timed[JobReading] | None, true: Mapping[str, float | None], now: float) -> Mapping[str, float]:
    """Since when each thing is so that is so now. `true` maps what is so to when it began, None where nobody says.

    The look before knows better when it saw the same; what it saw a day ago is no longer believed.
    """
    known = before.reading.since if before is not None and 0 <= now - before.time < STALE_S else {}
    found = {}
    for what, began in true.items():
        first = now if began is None else min(began, now)
        found[what] = min(float(known[what]), now) if what in known else first
    return found


def recent(times: Iterable[float], now: float, within_s: float) -> tuple[float, ...]:
    """Those of these moments that are not longer ago than that, each once, oldest first."""
    return tuple(sorted({float(time) for time in times if now - within_s <= time <= now + within_s}))[-SHOWN:]


def label_of(job: Job) -> str:
    """The id as people write it; of a record that stands for several tasks, with these."""
    return f"{job.id.array}_[{job.tasks}]" if job.is_array_record else str(job.id)


def _seen(job: Job, count: int, group: Sequence[Job]) -> SeenJob:
    submitted = [one.submit_time for one in group if one.submit_time is not None]
    starts = [one.start_time for one in group if one.start_time is not None]
    return SeenJob(
        label=label_of(job),
        raw=job.raw_id,
        name=job.name,
        user=job.user,
        state=job.state.value,
        reason=job.reason,
        count=count,
        partition=job.partition,
        nodes=job.nodes,
        submit=min(submitted, default=None),
        start=min(starts, default=None),
        end=job.end_time,
        restarts=job.restarts,
    )
