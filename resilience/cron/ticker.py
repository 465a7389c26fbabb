"""Makes the ticks of one scheduler: looks at the table, and runs and submits what is due.

In this order, so that whatever is cut off is found by the next tick: books of those that died, table, sign of life,
what is due. Of each slot: taken, then begun. Nothing here waits for a scheduler or for a person to be told: that is
done in children (cron_clerk.py, cron_tell.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resilience.cron.clerk import Clerk, ClerkResult
from resilience.cron.past import AGAIN, Past, cut_short
from resilience.cron.records import Due, Entry, Heartbeat, Kind, Outcome, RunRecord, Table
from resilience.cron.ticked import Ticked, next_boundary, succeed
from resilience.errors import ResilError, StateDirectoryError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.slots import Claim
    from resilience.cron.table.supervisor import Supervised

PULSING = frozenset({"slurm", "scrontab"})
"""Drivers whose single ticks come every `pulse_s`; those of the others, every `tick_s`."""

MOST_RUNS = 3
"""A slot that is cut short may be run so often in all, where its entry allows that: it may be what kills us."""


class Ticker:
    """Makes ticks, and remembers between them what is under way.

    Args:
        driver: who makes the ticks, for the sign of life.
        period_s: the pause to the next tick; None: as the settings have it for this driver.
        until: what cannot end before that is left to the next scheduler, unless it never could; seconds since the
            epoch.
        life_s: how long a scheduler of this driver lives, from its begin to `until`.

    Attributes:
        failure: why the last tick could not begin all that was due: nothing could be written.
        table: as the last tick read it; None: it could not.
        next_start: when something starts next; None: nothing ever.
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
        # What lives for long calls `run`: a single tick of these is a pulse.
        self.period_s = period_s or (settings.pulse_s if driver in PULSING else settings.tick_s)
        self._until = until
        self._life_s = life_s if life_s is not None else (None if until is None else until - self._clock.now())
        self._runs: Supervised | None = None
        self._clerk = Clerk(cron)
        self._last: Mapping[str, int] = {}
        self._submits: list[Claim] = []
        self._followed = float("-inf")
        self.failure: StateDirectoryError | None = None
        self.table: Table | None = None
        self.next_start: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something that this scheduler began is under way."""
        return self.is_running or self._clerk.is_busy

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._runs is not None and bool(self._runs.running)

    def tick(self) -> Ticked:
        """Do what is due, wait for nothing. Raise StateDirectoryError if the state directory cannot be used."""
        state, now = self._cron.state, self._clock.now()
        past = Past(self._cron, now, self.period_s)
        self.failure = None
        past.check()
        if (stopped := state.stopped()) is not None:
            by, why = str(stopped.get("by") or ""), str(stopped.get("why") or "")
            text = f"stopped{f' by {by}' if by else ''}{f': {why}' if why else ''}"
            return Ticked(stopped=text, lines=(f"the scheduler is {text}; `resil cron install` starts it again",))
        before = past.heartbeat()
        done = self._books(now)
        trouble, last = "", {}
        try:
            self.table = table = self._cron.read_table()
            last = self._last = past.last(table, before)
        except ResilError as error:
            self.table, table, trouble = None, Table(), error.message
            done.append(Ticked(lines=(error.message,)))
        beat = self._beat(now, before, table, last, trouble)
        done.append(Ticked(heartbeat=beat, lines=past.lines))
        if not trouble:
            try:
                for one in self._settle_open(table, now):
                    done.append(one)
                for one in self._begin(table, last, past):
                    done.append(one)
                for one in self._rerun(table, now):
                    done.append(one)
            except StateDirectoryError as error:  # what was begun goes on
                self.failure = error
                done.append(Ticked(lines=(error.message,)))
                with suppress(StateDirectoryError):
                    state.beat(replace(beat, trouble=error.message))
            self.next_start = self._next(table, last)
        total = Ticked()
        for one in done:
            total = total.plus(one)
        return total

    def again(self) -> Ticked:
        """Begin what has become due since `tick`: what its jitter held back."""
        if self.table is None:
            return Ticked()
        past = Past(self._cron, self._clock.now(), self.period_s)
        found = Ticked()
        try:
            self._last = past.last(self.table, None)
            for one in self._begin(self.table, self._last, past):
                found = found.plus(one)
        except StateDirectoryError as error:
            self.failure = error
        return found

    def waits_until(self) -> float | None:
        """When the next slot that was due by now starts, held back by its jitter; None: there is none."""
        from resilience.cron.table.due import schedule_of, start_of

        now, found, last = self._clock.now(), [], self._last
        for entry in self.table.entries if self.table is not None else ():
            if entry.options.jitter_s > 0 and entry.key in last:
                newest = schedule_of(entry).newest_until(now)
                if newest is not None and newest > last[entry.key]:
                    start = start_of(entry, newest, self._cron.salt)
                    found += [start] if start > now else []
        return min(found, default=None)

    def poll(self, timeout_s: float = 0.0, *, is_over: Callable[[], bool] = lambda: False) -> Ticked:
        """What has ended since; waits up to so long for the first."""
        records: tuple[RunRecord, ...] = ()
        if self._runs is not None:
            running = bool(self._runs.running)
            records = self._runs.wait(timeout_s, is_over=is_over) if timeout_s and running else self._runs.poll()
            timeout_s = 0.0 if running else timeout_s
        heard = self._clerk.poll(timeout_s)
        if heard is not None and self._clerk.waiting and self.table is not None:
            self._clerk.hand((), self.table.entries)
        return Ticked.of(records).plus(_told(heard))

    def end_all(self, grace_s: float) -> Ticked:
        """End what runs, politely. What is being submitted has as long, and is left to its child then."""
        ended = Ticked.of(self._runs.end_all(grace_s) if self._runs is not None else ())
        if self._clerk.is_busy:
            ended = ended.plus(_told(self._clerk.poll(grace_s)))
        self._clerk.close()
        return ended

    # ---- the parts of a tick ------------------------------------------------------------------------------------

    def _supervised(self) -> Supervised:
        if self._runs is None:
            self._runs = self._cron.supervised()
        return self._runs

    def _books(self, now: float) -> list[Ticked]:
        """What ended since the last tick: ours, and what nobody watches any more."""
        found = [self.poll()]
        try:
            marks = os.listdir(self._cron.state.path / "running")  # noqa: PTH208 - names only
        except OSError:
            marks = []
        if marks:
            from resilience.cron.table.books import settle

            found.append(Ticked.of(settle(self._cron.state, now=now, at=self._cron.here())))
        return found

    def _beat(
        self, now: float, before: Heartbeat | None, table: Table, last: Mapping[str, int], trouble: str
    ) -> Heartbeat:
        system = self._cron.project.system
        beat = succeed(before, now, expected=next_boundary(now, self.period_s), period_s=self.period_s)
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

    def _begin(self, table: Table, last: Mapping[str, int], past: Past) -> Iterator[Ticked]:
        from resilience.cron.table.due import due

        now = self._clock.now()
        claims, self._submits = self._submits, []
        for one in due(table, last, now, tick_s=self.period_s, salt=self._cron.salt, started=past.scheduler_start):
            if not self._fits(one.entry, now):
                continue
            if one.entry.kind is Kind.RUN and self._supervised().must_wait(one.entry, one.start):
                continue  # several slots are made up for: one after the other
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
        if claims or wants_news or self._clerk.waiting:
            self._followed = now
            try:
                self._clerk.hand(claims, table.entries)
            except OSError as error:  # no room for a process: whoever ticks next finds the claims
                yield Ticked(lines=(f"no slot can be submitted now: {error.strerror}; the next tick tries again",))

    def _rerun(self, table: Table, now: float) -> Iterator[Ticked]:
        """Run again what was cut short and may be repeated. Who may is decided as who may run it at all."""
        slots = self._cron.state.slots
        for entry, slot, attempt in cut_short(self._cron, table):
            if attempt > MOST_RUNS or not self._fits(entry, now):
                continue
            by = {"host": self._cron.project.system.host.name, "pid": os.getpid(), "again": attempt}
            claim = slots.claim(f"{entry.key}{AGAIN}{attempt}", slot, by, self._clock.now)
            if claim is not None:
                yield Ticked(lines=(f"{entry.place}: the run of a slot was cut short; it is run again",))
                yield self._start(entry, slot, claim)

    def _has_jobs(self) -> bool:
        try:
            return bool(os.listdir(self._cron.state.path / "jobs"))  # noqa: PTH208
        except OSError:
            return False

    def _fits(self, entry: Entry, now: float) -> bool:
        """Whether it can end before we do, or never could, or would be lost by waiting for the next scheduler."""
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

    def _missed(self, one: Due) -> Ticked:
        """Its slot is the second before the one that is made up for: it stands for several."""
        record = self._record(one.entry.name, one.slot - 1, Outcome.MISSED, summary=one.reason)
        return self._write(one.entry.key, replace(record, count=one.passed_over))

    def _start(self, entry: Entry, slot: int, claim: Claim) -> Ticked:
        """The claim is closed by the supervisor, when others can see that it runs; or here, if it does not."""
        if not self._cron.state.slots.holds(claim):
            told = "was taken over by another host while this one stood still, and is not run here"
            return Ticked(lines=(f"{entry.place}: the run of a slot {told}",))
        close = partial(self._cron.state.slots.close, claim)
        started = self._supervised().start(entry, slot, close)
        if started.is_running:
            return Ticked.of((started.record,))
        hint = f"; try: {started.hint}" if started.hint else ""
        lines = (f"{entry.place}: {started.record.summary}{hint}",) if started.record.outcome.is_failure else ()
        written = self._write(entry.key, started.record).plus(Ticked(lines=lines))
        close()
        return written

    def _settle_open(self, table: Table, now: float) -> Iterator[Ticked]:
        """What a tick before had begun to take when it was killed: submit it, or tell that it was cut short."""
        waiting = self._clerk.waiting
        own = {(run.name.replace("/", "+"), run.slot) for run in self._runs.running} if self._runs is not None else ()
        gone = [
            claim
            for claim in self._cron.state.slots.open_claims()
            if claim.is_gone(now)
            or (claim.is_mine() and claim not in waiting and (claim.key.partition(AGAIN)[0], claim.slot) not in own)
        ]
        if not gone:
            return
        from resilience.cron.past import open_runs

        runs, submits = open_runs(self._cron, gone, table)
        for claim, record in runs:
            if record is not None:
                yield self._write(claim.key.partition(AGAIN)[0], record)
            self._cron.state.slots.close(claim)
        self._submits += submits

    def _record(self, name: str, slot: int, outcome: Outcome, *, summary: str = "") -> RunRecord:
        host = self._cron.project.system.host.name
        return RunRecord(name=name, slot=slot, outcome=outcome, time=self._clock.now(), host=host, summary=summary)

    def _write(self, key: str, record: RunRecord) -> Ticked:
        self._cron.state.record(key, record)
        return Ticked.of((record,))


def _told(heard: ClerkResult | None) -> Ticked:
    if heard is None:
        return Ticked()
    return Ticked.of(heard.records, (heard.trouble,) if heard.trouble else ())
