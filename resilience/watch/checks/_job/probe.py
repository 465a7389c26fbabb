"""The probe of the job watchdog, its only I/O: run directories, one query per queue, second sources, status lines.

Three steps per queue: query it, confirm that missing jobs are gone (confirm.py), and compose a reading per subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from resilience.errors import ResilError, UsageError
from resilience.job import Job, JobState
from resilience.messages import plural
from resilience.runs.context import Context
from resilience.runs.run_directory import user_name
from resilience.runs.run_files import SIGN_OF_LIFE_S
from resilience.runs.settle import can_settle, settle
from resilience.runs.submissions import Deed
from resilience.schedulers import Scheduler
from resilience.switch import describe_age
from resilience.watch.checks._job.confirm import Confirmation, Confirmer, Missing
from resilience.watch.checks._job.judge import is_blocked
from resilience.watch.checks._job.pulse import add_pulses
from resilience.watch.checks._job.reading import JobReading, SeenJob, fold, ongoing_since, recent
from resilience.watch.checks._job.runs import (
    RunFacts,
    count_as_churn,
    describe_attempts,
    is_failure,
    journal_damage,
    over_by_intervention,
    read_runs,
)
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks._job.subjects import (
    QueueAnswer,
    Subject,
    Watched,
    WatchedNames,
    WatchedRuns,
    own_job,
    query,
)
from resilience.watch.reading import Timed

NO_RUN = "runs"
"""The subject if the state directory has no run."""
LAST_S = 15.0
"""Reserved at the end of the deadline, when no second source is queried any more: one query may be in progress."""
IDS_KEPT = 3

Before = Mapping[str, Timed[JobReading]]


def queue_subject(scheduler: str) -> str:
    """Return the subject of findings about a queue itself."""
    return f"queue of {scheduler}"


def queue_name(scheduler: str, cluster: str) -> str:
    """Return the name of a queue: the scheduler's, and the cluster's if set."""
    return f"{scheduler} {cluster}" if cluster else scheduler


def deadline_of(settings: JobSettings, context: Context) -> float:
    """Return the deadline of a probe, which is longer than that of a call to the scheduler: a probe killed while
    waiting for squeue could not report since when the scheduler does not respond, which would never become CRITICAL."""
    return max(settings.deadline_s, context.scheduler_deadline_s + LAST_S)


def probe_queues(settings: JobSettings, context: Context, before: Before, cluster: str = "") -> dict[str, JobReading]:
    """Probe all subjects once, on one cluster if several are set.

    A scheduler or run that cannot be read does not affect the others.
    """
    clock = context.system.clock
    until = clock.monotonic() + deadline_of(settings, context) - LAST_S
    readings: dict[str, JobReading] = {}
    for name, watched in _watched(settings, context, cluster):
        try:
            client = _client(context, name, cluster)
        except UsageError as error:
            answer = QueueAnswer(name, queried_at=clock.now(), error=error.message, advice=error.hint)
            readings |= _QueueProbe(settings, context, before, None, watched, until).read(answer)
            continue
        answer = query(client, clock, watched.users, watched.keep, queue_name(client.name, cluster))
        readings |= _QueueProbe(settings, context, before, client, watched, until).read(answer)
    return readings or {NO_RUN: JobReading(kind="none", asked=clock.now(), looked=(f"no run in {context.state_dir}",))}


def _client(context: Context, name: str, cluster: str) -> Scheduler:
    if cluster:
        return context.scheduler(name, cluster=cluster)
    return context.scheduler(name) if name else context.scheduler()


def _watched(settings: JobSettings, context: Context, cluster: str) -> Sequence[tuple[str, Watched]]:
    """Return the schedulers with their subjects; the empty name is the default scheduler."""
    if settings.names:
        default = _client(context, "", cluster).name
        own = own_job(context.system.environ, default, cluster)
        named = () if settings.users or cluster else _named_runs(settings, context, default)
        return [("", WatchedNames(settings, own, context.system.host.user, cluster, named))]
    me, now = context.system.host.user, context.system.clock.now()
    facts = tuple(read_runs(context.runs(), me=me, now=now, within_s=settings.churn_s))
    if not facts:
        return []
    default = context.scheduler().name
    facts = tuple(_settled(one, context) for one in facts)
    by_scheduler: dict[str, list[RunFacts]] = {}
    for one in facts:
        by_scheduler.setdefault(one.scheduler or default, []).append(one)
    return [
        ("" if name == default else name, WatchedRuns(by_scheduler[name], me, own_job(context.system.environ, name)))
        for name in sorted(by_scheduler, key=lambda name: (name != default, name))
    ]


def _named_runs(settings: JobSettings, context: Context, scheduler: str) -> tuple[RunFacts, ...]:
    """Return the runs of the state directory among the names, if their jobs are of this scheduler."""
    with suppress(ResilError):
        me, now = context.system.host.user, context.system.clock.now()
        directories = [directory for directory in context.runs() if directory.run in settings.names]
        found = read_runs(directories, me=me, now=now, within_s=settings.churn_s)
        return tuple(_settled(one, context) for one in found if one.intents and one.scheduler in ("", scheduler))
    return ()


def _settled(facts: RunFacts, context: Context) -> RunFacts:
    """Return the facts of a run after looking up a submission whose outcome is unknown."""
    clock, newest = context.system.clock, facts.intents[-1] if facts.intents else None
    if newest is None or not can_settle(newest, clock.now()):
        return facts
    try:
        is_settled = settle(facts.directory, facts.intents, context.scheduler(newest.scheduler), clock)
    except UsageError:
        return facts
    again = read_runs([facts.directory], me=context.system.host.user, now=clock.now(), within_s=facts.within_s)
    return next(again) if is_settled else facts


@dataclass(frozen=True, slots=True)
class _QueueProbe:
    """One probe of one queue, for all its subjects."""

    settings: JobSettings
    context: Context
    before: Before
    client: Scheduler | None
    watched: Watched
    until: float

    def read(self, answer: QueueAnswer) -> dict[str, JobReading]:
        """Return a reading for each subject and one for the queue, from the queue's answer."""
        jobs = self.watched.sort(answer.jobs)
        subjects = [self.watched.with_jobs(one, jobs.get(one.name, ())) for one in self.watched.subjects]
        readings: dict[str, JobReading] = {}
        if not answer.error:
            certain = self._confirm(subjects, jobs)
            for subject in subjects:
                reading = self._reading(subject, answer, jobs.get(subject.name, []), certain.get(subject.name))
                if reading is not None:
                    readings[subject.name] = reading
        if self.settings.pulse_file:
            due = [(subject, readings.get(subject.name)) for subject in self.watched.subjects]
            for name, error in add_pulses(self.settings, self.context, self.client, answer, due).items():
                if name in readings:
                    readings[name] = replace(readings[name], pulse=error)
        return {**readings, queue_subject(answer.scheduler): self._queue_reading(answer)}

    def _confirm(self, subjects: Sequence[Subject], jobs: Mapping[str, Sequence[Job]]) -> dict[str, Confirmation]:
        """Query second sources for all subjects that should have a live job but have none in the answer."""
        missing = []
        for subject in subjects:
            rows, facts, earlier = jobs.get(subject.name, ()), subject.facts, self.before.get(subject.name)
            is_over = facts is not None and (facts.error or self._over(facts, rows)[0])
            if is_over or self.watched.error_of(subject) or any(job.state.is_alive for job in rows):
                continue
            ids = facts.ids if facts is not None else earlier.reading.ids if earlier is not None else ()
            if facts is not None and not ids:
                continue  # it never had a job
            since = earlier.reading.since.get("missing") if earlier is not None else None
            missing.append(Missing(subject.name, ids, tuple(rows), subject.is_ours, subject.mine, since))
        if not missing or self.client is None:
            return {}
        client, clock = self.client, self.context.system.clock

        def again() -> QueueAnswer:
            return query(client, clock, self.watched.users, self.watched.keep)

        return Confirmer(client, clock, again, self.watched.sort, self.until).confirm(missing)

    def _queue_reading(self, answer: QueueAnswer) -> JobReading:
        silent = {"unreachable": None} if answer.error else {}
        names = ", ".join(subject.shown for subject in self.watched.subjects[:5])
        more = "" if len(self.watched.subjects) <= 5 else f" and {len(self.watched.subjects) - 5} more"
        return JobReading(
            kind="queue",
            scheduler=answer.scheduler,
            asked=answer.queried_at,
            rows=len(answer.jobs),
            took_s=answer.took_s,
            trouble=answer.error,
            unsure=answer.advice,
            since=ongoing_since(self.before.get(queue_subject(answer.scheduler)), silent, answer.queried_at),
            looked=(self._query_text(answer), f"subjects: {names}{more}"),
        )

    def _query_text(self, answer: QueueAnswer) -> str:
        users = self.watched.users
        whose = "all users" if users == () else "the current user" if users is None else ", ".join(users)
        return f"one query of the {answer.scheduler} queue for jobs of {whose}, also ended ones; {answer.took_s:.2f} s"

    def _reading(
        self, subject: Subject, answer: QueueAnswer, jobs: Sequence[Job], certain: Confirmation | None
    ) -> JobReading | None:
        """Return the reading of one subject; None for a run that has been over for `forget_s`."""
        now, facts, earlier = answer.queried_at, subject.facts, self.before.get(subject.name)
        past = earlier.reading if earlier is not None else None
        certain = certain or Confirmation()
        alive = [certain.job] if certain.job is not None else [job for job in jobs if job.state.is_alive]
        over, over_since = self._over(facts, jobs) if facts is not None else ("", None)
        if not over and not alive:
            over, over_since = _cancelled_by_owner(certain.last, now)
        if not over and not alive and facts is not None and not facts.has_attempts:
            over, over_since = _completed(facts, certain.last, jobs, past)
        is_old = over_since is not None and now - over_since > self.settings.forget_s and facts is not None
        if is_old and not alive and subject.requested is None:
            return None
        error = self.watched.error_of(subject) or (facts.error if facts is not None else "")
        gone, unsure = certain.gone, certain.unsure
        if facts is not None and not alive and not over:
            gone, unsure = _correct_by_files(facts, gone, unsure, now)
        seen = fold(alive)
        ended = [job for job in jobs if not job.state.is_alive]
        ends = [job.end_time for job in ended] + ([facts.last_end] if facts is not None else [])
        last_end = max((end for end in ends if end is not None), default=None)
        restarts = {str(job.raw_id): job.restarts for job in alive if job.restarts}
        failures = [*(past.failures if past else ()), *_failures(ended), *_requeues(past, restarts, now)]
        if facts is not None and facts.has_attempts:
            failures = []  # each of them is an attempt, and a job that did not train is none
        reading = JobReading(
            kind="run" if facts is not None else "name",
            scheduler=answer.scheduler,
            asked=now,
            rows=len(jobs),
            took_s=answer.took_s,
            jobs=seen,
            ended=_describe_end(ended),
            last_end=last_end,
            ids=_newest_ids(subject, jobs, past),
            over=over,
            over_since=over_since,
            trouble=error,
            gone=gone,
            unsure=unsure,
            since=ongoing_since(earlier, _conditions(seen, last_end, now, is_missing=not alive and not error), now),
            starts=facts.starts if facts is not None else (),
            failures=recent(failures, now, self.settings.churn_s),
            restarts=restarts,
            is_chain=_is_chain(subject, jobs, past),
            is_last=facts is not None and (facts.requeues or _is_last(facts)),
            breaker=facts.breaker if facts is not None else None,
            attempts=facts.hosts if facts is not None else (),
            own=self.watched.own_name(subject) if facts is None else "",  # tokens tell a run's jobs apart
            looked=self._explanation(subject, answer, len(jobs), gone or unsure),
        )
        if facts is not None and self.settings.churn_count and len(facts.starts) >= self.settings.churn_count:
            newest = describe_attempts(facts.directory)
            reading = replace(reading, starts=count_as_churn(facts), attempts=(*facts.hosts, *newest))
        return reading

    def _over(self, facts: RunFacts, rows: Sequence[Job]) -> tuple[str, float | None]:
        """Return why a run needs no job, and since when."""
        if facts.over or any(job.state.is_alive and job.state is not JobState.COMPLETING for job in rows):
            return facts.over, facts.over_since
        return over_by_intervention(facts, rows, self.context.system.clock.now())

    def _explanation(self, subject: Subject, answer: QueueAnswer, rows: int, second: str) -> tuple[str, ...]:
        how = "by the tokens in its journal" if subject.facts is not None else "by name"
        lines = [self._query_text(answer), f"{plural(rows, 'row')} of {subject.shown}, matched {how}"]
        if subject.facts is not None:
            lines.append(f"run directory {subject.facts.directory.path}: finished, kill switch, attempts")
            lines += subject.facts.hosts
        if second:
            lines.append(f"second source: {second}")
        if self.watched.own.ids:
            lines.append(f"excluded: this watchdog's own job {', '.join(map(str, sorted(self.watched.own.ids)))}")
        return tuple(lines)


def _is_last(facts: RunFacts) -> bool:
    return facts.done is not None and facts.done.deed is Deed.CANCELLED_PENDING


def _conditions(
    seen: Sequence[SeenJob], last_end: float | None, now: float, *, is_missing: bool
) -> dict[str, float | None]:
    """Return the current conditions with their start, or None if the queue does not show that."""
    found: dict[str, float | None] = {"missing": None} if is_missing else {}
    if seen and all(job.waits for job in seen):
        found["waiting"] = max(filter(None, (last_end, min(job.submit or now for job in seen))), default=now)
    if is_blocked(seen):
        found["blocked"] = None
    for job in seen:
        if job.job_state in (JobState.SUSPENDED, JobState.STOPPED):
            found[f"suspended:{job.raw}"] = None
        elif job.job_state is JobState.COMPLETING:
            found[f"completing:{job.raw}"] = job.end
    return found


def _completed(
    facts: RunFacts, last: Job | None, rows: Sequence[Job], past: JobReading | None
) -> tuple[str, float | None]:
    """Return why a run of a user's own script needs no job, and since when: its newest job ended with exit code 0.

    A rendered script marks the run as finished. The queue forgets the job after MinJobAge; the reading does not.
    """
    if not facts.ids:
        return "", None
    newest = facts.ids[-1]
    over = f"complete: job {newest} ended with exit code 0"
    if past is not None and past.over == over:
        return over, past.over_since
    ended = [job for job in (*rows, *([last] if last is not None else [])) if newest in (job.id.array, job.raw_id)]
    if not ended or any(job.state is not JobState.COMPLETED for job in ended):
        return "", None
    return over, max((job.end_time for job in ended if job.end_time is not None), default=None)


def _correct_by_files(facts: RunFacts, gone: str, unsure: str, now: float) -> tuple[str, str]:
    """Return (gone, unsure) of the second sources, corrected by the run's own files."""
    if facts.last_beat is not None and facts.last_end is None and abs(now - facts.last_beat) < SIGN_OF_LIFE_S:
        age = f"{max(0.0, now - facts.last_beat):.0f} s ago"
        return "", f"the newest attempt sent a heartbeat {age}"
    if facts.submitting:
        return "", facts.submitting
    if damage := journal_damage(facts.directory):
        return "", f"{damage}: check the queue for a job of this run; the next `resil submit` repairs the journal"
    return (gone, unsure) if facts.ids else ("no job was ever submitted for it", "")


def _newest_ids(subject: Subject, jobs: Sequence[Job], past: JobReading | None) -> tuple[int, ...]:
    if subject.facts is not None:
        return subject.facts.ids[-IDS_KEPT:]
    seen = sorted({job.id.array for job in jobs})
    return tuple(dict.fromkeys((*(past.ids if past is not None and not seen else ()), *seen)))[-IDS_KEPT:]


def _is_chain(subject: Subject, jobs: Sequence[Job], past: JobReading | None) -> bool:
    """Return whether its jobs follow one another. Jobs that match a pattern may be unrelated."""
    facts = subject.facts
    tasks = Counter(job.id.array for job in jobs if job.state is JobState.RUNNING and job.id.task is not None)
    if max(tasks.values(), default=0) > 1:
        return False  # tasks that run at the same time
    same = past if past is not None and (facts is None or past.ids == facts.ids[-IDS_KEPT:]) else None
    if same is not None and same.is_chain:
        return True
    waits = len(jobs) > 1 and any(job.state.is_waiting and job.dependency for job in jobs)
    if waits or any("%" in job.tasks for job in jobs):
        return True
    if subject.requested is not None and subject.requested.is_pattern:
        return False
    seen = {job.label.partition("_")[0] for job in same.jobs if "_" in job.label} if same is not None else ()
    if tasks and all(str(array) in seen for array in tasks):
        return False  # the last of them
    known = facts.newest_chain if facts is not None else ()
    of_chain = [job for job in jobs if not known or job.id.array in known]
    return len(set(known)) > 1 or any(job.is_array_record or job.id.task is not None for job in of_chain)


def _cancelled_by_owner(last: Job | None, now: float) -> tuple[str, float | None]:
    """Return why no job is needed if the last one was cancelled by its own user, with scancel."""
    if last is None or last.state is not JobState.CANCELLED or not last.cancelled_by:
        return "", None
    by = user_name(int(last.cancelled_by)) if last.cancelled_by.isdecimal() else last.cancelled_by
    if by != last.user:
        return "", None
    ago = "" if last.end_time is None else describe_age(now - last.end_time) or " just now"
    return f"cancelled on purpose: {by} cancelled job {last.id}{ago}", last.end_time


def _failures(ended: Sequence[Job]) -> list[float]:
    """Return when jobs ended by a fault of the training or the cluster."""
    return [job.end_time for job in ended if job.end_time is not None and is_failure(job)]


def _requeues(past: JobReading | None, restarts: Mapping[str, int], now: float) -> list[float]:
    """Return a time for each requeue since the last probe, a millisecond apart, so that each counts."""
    if past is None:
        return []
    known = {str(job.raw) for job in past.jobs}
    grown = sum(max(0, count - past.restarts.get(raw, 0)) for raw, count in restarts.items() if raw in known)
    return [now - number / 1000 for number in range(min(grown, 50))]


def _describe_end(ended: Sequence[Job]) -> str:
    job = max(ended, key=lambda job: (job.end_time or 0.0, job.raw_id), default=None)
    if job is None:
        return ""
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"job {job.id} ended: {job.state}{code}"
