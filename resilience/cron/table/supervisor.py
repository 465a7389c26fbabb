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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from resilience.base.processes import start_ticks
from resilience.cron.records import Entry, Ignored, Outcome, Overlap, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.ended import why_not_started
from resilience.cron.table.recovery import kill_session, record_end, with_note
from resilience.cron.table.running import Here, Mark, here, liveness_of, marks
from resilience.cron.table.watched_run import RunSpec, longest_s, supervise
from resilience.errors import ResilError, StateDirectoryError
from resilience.job import Liveness
from resilience.settings.cron_settings import CronSettings
from resilience.system.child import fork
from resilience.system.ports import Clock, SystemClock

NAP_S = 0.5
"""Interval at which `is_over` is called while waiting."""

_SLACK_S = 30.0
_REAP_S = 2.0
_BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}


class Started(NamedTuple):
    """Result of starting a run.

    Attributes:
        record: RUNNING: active; its end comes from `poll` or `wait`. SKIPPED or REFUSED: not started, and not yet
            recorded: the caller writes it to the history.
        hint: what to try if it was refused.
    """

    record: RunRecord
    hint: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the run is active."""
        return self.record.outcome is Outcome.RUNNING


class _Run:
    """An active run, as the scheduler sees it."""

    def __init__(self, entry: Entry, record: RunRecord, mark: Mark, report_from: int, reason_to: int) -> None:
        self.entry, self.record, self.mark, self.report_from, self.reason_to = (
            entry,
            record,
            mark,
            report_from,
            reason_to,
        )
        self.received = b""
        timeout_s = entry.options.timeout_s
        self.overdue = time.monotonic() + longest_s(timeout_s) + _SLACK_S if timeout_s else float("inf")
        self.is_reported = False


class Supervised:
    """The active runs of this scheduler."""

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
        """Args:
        environment: returns the environment of a run (environment.py: `environment_of`).
        refuse: called again right before the run, in its own process.
        secrets: must not appear in outputs, like those read in this process.
        """
        self._directory, self._settings, self._project = directory, settings, project
        self._environment, self._refuse, self._secrets = environment, refuse, tuple(secrets)
        self._clock: Clock = clock or SystemClock()
        self._at = at or here()
        self._runs: list[_Run] = []
        self._leaving: list[int] = []

    @property
    def running(self) -> tuple[RunRecord, ...]:
        """Active runs as RUNNING records, oldest first."""
        return tuple(run.record for run in self._runs if not run.is_reported)

    def start(self, entry: Entry, slot: int, on_registered: Callable[[], None] = lambda: None) -> Started:
        """Start the run of a slot, and return at once. Never raises ResilError.

        The caller has claimed the slot. `on_registered` is called in the supervisor when its mark (or its end) is
        visible to others; if it dies before, only the caller's records exist. Failures found only at the start (a
        missing program, a drop-in that the policy now rejects) are reported as an end: REFUSED.
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
            return Started(self._fork(entry, record, self._spec(entry, slot, earlier, on_registered)))
        except OSError as error:
            why, hint = why_not_started(entry.argv[0], error.errno or 0, facts={})
        except ResilError as error:
            why, hint = error.message, error.hint
        return Started(_ended(record, Outcome.REFUSED, why), hint)

    def must_wait(self, entry: Entry, start: float) -> bool:
        """Return whether a late slot must wait: it was due before the active run began, so it runs after that one
        instead of overlapping it."""
        if entry.options.overlap is Overlap.ALLOW:
            return False
        began = [run.mark.started for run in self._runs if run.entry.key == entry.key]
        with suppress(StateDirectoryError):  # `start` reports the error
            now = self._clock.now()
            others = [mark for mark in marks(self._directory) if mark.key == entry.key and mark.end is None]
            is_gone = Liveness.GONE
            began += [
                m.started for m in others if liveness_of(self._directory, m, now=now, at=self._at)[0] is not is_gone
            ]
        return any(start <= moment for moment in began)

    def poll(self) -> tuple[RunRecord, ...]:
        """Return the ends since the last call. They are in the history, or their summary says why not."""
        self._reap()
        found = [self._read_report(run) for run in list(self._runs)]
        return tuple(record for record in found if record is not None)

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

    def end_all(self, grace_s: float, why: str = "its scheduler was stopped") -> tuple[RunRecord, ...]:
        """End all active runs: SIGTERM, then SIGKILL after `grace_s`, at most ten seconds. Return their ends:
        CUT_SHORT, because of `why`. A run that does not end is left to its supervisor, and to the next tick
        (`settle_dead_runs`)."""
        found = list(self.poll())
        for run in self._runs:
            with suppress(OSError):  # it may have died
                os.write(run.reason_to, why.encode("utf-8", "replace")[:1000])
        for time_s in (grace_s, 2 * _REAP_S + _SLACK_S / 2):
            for run in self._runs:
                with suppress(ProcessLookupError):  # the pid is not reused until it is reaped
                    os.kill(run.record.pid, signal.SIGTERM)
            until = time.monotonic() + time_s
            while self.running and time.monotonic() < until:
                found += self.wait(min(NAP_S, max(0.0, until - time.monotonic())))
        return tuple(found)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _earlier(self, entry: Entry, slot: int, now: float) -> tuple[tuple[Mark, ...], str]:
        """Return the runs to end before this one starts, or why it must not start."""
        own = [run.mark for run in self._runs if run.entry.key == entry.key]
        try:
            others = [mark for mark in marks(self._directory) if mark.key == entry.key and mark.end is None]
        except StateDirectoryError as error:
            return (), f"cannot check for an earlier run: {error}"
        states = [(mark, Liveness.ALIVE, "run of this scheduler") for mark in own]
        pids = {mark.pid for mark in own}
        states += [
            (mark, *liveness_of(self._directory, mark, now=now, at=self._at)) for mark in others if mark.pid not in pids
        ]
        alive = [(mark, state, reason) for mark, state, reason in states if state is not Liveness.GONE]
        for mark, state, _reason in alive:
            who = f"process {mark.pid} on {mark.host}"
            if entry.options.overlap is Overlap.SKIP:
                return (), f"the run of slot {_clock_time(mark.slot)} is still active ({who})"
            if state is Liveness.UNKNOWN:
                where = f"{who}: it can only be ended there"
                return (), f"the run of slot {_clock_time(mark.slot)} may still be active ({where})"
        return tuple(mark for mark, _, _ in alive), ""

    def _spec(self, entry: Entry, slot: int, earlier: tuple[Mark, ...], on_registered: Callable[[], None]) -> RunSpec:
        return RunSpec(
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
            on_registered=on_registered,
        )

    def _fork(self, entry: Entry, record: RunRecord, spec: RunSpec) -> RunRecord:
        report_from, report_to = os.pipe2(os.O_CLOEXEC)
        reason_from, reason_to = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Our signal handlers must not run in the child before it installs its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            pid = fork()
            if pid == 0:
                supervise(spec, report_to, reason_from)
        except OSError:
            os.close(report_from)
            os.close(reason_to)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(report_to)
            os.close(reason_from)
        os.set_blocking(report_from, False)
        record = replace(record, pid=pid)
        mark = Mark(entry.name, entry.key, spec.slot, *self._at, pid, start_ticks(pid) or 0, record.time, None)
        self._runs.append(_Run(entry, record, mark, report_from, reason_to))
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
            record = RunRecord.from_json(answer["end"])
            return (
                with_note(record, f"not in the history yet: {answer['unwritten']}") if answer["unwritten"] else record
            )
        if is_closed:
            record = self._lost(run)
            self._forget(run)
            return record
        if time.monotonic() > run.overdue and not run.is_reported:
            run.is_reported = True
            why = f"its supervisor, process {run.record.pid}, hangs: see /proc/{run.record.pid}/wchan"
            return _ended(run.record, Outcome.TIMEOUT, why, time_=self._clock.now())
        return None

    def _lost(self, run: _Run) -> RunRecord:
        """Return the end of a run whose supervisor ended without a report, because it was killed."""
        end = _end_of(run.record.pid)
        kill_session(run.record.pid)
        fault = next((line for line in run.received.split(b"\n") if line.startswith(b'{"fault"')), b"")
        why = f"its supervisor crashed: {json.loads(fault)['fault']}" if fault else f"its supervisor {end}"
        return record_end(
            self._directory, run.mark, _ended(run.record, Outcome.CUT_SHORT, why, time_=self._clock.now())
        )

    def _forget(self, run: _Run) -> None:
        os.close(run.report_from)
        os.close(run.reason_to)
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
