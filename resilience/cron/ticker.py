"""Makes the ticks of one scheduler: reads the table, and runs and submits what is due.

The order lets the next tick recover from a crash at any point: results of dead runs, table, heartbeat, due slots; each
slot is claimed before it starts. Nothing here waits for a scheduler or a channel: children do that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resilience.cron.job_submitter import JobSubmitter, SubmitterResult
from resilience.cron.records import Due, Entry, Heartbeat, Kind, Outcome, RunRecord, Table
from resilience.cron.tick_state import AGAIN, TickState, cut_short
from resilience.errors import ResilError, StateDirectoryError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.slots import Claim
    from resilience.cron.table.supervisor import Supervised

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


PULSING = frozenset({"slurm", "scrontab"})
"""Drivers whose single ticks come every `pulse_s`; those of other drivers come every `tick_s`."""

MOST_RUNS = 3
"""Maximum number of attempts at a slot that is cut short, if its entry allows reruns: the run itself may kill the
scheduler."""


class Ticker:
    """Makes ticks, and keeps track of active runs between them.

    Args:
        driver: what makes the ticks, for the heartbeat.
        period_s: interval between ticks; None: as configured for this driver.
        until: entries that cannot finish before are left to the next scheduler, unless they never could; seconds since
            the epoch.
        life_s: lifetime of a scheduler of this driver, from its start to `until`.

    Attributes:
        failure: why the last tick could not start all due slots: nothing could be written.
        table: as the last tick read it; None: unreadable.
        next_start: when the next entry starts; None: never.
    """

    def __init__(
        self,
        cron: CronProject,
        *,
        driver: str,
        period_s: float | None = None,
        until: float | None = None,
        life_s: float | None = None,
    ) -> None:
        self._cron, self._driver = cron, driver
        self._clock = cron.project.system.clock
        settings = cron.settings
        # Daemons call `run`: a single tick of these drivers is a pulse.
        self.period_s = period_s or (settings.pulse_s if driver in PULSING else settings.tick_s)
        self._until = until
        self._life_s = life_s if life_s is not None else (None if until is None else until - self._clock.now())
        self._runs: Supervised | None = None
        self._submitter = JobSubmitter(cron)
        self._last: Mapping[str, int] = {}
        self._submits: list[Claim] = []
        self._followed = float("-inf")
        self.failure: StateDirectoryError | None = None
        self.table: Table | None = None
        self.next_start: float | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a run or a submission of this scheduler is active."""
        return self.is_running or self._submitter.is_busy

    @property
    def is_running(self) -> bool:
        """Return whether a run is active."""
        return self._runs is not None and bool(self._runs.running)

    def tick(self) -> TickResult:
        """Run what is due, without waiting. Raise StateDirectoryError if the state directory cannot be used."""
        state, now = self._cron.state, self._clock.now()
        tick_state = TickState(self._cron, now, self.period_s)
        self.failure = None
        tick_state.check()
        if (stopped := state.stopped()) is not None:
            by, why = str(stopped.get("by") or ""), str(stopped.get("why") or "")
            text = f"stopped{f' by {by}' if by else ''}{f': {why}' if why else ''}"
            return TickResult(stopped=text, lines=(f"the scheduler is {text}; `resil cron install` starts it again",))
        before = tick_state.heartbeat()
        done = self._collect_results(now)
        trouble, last = "", {}
        try:
            self.table = table = self._cron.read_table()
            last = self._last = tick_state.last(table, before)
        except ResilError as error:
            self.table, table, trouble = None, Table(), error.message
            done.append(TickResult(lines=(error.message,)))
        beat = self._beat(now, before, table, last, trouble)
        done.append(TickResult(heartbeat=beat, lines=tick_state.lines))
        if not trouble:
            try:
                for one in self._settle_open(table, now):
                    done.append(one)
                for one in self._begin(table, last, tick_state):
                    done.append(one)
                for one in self._rerun(table, now):
                    done.append(one)
            except StateDirectoryError as error:  # runs already started continue
                self.failure = error
                done.append(TickResult(lines=(error.message,)))
                with suppress(StateDirectoryError):
                    state.beat(replace(beat, trouble=error.message))
            self.next_start = self._next(table, last)
        total = TickResult()
        for one in done:
            total = total.plus(one)
        return total

    def start_delayed(self) -> TickResult:
        """Start the slots that have become due since `tick`, after their jitter."""
        if self.table is None:
            return TickResult()
        tick_state = TickState(self._cron, self._clock.now(), self.period_s)
        found = TickResult()
        try:
            self._last = tick_state.last(self.table, None)
            for one in self._begin(self.table, self._last, tick_state):
                found = found.plus(one)
        except StateDirectoryError as error:
            self.failure = error
        return found

    def delayed_until(self) -> float | None:
        """Return when the next due slot starts after its jitter; None: there is none."""
        from resilience.cron.table.due import schedule_of, start_of

        now, found, last = self._clock.now(), [], self._last
        for entry in self.table.entries if self.table is not None else ():
            if entry.options.jitter_s > 0 and entry.key in last:
                newest = schedule_of(entry).newest_until(now)
                if newest is not None and newest > last[entry.key]:
                    start = start_of(entry, newest, self._cron.salt)
                    found += [start] if start > now else []
        return min(found, default=None)

    def poll(self, timeout_s: float = 0.0, *, is_over: Callable[[], bool] = lambda: False) -> TickResult:
        """Return the results since the last call; waits up to `timeout_s` for the first."""
        records: tuple[RunRecord, ...] = ()
        if self._runs is not None:
            running = bool(self._runs.running)
            records = self._runs.wait(timeout_s, is_over=is_over) if timeout_s and running else self._runs.poll()
            timeout_s = 0.0 if running else timeout_s
        submitter_result = self._submitter.poll(timeout_s)
        if submitter_result is not None and self._submitter.waiting and self.table is not None:
            self._submitter.hand((), self.table.entries)
        return TickResult.of(records).plus(_result_of(submitter_result))

    def end_all(self, grace_s: float) -> TickResult:
        """End active runs with SIGTERM. A submission gets `grace_s`, and then continues in its child."""
        ended = TickResult.of(self._runs.end_all(grace_s) if self._runs is not None else ())
        if self._submitter.is_busy:
            ended = ended.plus(_result_of(self._submitter.poll(grace_s)))
        self._submitter.close()
        return ended

    # ---- the parts of a tick ------------------------------------------------------------------------------------

    def _supervised(self) -> Supervised:
        if self._runs is None:
            self._runs = self._cron.supervised()
        return self._runs

    def _collect_results(self, now: float) -> list[TickResult]:
        """Return results since the last tick: of this scheduler's runs, and of runs without a supervisor."""
        found = [self.poll()]
        try:
            marks = os.listdir(self._cron.state.path / "running")  # noqa: PTH208 - names only
        except OSError:
            marks = []
        if marks:
            from resilience.cron.table.recovery import settle_dead_runs

            found.append(TickResult.of(settle_dead_runs(self._cron.state, now=now, at=self._cron.here())))
        return found

    def _beat(
        self, now: float, before: Heartbeat | None, table: Table, last: Mapping[str, int], trouble: str
    ) -> Heartbeat:
        system = self._cron.project.system
        beat = next_heartbeat(before, now, expected=next_boundary(now, self.period_s), period_s=self.period_s)
        beat = replace(
            beat,
            driver=self._driver,
            host=system.host.name,
            pid=os.getpid(),
            job_id=system.environ.get("SLURM_JOB_ID", ""),
            next_slot=self._next(table, last) if table.entries else None,
            entries=len(table.entries),
            trouble=trouble,
            patience_s=self._cron.settings.late_s,
        )
        self._cron.state.beat(beat)
        return beat

    def _next(self, table: Table, last: Mapping[str, int]) -> float | None:
        from resilience.cron.table.due import next_due

        return next_due(table, last, self._clock.now(), salt=self._cron.salt)

    def _begin(self, table: Table, last: Mapping[str, int], tick_state: TickState) -> Iterator[TickResult]:
        from resilience.cron.table.due import due

        now = self._clock.now()
        claims, self._submits = self._submits, []
        for one in due(
            table, last, now, tick_s=self.period_s, salt=self._cron.salt, started=tick_state.scheduler_start
        ):
            if not self._fits(one.entry, now):
                continue
            if one.entry.kind is Kind.RUN and self._supervised().must_wait(one.entry, one.start):
                continue  # missed slots run one after the other
            claim = self._cron.state.slots.claim(one.entry.key, one.slot, self._by(one), self._clock.now)
            if claim is None:
                continue
            if one.passed_over:
                yield self._missed(one)
            if one.entry.kind is Kind.SUBMIT:
                claims.append(claim)
                continue
            yield self._start(one.entry, one.slot, claim)
        wants_news = now - self._followed >= min(self.period_s, 60.0) and self._has_jobs()
        if claims or wants_news or self._submitter.waiting:
            self._followed = now
            try:
                self._submitter.hand(claims, table.entries)
            except OSError as error:  # fork failed: the next tick finds the claims
                yield TickResult(lines=(f"cannot submit jobs: {error.strerror}; the next tick tries again",))

    def _rerun(self, table: Table, now: float) -> Iterator[TickResult]:
        """Rerun slots that were cut short, if their entry allows it. A claim decides which scheduler does."""
        slots = self._cron.state.slots
        for entry, slot, attempt in cut_short(self._cron, table):
            if attempt > MOST_RUNS or not self._fits(entry, now):
                continue
            by = {"host": self._cron.project.system.host.name, "pid": os.getpid(), "again": attempt}
            claim = slots.claim(f"{entry.key}{AGAIN}{attempt}", slot, by, self._clock.now)
            if claim is not None:
                yield TickResult(lines=(f"{entry.place}: a run was cut short; rerunning it",))
                yield self._start(entry, slot, claim)

    def _has_jobs(self) -> bool:
        try:
            return bool(os.listdir(self._cron.state.path / "jobs"))  # noqa: PTH208
        except OSError:
            return False

    def _fits(self, entry: Entry, now: float) -> bool:
        """Return whether the entry can finish before `until`, never could, or would be lost to the next scheduler."""
        limit_s = entry.options.timeout_s
        if self._until is None or entry.kind is Kind.SUBMIT or limit_s <= 0 or entry.options.catch_up == 0:
            return True
        never_fits = self._life_s is not None and limit_s > self._life_s
        return never_fits or now + limit_s <= self._until

    def _by(self, one: Due) -> dict[str, Any]:
        system = self._cron.project.system
        return {
            "host": system.host.name, "pid": os.getpid(), "driver": self._driver, "time": self._clock.now(),
            "kind": str(one.entry.kind),
        }  # fmt: skip

    def _missed(self, one: Due) -> TickResult:
        """Record missed slots, under the second before the slot that runs; the record stands for several."""
        record = self._record(one.entry.name, one.slot - 1, Outcome.MISSED, summary=one.reason)
        return self._write(one.entry.key, replace(record, count=one.passed_over))

    def _start(self, entry: Entry, slot: int, claim: Claim) -> TickResult:
        """Start a run. Its supervisor closes the claim once the run is visible; without one, it is closed here."""
        if not self._cron.state.slots.holds(claim):
            why = "was taken over by another host while this host was suspended; it does not run here"
            return TickResult(lines=(f"{entry.place}: a run {why}",))
        close = partial(self._cron.state.slots.close, claim)
        started = self._supervised().start(entry, slot, close)
        if started.is_running:
            return TickResult.of((started.record,))
        hint = f"; try: {started.hint}" if started.hint else ""
        lines = (f"{entry.place}: {started.record.summary}{hint}",) if started.record.outcome.is_failure else ()
        written = self._write(entry.key, started.record).plus(TickResult(lines=lines))
        close()
        return written

    def _settle_open(self, table: Table, now: float) -> Iterator[TickResult]:
        """Settle claims of killed ticks: submit them, or record that they were cut short."""
        waiting = self._submitter.waiting
        own = {(run.name.replace("/", "+"), run.slot) for run in self._runs.running} if self._runs is not None else ()
        gone = [
            claim
            for claim in self._cron.state.slots.open_claims()
            if claim.is_gone(now)
            or (claim.is_mine() and claim not in waiting and (claim.key.partition(AGAIN)[0], claim.slot) not in own)
        ]
        if not gone:
            return
        from resilience.cron.tick_state import open_runs

        runs, submits = open_runs(self._cron, gone, table)
        for claim, record in runs:
            if record is not None:
                yield self._write(claim.key.partition(AGAIN)[0], record)
            self._cron.state.slots.close(claim)
        self._submits += submits

    def _record(self, name: str, slot: int, outcome: Outcome, *, summary: str = "") -> RunRecord:
        host = self._cron.project.system.host.name
        return RunRecord(name=name, slot=slot, outcome=outcome, time=self._clock.now(), host=host, summary=summary)

    def _write(self, key: str, record: RunRecord) -> TickResult:
        self._cron.state.record(key, record)
        return TickResult.of((record,))


def _result_of(submitter_result: SubmitterResult | None) -> TickResult:
    if submitter_result is None:
        return TickResult()
    return TickResult.of(submitter_result.records, (submitter_result.problem,) if submitter_result.problem else ())
