"""What one tick of cron did, and the sign of life that it leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilience.cron.records import Heartbeat, Outcome, RunRecord

GAP = 3.0
"""Ticks that are further apart than this many times their pause are another life of the scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """What one tick did.

    Attributes:
        heartbeat: the sign of life that it left; None: it left none, because the scheduler is stopped.
        started: what was begun by this scheduler, as it stood then (RUNNING).
        ended: what ended and is known since the last tick, those of earlier ticks included.
        submitted: what was queued as a job.
        skipped: slots passed over: SKIPPED and MISSED.
        refused: what could not be started or was refused.
        lines: what to tell people on standard error, one sentence each.
        stopped: why nothing runs: somebody stopped the scheduler; empty: nobody did.
    """

    heartbeat: Heartbeat | None = None
    started: tuple[RunRecord, ...] = ()
    ended: tuple[RunRecord, ...] = ()
    submitted: tuple[RunRecord, ...] = ()
    skipped: tuple[RunRecord, ...] = ()
    refused: tuple[RunRecord, ...] = ()
    lines: tuple[str, ...] = ()
    stopped: str = ""

    def plus(self, other: Ticked) -> Ticked:
        """Both together, the later one's sign of life counting. Pure."""
        return Ticked(
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
    def of(cls, records: Iterable[RunRecord], lines: tuple[str, ...] = ()) -> Ticked:
        """Sort what became of slots. Pure."""
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
    """The next multiple of the pause since the epoch, as of `daemon.next_tick`, which is slow to load. Pure."""
    return (now // period_s + 1) * period_s


def succeed(before: Heartbeat | None, now: float, *, expected: float, period_s: float) -> Heartbeat:
    """Given the sign of life before, return the next: how late it comes, and since when there was no gap. Pure."""
    if before is None:
        return Heartbeat(time=now, expected=expected, alive_since=now)
    pause_s = max(before.expected - before.time, period_s)
    if not -pause_s <= now - before.time <= GAP * pause_s:  # nobody was there; or the clock was set
        late_s = max(0.0, now - before.expected)
        return Heartbeat(time=now, expected=expected, alive_since=now, late_s=late_s)
    return Heartbeat(
        time=now,
        expected=expected,
        alive_since=min(before.alive_since, now),
        ticks=before.ticks + 1,
        late_s=max(0.0, now - before.expected),
    )
