"""What is known of a run, for its report: values only, as `resil report --json` prints them. Pure.

reading.py and sources.py collect them, advise.py says what to change, page.py shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from resilience.attempts.breaker import MAY_HEAL, Treatment, treatment_of
from resilience.attempts.ledger import LedgerRow
from resilience.messages import plural
from resilience.report.goodput import Category, Goodput, Span
from resilience.settings.sections import ActSettings

OF_A_NODE = MAY_HEAL | {Treatment.RETRY}
"""What another node may heal. An exception of the program or a full disk says nothing of the node that showed it."""
MOST_LINES = 1500
"""Lines of the chart of steps: more than a screen has pixels."""


class Outcome(StrEnum):
    """How an attempt ended, in four words: what its bar shows."""

    FINISHED = "finished"
    OUTSIDE = "ended from outside"
    FAILED = "failed"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLine:
    """One attempt; as in `resil attempts --json`, where the evidence is whole.

    Attributes:
        outcome: in four words.
        failure: class of its end; empty while it runs.
        reason, quote: why, and the line that decided.
        blamed: the node that the evidence names, of a failure that another node may heal; empty: none.
        redone_steps: steps that were lost, as in the ledger of time.
    """

    attempt: int
    job: str
    host: str
    nodes: str
    start_time: float
    end_time: float | None
    queue_s: float | None
    outcome: Outcome
    failure: str = ""
    reason: str = ""
    quote: str = ""
    blamed: str = ""
    decided: str = ""
    first_step: int | None = None
    last_step: int | None = None
    durable_step: int | None = None
    redone_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A stretch in which steps were made, the step linear in time. Times are seconds since the epoch."""

    attempt: int
    start_time: float
    end_time: float
    first_step: int
    last_step: int
    is_redone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLine:
    """One fault that a watchdog found: its newest incident, which is all that the ledger of alerts keeps.

    Attributes:
        episode: id, as users type it.
        times: how many incidents of this fault the run had, with this one; 1 if the fault is of no run.
        verdict: the worst one.
        messages: how often it was notified when it began or lasted; the message of its end does not count.
        resolved: None while it is open.
    """

    episode: str
    check: str
    subject: str
    fault: str
    verdict: str
    summary: str
    opened: float
    resolved: float | None = None
    host: str = ""
    advice: str = ""
    evidence: tuple[str, ...] = ()
    messages: int = 0
    times: int = 1
    acknowledged_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLine:
    """One checkpoint.

    Attributes:
        state: `verified` (read again and found equal), `not verified`, `damaged`, or `set aside`.
        why: what is wrong with it; empty if nothing is.
        saved_at, verified_at: seconds since the epoch; 0: unknown, or never.
        metrics: numbers that were saved with it.
    """

    name: str
    step: int | None
    state: str
    why: str = ""
    saved_at: float = 0.0
    verified_at: float = 0.0
    size_bytes: int | None = None
    label: str = ""
    metrics: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node that the run used.

    Attributes:
        failures: failures of this run that name it.
        seconds: time of the attempts that used it.
        state, why, until: as in `resil nodes`.
    """

    node: str
    attempts: int
    failures: int
    seconds: float
    state: str = "good"
    why: str = ""
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Saves of the newest attempts. Durations are medians, in seconds; None: not measured."""

    count: int = 0
    stall_s: float | None = None
    durable_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the settings say that the advice is about.

    Attributes:
        every: [checkpoints] or [guard] `every`; empty: the training decides when to save.
        walltime_s: time limit of a job; None: unknown, or unlimited.
        keep_queued: of [act].
    """

    every: str = ""
    walltime_s: float | None = None
    keep_queued: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to change.

    Attributes:
        subject: `interval`, `walltime`, `keep_queued`, `node` or `checkpoints`.
        say: what to do, in a sentence.
        because: the figures behind it.
        how: the setting or the command.
        saves_s: how much time that would have saved in this run; None: not known.
    """

    subject: str
    say: str
    because: str
    how: str
    saves_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the page shows.

    Attributes:
        made_at: when, in seconds since the epoch.
        state: `finished`, `running`, `running, or lost`, `held by the breaker`, `killed`, `not finished` or
            `not started`.
        time: where the time went, without its spans; None without an attempt.
        steps: the chart of steps, oldest first.
        losses: step and loss, where the training gave it.
        missing: sources that are not there, each in a sentence.
    """

    run: str
    made_at: float
    state: str
    time: Goodput | None = None
    plan: Plan = Plan()
    saves: Saves = Saves()
    attempts: tuple[AttemptLine, ...] = ()
    steps: tuple[StepLine, ...] = ()
    incidents: tuple[IncidentLine, ...] = ()
    checkpoints: tuple[CheckpointLine, ...] = ()
    nodes: tuple[NodeLine, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    advice: tuple[Advice, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def begin(self) -> float:
        """Return the left end of its charts, in seconds since the epoch."""
        return self.time.start_ms / 1000 if self.time is not None else self.made_at

    @property
    def end(self) -> float:
        """Return the right end of its charts, after the left one."""
        end = self.time.end_ms / 1000 if self.time is not None else self.made_at
        return max(end, self.begin + 1.0)

    @property
    def last_step(self) -> int | None:
        """Return the highest step that was seen."""
        seen = [*(one.last_step for one in self.attempts), *(one.last_step for one in self.steps)]
        return max((step for step in seen if step is not None), default=None)

    @property
    def failed(self) -> int:
        """Return how many attempts failed."""
        return sum(one.outcome is Outcome.FAILED for one in self.attempts)

    @property
    def found(self) -> int:
        """Return how many incidents there were, with those that newer ones of the same fault have replaced."""
        return sum(one.times for one in self.incidents)

    @property
    def headline(self) -> str:
        """Return one sentence: `finished; 12 attempts, 9 failed; 3 incidents, each told once; 91.3 % trained`."""
        parts = [self.state]
        if self.attempts:
            failed = f", {self.failed} of them failed" if self.failed else ", none failed"
            parts.append(plural(len(self.attempts), "attempt") + failed)
        if self.incidents:
            faults = "" if self.found == len(self.incidents) else f" of {plural(len(self.incidents), 'fault')}"
            newest = "the newest: " if faults else ""
            parts.append(f"{plural(self.found, 'incident')}{faults}, {newest}{told(self.incidents)}")
        if self.time is not None and self.time.ettr is not None:
            parts.append(f"{100 * self.time.ettr:.1f} % of the time trained")
        return "; ".join(parts)


def told(incidents: Sequence[IncidentLine]) -> str:
    """Return how often incidents were notified, in words."""
    untold, often = sum(not one.messages for one in incidents), sum(one.messages > 1 for one in incidents)
    if not untold and not often:
        return "told once" if len(incidents) == 1 else "each told once"
    if untold == len(incidents):
        return "not told to anybody"
    said = [f"{often} told again while it lasted" if often else "", f"{untold} not told to anybody" if untold else ""]
    return ", ".join(part for part in said if part)


def outcome_of(row: LedgerRow) -> Outcome:
    """Return how an attempt ended, in four words."""
    if row.failure is None:
        return Outcome.RUNNING
    words = {Treatment.END: Outcome.FINISHED, Treatment.NEUTRAL: Outcome.OUTSIDE}
    return words.get(treatment_of(row, ActSettings()), Outcome.FAILED)


def attempt_lines(rows: Sequence[LedgerRow], redone_steps: Mapping[int, int]) -> tuple[AttemptLine, ...]:
    """Return the attempts, oldest first. `redone_steps`: by attempt, of the ledger of time."""
    found = []
    for row in rows:
        failure = row.failure
        found.append(
            AttemptLine(
                attempt=row.attempt,
                job=row.job,
                host=row.host,
                nodes=row.nodes,
                start_time=row.start_time,
                end_time=row.end_time if row.end_time is not None or failure is None else row.start_time,
                queue_s=row.queue_s,
                outcome=outcome_of(row),
                failure="" if failure is None else failure.failure.text,
                reason="" if failure is None else failure.reason,
                quote=failure.quotes[0].text if failure is not None and failure.quotes else "",
                blamed=failure.host if failure is not None and treatment_of(row, ActSettings()) in OF_A_NODE else "",
                decided=row.decided,
                first_step=row.first_step,
                last_step=row.last_step,
                durable_step=row.durable_step,
                redone_steps=redone_steps.get(row.attempt, 0),
            )
        )
    return tuple(found)


def step_lines(spans: Iterable[Span]) -> tuple[StepLine, ...]:
    """Return the chart of steps: spans that follow each other in one attempt become one line, so that the short pauses
    of saves are no lines of their own, and there are at most about MOST_LINES."""
    made = [one for one in spans if one.first_step is not None and one.last_step is not None]
    longest_ms = sum(one.ms for one in made) / MOST_LINES
    lines: list[StepLine] = []
    for one in made:
        first, last = one.first_step or 0, one.last_step or 0
        line = StepLine(
            attempt=one.attempt or 0,
            start_time=one.start_ms / 1000,
            end_time=one.end_ms / 1000,
            first_step=first,
            last_step=last,
            is_redone=one.category is Category.REDONE,
        )
        before = lines[-1] if lines else None
        follows = before is not None and (before.attempt, before.last_step, before.is_redone) == (
            line.attempt,
            line.first_step,
            line.is_redone,
        )
        if before is not None and follows and 1000 * (before.end_time - before.start_time) < longest_ms:
            lines[-1] = StepLine(
                attempt=line.attempt,
                start_time=before.start_time,
                end_time=line.end_time,
                first_step=before.first_step,
                last_step=line.last_step,
                is_redone=line.is_redone,
            )
        else:
            lines.append(line)
    return tuple(lines)
