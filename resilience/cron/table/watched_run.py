"""The supervisor: one process that supervises one run, and records its result.

It is forked by the scheduler, and outlives it. It is the parent of every orphan (PR_SET_CHILD_SUBREAPER, prctl(2)):
when it has no child left, no process of the program is left, whatever that forked and whatever process group or session
that joined. Threads (Write) write to the state directory, so that a hung disk cannot keep a run from being
ended.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from resilience.base.processes import descendants, is_same
from resilience.cron.book import Run, State
from resilience.cron.records import Entry, Ignored, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.bounded import Bounded, Secrets
from resilience.cron.table.ended import Cause, End, judge_end, why_not_started
from resilience.cron.table.environment import secrets_of
from resilience.cron.table.launch import (
    PR_SET_CHILD_SUBREAPER,
    Launched,
    explain,
    launch,
    prctl,
)
from resilience.cron.table.output import OutputFile, prune
from resilience.errors import ResilError
from resilience.system.child import begin
from resilience.system.ports import Clock

KILL_AFTER_S = 10.0
"""Between SIGTERM and SIGKILL."""

LINGER_S = 5.0
"""Leftover processes get this long to end by themselves after the program has ended."""

GIVE_UP_S = 5.0
"""A process that survives SIGKILL for this long is stuck in the kernel, and is abandoned."""

SECOND_S = 1.0
"""Maximum age of unwritten output of an active run."""

_CHUNK_BYTES = 2**18
_DRAIN = 64
_LONGEST_S = 300.0

REFRESH_S = 300.0
"""Interval at which a supervisor touches the record of its run."""

PATIENCE_S = 10.0
"""The scheduler gets the result within this time, even if it cannot be written."""

LAST_S = 60.0
"""Time for a hung file system to accept the result of a run."""

_SIGN_ON_S = 5.0
_AGAIN_S = 0.05


class Write:
    """One write operation, in a thread of its own, so that a hung disk blocks only callers that wait for the write. The
    writes of a run come one after the other."""

    _turn = threading.Lock()

    def __init__(self, what: str, work: Callable[[], object]) -> None:
        """`what` completes the sentence `cannot ...`."""
        self._what, self._work = what, work
        self._over = threading.Event()
        self._error = ""
        try:
            threading.Thread(target=self._run, daemon=True).start()
        except RuntimeError:  # no thread available: it may block on a hung disk
            self._run()

    @property
    def is_over(self) -> bool:
        """Return whether it has finished or failed."""
        return self._over.is_set()

    def _run(self) -> None:
        try:
            with self._turn:
                self._work()
        except ResilError as error:
            self._error = str(error)
        except Exception as error:  # the run matters more than its records
            self._error = f"cannot {self._what}: {type(error).__name__}: {error}"
        finally:
            self._over.set()

    def why_not(self, until: float = 0.0) -> str:
        """Wait until `until` by the monotonic clock; return why it was not done, one sentence; empty if it was."""
        if not self._over.wait(max(0.0, until - time.monotonic())):
            return f"cannot {self._what}: the file system does not respond"
        return self._error


class StopRequests:
    """Signals to a supervisor: SIGTERM ends its run, a second one at once; SIGUSR1 ends it for a newer run.

    Attributes:
        cause: why the run is to end.
        asked: number of requests to stop.
        is_done: whether the program has ended by itself: it is not cut short any more, and its leftovers end sooner.
        hurries: whether any end is requested.
        wake: readable after a signal.
    """

    def __init__(self) -> None:
        """Install the signal handlers, and unblock the signals."""
        self.cause, self.asked, self.is_done, self.hurries = Cause.NONE, 0, False, False
        self.wake, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGTERM, lambda *_: self._hurry(Cause.STOPPED))
        signal.signal(signal.SIGUSR1, lambda *_: self._hurry(Cause.REPLACED))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _hurry(self, cause: Cause) -> None:
        self.hurries = True
        self.asked += cause is Cause.STOPPED
        if not self.is_done:
            self.cause = self.cause or cause


class Watched(NamedTuple):
    """How a program ended.

    Attributes:
        status: as of os.waitstatus_to_exitcode; None: it has not ended.
        problem: why it could not be started, for launch.py's `explain`; empty: it was started.
        left: number of leftover processes that were killed.
        stuck: number of processes that could not be killed.
    """

    status: int | None
    problem: bytes = b""
    left: int = 0
    stuck: int = 0


class _Phase(Enum):
    """Progress of the end of a run. `_moment` is when the next phase begins."""

    RUNS = "the program runs"
    LINGERS = "the program has ended, and processes of it remain"
    TERMED = "SIGTERM was sent"
    KILLED = "SIGKILL was sent"


class Watch:
    """Supervision of one program."""

    def __init__(self, program: Launched, timeout_s: float, output: Bounded, requests: StopRequests) -> None:
        """`timeout_s`: 0 means none. `output` receives the output."""
        self._program, self._output, self._requests = program, output, requests
        self._phase, self._kills_again = _Phase.RUNS, 0.0
        self._moment = time.monotonic() + timeout_s if timeout_s > 0 else float("inf")
        self._status: int | None = None
        self._problem = b""
        self._left = 0
        self._alone = self._gave_up = False

    def keep(self, each_second: Callable[[float], None]) -> Watched:
        """Return when no process of the program is left, or nothing more can be done.

        `each_second` is called about once a second while there is output, with the monotonic time.
        """
        second = time.monotonic() + SECOND_S
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._program.output, self._program.problem, self._requests.wake):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                for ready, _ in selector.select(self._pause(second)):
                    if not self._receive(ready.fd):
                        selector.unregister(ready.fd)
                self._reap()
                if self._status is not None and self._alone:
                    break
                now = time.monotonic()
                self._decide(now)
                if self._gave_up:
                    break
                if now >= second:
                    second = now + SECOND_S
                    each_second(now)
        for _ in range(_DRAIN):  # the rest in the pipe; limited, because another process may keep it open
            if not self._receive(self._program.output, at_end=True):
                break
        while self._receive(self._program.problem, at_end=True):
            pass
        stuck = len(descendants(os.getpid())) if self._gave_up else 0
        return Watched(self._status, self._problem, self._left, stuck)

    def _pause(self, second: float) -> float:
        moment = self._moment
        if self._phase is _Phase.KILLED:
            moment = min(moment, self._kills_again)
        if self._output.has_head:
            moment = min(moment, second)
        return min(max(0.0, moment - time.monotonic()), _LONGEST_S)

    def _receive(self, descriptor: int, *, at_end: bool = False) -> bool:
        """Read available data; return whether more may come (at the end: whether there was data)."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return not at_end
        if descriptor == self._program.output:
            self._output.add(chunk)
        elif descriptor == self._program.problem:
            self._problem += chunk
        return bool(chunk)

    def _reap(self) -> None:
        """Reap the program, and orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            if pid == 0:
                return
            if pid == self._program.pid:
                self._status = os.waitstatus_to_exitcode(status)
                if self._phase is _Phase.RUNS:  # it ended by itself
                    self._requests.is_done, self._requests.cause = True, Cause.NONE

    def _decide(self, now: float) -> None:
        """Do what is due: SIGTERM, SIGKILL, or give up."""
        is_time = now >= self._moment
        if self._phase is _Phase.RUNS and self._status is not None:
            self._phase, self._moment, is_time = _Phase.LINGERS, now + LINGER_S, False
        elif self._phase is _Phase.RUNS and is_time and self._requests.cause is Cause.NONE:
            self._requests.cause = Cause.TIMEOUT
        if self._phase in (_Phase.RUNS, _Phase.LINGERS) and (is_time or self._requests.hurries):
            if self._status is not None:
                self._left = len(descendants(os.getpid()))
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process handles no other signal
            self._phase, self._moment, is_time = _Phase.TERMED, now + KILL_AFTER_S, False
        if self._phase is _Phase.TERMED and (is_time or self._requests.asked > 1):
            self._phase, self._moment, is_time = _Phase.KILLED, now + GIVE_UP_S, False
        if self._phase is _Phase.KILLED and now >= self._kills_again:  # repeatedly: it may be starting others
            self._signal_all(signal.SIGKILL)
            self._kills_again = now + _AGAIN_S
        self._gave_up = self._phase is _Phase.KILLED and is_time

    def _signal_all(self, number: int) -> None:
        """Signal the process group, and each process that has left it."""
        group = self._program.pid if self._status is None else 0  # its number may be reused after that
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                if not group or os.getpgid(pid) != group:
                    os.kill(pid, number)


class Setup(NamedTuple):
    """Setup of all runs of a scheduler.

    Attributes:
        directory: state directory.
        project: working directory.
        refuse: called right before the start.
        secrets: must not appear in outputs.
        output_bytes, keep_runs: as in CronSettings.
        host: name of this machine.
        clock: for recorded times.
    """

    directory: CronDirectory
    project: Path
    refuse: Callable[[Entry], Ignored | None]
    secrets: tuple[str, ...]
    output_bytes: int
    keep_runs: int
    host: str
    clock: Clock


def longest_s(timeout_s: float) -> float:
    """Return the maximum lifetime of a supervisor, given the timeout of its run; 0 for none."""
    return _SIGN_ON_S + timeout_s + 2 * KILL_AFTER_S + LINGER_S + GIVE_UP_S + PATIENCE_S if timeout_s else 0.0


def supervise(
    setup: Setup,
    entry: Entry,
    slot: int,
    run: Run | None,
    replaced: tuple[Run, ...],
    environment: Mapping[str, str],
    report_to: int,
) -> NoReturn:
    """Run the supervisor of one run.

    `run`: its record, claimed by the scheduler; None: no record could be written. `replaced`: runs to end before.
    Reports go to the scheduler through the pipe `report_to`, as lines of JSON.
    """
    code = 1
    try:
        begin(report_to, unblock=False)
        gc.freeze()  # keep memory pages shared with the scheduler
        gc.enable()
        umask = os.umask(0o007 if setup.directory.group else 0o077)
        with suppress(OSError):
            os.chdir("/")  # leave a directory that may be unmounted, or hang
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        watched = WatchedRun(setup, entry, slot, run, environment)
        watched.report_to, watched.umask = report_to, umask & ~0o070 if setup.directory.group else umask
        watched.supervise(replaced)
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(report_to, json.dumps({"fault": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
    finally:
        os._exit(code)


class WatchedRun:
    """One run, from its claim to its end.

    Attributes:
        report_to: pipe to the scheduler.
        umask: of the program: the user's; the group operates what it runs.
    """

    report_to = -1
    umask = 0o077

    def __init__(self, setup: Setup, entry: Entry, slot: int, run: Run | None, environment: Mapping[str, str]) -> None:
        self._setup, self._entry, self._slot, self._run, self._environment = setup, entry, slot, run, environment
        self._book, self._now = setup.directory.book, setup.clock.now
        self._requests = StopRequests()
        self._program: Launched | None = None
        self._secrets = Secrets((*setup.secrets, *secrets_of(environment)))
        self._output = Bounded(setup.output_bytes, self._secrets)
        self._file = OutputFile(setup.directory, entry.key, slot)
        self._started: float | None = None
        self._notes: list[str] = []

    def supervise(self, replaced: tuple[Run, ...]) -> None:
        """Run it."""
        if self._register():
            self._finish(self._end_earlier(replaced) or self._begin() or self._watch())

    # ---- begin ------------------------------------------------------------------------------------------------

    def _register(self) -> bool:
        """Take the record over from the scheduler; return whether this run may begin.

        Continue if the directory cannot be written, as the run may be what frees the disk, or reports the problem; but
        not if another host took the record meanwhile, because it reports the run as cut short.
        """
        is_lost = False

        def take() -> None:
            nonlocal is_lost
            if self._run is not None:
                self._run = self._book.take(self._run, State.RUNNING, self._now())
                is_lost = self._run is None

        if why := Write("record its start", take).why_not(time.monotonic() + _SIGN_ON_S):
            self._notes.append(why)
        if is_lost:
            self._report({"end": None})
        return not is_lost

    def _end_earlier(self, replaced: tuple[Run, ...]) -> End | None:
        """End the runs that this one replaces; return an end if that fails."""
        for run in replaced:
            until = time.monotonic() + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S
            ticks = int(run.holder.split("-")[2])
            try:
                if is_same(run.pid, ticks):
                    os.kill(run.pid, signal.SIGUSR1)
            except PermissionError:
                why = f"an earlier run is active, and ending process {run.pid} is not permitted"
                return End(Outcome.SKIPPED, None, why)
            except ProcessLookupError:
                continue
            while is_same(run.pid, ticks) and time.monotonic() < until and self._requests.cause is Cause.NONE:
                time.sleep(_AGAIN_S)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
            if is_same(run.pid, ticks) and self._requests.cause is Cause.NONE:
                return End(Outcome.SKIPPED, None, f"an earlier run is active: process {run.pid} does not end")
        return None

    def _begin(self) -> End | None:
        """Start the program; return an end if that fails."""
        if self._requests.cause is not Cause.NONE:
            return self._judge(Watched(None))
        self._started = self._now()
        try:
            self._program = launch(
                self._entry.argv,
                self._environment,
                directory=self._setup.project,
                umask=self.umask,
                refuse=lambda: self._setup.refuse(self._entry),
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
        spill: Write | None = None
        touched = time.monotonic()

        def each_second(now: float) -> None:
            nonlocal spill, touched
            if (spill is None or spill.is_over) and (chunk := self._output.take_head()):
                spill = Write("write its output", partial(self._file.append, chunk))
            if now - touched >= REFRESH_S and self._run is not None:
                touched = now
                Write("touch its record", partial(self._book.touch, self._run))

        seen = Watch(self._program, self._entry.options.timeout_s, self._output, self._requests).keep(each_second)
        if seen.problem:
            return self._refused(*explain(seen.problem, self._entry.argv[0]))
        return self._judge(seen)

    def _judge(self, seen: Watched) -> End:
        return judge_end(seen.status, self._requests.cause, self._entry.options, left=seen.left, stuck=seen.stuck)

    # ---- end --------------------------------------------------------------------------------------------------

    def _finish(self, end: End) -> None:
        """Write the output and the end, and report to the scheduler."""
        until = time.monotonic() + PATIENCE_S
        words = self._output.finish()
        kept = Write("write its output", lambda: self._file.append(words, is_last=True))
        if why := kept.why_not(until):
            self._notes.append(why)
        record = RunRecord(
            name=self._entry.name, slot=self._slot, outcome=end.outcome, time=self._now(),
            started=self._started, exit_code=end.exit_code, host=self._setup.host, pid=os.getpid(),
            summary=self._summary(end), output=self._file.name if kept.is_over else "",
        )  # fmt: skip
        written = Write("write its result", lambda: self._write_end(record))
        why = written.why_not(until)
        pruned = Write("prune", self._prune)
        pruned.why_not(until)
        self._report({"end": record.to_json(), "unwritten": why})
        pruned.why_not(time.monotonic() + LAST_S)

    def _report(self, report: Mapping[str, object]) -> None:
        with suppress(OSError):  # the scheduler may be dead
            os.write(self.report_to, json.dumps(report).encode() + b"\n")
            os.close(self.report_to)

    def _summary(self, end: End) -> str:
        said = self._output.last_line() if end.outcome is not Outcome.REFUSED else ""
        about = "; ".join(part for part in (end.summary, *dict.fromkeys(self._notes)) if part)
        text = f"{about}: {said}" if about and said else about or said
        return self._secrets.redact(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _write_end(self, record: RunRecord) -> None:
        if self._run is not None:
            self._book.end(self._run, record)
        else:
            self._book.add(self._entry.key, record)

    def _prune(self) -> None:
        active = frozenset(run.slot for run in self._book.active() if run.entry_key == self._entry.key)
        prune(self._setup.directory, self._entry.key, self._setup.keep_runs, running=active)
