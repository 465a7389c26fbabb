"""Starts runs, each with a supervisor process of its own (watched_run.py), and collects their results.

A supervisor outlives its scheduler, so the result of a run is always recorded. It also reports through a pipe, so that
a tick knows the result even if nothing can be written.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from resilience.base.processes import start_ticks
from resilience.cron.book import Run, State, kill_session
from resilience.cron.records import Entry, Outcome, Overlap, RunRecord
from resilience.cron.table.launch import why_not_started, with_hint
from resilience.cron.table.watched_run import Setup, WatchedRun, longest_s
from resilience.errors import ResilError, StateDirectoryError
from resilience.job import Liveness
from resilience.system.child import fork

NAP_S = 0.5
"""Interval at which `is_over` is called while waiting."""

_SLACK_S = 30.0
_REAP_S = 2.0
_BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}


@dataclass
class _Run:
    """An active run, as the scheduler sees it."""

    entry: Entry
    id: str
    record: RunRecord
    report_from: int
    overdue: float
    received: bytes = b""
    is_reported: bool = False


class Supervised:
    """The active runs of this scheduler."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._book, self._clock = setup, setup.directory.book, setup.clock
        self._runs: list[_Run] = []
        self._leaving: list[int] = []
        self._unfiled: dict[str, RunRecord] = {}

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """Active runs as RUNNING records, oldest first."""
        return tuple(run.record for run in self._runs if not run.is_reported)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the records of active runs."""
        return frozenset(run.id for run in self._runs)

    def start(self, entry: Entry, slot: int, run: Run | None) -> RunRecord:
        """Start the run of a slot, and return at once. Never raises ResilError.

        The caller has claimed the slot with `run`, or knows that the entry may run without a record. Return RUNNING:
        the end comes from `poll` or `wait`; or SKIPPED or REFUSED: the caller ends the record. Failures found only at
        the start (a missing program, a drop-in that the policy now rejects) come as an end: REFUSED.
        """
        now = self._clock.now()
        record = RunRecord(
            name=entry.name, slot=slot, outcome=Outcome.RUNNING, time=now, started=now, host=self._setup.host
        )
        earlier, why = self._earlier(entry, now)
        if why:
            return replace(record, outcome=Outcome.SKIPPED, summary=why, started=None)
        try:
            return self._fork(record, entry, run, earlier, dict(self._setup.environment(entry, slot)))
        except OSError as error:
            why = why_not_started(entry.argv[0], error.errno or 0)
        except ResilError as error:
            why = with_hint(error.message, error.hint)
        return replace(record, outcome=Outcome.REFUSED, summary=why, started=None)

    def must_wait(self, entry: Entry, start: float) -> bool:
        """Return whether a late slot must wait: it was due before the active run began, so it runs after that one
        instead of overlapping it."""
        if entry.options.overlap is Overlap.ALLOW:
            return False
        began = [run.record.time for run in self._runs if run.entry.key == entry.key]
        with suppress(StateDirectoryError):  # `start` reports the error
            began = [run.time for run, _, _ in self._alive(entry, self._clock.now())]
        return any(start <= moment for moment in began)

    def poll(self) -> tuple[RunRecord, ...]:
        """Return the ends since the last call. They are in the history, or their summary says why not."""
        self._reap()
        found = [self._read_report(run) for run in list(self._runs)]
        return tuple(record for record in found if record is not None)

    def file(self, active: Iterable[Run]) -> None:
        """Write the ends that their supervisors could not write, because the disk was read-only for a while. Raise
        StateDirectoryError if that fails."""
        for run in active:
            if run.id in self._unfiled and (mine := self._book.take(run, run.state, self._clock.now())) is not None:
                self._book.end(mine, self._unfiled[run.id])
        self._unfiled.clear()

    def wait(self, timeout_s: float, *, is_over: Callable[[], bool] = lambda: False) -> tuple[RunRecord, ...]:
        """Like `poll`, but wait up to `timeout_s` for the first one. `is_over` is called every half second and can end
        the wait; without active runs, return at once."""
        until = time.monotonic() + timeout_s
        while True:
            found = self.poll()
            left = until - time.monotonic()
            pipes = [run.report_from for run in self._runs if not run.is_reported]
            if found or not pipes or left <= 0 or is_over():
                return found
            watch = select.poll()  # select(2) knows no descriptor beyond 1023
            for pipe in pipes:
                watch.register(pipe, select.POLLIN)
            watch.poll(1000 * min(left, NAP_S))

    def end_all(self, grace_s: float) -> tuple[RunRecord, ...]:
        """End all active runs: SIGTERM, then SIGKILL after `grace_s`, at most ten seconds. Return their ends:
        CUT_SHORT. A run that does not end is left to its supervisor, and to the next tick."""
        found = list(self.poll())
        for time_s in (grace_s, 2 * _REAP_S + _SLACK_S / 2):
            for run in self._runs:
                with suppress(ProcessLookupError):  # the pid is not reused until it is reaped
                    os.kill(run.record.pid, signal.SIGTERM)
            until = time.monotonic() + time_s
            while self.running and time.monotonic() < until:
                found += self.wait(min(NAP_S, max(0.0, until - time.monotonic())))
        return tuple(found)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _alive(self, entry: Entry, now: float) -> list[tuple[Run, Liveness, str]]:
        """Return the runs of an entry whose supervisors are alive, or may be."""
        book = self._book
        mine = (run for run in book.active() if run.entry_key == entry.key and run.state is State.RUNNING)
        found = [(run, *book.liveness(run, now)) for run in mine if not book.about(run).get("end")]
        found = [one for one in found if one[1] is not Liveness.GONE]
        recorded = {run.pid for run, _, _ in found}
        for own in self._runs:  # its supervisor may not have taken its record yet
            if own.entry.key == entry.key and (pid := own.record.pid) not in recorded:
                holder = f"-{pid}-{start_ticks(pid) or 0}-{own.record.time}"
                run = Run(entry.key, own.record.slot, own.id, State.RUNNING, holder)
                found.append((run, Liveness.ALIVE, f"process {pid} supervises it"))
        return found

    def _earlier(self, entry: Entry, now: float) -> tuple[tuple[Run, ...], str]:
        """Return the runs to end before this one starts, or why it must not start."""
        if entry.options.overlap is Overlap.ALLOW:
            return (), ""
        try:
            alive = self._alive(entry, now)
        except StateDirectoryError as error:
            return (), f"cannot check for an earlier run: {error}"
        for run, state, reason in alive:
            if entry.options.overlap is Overlap.SKIP or state is Liveness.UNKNOWN:
                may = "may still be" if state is Liveness.UNKNOWN else "is still"
                slot = time.strftime("%H:%M:%S", time.localtime(run.slot))
                return (), f"the run of slot {slot} {may} active: {reason}"
        return tuple(run for run, _, _ in alive), ""

    def _fork(
        self, record: RunRecord, entry: Entry, run: Run | None, earlier: tuple[Run, ...], environment: dict[str, str]
    ) -> RunRecord:
        report_from, report_to = os.pipe2(os.O_CLOEXEC)
        # Our signal handlers must not run in the child before it installs its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            pid = fork()
            if pid == 0:
                WatchedRun(self._setup, entry, record.slot, run, environment).supervise(earlier, report_to)
        except OSError:
            os.close(report_from)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(report_to)
        os.set_blocking(report_from, False)
        record = replace(record, pid=pid)
        overdue = time.monotonic() + (longest_s(entry.options.timeout_s) or float("inf")) + _SLACK_S
        self._runs.append(_Run(entry, run.id if run is not None else "", record, report_from, overdue))
        return record

    # ---- end --------------------------------------------------------------------------------------------------

    def _read_report(self, run: _Run) -> RunRecord | None:
        """Return the end of a run that its supervisor has reported, or that follows from its silence."""
        is_closed = False
        with suppress(BlockingIOError):
            while chunk := os.read(run.report_from, 65536):
                run.received += chunk
            is_closed = True
        report = next((line for line in run.received.split(b"\n")[:-1] if line.startswith(b'{"end"')), b"")
        if report:
            answer = json.loads(report)
            self._forget(run)
            if answer["end"] is None:
                return None
            record, unwritten = RunRecord.from_json(answer["end"]), answer["unwritten"]
            if unwritten and run.id:
                self._unfiled[run.id] = record
            return _with_note(record, f"not in the history yet: {unwritten}") if unwritten else record
        if is_closed:
            record = self._lost(run)
            self._forget(run)
            return record
        if time.monotonic() > run.overdue and not run.is_reported:
            run.is_reported = True
            why = f"its supervisor, process {run.record.pid}, hangs: see /proc/{run.record.pid}/wchan"
            return replace(run.record, outcome=Outcome.TIMEOUT, summary=why, time=self._clock.now())
        return None

    def _lost(self, run: _Run) -> RunRecord:
        """Return the end of a run whose supervisor ended without a report, because it was killed."""
        end = _end_of(run.record.pid)
        kill_session(run.record.pid)
        fault = next((line for line in run.received.split(b"\n") if line.startswith(b'{"fault"')), b"")
        why = f"its supervisor crashed: {json.loads(fault)['fault']}" if fault else f"its supervisor {end}"
        now, book = self._clock.now(), self._book
        record = replace(run.record, outcome=Outcome.CUT_SHORT, summary=why, time=now)
        try:
            if not run.id:
                book.add(run.entry.key, record)
                return record
            for active in book.active():
                if active.id == run.id and (settled := book.settle(active, now, why, self._setup.host)) is not None:
                    return settled
            filed = [known for known in book.history(run.entry.key) if known.slot == record.slot]
            return filed[-1] if filed else record  # it was killed right after it had filed the end
        except StateDirectoryError as error:
            return _with_note(record, f"not in the history yet: {error}")

    def _forget(self, run: _Run) -> None:
        os.close(run.report_from)
        self._runs.remove(run)
        self._leaving.append(run.record.pid)
        self._reap()

    def _reap(self) -> None:
        self._leaving = [pid for pid in self._leaving if not _has_ended(pid)]


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _with_note(record: RunRecord, note: str) -> RunRecord:
    return replace(record, summary=f"{record.summary}; {note}" if record.summary else note)


def _end_of(pid: int) -> str:
    try:
        _, status = os.waitpid(pid, 0)  # its pipe is closed, so it has ended
    except ChildProcessError:
        return "died"
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by signal {-code}" if code < 0 else f"ended with {code} before its run did"
