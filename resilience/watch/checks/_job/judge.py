"""Judges a run or a job name by its live jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resilience.finding import Figure, Finding, Verdict
from resilience.job import JobState
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.runs.breaker_file import OpenBreaker, describe_breaker
from resilience.switch import printable
from resilience.watch.checks._job.reading import JobReading, SeenJob, recent
from resilience.watch.checks._job.settings import JobSettings

NOT_QUEUED = "not-queued"
WILL_NEVER_START = "will-never-start"
PENDING_TOO_LONG = "pending-too-long"
ENDS_SOON = "ends-soon"
CHAIN_SHORT = "chain-short"
CONFIGURING = "configuring"
COMPLETING = "completing"
SUSPENDED = "suspended"
REQUEUE_CHURN = "requeue-churn"
BREAKER = "breaker-open"
UNREACHABLE = "unreachable"
UNREADABLE = "unreadable"
STATE = "unknown-state"
OWN_NAME = "own-name"
PULSE = "pulse-file"
REQUEUE_S = 120.0
"""A job may be completing for this long because it is requeued. If it has ended, that is reported then."""

_KNOWN_RUNNING = frozenset(
    {
        *(JobState.RUNNING, JobState.CONFIGURING, JobState.POWER_UP_NODE, JobState.COMPLETING, JobState.SUSPENDED),
        *(JobState.STOPPED, JobState.STAGE_OUT, JobState.SIGNALING, JobState.RESIZING, JobState.EXPEDITING),
    }
)


def judge(subject: str, reading: JobReading, settings: JobSettings, now: float) -> Sequence[Finding]:
    """Return the findings about a reading; at least one."""
    if reading.kind == "none":
        return [
            Finding(
                subject=subject,
                verdict=Verdict.OK,
                summary="no run has been submitted here yet",
                advice="start one: resil submit; or watch a job by its name: resil watch job NAME",
                looked=reading.looked,
            )
        ]
    if reading.kind == "queue":
        return [_judge_queue(subject, reading, settings, now)]
    return _Case(subject, reading, settings, now).findings()


def _judge_queue(subject: str, reading: JobReading, settings: JobSettings, now: float) -> Finding:
    looked = _explanation(reading, now)
    if not reading.trouble:
        summary = f"answered in {reading.took_s:.2f} s; {plural(reading.rows, 'row')} of it watched"
        return Finding(subject=subject, verdict=Verdict.OK, summary=summary, looked=looked)
    # From query to query; the time that the last query waited does not count.
    silent_s = max(0.0, reading.asked - reading.since.get("unreachable", reading.asked))
    is_long = silent_s >= settings.unknown_critical_after_s
    since = f" for {format_duration(silent_s)}" if silent_s >= 1 else ""
    return Finding(
        subject=subject,
        verdict=Verdict.CRITICAL if is_long else Verdict.UNKNOWN,
        fault=UNREACHABLE,
        summary=f"no response{since}: {reading.trouble}; the state of the jobs is unknown, not dead",
        advice=reading.unsure or "running jobs continue without it; try `scontrol ping`, then ask the administrators",
        evidence=reading.looked[1:],
        looked=(*looked, f"CRITICAL after {format_duration(settings.unknown_critical_after_s)} without response"),
    )


class _Case:
    """One run or name: each rule is a method that yields its findings."""

    def __init__(self, subject: str, reading: JobReading, settings: JobSettings, now: float) -> None:
        self.subject, self.reading, self.settings, self.now = subject, reading, settings, now
        self.by_state: JobsByState = sort(reading.jobs, may_be_held=reading.kind == "run")

    def findings(self) -> list[Finding]:
        found = list(self._own_faults())
        if self.reading.trouble:
            advice = "" if self.reading.kind == "name" else "can you read its directory from here?"
            found.append(self._finding(Verdict.UNKNOWN, UNREADABLE, self.reading.trouble, advice))
        elif self.reading.breaker is not None and not self.reading.over:
            found += [self._breaker(self.reading.breaker), *self._running()]
        elif not self.reading.jobs:
            found.append(self._missing())
        elif self.reading.over:
            rest = f"; {plural(len(self.reading.jobs), 'job')} still in the queue"
            found.append(self._finding(Verdict.OK, "", self.reading.over + rest))
            found += list(self._ending_long())
        else:
            faults = [*self._waiting(), *self._running(), *self._chain(), *self._churn()]
            found += faults or [self._finding(Verdict.OK, "", describe(self.by_state, self.now))]
        return sorted(found, key=lambda finding: finding.verdict, reverse=True)

    def _finding(self, verdict: Verdict, fault: str, summary: str, advice: str = "", why: str = "") -> Finding:
        looked, breaker = _explanation(self.reading, self.now), self.reading.breaker
        is_held = breaker is not None and breaker.acting
        return Finding(
            subject=self.subject,
            verdict=verdict,
            fault=fault,
            summary=summary,
            advice=advice,
            run=self.subject if self.reading.kind == "run" else "",
            figures=self._figures() if not fault or verdict is not Verdict.UNKNOWN else (),
            evidence=(*(job_line(job, self.now, is_held) for job in self.reading.jobs[:10]), *self.reading.attempts),
            looked=(*looked, why) if why else looked,
        )

    def _figures(self) -> tuple[Figure, ...]:
        figures = [
            Figure(label="running", value=len(self.by_state.running), minimum=0),
            Figure(label="queued", value=self.by_state.queued, minimum=0),
        ]
        left = time_left_s(self.by_state, self.now)
        if left is not None:
            figures.append(Figure(label="left", value=round(left), unit="s", minimum=0))
        return tuple(figures)

    def _for(self, what: str) -> float:
        """Return how long a condition has lasted, in seconds."""
        return max(0.0, self.now - self.reading.since.get(what, self.now))

    def _breaker(self, breaker: OpenBreaker) -> Finding:
        """Return the one finding about a crash loop: held or missing jobs, and frequent attempts, are its effects."""
        held = sum(job.count for job in self.by_state.held)
        jobs = f"; {plural(held, 'queued job')} held, none cancelled" if held else ""
        summary = f"the breaker is {describe_breaker(breaker, self.now)}{jobs}"
        advice = f"see why: resil why {self.subject}; then continue: resil breaker close {self.subject}"
        effect = "nothing trains until it is closed" if breaker.acting else "the queued jobs burn one after another"
        return self._finding(Verdict.CRITICAL, BREAKER, summary, advice, f"CRITICAL: {effect}")

    # ---- no live job ------------------------------------------------------------------------------------------

    def _missing(self) -> Finding:
        reading = self.reading
        if reading.over:
            return self._finding(Verdict.OK, "", reading.over)
        ended = f"; {reading.ended}" if reading.ended else ""
        if not reading.gone:
            why = reading.unsure or "one empty answer is no proof"
            summary = f"no job in the queue, not confirmed: {why}"
            return self._finding(Verdict.UNKNOWN, NOT_QUEUED, summary, "check again in a minute")
        if reading.kind == "run":
            name = self.subject
            advice = f"submit it again: resil submit --run {name}; to keep it down: resil kill {name}"
        else:
            advice = "submit it again; is the name right, and whose jobs are they (users)?"
        lasts = self._for("missing")
        since = f" for {format_duration(lasts)}" if lasts >= 60 else ""
        summary = f"neither running nor queued{since}: {reading.gone}"
        if ended and reading.ended not in reading.gone and not reading.gone.startswith("the queue reports"):
            summary += ended
        return self._finding(Verdict.CRITICAL, NOT_QUEUED, summary, advice, "CRITICAL: no job will continue it")

    # ---- pending jobs -----------------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Finding]:
        by_state, settings = self.by_state, self.settings
        blocking = (*by_state.never, *(by_state.blocked if by_state.is_stuck else ()))
        if blocking:
            yield self._never_starts(blocking)
        limit_s, waited_s = settings.pending_limit_s, self._for("waiting")
        if limit_s is not None and not by_state.running and waited_s >= limit_s:
            first = by_state.waiting[0]
            must = ", but require is running" if settings.require == "running" else ""
            summary = f"no job running for {format_duration(waited_s)}{must}: {first.why.words or 'pending'}"
            why = f"CRITICAL after {format_duration(limit_s)}"
            yield self._finding(Verdict.CRITICAL, PENDING_TOO_LONG, summary, first.why.advice, why)

    def _never_starts(self, blocking: Sequence[SeenJob]) -> Finding:
        by_state, settings = self.by_state, self.settings
        first = blocking[0]
        why = first.why
        code = f" ({first.reason})" if first.reason and first.reason not in why.words else ""
        where = f" '{first.partition}'" if first.reason.startswith("Partition") and first.partition else ""
        if by_state.is_stuck and by_state.never:
            verdict, rule = Verdict.CRITICAL, "CRITICAL: no job is running, and none can start"
        elif by_state.is_stuck:
            lasts = self._for("blocked")
            verdict = Verdict.CRITICAL if lasts >= settings.blocked_s else Verdict.WARNING
            limit = format_duration(settings.blocked_s)
            rule = f"blocked for {format_duration(lasts)}: CRITICAL after {limit}"
        else:
            verdict, rule = Verdict.WARNING, "WARNING: another job of it is running or can start"
        total = sum(job.count for job in blocking)
        jobs = f"; {total} jobs in all" if total > 1 else ""
        summary = f"job {first.label} will not start: {why.words}{where}{code}{jobs}"
        return self._finding(verdict, WILL_NEVER_START, summary, why.advice, rule)

    # ---- running jobs -----------------------------------------------------------------------------------------

    def _running(self) -> Iterator[Finding]:
        for job in self.by_state.running:
            state = job.job_state
            if state in (JobState.CONFIGURING, JobState.POWER_UP_NODE):
                took = max(0.0, self.now - job.start) if job.start is not None else 0.0
                if took >= self.settings.configuring_s:
                    summary = f"job {job.label} has been configuring its nodes for {format_duration(took)}"
                    yield self._finding(Verdict.WARNING, CONFIGURING, summary, f"see `sinfo -R -n {job.nodes}`")
                    return
            elif state in (JobState.SUSPENDED, JobState.STOPPED):
                yield self._suspended(job)
                return
            elif state not in _KNOWN_RUNNING:
                summary = f"job {job.label} is in the unknown state {job.state}; it counts as alive"
                yield self._finding(Verdict.UNKNOWN, STATE, summary, f"see `scontrol show job {job.raw}`")
                return
        yield from self._ending_long()

    def _ending_long(self) -> Iterator[Finding]:
        for job in self.by_state.running:
            took = self._completing_s(job)
            if job.job_state is JobState.COMPLETING and took >= self.settings.completing_s:
                where = f" on {job.nodes}" if job.nodes else ""
                summary = f"job {job.label}{where} completing for {format_duration(took)}: its processes do not exit"
                advice = "a hung file system or GPU, or a slow epilog: contact the administrators"
                yield self._finding(Verdict.WARNING, COMPLETING, summary, advice)
                return

    def _completing_s(self, job: SeenJob) -> float:
        return self._for(f"completing:{job.raw}")

    def _suspended(self, job: SeenJob) -> Finding:
        lasts = self._for(f"suspended:{job.raw}")
        verdict = Verdict.CRITICAL if lasts >= self.settings.suspended_s else Verdict.WARNING
        for_long = f" for {format_duration(lasts)}" if lasts >= 60 else ""
        word = "suspended" if job.job_state is JobState.SUSPENDED else "stopped by a signal"
        advice = f"the administrators may resume it: scontrol resume {job.label}"
        if job.job_state is JobState.STOPPED:
            advice = f"continue it: scancel --signal=CONT {job.label}"
        rule = f"CRITICAL after {format_duration(self.settings.suspended_s)}"
        return self._finding(
            verdict, SUSPENDED, f"job {job.label} is {word}{for_long} and makes no progress", advice, rule
        )

    # ---- successors -------------------------------------------------------------------------------------------

    def _chain(self) -> Iterator[Finding]:
        by_state, settings = self.by_state, self.settings
        if self.reading.is_last or (by_state.is_ending and self._completing_s(by_state.running[0]) < REQUEUE_S):
            return
        required = settings.min_queued if settings.min_queued is not None else int(self.reading.is_chain)
        advice = f"submit a successor: resil submit --run {self.subject} --after auto"
        if self.reading.kind != "run":
            advice = "submit a successor: sbatch --dependency=afterany:ID"
        left_s = time_left_s(by_state, self.now)
        lead = (*by_state.running, *by_state.waiting)[0]
        limit_s = lead.end - lead.start if lead.start is not None and lead.end is not None else None
        notice_s = settings.notice_s(limit_s)
        if by_state.running and not by_state.queued and left_s is not None and left_s <= notice_s:
            held = "only jobs that will not start are" if by_state.never else "no job is"
            when = f"ends in {format_duration(left_s)} at the latest" if left_s > 0 else "is ending"
            summary = f"job {lead.label} {when}, and {held} queued behind it"
            rule = f"WARNING from {format_duration(notice_s)} before the end"
            yield self._finding(Verdict.WARNING, ENDS_SOON, summary, advice, rule)
            return
        behind = by_state.queued if by_state.running else max(0, by_state.queued - 1)
        if not by_state.is_stuck and not by_state.held and behind < required:
            summary = f"only {plural(behind, 'job')} queued behind {lead.label}"
            yield self._finding(Verdict.WARNING, CHAIN_SHORT, summary, advice, f"WARNING below {required}")

    def _churn(self) -> Iterator[Finding]:
        settings, reading = self.settings, self.reading
        if not settings.churn_count:
            return
        starts = recent(reading.starts, self.now, settings.churn_s)
        failures = recent(reading.failures, self.now, settings.churn_s)
        count = max(len(starts), len(failures))
        if count < settings.churn_count:
            return
        what = "attempts began" if len(starts) >= len(failures) else "jobs failed or were requeued"
        summary = f"{count} {what} within {format_duration(settings.churn_s)}"
        verdict = Verdict.CRITICAL if count >= 2 * settings.churn_count else Verdict.WARNING
        advice = "see why they end: resil logs" if reading.kind == "run" else "see their logs for why they end"
        rule = f"WARNING from {settings.churn_count}, CRITICAL from {2 * settings.churn_count}"
        yield self._finding(verdict, REQUEUE_CHURN, summary, advice, rule)

    # ---- the watchdog itself ---------------------------------------------------------------------------------

    def _own_faults(self) -> Iterator[Finding]:
        if self.reading.own:
            summary = (
                f"this watchdog's own job has the name {self.reading.own!a} too; "
                "it is excluded, but other watchdog jobs with that name may count as the training"
            )
            yield self._finding(Verdict.WARNING, OWN_NAME, summary, "give the watchdog's job another name")
        if self.reading.pulse:
            advice = "set pulse_file to a separate file"
            yield self._finding(Verdict.WARNING, PULSE, f"cannot write the status line: {self.reading.pulse}", advice)


_BEHIND = frozenset({"Dependency", "JobArrayTaskLimit"})
"""Pending reasons of jobs that wait for another job, possibly one of the same run that never starts."""


@dataclass(frozen=True, slots=True)
class JobsByState:
    """The live jobs of one subject, grouped by state.

    Attributes:
        running: jobs with allocated nodes, including configuring, suspended and completing ones.
        never: pending jobs that will not start without user action.
        blocked: pending jobs that only others can unblock: a partition that is down, a limit, a node.
        startable: pending jobs that will start by themselves.
        behind: pending jobs that wait for another job.
        held: pending jobs that their owner holds on purpose.
    """

    running: tuple[SeenJob, ...]
    never: tuple[SeenJob, ...]
    blocked: tuple[SeenJob, ...]
    startable: tuple[SeenJob, ...]
    behind: tuple[SeenJob, ...]
    held: tuple[SeenJob, ...] = ()

    @property
    def is_stuck(self) -> bool:
        """Return whether no job is running or can start, for a known reason."""
        return not self.running and not self.startable and bool(self.never or self.blocked)

    @property
    def queued(self) -> int:
        """Return the number of pending jobs and tasks that may still start."""
        return sum(job.count for job in (*self.blocked, *self.startable, *self.behind, *self.held))

    @property
    def waiting(self) -> tuple[SeenJob, ...]:
        """Return all pending jobs."""
        return (*self.never, *self.blocked, *self.startable, *self.behind, *self.held)

    @property
    def is_ending(self) -> bool:
        """Return whether all running jobs are completing."""
        return bool(self.running) and all(job.job_state is JobState.COMPLETING for job in self.running)


def sort(seen: Sequence[SeenJob], *, may_be_held: bool = False) -> JobsByState:
    """Group the live jobs of a subject by state. `may_be_held`: whether jobs held by their owner are meant to wait."""
    held = [job for job in seen if may_be_held and job.is_held_by_owner]
    waiting = [job for job in seen if job.waits and job not in held]
    never = [job for job in waiting if job.why.blocks_for_ever]
    blocked = [job for job in waiting if job.why.needs_others and job not in never]
    rest = [job for job in waiting if job not in never and job not in blocked]
    behind = [job for job in rest if job.reason in _BEHIND]
    startable = [job for job in rest if job not in behind]
    running = [job for job in seen if not job.waits]
    if not running and not never and not blocked and not startable and not held:
        startable, behind = behind, []  # the job they wait for is not among these
    return JobsByState(tuple(running), tuple(never), tuple(blocked), tuple(startable), tuple(behind), tuple(held))


def is_blocked(seen: Sequence[SeenJob]) -> bool:
    """Return whether no job is running and all pending ones are blocked."""
    by_state = sort(seen)
    return by_state.is_stuck and not by_state.never


_DOING = {
    JobState.RUNNING: "running",
    JobState.CONFIGURING: "configuring nodes",
    JobState.POWER_UP_NODE: "powering up nodes",
    JobState.COMPLETING: "completing",
    JobState.SUSPENDED: "suspended",
    JobState.STOPPED: "stopped by a signal",
}


def job_line(job: SeenJob, now: float, is_held: bool) -> str:
    """Return one job as a line of evidence. `is_held`: a breaker holds the jobs of the run, in their owner's name."""
    words = [job.label, job.state, printable(job.name)[:80]]
    if job.user:
        words.append(f"of {job.user}")
    if job.partition:
        words.append(f"on {job.partition}")
    if job.nodes:
        words.append(f"({job.nodes})")
    if job.is_held_by_owner and is_held:
        words.append("- held by the breaker")
    elif job.waits and job.why.words:
        words.append(
            f"- {job.why.words}" + (f" ({job.reason})" if job.reason and job.reason not in job.why.words else "")
        )
    elif job.end is not None:
        words.append(f"- {format_duration(max(0.0, job.end - now))} left")
    if job.count > 1:
        words.append(f"- {job.count} jobs")
    if job.restarts:
        words.append(f"- requeued {job.restarts} times")
    return " ".join(words)


def describe(by_state: JobsByState, now: float) -> str:
    """Return the state of a run as a sentence."""
    if by_state.running:
        return _running(by_state, now)
    first = (*by_state.startable, *by_state.blocked, *by_state.held, *by_state.behind, *by_state.never)[0]
    queued = by_state.queued
    sentence = f"queued as {first.label}: {first.why.words or 'pending'}"
    expected = expected_start(first, now)
    return sentence + (f", {expected}" if expected else "") + (f"; {queued} jobs pending" if queued > 1 else "")


def _running(by_state: JobsByState, now: float) -> str:
    lead = by_state.running[0]
    word = _DOING.get(lead.job_state, f"in state {lead.state}")
    since = f" for {format_duration(max(0.0, now - lead.start))}" if lead.start is not None else ""
    where = f" on {lead.nodes}" if lead.nodes else ""
    others = f" (and {len(by_state.running) - 1} more)" if len(by_state.running) > 1 else ""
    left = time_left_s(by_state, now)
    ends = "" if left is None else f", {format_duration(left)} left"
    queued = f"; {by_state.queued} more queued" if by_state.queued else "; no job queued behind it"
    return f"{word}{since} as job {lead.label}{where}{others}{ends}{queued}"


def time_left_s(by_state: JobsByState, now: float) -> float | None:
    """Return the most time that any of its jobs will run; None without a limit or a running job."""
    if not by_state.running:
        return None
    ends = [now if job.job_state is JobState.COMPLETING else job.end for job in by_state.running]
    known = [end for end in ends if end is not None]
    return max(0.0, max(known) - now) if len(known) == len(ends) else None


def expected_start(job: SeenJob, now: float) -> str:
    """Return when a pending job is expected to start; `due to start now` for a time in the past."""
    if job.start is None or job.why.blocks_for_ever:
        return ""
    return f"expected to start in {format_duration(job.start - now)}" if job.start > now else "due to start now"


def _explanation(reading: JobReading, now: float) -> tuple[str, ...]:
    """Return the explanation of a reading, with the age of the answer."""
    age = format_duration(max(0.0, now - reading.asked))
    return (*reading.looked, f"the answer is {age} old")
