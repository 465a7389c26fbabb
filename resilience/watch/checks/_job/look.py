"""The job watchdog's look: the run directories, one query for each queue, second sources, the pulse. The only I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from resilience.errors import UsageError
from resilience.job import Fault, Job, JobState
from resilience.runs.context import Context
from resilience.schedulers import Scheduler
from resilience.watch.checks._job.confirm import Certainty, Confirmer, Missing
from resilience.watch.checks._job.describe import many
from resilience.watch.checks._job.past import ago, ended_words, is_chain, newest_ids, requeued
from resilience.watch.checks._job.pulse_file import add_pulses
from resilience.watch.checks._job.queue import Answer, ask, own_job
from resilience.watch.checks._job.reading import JobReading, fold, lasting, plain, recent
from resilience.watch.checks._job.runs import journal_damage, look_at_runs, tell_attempts
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks._job.subjects import Subject, Watched, WatchedNames, WatchedRuns
from resilience.watch.checks._job.waiting import is_blocked, is_waiting
from resilience.watch.reading import Timed

NO_RUN = "runs"
"""The subject when there is no run at all."""
LAST_S = 15.0
"""What is left of the deadline when second sources are asked no more: one query may be under way then."""
SIGN_OF_LIFE_S = 30.0
"""A beat younger than this contradicts a queue that shows nothing. Beats come every 10 s unless set otherwise."""

Before = Mapping[str, Timed[JobReading]]


def queue_subject(scheduler: str) -> str:
    """What findings about a queue itself are about."""
    return f"queue of {scheduler}"


def place_of(scheduler: str, cluster: str) -> str:
    """How a queue is called."""
    return f"{scheduler} {cluster}" if cluster else scheduler


def deadline_of(settings: JobSettings, scene: Context) -> float:
    """How long a look may take. Never less than one call to the scheduler may: who is ended while he waits for squeue
    cannot tell that it is silent, nor since when, and the silence would never become CRITICAL."""
    return max(settings.deadline_s, scene.scheduler_deadline_s + LAST_S)


def look(settings: JobSettings, scene: Context, before: Before, cluster: str = "") -> dict[str, JobReading]:
    """Look once at everybody, at one cluster where several are named.

    What one scheduler or one run does not answer hides none of the others.
    """
    clock = scene.world.clock
    until = clock.monotonic() + deadline_of(settings, scene) - LAST_S
    readings: dict[str, JobReading] = {}
    for name, watched in _watched(settings, scene, cluster):
        try:
            client = _client(scene, name, cluster)
        except UsageError as error:
            answer = Answer(name, asked=clock.now(), trouble=error.message, advice=error.hint)
            readings |= _Tick(settings, scene, before, None, watched, until).read(answer)
            continue
        tick = _Tick(settings, scene, before, client, watched, until)
        readings |= tick.read(ask(client, clock, watched.users, watched.keep, place_of(client.name, cluster)))
    if not readings:
        return {NO_RUN: JobReading(kind="none", asked=clock.now(), looked=(f"no run in {scene.state_dir}",))}
    return readings


def _client(scene: Context, name: str, cluster: str) -> Scheduler:
    if cluster:
        return scene.scheduler(name, cluster=cluster)
    return scene.scheduler(name) if name else scene.scheduler()


def _watched(settings: JobSettings, scene: Context, cluster: str) -> Sequence[tuple[str, Watched]]:
    """Who is watched at which scheduler; the empty name is the one that new jobs go to."""
    if settings.names:
        own = own_job(scene.world.environ, _client(scene, "", cluster).name, cluster)
        return [("", WatchedNames(settings, own, cluster))]
    me, now = scene.world.host.user, scene.world.clock.now()
    facts = tuple(look_at_runs(scene.runs(), me=me, now=now, within_s=settings.churn_s))
    if not facts:
        return []
    default = scene.scheduler().name
    names = sorted({one.scheduler or default for one in facts}, key=lambda name: (name != default, name))
    found: list[tuple[str, Watched]] = []
    for name in names:
        own = own_job(scene.world.environ, name)
        mine = [one for one in facts if (one.scheduler or default) == name]
        found.append(("" if name == default else name, WatchedRuns(mine, me, own)))
    return found


@dataclass(frozen=True, slots=True)
class _Tick:
    """One look at one queue, for all who are watched there."""

    settings: JobSettings
    scene: Context
    before: Before
    client: Scheduler | None
    watched: Watched
    until: float

    def read(self, answer: Answer) -> dict[str, JobReading]:
        readings: dict[str, JobReading] = {}
        by_subject = self.watched.sort(answer.jobs)
        if not answer.trouble:
            certain = self._confirm(answer, by_subject)
            for subject in self.watched.subjects:
                jobs = by_subject.get(subject.name, [])
                reading = self._of_subject(subject, answer, jobs, certain.get(subject.name))
                if reading is not None:
                    readings[subject.name] = reading
        if self.settings.pulse_file:
            self._pulse(answer, readings)
        return {**readings, queue_subject(answer.scheduler): self._of_queue(answer)}

    def _of_queue(self, answer: Answer) -> JobReading:
        earlier = self.before.get(queue_subject(answer.scheduler))
        silent = {"unreachable": None} if answer.trouble else {}
        names = ", ".join(subject.shown for subject in self.watched.subjects[:5])
        more = "" if len(self.watched.subjects) <= 5 else f" and {len(self.watched.subjects) - 5} more"
        return JobReading(
            kind="queue",
            scheduler=answer.scheduler,
            asked=answer.asked,
            rows=len(answer.jobs),
            took_s=answer.took_s,
            trouble=answer.trouble,
            unsure=answer.advice,
            since=lasting(earlier, silent, answer.asked),
            looked=(self._question(answer), f"watched there: {names}{more}"),
        )

    def _question(self, answer: Answer) -> str:
        users = self.watched.users
        whose = "everybody's" if users == () else "my own" if users is None else f"those of {', '.join(users)}"
        return f"one query of the {answer.scheduler} queue for {whose} jobs, ended ones included; {answer.took_s:.2f} s"

    def _confirm(self, answer: Answer, by_subject: Mapping[str, list[Job]]) -> dict[str, Certainty]:
        """Second sources for all that should live and is not in the answer."""
        missing = []
        for subject in self.watched.subjects:
            jobs = by_subject.get(subject.name, [])
            facts = subject.facts
            is_over = facts is not None and (facts.over or facts.trouble)
            if is_over or self.watched.trouble(subject) or any(job.state.is_alive for job in jobs):
                continue
            earlier = self.before.get(subject.name)
            ids = facts.ids if facts is not None else earlier.reading.ids if earlier is not None else ()
            since = earlier.reading.since.get("missing") if earlier is not None else None
            if facts is not None and not ids:
                continue  # it never had a job: there is nothing to look up
            missing.append(Missing(subject.name, ids, tuple(jobs), subject.is_ours, subject.mine, since))
        if not missing or self.client is None:
            return {}
        client, clock = self.client, self.scene.world.clock

        def again() -> Answer:
            return ask(client, clock, self.watched.users, self.watched.keep)

        return Confirmer(client, clock, again, self.watched.sort, self.until).confirm(missing)

    def _of_subject(
        self, subject: Subject, answer: Answer, jobs: list[Job], certain: Certainty | None
    ) -> JobReading | None:
        """What was seen of one subject; None for a run that was over long ago."""
        now, facts, earlier = answer.asked, subject.facts, self.before.get(subject.name)
        alive = [job for job in jobs if job.state.is_alive]
        if certain is not None and certain.job is not None:
            alive = [certain.job]
        is_old = facts is not None and facts.over_since is not None and now - facts.over_since > self.settings.forget_s
        if is_old and not alive:
            return None
        ended = [job for job in jobs if not job.state.is_alive]
        trouble = self.watched.trouble(subject) or (facts.trouble if facts is not None else "")
        seen = fold(alive)
        last = max(ended, key=lambda job: (job.end_time or 0.0, job.raw_id), default=None)
        ends = [job.end_time for job in ended if job.end_time is not None]
        if facts is not None and facts.last_end is not None:
            ends.append(facts.last_end)
        last_end = max(ends, default=None)
        begun = max(filter(None, (last_end, min((job.submit or now for job in seen), default=now))), default=now)
        so: dict[str, float | None] = {}
        if not alive and not trouble:
            so["missing"] = None
        if is_waiting(seen):
            so["waiting"] = begun
        if is_blocked(seen):
            so["blocked"] = None
        for job in seen:
            if job.job_state in (JobState.SUSPENDED, JobState.STOPPED):
                so[f"suspended:{job.raw}"] = None
            elif job.job_state is JobState.COMPLETING:
                so[f"completing:{job.raw}"] = job.end
        gone, unsure = (certain.gone, certain.unsure) if certain is not None else ("", "")
        if facts is not None and not alive and not facts.over:
            gone, unsure = self._what_files_add(subject, gone, unsure, now)
        restarts = {str(job.raw_id): job.restarts for job in alive if job.restarts}
        past = earlier.reading if earlier is not None else None
        failures = [*(past.failures if past else ()), *self._failed(ended), *requeued(past, restarts, now)]
        reading = JobReading(
            kind="run" if facts is not None else "name",
            scheduler=answer.scheduler,
            asked=now,
            rows=len(jobs),
            took_s=answer.took_s,
            jobs=plain(seen),
            ended=ended_words(last),
            last_end=last_end,
            ids=newest_ids(subject, jobs, past),
            over=facts.over if facts is not None else "",
            over_since=facts.over_since if facts is not None else None,
            trouble=trouble,
            gone=gone,
            unsure=unsure,
            since=lasting(earlier, so, now),
            starts=facts.starts if facts is not None else (),
            failures=recent(failures, now, self.settings.churn_s),
            restarts=restarts,
            is_chain=is_chain(subject, jobs, past),
            own=self.watched.own_name(subject),
            looked=self._looked(subject, answer, jobs, gone or unsure),
        )
        if facts is not None and self.settings.churn_count and len(facts.starts) >= self.settings.churn_count:
            reading = replace(reading, attempts=tell_attempts(facts.directory))
        return reading

    @staticmethod
    def _failed(ended: Sequence[Job]) -> list[float]:
        own_doing = (Fault.TRAINING, Fault.CLUSTER)
        return [job.end_time for job in ended if job.end_time is not None and job.state.fault in own_doing]

    @staticmethod
    def _what_files_add(subject: Subject, gone: str, unsure: str, now: float) -> tuple[str, str]:
        """What the run's own files say against, or for, its being gone."""
        facts = subject.facts
        assert facts is not None
        if facts.last_beat is not None and facts.last_end is None and abs(now - facts.last_beat) < SIGN_OF_LIFE_S:
            return (
                "",
                f"the queue shows no job, yet its newest attempt showed a sign of life {ago(now, facts.last_beat)}",
            )
        if facts.submitting:
            return "", facts.submitting
        if damage := journal_damage(facts.directory):
            return "", f"{damage}: see whether a job of it is in the queue; the next `resil submit` mends it"
        if not facts.ids:
            return "no job was ever queued for it", ""
        return gone, unsure

    def _looked(self, subject: Subject, answer: Answer, jobs: Sequence[Job], second: str) -> tuple[str, ...]:
        how = "by the tokens in its journal" if subject.facts is not None else "by name"
        lines = [self._question(answer), f"{many(len(jobs), 'row')} of {subject.shown}, known {how}"]
        if subject.facts is not None:
            lines.append(f"its files in {subject.facts.directory.path}: finished, kill switch, attempts")
        if second:
            lines.append(f"second source: {second}")
        if self.watched.own.ids:
            lines.append(f"left out: this watchdog's own job {', '.join(map(str, sorted(self.watched.own.ids)))}")
        return tuple(lines)

    def _pulse(self, answer: Answer, readings: dict[str, JobReading]) -> None:
        wishes = [(subject, readings.get(subject.name)) for subject in self.watched.subjects]
        troubles = add_pulses(self.settings, self.scene, self.client, answer, wishes)
        for name, trouble in troubles.items():
            if name in readings:
                readings[name] = replace(readings[name], pulse=trouble)
