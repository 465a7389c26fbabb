"""`resil cron tick` and `resil cron run`: one tick, or a loop of ticks in the foreground.

The loop sleeps at most one second and then reads the wall clock, so it notices a clock that was set and a machine that
was suspended at once, and runs nothing late more than once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.book import AGAIN
from resilience.cron.project import reread
from resilience.cron.records import Kind, Outcome
from resilience.cron.ticker import Ticker, TickResult, changed, next_boundary
from resilience.errors import ResilError, UsageError

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, RunRecord
    from resilience.cron.report import TickReporter

SUBMITTER_S = 300.0
"""How long a tick waits for a slow scheduler. The next tick handles what is unfinished then."""

SUBMITTER_NAP_S = 0.5
"""Interval at which the job submitter is polled while no run is active."""


def tick(
    cron: CronProject,
    *,
    driver: str,
    wait: bool = True,
    until: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    grace_s: float = 10.0,
) -> TickResult:
    """Run what is due, and write a heartbeat. `driver`: what makes the ticks: `crontab`, `slurm`, `foreground` ...

    With `wait`, return when all started runs have ended; otherwise when they have started. Slots delayed by jitter are
    awaited in either case, and started by another tick. `until`, `stop`, `grace_s`: as in `run`. Raise
    StateDirectoryError, after all else is done, if not everything could be written. Raise ProbeError if a disk hangs.
    """
    from resilience.cron.report import TickReporter

    clock, reporter = cron.project.system.clock, TickReporter(cron)
    ticker = Ticker(cron, driver=driver, until=until)

    def is_over() -> bool:
        return stop() or (until is not None and clock.now() >= until)

    def again() -> TickResult:
        try:
            return replace(ticker.tick(), stopped="")  # if stopped meanwhile, nothing more starts
        except ResilError as error:  # what runs is awaited nevertheless
            return TickResult(lines=(error.message,))

    cron.check_disks()
    done = TickResult()
    try:
        done = ticker.tick()
        deadline = clock.monotonic() + ticker.period_s
        while not done.stopped and (start := ticker.delayed_until()) is not None:
            if clock.monotonic() + (start - clock.now()) > deadline or is_over():
                break
            clock.sleep(min(1.0, max(0.01, start - clock.now())))
            done = done.plus(again()) if clock.now() >= start else done
        if wait:
            while ticker.is_running and not is_over():
                ended = ticker.poll(60.0, is_over=is_over)
                done = done.plus(ended)
                if ended.ended and ticker.waits and clock.monotonic() < deadline:  # then the next tick does
                    done = done.plus(again())
            deadline = clock.monotonic() + SUBMITTER_S
            while ticker.is_busy and clock.monotonic() < deadline and not is_over():
                done = done.plus(ticker.poll(SUBMITTER_NAP_S))
            done = done.plus(ticker.end_all(grace_s if is_over() else 0.0))
        if ticker.failure is not None:
            raise ticker.failure
    except ResilError as error:
        reporter.ended(done, ticker.table, trouble=error.message)
        reporter.close()
        raise
    done = done.plus(TickResult(lines=reporter.ended(done, ticker.table)))
    reporter.close()
    return done


NAP_S = 1.0
"""The longest sleep."""

REPEATED_EVERY = 60
"""An error that recurs in every tick is printed at the first tick, and then once in this many."""


class Ran(NamedTuple):
    """Result of a loop.

    Attributes:
        ticks: number of ticks.
        why: why the loop ended, one sentence.
    """

    ticks: int
    why: str


def run(
    cron: CronProject,
    *,
    driver: str,
    until: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    grace_s: float = 10.0,
) -> Ran:
    """Tick at every slot, and at least every `tick_s`, until `until` (seconds since the epoch), a stop, or a signal.

    Args:
        driver: name of the driver, for the heartbeat.
        until: end at this time; entries that cannot finish before are left to the next scheduler, unless they never
            could.
        stop: called at least every second; True ends the loop.
        say: called with each message for the user.
        grace_s: time between SIGTERM and SIGKILL for runs still active at the end.

    A tick that fails is reported, and the next one follows as usual.
    """
    return _Loop(cron, driver, until, stop, say).run(grace_s)


def _time_of_settings(cron: CronProject) -> int:
    """Return when the settings file changed, in nanoseconds; 0: there is none, or an editor just replaces it."""
    path = cron.project.loaded.path
    return changed(path) if path is not None else 0


class _Loop:
    def __init__(
        self, cron: CronProject, driver: str, until: float | None, stop: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        from resilience.cron.report import TickReporter

        self._clock = cron.project.system.clock
        self._ticker: Ticker = Ticker(cron, driver=driver, period_s=cron.settings.tick_s, until=until)
        self._reporter: TickReporter = TickReporter(cron)
        self._cron, self._settings_time = cron, _time_of_settings(cron)
        self._until, self._stop, self._say = until, stop, say
        self._said: dict[str, int] = {}
        self._between = TickResult()

    def run(self, grace_s: float) -> Ran:
        ticks, why = 0, ""
        while not why:
            stopped = self._tick()
            ticks += 1
            if stopped:  # start nothing new; wait for active runs, within the time limit
                why = f"the scheduler is {stopped}"
                while self._ticker.is_running and not self._is_over():
                    self._collect(self._ticker.poll(NAP_S, is_over=self._stop))
            else:
                why = self._sleep()
        self._collect(self._ticker.end_all(grace_s))
        if self._between != TickResult():
            self._print_new((*self._between.lines, *self._reporter.ended(self._between, self._ticker.table)))
        self._reporter.close()
        return Ran(ticks, why)

    def _tick(self) -> str:
        """Make a tick; return why the scheduler is stopped, or an empty string."""
        done, trouble, stale = TickResult(), "", self._reread()
        try:
            done = self._ticker.tick()
            trouble = self._ticker.failure.message if self._ticker.failure is not None else ""
        except ResilError as error:
            trouble = f"{error.message}; try: {error.hint}" if error.hint else error.message
            done = TickResult(lines=(trouble,))
        except Exception as error:  # a bug; the next tick may succeed, and entries must run
            if os.environ.get("RESIL_TRACEBACK"):
                raise
            trouble = f"internal error: {type(error).__name__}: {error}; RESIL_TRACEBACK=1 shows where"
            done = TickResult(lines=(trouble,))
        done, self._between = self._between.plus(done), TickResult()
        lines = (*stale, *done.lines, *self._reporter.ended(done, self._ticker.table, trouble=trouble))
        self._print_new(lines)
        return "" if trouble else done.stopped

    def _reread(self) -> tuple[str, ...]:
        """Read the settings again if their file has changed; return why they cannot be used."""
        at = _time_of_settings(self._cron)
        if at in (self._settings_time, 0):
            return ()
        try:
            self._cron = reread(self._cron)
        except ResilError as error:
            return (f"{error.message}; the settings of before apply",)
        self._settings_time = at
        self._ticker.use(self._cron, self._cron.settings.tick_s)
        self._reporter.use(self._cron)
        return ()

    def _sleep(self) -> str:
        """Wait for the next tick; return why the loop ends, or an empty string."""
        clock, ticker = self._clock, self._ticker
        now = clock.now()
        moment = next_boundary(now, ticker.period_s)
        if ticker.next_start is not None and ticker.failure is None:  # after trouble, the next regular tick tries again
            moment = min(moment, max(ticker.next_start, now))
        longest = clock.monotonic() + max(0.0, moment - now)
        while not (why := self._is_over()):
            left = min(moment - clock.now(), longest - clock.monotonic())
            if left <= 0:
                return ""
            nap_s = min(left, NAP_S)
            if ticker.is_running:
                ended = ticker.poll(nap_s, is_over=self._stop)
                self._collect(ended)
                if ended.ended and ticker.waits:
                    return ""
            else:
                clock.sleep(nap_s)
        return why

    def _is_over(self) -> str:
        if self._stop():
            return "stop requested"
        return "time limit reached" if self._until is not None and self._clock.now() >= self._until else ""

    def _collect(self, ended: TickResult) -> None:
        """Keep results that arrive between two ticks, to report them with the next tick or at the end."""
        self._between = self._between.plus(ended)

    def _print_new(self, lines: tuple[str, ...]) -> None:
        before, self._said = self._said, {}
        for line in dict.fromkeys(lines):
            times = self._said[line] = before.get(line, 0) + 1
            if times % REPEATED_EVERY == 1:
                self._say(line)


def run_entry(
    cron: CronProject, entry: Entry, *, stop: Callable[[], bool] = lambda: False, grace_s: float = 10.0
) -> RunRecord:
    """Run an entry now, as it would run at its slot, and return its end; of a batch script, its submission.

    Its slot is this second; the slots of its schedule are not affected. `stop`: called all the time; True ends the run.
    Raise StateDirectoryError if the run cannot be recorded, SchedulerUnavailable if a job could not be submitted,
    UsageError if other processes take every second, or the clock was set back.
    """
    from resilience.cron.submit import settle_submits

    clock, book = cron.project.system.clock, cron.state.book
    cron.state.check()
    about = {"name": entry.name, "kind": str(entry.kind)}
    for _ in range(5):
        slot = int(clock.now())
        if (run := book.claim(f"{entry.key}{AGAIN}0", slot, about, clock.now)) is not None:
            break
        clock.sleep(1.0 - clock.now() % 1.0)  # another run by hand began in this second
    else:
        raise UsageError(f"{entry.name} was run by hand later than now, by this clock", hint="check the clock: date")
    if entry.kind is Kind.SUBMIT:
        settled = settle_submits(cron.with_entry_environment(), [run], cron.read_table().entries)
        return [one for one in settled if (one.name, one.slot) == (entry.name, slot)][-1]
    runs = cron.supervised()
    record = runs.start(entry, slot, run)
    if record.outcome is not Outcome.RUNNING:
        book.end(run, record)
        return record
    ended: tuple[RunRecord, ...] = ()
    while not ended:
        ended = runs.wait(60.0, is_over=stop) or (runs.end_all(grace_s) if stop() else ())
    return ended[-1]
