"""Result of one tick, and the heartbeat it leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilience.cron.records import Heartbeat, Outcome, RunRecord

GAP = 3.0
"""A gap of more than this many intervals between ticks starts a new `alive_since`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """Result of one tick.

    Attributes:
        heartbeat: the heartbeat written; None if the scheduler is stopped.
        started: runs started, as RUNNING.
        ended: runs known to have ended since the last tick, including those of earlier ticks.
        submitted: slots submitted as jobs.
        skipped: slots not run: SKIPPED and MISSED.
        refused: runs that could not be started or were refused.
        lines: messages for standard error, one sentence each.
        stopped: why nothing runs (the scheduler was stopped); empty: not stopped.
    """

    heartbeat: Heartbeat | None = None
    started: tuple[RunRecord, ...] = ()
    ended: tuple[RunRecord, ...] = ()
    submitted: tuple[RunRecord, ...] = ()
    skipped: tuple[RunRecord, ...] = ()
    refused: tuple[RunRecord, ...] = ()
    lines: tuple[str, ...] = ()
    stopped: str = ""

    def plus(self, other: TickResult) -> TickResult:
        """Return both results together, with the later heartbeat. Pure."""
        return TickResult(
            heartbeat=other.heartbeat or self.heartbeat,
            started=self.started + other.started,
            ended=self.ended + other.ended,
            submitted=self.submitted + other.submitted,
            skipped=self.skipped + other.skipped,
            refused=self.refused + other.refused,
            lines=self.lines + other.lines,
            stopped=other.stopped or self.stopped,
        )

    @classmethod
    def of(cls, records: Iterable[RunRecord], lines: tuple[str, ...] = ()) -> TickResult:
        """Group records by outcome. Pure."""
        there = tuple(records)

        def those(*outcomes: Outcome) -> tuple[RunRecord, ...]:
            return tuple(record for record in there if record.outcome in outcomes)

        return cls(
            started=those(Outcome.RUNNING),
            ended=those(Outcome.DONE, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CUT_SHORT),
            submitted=those(Outcome.SUBMITTED),
            skipped=those(Outcome.SKIPPED, Outcome.MISSED),
            refused=those(Outcome.REFUSED),
            lines=lines,
        )


def next_boundary(now: float, period_s: float) -> float:
    """Return the next multiple of the interval since the epoch; same as `daemon.next_tick`, which is slow to import.
    Pure."""
    return (now // period_s + 1) * period_s


def next_heartbeat(before: Heartbeat | None, now: float, *, expected: float, period_s: float) -> Heartbeat:
    """Return the next heartbeat, with its delay and the time since the last gap. Pure."""
    if before is None:
        return Heartbeat(time=now, expected=expected, alive_since=now)
    pause_s = max(before.expected - before.time, period_s)
    if not -pause_s <= now - before.time <= GAP * pause_s:  # no scheduler was running, or the clock was set
        late_s = max(0.0, now - before.expected)
        return Heartbeat(time=now, expected=expected, alive_since=now, late_s=late_s)
    return Heartbeat(
        time=now,
        expected=expected,
        alive_since=min(before.alive_since, now),
        ticks=before.ticks + 1,
        late_s=max(0.0, now - before.expected),
    )
