"""Starts what runs, each with a supervisor of its own (watched_run.py), and hears how it ended.

A supervisor is a process that outlives its scheduler: what becomes of a run is written down whatever becomes of us. It
tells us as well, through a pipe, so that a tick knows it even where nothing can be written.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from resilience.base.processes import start_ticks
from resilience.cron.records import Entry, Ignored, Outcome, Overlap, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.books import close_book, with_note
from resilience.cron.table.ended import why_not_started
from resilience.cron.table.leftovers import end_session
from resilience.cron.table.running import Here, Mark, here, look, marks
from resilience.cron.table.watched_run import Order, live, longest_s
from resilience.errors import ResilError, StateDirectoryError
from resilience.job import Liveness
from resilience.settings.cron_settings import CronSettings
from resilience.system.child import fork
from resilience.system.ports import Clock, SystemClock

NAP_S = 0.5
"""While somebody waits, whoever wants it to end is asked so often."""

_SLACK_S = 30.0
_REAP_S = 2.0
_BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}


class Started(NamedTuple):
    """Whether a run began.

    Attributes:
        record: RUNNING: it is under way, and its end comes from `poll` or `wait`. SKIPPED or REFUSED: it did not begin,
            and this is written nowhere yet: whoever asked writes it into the history.
        hint: what to try where it was refused.
    """

    record: RunRecord
    hint: str = ""

    @property
    def is_running(self) -> bool:
        """Whether it is under way."""
        return self.record.outcome is Outcome.RUNNING


class _Run:
    """A run under way, as the scheduler sees it."""

    def __init__(self, entry: Entry, record: RunRecord, mark: Mark, news: int, asks: int) -> None:
        self.entry, self.record, self.mark, self.news, self.asks = entry, record, mark, news, asks
        self.heard = b""
        timeout_s = entry.options.timeout_s
        self.overdue = time.monotonic() + longest_s(timeout_s) + _SLACK_S if timeout_s else float("inf")
        self.is_told = False


class Supervised:
    """The runs that this scheduler has under way."""

    def __init__(
        self,
        directory: CronDirectory,
        settings: CronSettings,
        *,
        project: Path,
        environment: Callable[[Entry, int], Mapping[str, str]],
        refuse: Callable[[Entry], Ignored | None] = lambda entry: None,
        secrets: Iterable[str] = (),
        clock: Clock | None = None,
        at: Here | None = None,
    ) -> None:
        """`environment` gives what an entry's run sees (environment.py: `environment_of`); `refuse` is asked again in
        the last moment before it runs, in its own process; `secrets` must stand in no output, those read in this
        process besides."""
        self._directory, self._settings, self._project = directory, settings, project
        self._environment, self._refuse, self._secrets = environment, refuse, tuple(secrets)
        self._clock: Clock = clock or SystemClock()
        self._at = at or here()
        self._runs: list[_Run] = []
        self._leaving: list[int] = []

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """What is under way now, as RUNNING records, oldest first."""
        return tuple(run.record for run in self._runs if not run.is_told)

    def start(self, entry: Entry, slot: int, signed_on: Callable[[], None] = lambda: None) -> Started:
        """Begin the run of a slot, and return at once. Never raises ResilError.

        Whoever asks has taken the slot before. `signed_on` is called in the supervisor, when others can see its mark
        (or, where none can be written, its end): who dies before has nothing but the asker's books.
        What can be known only when it is started (no such program, a drop-in that the policy refuses now) comes as an
        end: REFUSED.
        """
        now = self._clock.now()
        record = RunRecord(
            name=entry.name, slot=slot, outcome=Outcome.RUNNING, time=now, started=now, host=self._at.host
        )
        earlier: tuple[Mark, ...] = ()
        if entry.options.overlap is not Overlap.ALLOW:
            earlier, why = self._earlier(entry, slot, now)
            if why:
                return Started(_ended(record, Outcome.SKIPPED, why))
        try:
            return Started(self._fork(entry, record, self._order(entry, slot, earlier, signed_on)))
        except OSError as error:
            why, hint = why_not_started(entry.argv[0], error.errno or 0, facts={})
        except ResilError as error:
            why, hint = error.message, error.hint
        return Started(_ended(record, Outcome.REFUSED, why), hint)

    def must_wait(self, entry: Entry, start: float) -> bool:
        """Whether a slot that was to start then waits for its turn: it was missed already when the run of the same
        entry that is under way now began, so it is made up for after that one, and is no overlap."""
        if entry.options.overlap is Overlap.ALLOW:
            return False
        began = [run.mark.started for run in self._runs if run.entry.key == entry.key]
        with suppress(StateDirectoryError):  # `start` says so
            now = self._clock.now()
            others = [mark for mark in marks(self._directory) if mark.key == entry.key and mark.end is None]
            is_gone = Liveness.GONE
            began += [m.started for m in others if look(self._directory, m, now=now, at=self._at)[0] is not is_gone]
        return any(start <= moment for moment in began)

    def poll(self) -> tuple[RunRecord, ...]:
        """The ends since the last question. They are in the history already, or their summary says why not."""
        self._reap()
        found = [self._hear(run) for run in list(self._runs)]
        return tuple(record for record in found if record is not None)

    def wait(self, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False) -> tuple[RunRecord, ...]:
        """As `poll`, but wait up to so long for the first one. `is_over` is asked each half second and ends it early;
        where nothing is under way, return at once."""
        until = time.monotonic() + timeout_s
        while True:
            found = self.poll()
            left = until - time.monotonic()
            pipes = [run.news for run in self._runs if not run.is_told]
            if found or not pipes or left <= 0 or is_over():
                return found
            watch = select.poll()  # select(2) knows no descriptor beyond 1023
            for pipe in pipes:
                watch.register(pipe, select.POLLIN)
            watch.poll(1000 * min(left, NAP_S))

    def end_all(self, grace_s: float, why: str = "its scheduler was told to end") -> tuple[RunRecord, ...]:
        """End all that is under way: SIGTERM; SIGKILL after `grace_s`, and never later than ten seconds. Return their
        ends: CUT_SHORT, because of `why`. Who does not end at all is left to its supervisor, and to the next tick
        (`settle`)."""
        found = list(self.poll())
        for run in self._runs:
            with suppress(OSError):  # it may have died
                os.write(run.asks, why.encode("utf-8", "replace")[:1000])
        for time_s in (grace_s, 2 * _REAP_S + _SLACK_S / 2):
            for run in self._runs:
                with suppress(ProcessLookupError):  # its number is kept until we have reaped it
                    os.kill(run.record.pid, signal.SIGTERM)
            until = time.monotonic() + time_s
            while self.running and time.monotonic() < until:
                found += self.wait(min(NAP_S, max(0.0, until - time.monotonic())))
        return tuple(found)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _earlier(self, entry: Entry, slot: int, now: float) -> tuple[tuple[Mark, ...], str]:
        """The runs that this one must end before it begins; or why it must not begin."""
        own = [run.mark for run in self._runs if run.entry.key == entry.key]
        try:
            others = [mark for mark in marks(self._directory) if mark.key == entry.key and mark.end is None]
        except StateDirectoryError as error:
            return (), f"it cannot be seen whether an earlier run is under way: {error}"
        states = [(mark, Liveness.ALIVE, "it is our own") for mark in own]
        pids = {mark.pid for mark in own}
        states += [
            (mark, *look(self._directory, mark, now=now, at=self._at)) for mark in others if mark.pid not in pids
        ]
        alive = [(mark, state, reason) for mark, state, reason in states if state is not Liveness.GONE]
        for mark, state, _reason in alive:
            who = f"process {mark.pid} on {mark.host}"
            if entry.options.overlap is Overlap.SKIP:
                return (), f"the run of slot {_clock_time(mark.slot)} is still under way ({who})"
            if state is Liveness.UNKNOWN:
                where = f"{who}: only from there can it be ended"
                return (), f"the run of slot {_clock_time(mark.slot)} may still be under way ({where})"
        return tuple(mark for mark, _, _ in alive), ""

    def _order(self, entry: Entry, slot: int, earlier: tuple[Mark, ...], signed_on: Callable[[], None]) -> Order:
        return Order(
            entry=entry,
            slot=slot,
            directory=self._directory,
            project=self._project,
            environment=dict(self._environment(entry, slot)),
            secrets=self._secrets,
            output_bytes=int(self._settings.output_bytes),
            keep_runs=self._settings.keep_runs,
            refuse=self._refuse,
            replace=earlier,
            at=self._at,
            clock=self._clock,
            signed_on=signed_on,
        )

    def _fork(self, entry: Entry, record: RunRecord, order: Order) -> RunRecord:
        news, tells = os.pipe2(os.O_CLOEXEC)
        asked, asks = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # No handler of ours may run in the child before it has its own: it would believe itself the scheduler.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            pid = fork()
            if pid == 0:
                live(order, tells, asked)
        except OSError:
            os.close(news)
            os.close(asks)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(tells)
            os.close(asked)
        os.set_blocking(news, False)
        record = replace(record, pid=pid)
        mark = Mark(entry.name, entry.key, order.slot, *self._at, pid, start_ticks(pid) or 0, record.time, None)
        self._runs.append(_Run(entry, record, mark, news, asks))
        return record

    # ---- end --------------------------------------------------------------------------------------------------

    def _hear(self, run: _Run) -> RunRecord | None:
        """What a supervisor has told since: how its run ended; or what follows from its silence."""
        is_closed = False
        with suppress(BlockingIOError):
            while chunk := os.read(run.news, 65536):
                run.heard += chunk
            is_closed = True
        told = next((line for line in run.heard.split(b"\n")[:-1] if line.startswith(b'{"end"')), b"")
        if told:
            answer = json.loads(told)
            self._forget(run)
            record = RunRecord.from_json(answer["end"])
            return (
                with_note(record, f"not in the history yet: {answer['unwritten']}") if answer["unwritten"] else record
            )
        if is_closed:
            record = self._lost(run)
            self._forget(run)
            return record
        if time.monotonic() > run.overdue and not run.is_told:
            run.is_told = True
            why = f"its supervisor, process {run.record.pid}, hangs: `cat /proc/{run.record.pid}/wchan` says where"
            return _ended(run.record, Outcome.TIMEOUT, why, time_=self._clock.now())
        return None

    def _lost(self, run: _Run) -> RunRecord:
        """A supervisor has ended without a word: it was killed."""
        end = _end_of(run.record.pid)
        end_session(run.record.pid)
        fault = next((line for line in run.heard.split(b"\n") if line.startswith(b'{"fault"')), b"")
        why = f"a bug of its supervisor: {json.loads(fault)['fault']}" if fault else f"its supervisor {end}"
        return close_book(
            self._directory, run.mark, _ended(run.record, Outcome.CUT_SHORT, why, time_=self._clock.now())
        )

    def _forget(self, run: _Run) -> None:
        os.close(run.news)
        os.close(run.asks)
        self._runs.remove(run)
        self._leaving.append(run.record.pid)
        self._reap()

    def _reap(self) -> None:
        for pid in list(self._leaving):
            try:
                done, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done = pid
            if done:
                self._leaving.remove(pid)


def _ended(record: RunRecord, outcome: Outcome, summary: str, *, time_: float | None = None) -> RunRecord:
    started = None if outcome in (Outcome.SKIPPED, Outcome.REFUSED) else record.started
    moment = record.time if time_ is None else time_
    return replace(record, outcome=outcome, summary=summary, started=started, time=moment)


def _end_of(pid: int) -> str:
    until = time.monotonic() + _REAP_S
    while time.monotonic() < until:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            break
        if done:
            code = os.waitstatus_to_exitcode(status)
            return f"was killed by signal {-code}" if code < 0 else f"ended with {code} before its run did"
        time.sleep(0.005)
    return "died"


def _clock_time(slot: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(slot))
