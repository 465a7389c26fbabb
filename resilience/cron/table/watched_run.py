"""The supervisor: one process that supervises one run, and records its result.

It is forked by the scheduler, and outlives it. A thread (BackgroundWriter) writes to the state directory, so that a
hung disk cannot keep a run from being ended.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from resilience.base.processes import is_same, start_ticks
from resilience.cron.records import Entry, Ignored, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.bounded import Bounded, Secrets
from resilience.cron.table.ended import Cause, End, judge_end, why_not_started
from resilience.cron.table.environment import secrets_of
from resilience.cron.table.history import add, shorten
from resilience.cron.table.launch import (
    PR_SET_CHILD_SUBREAPER,
    Launched,
    close_all,
    explain,
    launch,
    prctl,
    reset_signals,
)
from resilience.cron.table.output import OutputFile, prune
from resilience.cron.table.running import REFRESH_S, Here, Mark, marks, remove_mark, touch_mark, write_end, write_mark
from resilience.cron.table.watched_program import GIVE_UP_S, KILL_AFTER_S, LINGER_S, StopRequests, Watch, Watched
from resilience.errors import ResilError, StateDirectoryError
from resilience.system.ports import Clock


class Task:
    """One write operation.

    Attributes:
        error: why it failed; None: it succeeded, or is not finished.
    """

    def __init__(self, what: str, work: Callable[[], object]) -> None:
        self.what, self._work = what, work
        self._over = threading.Event()
        self.error: ResilError | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it has finished or failed."""
        return self._over.is_set()

    def wait(self, until: float) -> bool:
        """Wait until `until` by the monotonic clock; return whether it is over."""
        return self._over.wait(max(0.0, until - time.monotonic()))

    def run(self) -> None:
        """Run it, and keep the error."""
        try:
            self._work()
        except ResilError as error:
            self.error = error
        except Exception as error:  # the run matters more than its records
            self.error = StateDirectoryError(f"cannot {self.what}: {type(error).__name__}: {error}")
        finally:
            self._over.set()

    def why_not(self) -> str:
        """Return why it was not done, one sentence; empty if it was. Call it when it should be over."""
        if not self.is_over:
            return f"cannot {self.what}: the file system does not respond"
        return str(self.error) if self.error is not None else ""


class BackgroundWriter:
    """A daemon thread that runs tasks one after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._work, name="scribe", daemon=True).start()
            self._is_alone = False
        except RuntimeError:  # no thread available: tasks run at once, and may block on a hung disk
            self._is_alone = True

    def do(self, what: str, work: Callable[[], object]) -> Task:
        """Queue a task; `what` completes the sentence `cannot ...`."""
        task = Task(what, work)
        if self._is_alone:
            task.run()
        else:
            self._tasks.put(task)
        return task

    def _work(self) -> None:
        while True:
            self._tasks.get().run()


PATIENCE_S = 10.0
"""The scheduler gets the result within this time, even if it cannot be written."""

LAST_S = 60.0
"""Time for a hung file system to accept the result of a run."""

_SIGN_ON_S = 5.0
_AGAIN_S = 0.05


class RunSpec(NamedTuple):
    """What a supervisor runs.

    Attributes:
        entry, slot: the run.
        directory: state directory.
        project: working directory.
        environment: of the program.
        secrets: must not appear in outputs.
        output_bytes, keep_runs: as in CronSettings.
        refuse: called right before the start.
        replace: runs to end before.
        at: identity of this machine.
        clock: for recorded times.
        on_registered: called when the mark, or the end, is written.
    """

    entry: Entry
    slot: int
    directory: CronDirectory
    project: Path
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    output_bytes: int
    keep_runs: int
    refuse: Callable[[Entry], Ignored | None]
    replace: tuple[Mark, ...]
    at: Here
    clock: Clock
    on_registered: Callable[[], None] = lambda: None


def longest_s(timeout_s: float) -> float:
    """Return the maximum lifetime of a supervisor, given the timeout of its run."""
    return _SIGN_ON_S + timeout_s + KILL_AFTER_S + LINGER_S + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S


def supervise(spec: RunSpec, report_to: int, reason_from: int) -> NoReturn:
    """Run the supervisor.

    Reports go to the scheduler through the pipe `report_to`, as lines of JSON; if the scheduler ends the run, the
    reason comes from the pipe `reason_from`.
    """
    code = 1
    try:
        gc.freeze()  # keep memory pages shared with the scheduler
        reset_signals()
        report_to, reason_from = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (report_to, reason_from))
        os.setsid()
        for stream in range(3):
            with suppress(OSError):
                os.close(stream)
        for _ in range(3):  # the lowest free ones
            os.open(os.devnull, os.O_RDWR)
        close_all([report_to, reason_from])
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what the scheduler had not flushed is its own
        os.umask(0o007 if spec.directory.group else 0o077)
        with suppress(OSError):
            os.chdir("/")  # leave a directory that may be unmounted, or hang
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        WatchedRun(spec, report_to, reason_from).supervise()
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(report_to, json.dumps({"fault": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
    finally:
        os._exit(code)


class WatchedRun:
    """One run, from its mark to its end."""

    def __init__(self, spec: RunSpec, report_to: int, reason_from: int) -> None:
        self._spec, self._report_to, self._reason_from = spec, report_to, reason_from
        self._entry, self._directory = spec.entry, spec.directory
        self._requests = StopRequests()
        self._program: Launched | None = None
        now = spec.clock.now()
        timeout_s = spec.entry.options.timeout_s
        self._mark = Mark(
            self._entry.name, self._entry.key, spec.slot, *spec.at, os.getpid(), start_ticks(os.getpid()) or 0, now,
            now + longest_s(timeout_s) if timeout_s else None,
        )  # fmt: skip
        self._secrets = Secrets((*spec.secrets, *secrets_of(spec.environment)))
        self._output = Bounded(spec.output_bytes, self._secrets)
        self._file = OutputFile(spec.directory, self._entry.key, spec.slot)
        self._started: float | None = None
        self._notes: list[str] = []
        self._writer = BackgroundWriter()

    def supervise(self) -> None:
        """Run it."""
        self._register()
        end = self._end_earlier() or self._begin() or self._watch()
        self._finish(end)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Write the mark; continue if that fails, as the run may be what frees the disk, or reports the problem."""

        def write() -> None:
            write_mark(self._directory, self._mark)
            self._spec.on_registered()

        task = self._writer.do("write its mark", write)
        task.wait(time.monotonic() + _SIGN_ON_S)
        if why := task.why_not():
            self._notes.append(why)

    def _end_earlier(self) -> End | None:
        """End the runs that this one replaces; return an end if that fails."""
        for mark in self._spec.replace:
            until = time.monotonic() + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S
            try:
                if is_same(mark.pid, mark.ticks):
                    os.kill(mark.pid, signal.SIGUSR1)
            except PermissionError:
                why = f"an earlier run is active, and ending process {mark.pid} is not permitted"
                return End(Outcome.SKIPPED, None, why)
            except ProcessLookupError:
                continue
            while is_same(mark.pid, mark.ticks) and time.monotonic() < until and self._requests.cause is Cause.NONE:
                time.sleep(_AGAIN_S)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
            if is_same(mark.pid, mark.ticks) and self._requests.cause is Cause.NONE:
                return End(Outcome.SKIPPED, None, f"an earlier run is active: process {mark.pid} does not end")
        return None

    def _begin(self) -> End | None:
        """Start the program; return an end if that fails."""
        if self._requests.cause is not Cause.NONE:
            return self._judge(Watched(None))
        self._started = self._spec.clock.now()
        try:
            self._program = launch(
                self._entry.argv,
                self._spec.environment,
                directory=self._spec.project,
                umask=0o007 if self._directory.group else 0o077,
                refuse=lambda: self._spec.refuse(self._entry),
            )
        except OSError as error:
            return self._refused(*why_not_started(self._entry.argv[0], error.errno or 0, facts={}))
        return None

    def _refused(self, reason: str, hint: str) -> End:
        self._started = None
        return End(Outcome.REFUSED, None, f"{reason} ({hint})" if hint else reason)

    def _watch(self) -> End:
        """Collect output, enforce the timeout, and return when no process of it is left."""
        assert self._program is not None
        options = self._entry.options
        spill: Task | None = None
        touched = time.monotonic()

        def each_second(now: float) -> None:
            nonlocal spill, touched
            if (spill is None or spill.is_over) and (chunk := self._output.take_head()):
                spill = self._writer.do("write its output", partial(self._file.append, chunk))
            if now - touched >= REFRESH_S:
                touched = now
                self._writer.do("touch its mark", partial(touch_mark, self._directory, self._mark))

        seen = Watch(self._program, options.timeout_s, self._output, self._requests).keep(each_second)
        if seen.problem:
            return self._refused(*explain(seen.problem, self._entry.argv[0]))
        return self._judge(seen)

    def _judge(self, seen: Watched) -> End:
        why = ""
        if self._requests.cause is Cause.STOPPED:
            with suppress(OSError):
                why = os.read(self._reason_from, 4096).decode("utf-8", "replace")
        options = self._entry.options
        return judge_end(seen.status, self._requests.cause, options, why=why, left=seen.left, stuck=seen.stuck)

    # ---- end --------------------------------------------------------------------------------------------------

    def _finish(self, end: End) -> None:
        """Write the output and the end, remove the mark, and report to the scheduler."""
        until = time.monotonic() + PATIENCE_S
        words = self._output.finish()
        kept = self._writer.do("write its output", lambda: self._keep(words))
        kept.wait(until)
        if why := kept.why_not():
            self._notes.append(why)
        record = RunRecord(
            name=self._entry.name, slot=self._spec.slot, outcome=end.outcome, time=self._spec.clock.now(),
            started=self._started, exit_code=end.exit_code, host=self._mark.host, pid=self._mark.pid,
            summary=self._summary(end), output=self._file.name if kept.is_over else "",
        )  # fmt: skip
        written = self._writer.do("write its result", lambda: self._write_end(record))
        written.wait(until)
        pruned = self._writer.do("prune", lambda: self._prune())
        pruned.wait(until)
        report = {"end": record.to_json(), "unwritten": written.why_not()}
        with suppress(OSError):  # the scheduler may be dead
            os.write(self._report_to, json.dumps(report).encode() + b"\n")
            os.close(self._report_to)
        pruned.wait(time.monotonic() + LAST_S)

    def _summary(self, end: End) -> str:
        said = self._output.last_line() if end.outcome is not Outcome.REFUSED else ""
        about = "; ".join(part for part in (end.summary, *dict.fromkeys(self._notes)) if part)
        text = f"{about}: {said}" if about and said else about or said
        return self._secrets.redact(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _keep(self, words: bytes) -> None:
        self._file.append(words)
        self._file.close()

    def _write_end(self, record: RunRecord) -> None:
        try:
            add(self._directory, self._entry.key, record)
        except Exception:
            write_end(self._directory, self._mark, record)  # the next tick writes it into the history
            raise
        remove_mark(self._directory, self._mark)
        self._spec.on_registered()

    def _prune(self) -> None:
        shorten(self._directory, self._entry.key)
        runs = frozenset(mark.slot for mark in marks(self._directory) if mark.key == self._entry.key)
        prune(self._directory, self._entry.key, self._spec.keep_runs, running=runs)
