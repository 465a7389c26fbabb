"""Makes the ticks of one scheduler: reads the table, and runs and submits what is due.

The order lets the next tick recover from a crash at any point: results of dead runs, table, heartbeat, due slots; each
slot is claimed before it starts. Nothing here waits for a scheduler or a channel: children do that. A tick that finds
nothing to do remembers until when that holds, and the next ones do not read the table.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilience import __version__
from resilience.cron.book import AGAIN, Run, State, machine, record_from
from resilience.cron.records import Due, Entry, Heartbeat, Kind, Outcome, RunRecord, Table
from resilience.cron.tick_state import TickState
from resilience.errors import ResilError, StateDirectoryError
from resilience.system.files import read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.submit import JobSubmitter
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
        kinds = ("started", "ended", "submitted", "skipped", "refused", "lines")
        joined: dict[str, Any] = {kind: getattr(self, kind) + getattr(other, kind) for kind in kinds}
        return TickResult(
            heartbeat=other.heartbeat or self.heartbeat, stopped=other.stopped or self.stopped, **joined
        )  # fmt: skip

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
    beat = Heartbeat(time=now, expected=expected, alive_since=now)
    if before is None:
        return beat
    beat = replace(beat, late_s=max(0.0, now - before.expected))
    pause_s = max(before.expected - before.time, period_s)
    if not -pause_s <= now - before.time <= GAP * pause_s:  # no scheduler was running, or the clock was set
        return beat
    return replace(beat, alive_since=min(before.alive_since, now), ticks=before.ticks + 1)


IDLE = "idle"
"""In `<state_dir>/.cron`: until when ticks have nothing to do, if nothing changes."""

IN_FLIGHT_S = 5.0
"""A run whose scheduler was killed may still be about to take its record for this long."""

SETTLED_S = 2.0
"""A file changed later than this ago may change again without a new time: file systems count in milliseconds."""

LEAST_S = 60.0
"""A run is expected to take this long at least, and twice as long as the longest of the last ones (PRECEDENTS)."""

PRECEDENTS = 10

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
        until: entries that will probably not end before are left to the next scheduler, unless they never could;
            seconds since the epoch.
        life_s: lifetime of a scheduler of this driver, from its start to `until`.

    Attributes:
        failure: why the last tick could not start all due slots: nothing could be written.
        table: as the last tick read it; None: unreadable, or it was not read because nothing has changed.
        next_start: when the next entry starts; None: never, or the last tick failed.
        waits: whether a late slot waits for the end of an active run.
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
        self._host = cron.project.system.host.name
        settings = cron.settings
        # Daemons call `run`: a single tick of these drivers is a pulse.
        self.period_s = period_s or (settings.pulse_s if driver in PULSING else settings.tick_s)
        self._until = until
        self._life_s = life_s if life_s is not None else (None if until is None else until - self._clock.now())
        self._runs: Supervised | None = None
        self._submitter: JobSubmitter | None = None
        self._last: Mapping[str, int] = {}
        self._unclaimed: dict[str, int] = {}
        self._records: list[RunRecord] = []
        self._lines: list[str] = []
        self._followed = float("-inf")
        self.failure: StateDirectoryError | None = None
        self.table: Table | None = None
        self.next_start: float | None = None
        self.waits = False

    def use(self, cron: CronProject, period_s: float) -> None:
        """Go on with other settings; active runs keep theirs."""
        self._cron, self.period_s = cron, period_s

    @property
    def is_busy(self) -> bool:
        """Return whether a run or a submission of this scheduler is active."""
        return self.is_running or (self._submitter is not None and self._submitter.is_busy)

    @property
    def is_running(self) -> bool:
        """Return whether a run is active."""
        return self._runs is not None and bool(self._runs.running)

    def tick(self) -> TickResult:
        """Run what is due, without waiting. Raise StateDirectoryError if the state directory cannot be used at all.

        If it can be read but not written, runs that are active go on, and their ends are collected; entries whose slot
        cannot be claimed wait, see `_begin`.
        """
        state, now = self._cron.state, self._clock.now()
        tick_state = TickState(self._cron, now, self.period_s)
        self._reset()
        tick_state.check()
        if (stopped := state.stopped()) is not None:
            if "leaves" in stopped:  # one job of a chain, in which another one ticks
                return TickResult(stopped=str(stopped["leaves"]))
            by, why = str(stopped.get("by") or ""), str(stopped.get("why") or "")
            text = f"stopped{f' by {by}' if by else ''}{f': {why}' if why else ''}"
            return TickResult(stopped=text, lines=(f"the scheduler is {text}; `resil cron install` starts it again",))
        before = tick_state.heartbeat()
        self._collect()
        state.book.adopt()
        active, signature = state.book.active(), self._signature()
        beat = self._idle(now, before, signature) if before is not None and not active else None
        if beat is not None and self.failure is None:
            return self._result(beat)
        table, last, trouble = Table(), dict[str, int](), ""
        try:
            self.table = table = self._cron.read_table()
            last = self._newest(tick_state, before)
        except ResilError as error:
            self.table, table, trouble = None, Table(), error.message
            self._lines.append(error.message)
        next_start = self._next(table, last)
        beat = self._beat(now, before, len(table.entries), next_start, trouble)
        self._lines += tick_state.lines
        if not trouble:
            known, submits = len(self._records), list[Run]()
            with self._guarded():
                self._settle(active, now, submits)
            with self._guarded():
                asked = any(run.state is State.QUEUED or run.is_doubtful(now) for run in active)
                self._begin(last, tick_state, submits, has_jobs=asked)
            with self._guarded():
                self._rerun(now)
            if not (active or submits or len(self._records) > known or self.failure is not None or self.waits):
                self._remember(now, signature, next_start)
            self.next_start = next_start
        if self.failure is not None:
            self._lines.append(self.failure.message)
            with suppress(StateDirectoryError):
                state.beat(replace(beat, trouble=trouble or self.failure.message))
        return self._result(beat)

    def start_delayed(self) -> TickResult:
        """Start the slots that have become due since `tick`: after their jitter, or after the end of an active run."""
        if self.table is not None:
            self.waits = False
            tick_state = TickState(self._cron, self._clock.now(), self.period_s)
            with self._guarded():
                self._begin(self._newest(tick_state, None), tick_state, [], has_jobs=False)
        return self._result()

    def delayed_until(self) -> float | None:
        """Return when the next due slot starts after its jitter; None: there is none."""
        if not (held := [entry for entry in self._entries if entry.options.jitter_s > 0 and entry.key in self._last]):
            return None
        from resilience.cron.table.due import schedule_of, start_of

        now = self._clock.now()
        newest = [(entry, schedule_of(entry).newest_until(now) or 0) for entry in held]
        starts = (start_of(one, slot, self._cron.salt) for one, slot in newest if slot > self._last[one.key])
        return min((start for start in starts if start > now), default=None)

    def poll(self, timeout_s: float = 0.0, *, is_over: Callable[[], bool] = lambda: False) -> TickResult:
        """Return the results since the last call; waits up to `timeout_s` for the first."""
        self._collect(timeout_s, is_over)
        return self._result()

    def end_all(self, grace_s: float) -> TickResult:
        """End active runs with SIGTERM. A submission gets `grace_s`, and then continues in its child."""
        if self._runs is not None:
            self._records += self._runs.end_all(grace_s)
        if self._submitter is not None:
            self._collect(grace_s)
            self._submitter.close()
        return self._result()

    def _collect(self, timeout_s: float = 0.0, is_over: Callable[[], bool] = lambda: False) -> None:
        if self._runs is not None:
            running = bool(self._runs.running)
            self._records += self._runs.wait(timeout_s, is_over=is_over) if timeout_s and running else self._runs.poll()
            timeout_s = 0.0 if running else timeout_s
        found = self._submitter.poll(timeout_s) if self._submitter is not None else None
        if self._submitter is not None and found is not None:
            self._records += found[0]
            self._lines += [found[1]] if found[1] else []
            if self._submitter.waiting and self.table is not None:
                self._submitter.hand((), self.table.entries)

    def _result(self, heartbeat: Heartbeat | None = None) -> TickResult:
        """Return what has happened since the last call."""
        found = replace(TickResult.of(self._records, tuple(self._lines)), heartbeat=heartbeat)
        self._records, self._lines = [], []
        return found

    # ---- a tick without anything to do --------------------------------------------------------------------------

    def _signature(self) -> str:
        """Return a digest of what a table is read from; empty if it cannot be remembered, because something is missing
        or changed just now."""
        cron, newest = self._cron, 0
        time.tzset()  # a process may run for months, and the machine's time zone may change
        facts: list[object] = [__version__, cron.settings, cron.state.group, self.period_s, machine(), os.geteuid()]
        facts += [time.tzname, changed(cron.state.path / "seen")]
        try:
            for above in cron.directory.parents:
                info = above.stat()
                facts += [info.st_mode, info.st_uid, info.st_gid]
                if above == cron.project.loaded.project:
                    break
            for directory in (cron.directory, *sorted(cron.directory.glob("cron.*/"))):
                with os.scandir(directory) as listed:
                    for one in listed:
                        for info in (one.stat(follow_symlinks=False), one.stat()):
                            times = info.st_ctime_ns, info.st_mtime_ns
                            facts += [one.path, info.st_ino, info.st_mode, info.st_uid, info.st_gid, *times]
                            newest = max(newest, *times)
        except OSError:  # a dangling link, or no directory: the reader has words for it
            return ""
        if newest > time.time_ns() - int(SETTLED_S * 1e9):
            return ""
        return short_digest(repr(facts).encode("utf-8", "surrogateescape"))

    def _idle(self, now: float, before: Heartbeat, signature: str) -> Heartbeat | None:
        """Write the heartbeat of a tick without anything to do, and return it; None: the table must be read."""
        state = self._cron.state
        try:
            found = read_regular(state.path / IDLE) if signature else None
            known = json.loads(found[0]) if found is not None else {}
            first, last = float(known["from"]), float(known["to"])
            repeated = {key: changed(state.path / "history" / key) for key in known["repeat"]}
            if known["signature"] != signature or not first <= now < last or repeated != known["repeat"]:
                return None
            entries, next_start = int(known["entries"]), known["next"]
        except (StateDirectoryError, ValueError, KeyError, TypeError):
            return None
        if self.is_busy:
            return None
        self.table, self.next_start = None, next_start
        return self._beat(now, before, entries, next_start, "")

    def _remember(self, now: float, signature: str, next_start: float | None) -> None:
        """Remember until when nothing is due: the next ticks write their heartbeat, and that is all."""
        from resilience.cron.table.due import schedule_of

        if not signature:
            return
        state = self._cron.state
        slots = (schedule_of(entry).next_after(now) for entry in self._entries)  # a slot with jitter is due before
        until = min((slot for slot in (*slots, next_start) if slot is not None), default=now + 86400.0)
        repeat = {
            entry.key: changed(state.path / "history" / entry.key) for entry in self._entries if entry.options.rerun
        }
        known = {
            "signature": signature, "from": now, "to": until, "next": next_start, "entries": len(self._entries),
            "repeat": repeat,
        }  # fmt: skip
        with suppress(StateDirectoryError):
            write_atomic(state.path / IDLE, json.dumps(known), mode=state.file_mode, durable=False, sweep=False)

    # ---- the parts of a tick ------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self.failure, self.next_start, self.waits = None, None, False

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Note the failure of a part of the tick: runs already started continue, and so do the other parts."""
        try:
            yield
        except StateDirectoryError as error:
            self.failure = self.failure or error

    def _newest(self, tick_state: TickState, before: Heartbeat | None) -> dict[str, int]:
        assert self.table is not None
        found = tick_state.last(self.table, before)
        self.failure = self.failure or tick_state.failure
        self._last = {key: max(slot, self._unclaimed.get(key, 0)) for key, slot in found.items()}
        return self._last

    def _supervised(self) -> Supervised:
        if self._runs is None:
            self._runs = self._cron.supervised()
        return self._runs

    def _beat(
        self, now: float, before: Heartbeat | None, entries: int, next_start: float | None, trouble: str
    ) -> Heartbeat:
        system = self._cron.project.system
        beat = next_heartbeat(before, now, expected=next_boundary(now, self.period_s), period_s=self.period_s)
        beat = replace(
            beat,
            driver=self._driver,
            host=system.host.name,
            pid=os.getpid(),
            job_id=system.environ.get("SLURM_JOB_ID", ""),
            next_slot=next_start,
            entries=entries,
            trouble=trouble,
            patience_s=self._cron.settings.late_s,
        )
        try:
            self._cron.state.beat(beat)
        except StateDirectoryError as error:  # the watchdog of a full disk must run now
            self.failure = error
        return beat

    def _next(self, table: Table, last: Mapping[str, int]) -> float | None:
        from resilience.cron.table.due import next_due

        return next_due(table, last, self._clock.now(), salt=self._cron.salt)

    def _settle(self, active: list[Run], now: float, submits: list[Run]) -> None:
        """Settle runs whose process is gone: end them, or submit their jobs (added to `submits`)."""
        book, entries = self._cron.state.book, {entry.key: entry for entry in self._entries}
        held = {run.id for run in self._submitter.waiting} if self._submitter is not None else set()
        held |= self._runs.ids if self._runs is not None else set()
        if active:
            self._records += book.settle_dead(now, self._host)
        for run in active:
            if run.state is not State.CLAIMED or run.id in held:
                continue
            if not run.is_mine and book.liveness(run, now)[0].name != "GONE":
                continue
            entry, about = entries.get(run.entry_key), book.about(run)
            kind = entry.kind if entry is not None else about.get("kind")
            missed = record_from(about.get("missed"))
            if missed is not None and book.has_slot(run) is not False and missed not in book.history(run.entry_key):
                self._record_missed(run.entry_key, missed)  # its scheduler was killed before it did so
            if kind == Kind.SUBMIT or run.entry_key.endswith((".slurm", ".sbatch")):
                submits.append(run)
            elif abs(now - run.time) >= IN_FLIGHT_S:
                settled = book.settle(run, now, "the scheduler was killed before it started the run", self._host)
                self._records += [settled] if settled is not None else []

    def _begin(self, last: Mapping[str, int], tick_state: TickState, submits: list[Run], *, has_jobs: bool) -> None:
        """Claim and start what is due; submit the jobs of `submits` and of the due slots.

        If no slot can be claimed, entries that may be repeated (`rerun`) run without a claim, once within an interval:
        they may be what reports or ends the trouble. The others wait.
        """
        from resilience.cron.table.due import due

        assert self.table is not None
        now, salt, started = self._clock.now(), self._cron.salt, tick_state.scheduler_start
        # In order: once a slot is claimed, the older ones of its entry are never due again.
        waiting, refused = set[str](), dict[str, StateDirectoryError]()
        for one in due(self.table, last, now, tick_s=self.period_s, salt=salt, started=started):
            entry, is_run = one.entry, one.entry.kind is Kind.RUN
            if entry.key in waiting:
                continue
            if not self._fits(entry, now) or (is_run and self._supervised().must_wait(entry, one.start)):
                self.waits = True  # missed slots run one after the other
                waiting.add(entry.key)
                continue
            missed = self._missed(one)
            try:
                if entry.key in refused:
                    raise refused[entry.key]
                run = self._claim(entry, entry.key, one.slot, missed)
                if run is None:
                    continue
            except StateDirectoryError as error:
                self.failure, run, refused[entry.key] = self.failure or error, None, error
                if not (entry.options.rerun and is_run and now - one.start < self.period_s):
                    continue
                self._unclaimed[entry.key] = one.slot
            if missed is not None:
                with self._guarded():
                    self._record_missed(entry.key, missed)
            if run is not None and not is_run:
                submits.append(run)
            else:
                self._start(entry, one.slot, run)
        wants_news = has_jobs and now - self._followed >= min(self.period_s, 60.0)
        if submits or wants_news or (self._submitter is not None and self._submitter.waiting):
            if self._submitter is None:
                from resilience.cron.submit import JobSubmitter

                self._submitter = JobSubmitter(self._cron)
            self._followed = now
            try:
                self._submitter.hand(submits, self.table.entries)
            except OSError as error:  # fork failed: the next tick finds the claims
                self._lines.append(f"cannot submit jobs: {error.strerror}; the next tick tries again")

    def _missed(self, one: Due) -> RunRecord | None:
        """Return the record of the slots that were missed before this one, of the second before it; None: none was."""
        if not one.passed_over:
            return None
        return RunRecord(
            name=one.entry.name, slot=one.slot - 1, outcome=Outcome.MISSED, time=self._clock.now(), host=self._host,
            summary=one.reason, count=one.passed_over,
        )  # fmt: skip

    def _record_missed(self, key: str, record: RunRecord) -> None:
        self._cron.state.record(key, record)
        self._records.append(record)

    def _rerun(self, now: float) -> None:
        """Rerun slots that were cut short, if their entry allows it. A claim decides which scheduler does."""
        entries = [entry for entry in self._entries if entry.options.rerun and entry.kind is Kind.RUN]
        if not entries:
            return
        # A rerun is taken, then active, then in the history: checked in that order, it is found, however long this
        # process is suspended in between.
        book = self._cron.state.book
        taken, active = book.slots.taken(), {run.entry_key for run in book.active()}
        for entry in entries:
            slot, outcome = book.newest(entry.key)
            again = f"{entry.key}{AGAIN}"
            if entry.key in active or outcome != Outcome.CUT_SHORT.name or not self._fits(entry, now):
                continue
            if slot in taken.get(f"{again}0", ()):  # of `resil cron run NAME`: the user knows
                continue
            attempt = 2 + sum(slot in slots for key, slots in taken.items() if key.startswith(again))
            if attempt <= MOST_RUNS and (run := self._claim(entry, f"{again}{attempt}", slot)) is not None:
                self._lines.append(f"{entry.place}: a run was cut short; rerunning it")
                self._start(entry, slot, run)

    def _fits(self, entry: Entry, now: float) -> bool:
        """Return whether the entry will probably end before `until`, judging by its last runs, never could, or would be
        lost to the next scheduler."""
        limit_s = entry.options.timeout_s
        if self._until is None or entry.kind is Kind.SUBMIT or limit_s <= 0 or entry.options.catch_up == 0:
            return True
        if (self._life_s is not None and limit_s > self._life_s) or now + limit_s <= self._until:
            return True
        ended = [run for run in self._cron.state.history(entry.key) if run.outcome in (Outcome.DONE, Outcome.FAILED)]
        took = [run.time - run.started for run in ended[-PRECEDENTS:] if run.started is not None]
        return bool(took) and now + min(limit_s, max(LEAST_S, 2 * max(took))) <= self._until

    def _claim(self, entry: Entry, key: str, slot: int, missed: RunRecord | None = None) -> Run | None:
        from resilience.cron.table.watched_run import longest_s

        about: dict[str, Any] = {
            "name": entry.name, "kind": str(entry.kind), "pid": os.getpid(), "driver": self._driver,
            "time": self._clock.now(),
            "job": self._cron.project.system.environ.get("SLURM_JOB_ID", "") if self._driver in PULSING else "",
            "missed": missed.to_json() if missed is not None else None,
        }  # fmt: skip
        limit_s = longest_s(entry.options.timeout_s)
        return self._cron.state.book.claim(key, slot, about, self._clock.now, limit_s=limit_s)

    def _start(self, entry: Entry, slot: int, run: Run | None) -> None:
        """Start a run. Its supervisor takes the record; without one, the record ends here."""
        record = self._supervised().start(entry, slot, run)
        self._records.append(record)
        if record.outcome.is_failure:
            self._lines.append(f"{entry.place}: {record.summary}")
        if record.outcome is not Outcome.RUNNING and run is not None:
            self._cron.state.book.end(run, record)

    @property
    def _entries(self) -> tuple[Entry, ...]:
        return self.table.entries if self.table is not None else ()


def changed(path: Path) -> int:
    """Return when a file or directory last changed, in nanoseconds; 0: there is none."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns  # noqa: PTH116
    return 0
