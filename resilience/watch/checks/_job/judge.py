"""Findings about a run or a name: what its live jobs do, and which rule that breaks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resilience.finding import Figure, Finding, Verdict
from resilience.job import JobState
from resilience.quantities import format_duration
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
UNREACHABLE = "unreachable"
UNREADABLE = "unreadable"
STATE = "unknown-state"
OWN_NAME = "own-name"
PULSE = "pulse-file"

_KNOWN_RUNNING = frozenset(
    {
        *(JobState.RUNNING, JobState.CONFIGURING, JobState.POWER_UP_NODE, JobState.COMPLETING, JobState.SUSPENDED),
        *(JobState.STOPPED, JobState.STAGE_OUT, JobState.SIGNALING, JobState.RESIZING, JobState.EXPEDITING),
    }
)


def judge(subject: str, reading: JobReading, settings: JobSettings, now: float) -> Sequence[Finding]:
    """Say what was seen. There is always at least one finding."""
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
        summary = f"answered in {reading.took_s:.2f} s; {many(reading.rows, 'row')} of it watched"
        return Finding(subject=subject, verdict=Verdict.OK, summary=summary, looked=looked)
    # From question to question: how long the last one waited in vain is no second silence.
    silent_s = max(0.0, reading.asked - reading.since.get("unreachable", reading.asked))
    is_long = silent_s >= settings.unknown_critical_after_s
    since = f" for {format_duration(silent_s)}" if silent_s >= 1 else ""
    return Finding(
        subject=subject,
        verdict=Verdict.CRITICAL if is_long else Verdict.UNKNOWN,
        fault=UNREACHABLE,
        summary=f"no answer{since}: {reading.trouble}; whether the jobs live is unknown, not dead",
        advice=reading.unsure or "running jobs go on without it; ask `scontrol ping`, then the administrators",
        evidence=reading.looked[1:],
        looked=(*looked, f"CRITICAL after {format_duration(settings.unknown_critical_after_s)} of silence"),
    )


class _Case:
    """One run or name: each rule is a method that gives a finding, or none."""

    def __init__(self, subject: str, reading: JobReading, settings: JobSettings, now: float) -> None:
        self.subject, self.reading, self.settings, self.now = subject, reading, settings, now
        self.standing: Standing = sort(reading.jobs)

    def findings(self) -> list[Finding]:
        found = list(self._own_faults())
        if self.reading.trouble:
            advice = "" if self.reading.kind == "name" else "can you read its directory from here?"
            found.append(self._finding(Verdict.UNKNOWN, UNREADABLE, self.reading.trouble, advice))
        elif not self.reading.jobs:
            found.append(self._missing())
        elif self.reading.over:
            rest = f"; {many(len(self.reading.jobs), 'job')} of it still there, to exit by themselves"
            found.append(self._finding(Verdict.OK, "", self.reading.over + rest))
            found += list(self._ending_long())
        else:
            faults = [*self._waiting(), *self._running(), *self._chain(), *self._churn()]
            found += faults or [self._finding(Verdict.OK, "", doing(self.standing, self.now))]
        return sorted(found, key=lambda finding: finding.verdict, reverse=True)

    def _finding(self, verdict: Verdict, fault: str, summary: str, advice: str = "", why: str = "") -> Finding:
        looked = _explanation(self.reading, self.now)
        return Finding(
            subject=self.subject,
            verdict=verdict,
            fault=fault,
            summary=summary,
            advice=advice,
            run=self.subject if self.reading.kind == "run" else "",
            figures=self._figures() if not fault or verdict is not Verdict.UNKNOWN else (),
            evidence=(*(job_line(job, self.now) for job in self.reading.jobs[:10]), *self.reading.attempts),
            looked=(*looked, why) if why else looked,
        )

    def _figures(self) -> tuple[Figure, ...]:
        figures = [
            Figure(label="running", value=len(self.standing.running), minimum=0),
            Figure(label="queued", value=self.standing.queued, minimum=0),
        ]
        left = time_left_s(self.standing, self.now)
        if left is not None:
            figures.append(Figure(label="left", value=round(left), unit="s", minimum=0))
        return tuple(figures)

    def _for(self, what: str) -> float:
        """How long something is so, in seconds."""
        return max(0.0, self.now - self.reading.since.get(what, self.now))

    # ---- nothing lives ----------------------------------------------------------------------------------------

    def _missing(self) -> Finding:
        reading = self.reading
        if reading.over:
            return self._finding(Verdict.OK, "", reading.over)
        ended = f"; {reading.ended}" if reading.ended else ""
        if not reading.gone:
            why = reading.unsure or "one empty answer is no proof"
            summary = f"the queue shows no job of it, and that is not certain: {why}"
            return self._finding(Verdict.UNKNOWN, NOT_QUEUED, summary, "look again in a minute")
        if reading.kind == "run":
            name = self.subject
            advice = f"queue it again: resil submit --run {name}; if it shall stay down: resil kill {name}"
        else:
            advice = "submit it again; is the name right, and whose jobs are they (users)?"
        lasts = self._for("missing")
        since = f" for {format_duration(lasts)}" if lasts >= 60 else ""
        summary = f"neither running nor queued{since}: {reading.gone}"
        if ended and reading.ended not in reading.gone and not reading.gone.startswith("the queue says"):
            summary += ended
        return self._finding(Verdict.CRITICAL, NOT_QUEUED, summary, advice, "CRITICAL: nothing will go on by itself")

    # ---- something waits --------------------------------------------------------------------------------------

    def _waiting(self) -> Iterator[Finding]:
        standing, settings = self.standing, self.settings
        blocking = (*standing.never, *(standing.blocked if standing.is_stuck else ()))
        if blocking:
            yield self._never_starts(blocking)
        limit_s, waited_s = settings.pending_limit_s, self._for("waiting")
        if limit_s is not None and not standing.running and waited_s >= limit_s:
            first = standing.waiting[0]
            must = ", and it must run" if settings.require == "running" else ""
            summary = f"nothing of it runs for {format_duration(waited_s)}{must}: {first.why.words or 'it waits'}"
            why = f"CRITICAL from {format_duration(limit_s)} on"
            yield self._finding(Verdict.CRITICAL, PENDING_TOO_LONG, summary, first.why.advice, why)

    def _never_starts(self, blocking: Sequence[SeenJob]) -> Finding:
        standing, settings = self.standing, self.settings
        first = blocking[0]
        why = first.why
        code = f" ({first.reason})" if first.reason and first.reason not in why.words else ""
        where = f" '{first.partition}'" if first.reason.startswith("Partition") and first.partition else ""
        if standing.is_stuck and standing.never:
            verdict, rule = Verdict.CRITICAL, "CRITICAL: nothing of it runs, and nothing can start"
        elif standing.is_stuck:
            lasts = self._for("blocked")
            verdict = Verdict.CRITICAL if lasts >= settings.blocked_s else Verdict.WARNING
            limit = format_duration(settings.blocked_s)
            rule = f"it waits for others for {format_duration(lasts)}: CRITICAL from {limit} on"
        else:
            verdict, rule = Verdict.WARNING, "WARNING: something else of it runs, or can start"
        total = sum(job.count for job in blocking)
        many = f"; {total} jobs in all" if total > 1 else ""
        summary = f"job {first.label} will not start: {why.words}{where}{code}{many}"
        return self._finding(verdict, WILL_NEVER_START, summary, why.advice, rule)

    # ---- something runs ---------------------------------------------------------------------------------------

    def _running(self) -> Iterator[Finding]:
        for job in self.standing.running:
            state = job.job_state
            if state in (JobState.CONFIGURING, JobState.POWER_UP_NODE):
                took = max(0.0, self.now - job.start) if job.start is not None else 0.0
                if took >= self.settings.configuring_s:
                    summary = f"the nodes of job {job.label} are getting ready for {format_duration(took)}"
                    yield self._finding(Verdict.WARNING, CONFIGURING, summary, f"see `sinfo -R -n {job.nodes}`")
                    return
            elif state in (JobState.SUSPENDED, JobState.STOPPED):
                yield self._suspended(job)
                return
            elif state not in _KNOWN_RUNNING:
                summary = f"job {job.label} is {job.state}: no state that resil knows; it counts as alive"
                yield self._finding(Verdict.UNKNOWN, STATE, summary, f"see `scontrol show job {job.raw}`")
                return
        yield from self._ending_long()

    def _ending_long(self) -> Iterator[Finding]:
        for job in self.standing.running:
            took = self._for(f"completing:{job.raw}")
            if job.job_state is JobState.COMPLETING and took >= self.settings.completing_s:
                where = f" on {job.nodes}" if job.nodes else ""
                summary = f"job {job.label}{where} is ending for {format_duration(took)}: its processes do not go away"
                advice = "a hung file system or GPU, or a slow epilog: tell the administrators"
                yield self._finding(Verdict.WARNING, COMPLETING, summary, advice)
                return

    def _suspended(self, job: SeenJob) -> Finding:
        lasts = self._for(f"suspended:{job.raw}")
        verdict = Verdict.CRITICAL if lasts >= self.settings.suspended_s else Verdict.WARNING
        for_long = f" for {format_duration(lasts)}" if lasts >= 60 else ""
        word = "suspended" if job.job_state is JobState.SUSPENDED else "stopped by a signal"
        advice = f"the administrators may resume it: scontrol resume {job.label}"
        if job.job_state is JobState.STOPPED:
            advice = f"let it go on: scancel --signal=CONT {job.label}"
        rule = f"CRITICAL from {format_duration(self.settings.suspended_s)} on"
        return self._finding(
            verdict, SUSPENDED, f"job {job.label} is {word}{for_long} and makes no progress", advice, rule
        )

    # ---- what comes after -------------------------------------------------------------------------------------

    def _chain(self) -> Iterator[Finding]:
        standing, settings = self.standing, self.settings
        wanted = settings.min_queued if settings.min_queued is not None else int(self.reading.is_chain)
        advice = f"queue more behind it: resil submit --run {self.subject} --after auto"
        if self.reading.kind != "run":
            advice = "queue more behind it: sbatch --dependency=afterany:ID"
        left_s = time_left_s(standing, self.now)
        lead = (*standing.running, *standing.waiting)[0]
        limit_s = lead.end - lead.start if lead.start is not None and lead.end is not None else None
        notice_s = settings.notice_s(limit_s)
        if standing.running and not standing.queued and left_s is not None and left_s <= notice_s:
            held = "only what will not start" if standing.never else "nothing"
            when = f"ends in {format_duration(left_s)} at the latest" if left_s > 0 else "is ending"
            summary = f"job {lead.label} {when}, and {held} is queued behind it"
            rule = f"said from {format_duration(notice_s)} before the end on"
            yield self._finding(Verdict.WARNING, ENDS_SOON, summary, advice, rule)
            return
        behind = standing.queued if standing.running else max(0, standing.queued - 1)
        if not standing.is_stuck and behind < wanted:
            summary = f"{many(behind, 'job')} left behind {lead.label}: the chain is running dry"
            yield self._finding(Verdict.WARNING, CHAIN_SHORT, summary, advice, f"fewer than {wanted} are left")

    def _churn(self) -> Iterator[Finding]:
        settings, reading = self.settings, self.reading
        if not settings.churn_count:
            return
        starts = recent(reading.starts, self.now, settings.churn_s)
        failures = recent(reading.failures, self.now, settings.churn_s)
        count = max(len(starts), len(failures))
        if count < settings.churn_count:
            return
        what = "began" if len(starts) >= len(failures) else "failed or were requeued"
        summary = f"{count} attempts {what} within {format_duration(settings.churn_s)}: it does not get going"
        verdict = Verdict.CRITICAL if count >= 2 * settings.churn_count else Verdict.WARNING
        advice = "see why they end: resil logs" if reading.kind == "run" else "see why they end, in their logs"
        rule = f"WARNING from {settings.churn_count} on, CRITICAL from {2 * settings.churn_count} on"
        yield self._finding(verdict, REQUEUE_CHURN, summary, advice, rule)

    # ---- the watchdog itself ---------------------------------------------------------------------------------

    def _own_faults(self) -> Iterator[Finding]:
        if self.reading.own:
            summary = (
                f"this watchdog's own job is called {self.reading.own!a} too; "
                "it is left out, but the next of its kind may be taken for the training"
            )
            yield self._finding(Verdict.WARNING, OWN_NAME, summary, "give the watchdog's job another name")
        if self.reading.pulse:
            advice = "give it a file of its own: pulse_file"
            yield self._finding(Verdict.WARNING, PULSE, f"no PULSE line was written: {self.reading.pulse}", advice)


_BEHIND = frozenset({"Dependency", "JobArrayTaskLimit"})
"""Reasons of what waits for another job, which may be one of the same run that never starts."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The living jobs of one subject, by what they do.

    Attributes:
        running: what has processes, or will in a moment: configuring, suspended and completing jobs too.
        never: what waits and will not start unless somebody does something to it.
        blocked: what waits until others act: a partition that is down, a limit, a node.
        startable: what starts by itself.
        behind: what waits for another job.
    """

    running: tuple[SeenJob, ...]
    never: tuple[SeenJob, ...]
    blocked: tuple[SeenJob, ...]
    startable: tuple[SeenJob, ...]
    behind: tuple[SeenJob, ...]

    @property
    def is_stuck(self) -> bool:
        """Whether nothing runs and nothing can start, and why is known."""
        return not self.running and not self.startable and bool(self.never or self.blocked)

    @property
    def queued(self) -> int:
        """How many jobs and tasks wait that may start one day."""
        return sum(job.count for job in (*self.blocked, *self.startable, *self.behind))

    @property
    def waiting(self) -> tuple[SeenJob, ...]:
        """Everything that waits."""
        return (*self.never, *self.blocked, *self.startable, *self.behind)

    @property
    def is_ending(self) -> bool:
        """Whether all that runs is about to be gone."""
        return bool(self.running) and all(job.job_state is JobState.COMPLETING for job in self.running)


def sort(seen: Sequence[SeenJob]) -> Standing:
    """Given the living jobs of a subject, return them by what they do."""
    waiting = [job for job in seen if job.waits]
    never = [job for job in waiting if job.why.blocks_for_ever]
    blocked = [job for job in waiting if job.why.needs_others and job not in never]
    rest = [job for job in waiting if job not in never and job not in blocked]
    behind = [job for job in rest if job.reason in _BEHIND]
    startable = [job for job in rest if job not in behind]
    running = [job for job in seen if not job.waits]
    if not running and not never and not blocked and not startable:
        startable, behind = behind, []  # what it waits for is none of these: it may start
    return Standing(tuple(running), tuple(never), tuple(blocked), tuple(startable), tuple(behind))


def is_blocked(seen: Sequence[SeenJob]) -> bool:
    """Whether nothing runs and all waits for others."""
    standing = sort(seen)
    return standing.is_stuck and not standing.never


_DOING = {
    JobState.RUNNING: "running",
    JobState.CONFIGURING: "its nodes are getting ready",
    JobState.POWER_UP_NODE: "its nodes are being powered up",
    JobState.COMPLETING: "ending",
    JobState.SUSPENDED: "suspended",
    JobState.STOPPED: "stopped by a signal",
}


def job_line(job: SeenJob, now: float) -> str:
    """One job as a line of evidence."""
    words = [job.label, job.state, printable(job.name)[:80]]
    if job.user:
        words.append(f"of {job.user}")
    if job.partition:
        words.append(f"on {job.partition}")
    if job.nodes:
        words.append(f"({job.nodes})")
    if job.waits and job.why.words:
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


def doing(standing: Standing, now: float) -> str:
    """What a run is doing, in a sentence."""
    if standing.running:
        return _running(standing, now)
    first = (*standing.startable, *standing.blocked, *standing.behind, *standing.never)[0]
    queued = standing.queued
    sentence = f"queued as {first.label}: {first.why.words or 'waits'}"
    expected = expected_start(first, now)
    return sentence + (f", {expected}" if expected else "") + (f"; {queued} jobs wait" if queued > 1 else "")


def _running(standing: Standing, now: float) -> str:
    lead = standing.running[0]
    word = _DOING.get(lead.job_state, f"in state {lead.state}")
    since = f" for {format_duration(max(0.0, now - lead.start))}" if lead.start is not None else ""
    where = f" on {lead.nodes}" if lead.nodes else ""
    others = f" (and {len(standing.running) - 1} more)" if len(standing.running) > 1 else ""
    left = time_left_s(standing, now)
    ends = "" if left is None else f", {format_duration(left)} left"
    queued = f"; {standing.queued} more queued" if standing.queued else "; nothing queued behind it"
    return f"{word}{since} as job {lead.label}{where}{others}{ends}{queued}"


def time_left_s(standing: Standing, now: float) -> float | None:
    """How long something of it will run at the most; None when there is no limit, or nothing runs."""
    if not standing.running:
        return None
    ends = [now if job.job_state is JobState.COMPLETING else job.end for job in standing.running]
    known = [end for end in ends if end is not None]
    return max(0.0, max(known) - now) if len(known) == len(ends) else None


def expected_start(job: SeenJob, now: float) -> str:
    """When a waiting job is expected to start; a moment in the past is `due now`, never minus something."""
    if job.start is None or job.why.blocks_for_ever:
        return ""
    return f"expected to start in {format_duration(job.start - now)}" if job.start > now else "due to start now"


def many(count: int, word: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _explanation(reading: JobReading, now: float) -> tuple[str, ...]:
    """The sources of a reading, with the age of the answer."""
    age = format_duration(max(0.0, now - reading.asked))
    return (*reading.looked, f"the answer is {age} old")
