"""The readings of the job watchdog, and what they carry over from the previous one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from resilience.job import Job, JobState
from resilience.pending_reason import PendingReason, explain_reason
from resilience.runs.breaker_file import OpenBreaker
from resilience.watch.reading import Timed

SHOWN = 50
"""The most running jobs in a reading, and the most groups of pending ones."""
STALE_S = 86400.0
"""Older readings are not used for how long a condition has lasted."""

HELD_BY_OWNER = "JobHeldUser"
"""SLURM's reason after `sbatch --hold`, and after `scontrol hold` by the owner."""
_HELD_STATES = {
    JobState.REQUEUE_HOLD: PendingReason("was requeued and held", "release it: scontrol release {job}", True),
    JobState.SPECIAL_EXIT: PendingReason(
        "held after an exit code that this cluster holds jobs for", "find the cause, then: scontrol release {job}", True
    ),
    JobState.RESV_DEL_HOLD: PendingReason("held: its reservation was deleted", "submit again without it", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """One job, or the jobs of one subject that are pending for the same reason.

    Attributes:
        label: the id as SLURM prints it: `12`, `12_3`, `12_[4-9%1]`.
        raw: the raw job id.
        count: how many jobs or tasks this stands for.
        start: the start time; for a pending job, the expected one. Seconds since the epoch, or None.
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
        """Return the parsed state."""
        return JobState.parse(self.state)

    @property
    def waits(self) -> bool:
        """Return whether the job is pending."""
        return self.job_state.is_waiting

    @property
    def is_held_by_owner(self) -> bool:
        """Return whether its owner holds the pending job on purpose."""
        return self.job_state is JobState.PENDING and self.reason == HELD_BY_OWNER

    @property
    def why(self) -> PendingReason:
        """Return why the job is pending."""
        job = self.label.partition("_[")[0]
        held = _HELD_STATES.get(self.job_state)
        if held is None:
            return explain_reason(self.reason, job)
        return PendingReason(held.words, held.advice.replace("{job}", job), blocks_for_ever=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """The reading of one subject: a run, a name, or the queue itself.

    Attributes:
        kind: `run`, `name`, `queue` or `none` (the state directory has no run).
        scheduler: the queue that was queried.
        asked: when it was queried, in seconds since the epoch.
        rows: the rows of the queue that belong to this subject; for the queue, the rows kept.
        took_s: how long the query took.
        jobs: the live jobs: running ones first, the one that ends last at the front, then pending ones.
        ended: a description of the last job that ended; empty if unknown.
        last_end: when that job ended.
        ids: the newest known ids, for looking up jobs that the queue does not show.
        over: why no job is needed: `finished`, or who killed the run on purpose.
        over_since: since when.
        trouble: why the subject could not be read.
        gone: the evidence that there is no job; empty if not confirmed.
        unsure: why that is not confirmed.
        since: the start of each ongoing condition: `missing`, `waiting`, `blocked`, `unreachable`, `suspended:12`.
        starts: when recent attempts began.
        failures: when jobs recently failed or were requeued.
        restarts: how often each job was requeued, by raw id.
        is_chain: whether the subject ever had more than one job.
        is_last: whether a person cancelled the jobs behind the running one, or it requeues itself: none need follow.
        own: the name of the watchdog's own job, if that matches the subject.
        pulse: why no line could be written to pulse_file.
        attempts: one line on each bad host, and on each of the newest attempts if they are frequent.
        looked: the explanation for `--explain`.
        breaker: the run's breaker if it is open, or None.
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
    is_last: bool = False
    own: str = ""
    pulse: str = ""
    attempts: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()
    breaker: OpenBreaker | None = None


def fold(jobs: Iterable[Job]) -> tuple[SeenJob, ...]:
    """Return the running jobs of a subject one by one, and its pending jobs grouped by reason.

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


def ongoing_since(
    before: Timed[JobReading] | None, current: Mapping[str, float | None], now: float
) -> Mapping[str, float]:
    """Return the start of each current condition. `current` maps conditions to their start, or None if unknown.

    The start in the previous reading takes precedence, unless that reading is more than a day old.
    """
    known = before.reading.since if before is not None and 0 <= now - before.time < STALE_S else {}
    found = {}
    for condition, began in current.items():
        first = now if began is None else min(began, now)
        found[condition] = min(float(known[condition]), now) if condition in known else first
    return found


def recent(times: Iterable[float], now: float, within_s: float) -> tuple[float, ...]:
    """Return the times that are within `within_s` of `now`, each once, oldest first."""
    return tuple(sorted({float(time) for time in times if now - within_s <= time <= now + within_s}))[-SHOWN:]


def label_of(job: Job) -> str:
    """Return the id as SLURM prints it, with the tasks if the record stands for several."""
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
