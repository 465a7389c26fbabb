"""Makes the ticks of one scheduler: reads the table, and runs and submits what is due.

The order lets the next tick recover from a crash at any point: results of dead runs, table, heartbeat, due slots; each
slot is claimed before it starts. Nothing here waits for a scheduler or a channel: children do that. A tick that finds
nothing to do remembers until when that holds, and the next ones do not read the table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from resilience import __version__
from resilience.cron.book import AGAIN, Run, State, machine, record_from
from resilience.cron.records import Due, Entry, Heartbeat, Kind, Outcome, RunRecord, Table
from resilience.cron.slots import AHEAD_S
from resilience.cron.state_directory import Damaged, Seen
from resilience.errors import ResilError, StateDirectoryError
from resilience.quantities import format_duration
from resilience.system.files import short_digest

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.submit import JobSubmitter
    from resilience.cron.table.supervisor import Supervised

_T = TypeVar("_T")

GAP = 3.0
"""A gap of more than this many intervals between ticks starts a new `alive_since`."""


def _those(*outcomes: Outcome) -> property:
    return property(lambda ticked: tuple(run for run in ticked.records if run.outcome in outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """Result of one tick.

    Attributes:
        heartbeat: the heartbeat written; None if the scheduler is stopped.
        records: of the runs that it started, and of those known to have ended since the last tick, including runs of
            earlier ticks.
        lines: messages for standard error, one sentence each.
        stopped: why nothing runs (the scheduler was stopped); empty: not stopped.
        started, ended, submitted, skipped, refused: records by their outcome; `skipped`: slots not run, or missed;
            `refused`: runs that could not be started.
    """

    heartbeat: Heartbeat | None = None
    records: tuple[RunRecord, ...] = ()
    lines: tuple[str, ...] = ()
    stopped: str = ""

    started = _those(Outcome.RUNNING)
    ended = _those(Outcome.DONE, Outcome.FAILED, Outcome.TIMEOUT, Outcome.CUT_SHORT)
    submitted = _those(Outcome.SUBMITTED)
    skipped = _those(Outcome.SKIPPED, Outcome.MISSED)
    refused = _those(Outcome.REFUSED)

    def plus(self, other: TickResult) -> TickResult:
        """Return both results together, with the later heartbeat. Pure."""
        return TickResult(
            heartbeat=other.heartbeat or self.heartbeat,
            records=self.records + other.records,
            lines=self.lines + other.lines,
            stopped=other.stopped or self.stopped,
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

EARLIEST = 1_700_000_000
"""November 2023. A clock before this was never set (a machine without a battery starts in 1970)."""

FORGOTTEN_S = 30 * 86400.0
"""Slots of removed entries are kept this long."""

_MACHINES = 32
"""For this many boots, the start of the scheduler is remembered."""

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
    ) -> None:
        self._cron, self._driver = cron, driver
        self._clock = cron.project.system.clock
        self._host = cron.project.system.host.name
        settings = cron.settings
        # Daemons call `run`: a single tick of these drivers is a pulse.
        self.period_s = period_s or (settings.pulse_s if driver in PULSING else settings.tick_s)
        self._until = until
        self._life_s = until - self._clock.now() if until is not None else None
        self._runs: Supervised | None = None
        self._submitter: JobSubmitter | None = None
        self._last: dict[str, int] = {}
        self._started: float | None = None
        """When the scheduler started on this boot of this machine, if an entry needs it (`@reboot`)."""
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
        self._reset(now)
        if (stopped := state.stopped()) is not None:
            if "leaves" in stopped:  # one job of a chain, in which another one ticks
                return TickResult(stopped=str(stopped["leaves"]))
            by, why = str(stopped.get("by") or ""), str(stopped.get("why") or "")
            text = f"stopped{f' by {by}' if by else ''}{f': {why}' if why else ''}"
            return TickResult(stopped=text, lines=(f"the scheduler is {text}; `resil cron install` starts it again",))
        before = self._last_heartbeat()
        self._collect()
        state.book.adopt()
        active, signature = state.book.active(), self._signature()
        beat = self._idle(now, before, signature) if before is not None and not active else None
        if beat is not None and self.failure is None:
            return self._result(beat)
        from resilience.cron.table.due import next_due

        table, last, trouble = Table(), dict[str, int](), ""
        try:
            self.table = table = self._cron.read_table()
            last = self._newest(table, before, now)
        except ResilError as error:
            self.table, table, trouble = None, Table(), error.message
            self._lines.append(error.message)
        next_start = next_due(table, last, self._clock.now(), salt=self._cron.salt)
        beat = self._beat(now, before, len(table.entries), next_start, trouble)
        if not trouble:
            known, submits = len(self._records), list[Run]()
            with self._guarded():
                self._settle(active, now, submits)
            with self._guarded():
                asked = any(run.state is State.QUEUED or run.is_doubtful(now) for run in active)
                self._begin(last, submits, has_jobs=asked)
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
        found = TickResult(heartbeat=heartbeat, records=tuple(self._records), lines=tuple(self._lines))
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
            known = (state.read_record(IDLE) if signature else None) or {}
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
            state.write_record(IDLE, known)

    # ---- the state that a tick finds ----------------------------------------------------------------------------

    def _reset(self, now: float) -> None:
        """Raise StateDirectoryError if nothing may run: the project is missing, its state directory is foreign, or the
        clock was never set."""
        self.failure, self.next_start, self.waits = None, None, False
        if now < EARLIEST:
            raise StateDirectoryError(
                f"the clock of this machine was never set: it shows {int(now)} seconds since 1970; no entries run",
                hint="date; timedatectl",
                transient=True,
            )
        if not self._cron.is_there:  # its table would count as empty, and its state be made anew
            raise StateDirectoryError(
                f"{self._cron.project.loaded.project} is missing: no entries run",
                hint="if the project was moved, there: resil cron install",
                transient=True,
            )
        self._cron.state.check()

    def _last_heartbeat(self) -> Heartbeat | None:
        """Return the last heartbeat; None if there is no plausible one."""
        before = self._read_or_reset("heartbeat", self._cron.state.heartbeat, None)
        now = self._clock.now()  # read after the heartbeat: this process may have been suspended for a day
        if before is None or before.time <= now + AHEAD_S:
            return before
        self._lines.append(
            f"the last tick was {format_duration(before.time - now)} in the future: the clock was set back, or "
            f"that of {before.host or 'another host'} is ahead; using the current time"
        )
        return None

    def _newest(self, table: Table, before: Heartbeat | None, now: float) -> dict[str, int]:
        """Return the newest slot of each entry in the table, or since when the entry is known; remember new entries.

        A new entry is known since the previous tick: no scheduler could have run it earlier.
        """
        state = self._cron.state
        seen = self._read_or_reset("seen", state.seen, dict[str, Seen]())
        taken = state.book.slots.taken()
        since = int(now if before is None else max(min(before.time, now), now - 2 * self.period_s))
        new = {entry.key: f"{entry.zone} {entry.schedule}".strip() for entry in table.entries}
        kept = {key: value for key, value in seen.items() if key[:1] == "@" or new.get(key) == value.schedule}
        ahead = self._clock.now() + AHEAD_S
        if any(slots[-1] > ahead for slots in taken.values()):
            self._forget_ahead(taken, kept, now)
        for key, slots in taken.items():
            if key not in new and slots and slots[-1] < now - FORGOTTEN_S:
                state.book.slots.forget(key)
        self._started = None
        if any(map(_is_reboot, new.values())):
            self._started = self._scheduler_start(kept, before, now)
        is_born = self._started == int(now)
        for key, schedule in new.items():
            # `seen` is damaged or lost: taken slots show that the entry is not new.
            is_lost = not seen and bool(taken.get(key))
            known = taken[key][-1] if is_lost else since - 1 if is_born and _is_reboot(schedule) else since
            kept.setdefault(key, Seen(known, schedule))
        if kept != seen:
            with self._guarded():  # what is known already runs
                state.write_seen(kept)
        found = {key: max([kept[key].since, *taken.get(key, [])[-1:]]) for key in new}
        self._last = {key: max(slot, self._unclaimed.get(key, 0)) for key, slot in found.items()}
        return self._last

    def _scheduler_start(self, seen: dict[str, Seen], before: Heartbeat | None, now: float) -> float:
        """Return when the scheduler started on this boot of this machine; remember it in `seen`."""
        key = f"@{machine()}"
        if key not in seen:
            boots = sorted((k for k in seen if k[:1] == "@"), key=lambda k: seen[k].since)
            for old in boots[: -_MACHINES + 1]:
                del seen[old]
            start, booted = now, now - time.clock_gettime(time.CLOCK_BOOTTIME)
            if before is not None and before.host == self._host and before.time >= booted:
                start = max(before.alive_since, booted)  # it ticked before an `@reboot` entry was added
            seen[key] = Seen(int(start))
        return float(seen[key].since)

    def _forget_ahead(self, taken: dict[str, list[int]], seen: dict[str, Seen], now: float) -> None:
        """Delete slots of a wrong clock: they must not silence an entry until that day. The one of this tick is due."""
        for key, newest in self._cron.state.book.slots.forget_ahead(self._clock.now).items():
            limit = self._clock.now() + AHEAD_S
            taken[key] = [slot for slot in taken.get(key, []) if slot <= limit]
            if not taken[key]:
                ran = [run.slot for run in self._cron.state.history(key) if run.slot <= now]
                since = max([int(now - self.period_s), *ran])
                seen[key] = Seen(since, seen[key].schedule if key in seen else "")
            self._lines.append(
                f"{key.replace('+', '/')} ran {format_duration(newest + AHEAD_S - limit)} in the future: the clock was "
                "set back, or that of another host is ahead; using the current time"
            )

    def _read_or_reset(self, name: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except Damaged as error:
            self._cron.state.quarantine(name)
            self._lines.append(f"{error.message}; moved to {name}.damaged and recreated")
            return otherwise

    # ---- the parts of a tick ------------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Note the failure of a part of the tick: runs already started continue, and so do the other parts."""
        try:
            yield
        except StateDirectoryError as error:
            self.failure = self.failure or error

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

    def _settle(self, active: list[Run], now: float, submits: list[Run]) -> None:
        """Settle runs whose process is gone: end them, or submit their jobs (added to `submits`)."""
        book, entries = self._cron.state.book, {entry.key: entry for entry in self._entries}
        held = {run.id for run in self._submitter.waiting} if self._submitter is not None else set()
        held |= self._runs.ids if self._runs is not None else set()
        if self._runs is not None:
            self._runs.file(active)
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

    def _begin(self, last: Mapping[str, int], submits: list[Run], *, has_jobs: bool) -> None:
        """Claim and start what is due; submit the jobs of `submits` and of the due slots.

        If no slot can be claimed, entries that may be repeated (`rerun`) run without a claim, once within an interval:
        they may be what reports or ends the trouble. The others wait.
        """
        from resilience.cron.table.due import due

        assert self.table is not None
        now, salt, started = self._clock.now(), self._cron.salt, self._started
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
            summary=f"the slot after runs {one.reason}", count=one.passed_over,
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
            "name": entry.name, "kind": str(entry.kind),
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


def _is_reboot(schedule: str) -> bool:
    return schedule.lower().endswith("@reboot")
