"""The supervisor: one process that supervises one run, and records its result.

It is forked by the scheduler, and outlives it. It is the parent of every orphan (PR_SET_CHILD_SUBREAPER, prctl(2)):
when it has no child left, no process of the program is left, whatever that forked and whatever process group or session
that joined. Threads (Write) write to the state directory, so that a hung disk cannot keep a run from being
ended.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from resilience.base.processes import descendants, is_same
from resilience.cron.book import Run, State
from resilience.cron.records import Entry, EntryOptions, Ignored, Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.bounded import Bounded, Secrets
from resilience.cron.table.environment import secrets_of
from resilience.cron.table.launch import explain_start, why_not_started, with_hint
from resilience.cron.table.output import OutputFile, prune
from resilience.errors import ResilError
from resilience.messages import plural
from resilience.quantities import format_duration
from resilience.settings.cron_settings import CronSettings
from resilience.system.child import begin, fork
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

BUSY_S = 2.0
"""A program that is open for writing (ETXTBSY) is retried for this long."""

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""linux/prctl.h."""

_CODE = 127
"""Exit code of a shell that cannot find a program."""

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


class Cause(StrEnum):
    """Why a supervisor ended a run."""

    NONE = ""
    """It ended by itself."""
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    """The scheduler was stopped."""
    REPLACED = "replaced"
    """A newer slot of the same entry was due."""


class End(NamedTuple):
    """Result of a run.

    Attributes:
        outcome: the outcome.
        exit_code: 128 + signal if a signal ended it; None: it did not end.
        summary: one line for the user.
    """

    outcome: Outcome
    exit_code: int | None
    summary: str


def judge_end(status: int | None, cause: Cause, options: EntryOptions, *, left: int = 0, stuck: int = 0) -> End:
    """Return the result of a run.

    Args:
        status: as of os.waitstatus_to_exitcode: negative signal number; None: it has not ended.
        cause: why its supervisor ended it.
        left: number of leftover processes that were killed.
        stuck: number of processes that could not be killed.
    """
    code = None if status is None else 128 - status if status < 0 else status
    if cause is Cause.TIMEOUT:
        outcome, said = Outcome.TIMEOUT, f"ended after its timeout of {format_duration(options.timeout_s)}"
    elif cause is Cause.STOPPED:
        outcome, said = Outcome.CUT_SHORT, "ended because its scheduler was stopped"
    elif cause is Cause.REPLACED:
        outcome, said = Outcome.CUT_SHORT, "ended because its next slot was due (overlap=replace)"
    elif status is None:
        outcome, said = Outcome.FAILED, "exit status unknown"
    elif status < 0:
        outcome, said = Outcome.FAILED, f"killed by {_signal(-status)}"
    else:
        outcome, said = Outcome.FAILED, f"exit code {status}"
    if cause is Cause.NONE and code is not None and code in options.ok:
        outcome, said = Outcome.DONE, "" if code == 0 else said
    words = [said] if said else []
    if stuck:
        words.append(f"{plural(stuck, 'process', 'processes')} could not be killed")
    if left:
        words.append(f"killed {plural(left, 'leftover process', 'leftover processes')}")
    return End(outcome, code, "; ".join(words))


class Setup(NamedTuple):
    """Setup of all runs of a scheduler.

    Attributes:
        directory: state directory.
        settings: [cron].
        project: working directory.
        environment: returns the environment of a run (environment.py: `environment_of`).
        refuse: called right before the run, in its own process.
        clock: for recorded times.
        host: name of this machine.
        secrets: must not appear in outputs, like those read in this process.
    """

    directory: CronDirectory
    settings: CronSettings
    project: Path
    environment: Callable[[Entry, int], Mapping[str, str]]
    refuse: Callable[[Entry], Ignored | None]
    clock: Clock
    host: str
    secrets: tuple[str, ...] = ()


def prctl(option: int, value: int) -> None:
    """Call prctl(2); ignore options that the kernel does not know."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def longest_s(timeout_s: float) -> float:
    """Return the maximum lifetime of a supervisor, given the timeout of its run; 0 for none."""
    return _SIGN_ON_S + timeout_s + 2 * KILL_AFTER_S + LINGER_S + GIVE_UP_S + PATIENCE_S if timeout_s else 0.0


class WatchedRun:
    """One run, from its claim to its end, in the process of its supervisor.

    Signals: SIGTERM ends it, a second one at once; SIGUSR1 ends it for a newer run.
    """

    def __init__(self, setup: Setup, entry: Entry, slot: int, run: Run | None, environment: Mapping[str, str]) -> None:
        """`run`: its record, claimed by the scheduler; None: no record could be written."""
        self._setup, self._entry, self._slot, self._run, self._environment = setup, entry, slot, run, environment
        self._book, self._now = setup.directory.book, setup.clock.now
        self._secrets = Secrets((*setup.secrets, *secrets_of(environment)))
        self._output = Bounded(int(setup.settings.output_bytes), self._secrets)
        self._file = OutputFile(setup.directory, entry.key, slot)
        self._spill: Write | None = None
        self._second = self._touched = time.monotonic()
        self._started: float | None = None
        self._notes: list[str] = []
        self._pid = 0
        self._status: int | None = None
        self._why = b""
        self._is_alone = self._is_ending = False
        self._cause, self._asked, self._hurries = Cause.NONE, 0, False

    def supervise(self, replaced: tuple[Run, ...], report_to: int) -> NoReturn:
        """Become its supervisor, in a child of the scheduler, and run it after the runs that it replaces have ended.

        Reports go to the scheduler through the pipe `report_to`, as lines of JSON.
        """
        code, self._report_to = 1, report_to
        try:
            begin(report_to, unblock=False)
            gc.freeze()  # keep memory pages shared with the scheduler
            gc.enable()
            group = self._setup.directory.group
            umask = os.umask(0o007 if group else 0o077)
            self._umask = umask & ~0o070 if group else umask  # of the program: the group operates what it runs
            with suppress(OSError):
                os.chdir("/")  # leave a directory that may be unmounted, or hang
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            self._listen()
            if self._register():
                self._finish(self._end_earlier(replaced) or self._begin() or self._watch())
            code = 0
        except BaseException as error:
            with suppress(BaseException):
                os.write(report_to, json.dumps({"fault": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
        finally:
            os._exit(code)

    # ---- signals ----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Install the signal handlers, and unblock the signals; each one wakes the selector."""
        wake, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ)
        signal.signal(signal.SIGTERM, lambda *_: self._hurry(Cause.STOPPED))
        signal.signal(signal.SIGUSR1, lambda *_: self._hurry(Cause.REPLACED))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _hurry(self, cause: Cause) -> None:
        self._hurries = True
        self._asked += cause is Cause.STOPPED
        if self._status is None:  # a program that has ended by itself is not cut short; its leftovers end sooner
            self._cause = self._cause or cause

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
            while is_same(run.pid, ticks) and time.monotonic() < until and self._cause is Cause.NONE:
                time.sleep(_AGAIN_S)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
            if is_same(run.pid, ticks) and self._cause is Cause.NONE:
                return End(Outcome.SKIPPED, None, f"an earlier run is active: process {run.pid} does not end")
        return None

    def _begin(self) -> End | None:
        """Start the program; return an end if that fails."""
        if self._cause is not Cause.NONE:
            return judge_end(None, self._cause, self._entry.options)
        self._started = self._now()
        self._output_pipe, writes = os.pipe2(os.O_CLOEXEC)
        self._failure_pipe, reports = os.pipe2(os.O_CLOEXEC)
        supervisor = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # our handlers would consume it
        try:
            self._pid = fork()
            if self._pid == 0:
                self._become_program(writes, reports, supervisor)
        except OSError as error:
            return self._refused(why_not_started(self._entry.argv[0], error.errno or 0))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writes)
            os.close(reports)
        for pipe in (self._output_pipe, self._failure_pipe):
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ)
        with suppress(OSError):  # parent and child both do it, in either order
            os.setpgid(self._pid, self._pid)
        return None

    def _become_program(self, writes: int, reports: int, supervisor: int) -> NoReturn:
        """In the child: execute the program, with these pipes for its output and for why that failed.

        `subprocess` would wait until the program is loaded, which never happens on a hung mount. Here the timeout runs.
        """
        why = ""
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                with suppress(OSError, ValueError):
                    if signal.getsignal(number) is not signal.SIG_DFL:
                        signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # without the supervisor, nothing would end it or record its end
            if os.getppid() == supervisor:
                os.umask(self._umask)
                os.dup2(writes, 1)
                os.dup2(writes, 2)
                why = self._execute()
        except BaseException as error:  # must not continue: this process is a copy of the scheduler
            why = f"{type(error).__name__}: {error}"
        finally:
            with suppress(BaseException):
                os.write(reports, why.encode("utf-8", "replace")[: select.PIPE_BUF])  # at once: pipe(7)
            os._exit(_CODE)

    def _execute(self) -> str:
        """Execute the program, or return why that failed, and what to try.

        The file could still be replaced after `refuse`, but only by users whom the policy trusts.
        """
        argv, directory = self._entry.argv, self._setup.project
        try:
            os.chdir(directory)
        except OSError as error:
            hint = "the working directory of a drop-in is the project's directory"
            return with_hint(f"cannot enter {directory}: {error.strerror}", hint)
        if (refusal := self._setup.refuse(self._entry)) is not None:
            return with_hint(refusal.reason, refusal.hint)
        end = time.monotonic() + BUSY_S
        while True:
            try:
                os.execvpe(argv[0], list(argv), dict(self._environment))
            except OSError as error:
                if error.errno != errno.ETXTBSY or time.monotonic() >= end:
                    return explain_start(argv[0], error.errno or 0)
                time.sleep(0.05)
            except ValueError as error:  # a NUL byte
                return f"cannot run {argv[0]!r}: {error}"

    def _refused(self, why: str) -> End:
        self._started = None
        return End(Outcome.REFUSED, None, why)

    # ---- the program ------------------------------------------------------------------------------------------

    def _watch(self) -> End:
        """Collect output, enforce the timeout, and return when no process is left, or nothing more can be done."""
        options, left, stuck = self._entry.options, 0, 0
        self._second = time.monotonic() + SECOND_S
        timeout_s = options.timeout_s if options.timeout_s > 0 else float("inf")
        self._wait(timeout_s, lambda: self._status is not None or self._hurries)
        if self._status is None:
            self._cause = self._cause or Cause.TIMEOUT
        else:
            self._wait(LINGER_S, lambda: self._hurries)
            left = 0 if self._is_alone else len(descendants(os.getpid()))
        self._is_ending = True
        if not self._is_alone:
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # a stopped process handles no other signal
            self._wait(KILL_AFTER_S, lambda: self._asked > 1)
        until = time.monotonic() + GIVE_UP_S
        while not self._is_alone and time.monotonic() < until:
            self._signal_all(signal.SIGKILL)  # repeatedly: it may be starting others
            self._wait(_AGAIN_S)
        if not self._is_alone:
            stuck = len(descendants(os.getpid()))
        for _ in range(_DRAIN):  # the rest in the pipe; limited, because another process may keep it open
            if not self._receive(self._output_pipe, at_end=True):
                break
        self._receive(self._failure_pipe)
        if self._why:
            return self._refused(self._why.decode("utf-8", "replace"))
        return judge_end(self._status, self._cause, options, left=left, stuck=stuck)

    def _wait(self, limit_s: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Receive output until no process of the program is left, or `is_enough`, or the time is over."""
        until = time.monotonic() + limit_s
        while not (self._is_alone or is_enough()) and (now := time.monotonic()) < until:
            moment = min(until, self._second) if self._output.has_head else until
            for ready, _ in self._selector.select(min(max(0.0, moment - now), _LONGEST_S)):
                if not self._receive(ready.fd):
                    self._selector.unregister(ready.fd)
            self._reap()
            if time.monotonic() >= self._second:
                self._save()

    def _receive(self, descriptor: int, *, at_end: bool = False) -> bool:
        """Read available data; return whether more may come (at the end: whether there was data)."""
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return not at_end
        if descriptor == self._output_pipe:
            self._output.add(chunk)
        elif descriptor == self._failure_pipe:
            self._why += chunk
        return bool(chunk)

    def _reap(self) -> None:
        """Reap the program, and orphans."""
        pid = -1
        while pid:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._is_alone = True
                return
            if pid == self._pid:
                self._status = os.waitstatus_to_exitcode(status)
                if not self._is_ending:  # it ended by itself
                    self._cause = Cause.NONE

    def _save(self) -> None:
        """About once a second: write new output, and show other hosts that the run is supervised."""
        now = time.monotonic()
        self._second = now + SECOND_S
        if (self._spill is None or self._spill.is_over) and (chunk := self._output.take_head()):
            self._spill = Write("write its output", partial(self._file.append, chunk))
        if now - self._touched >= REFRESH_S and self._run is not None:
            self._touched = now
            Write("touch its record", partial(self._book.touch, self._run))

    def _signal_all(self, number: int) -> None:
        """Signal the process group, and each process that has left it."""
        group = self._pid if self._status is None else 0  # its number may be reused after that
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                if not group or os.getpgid(pid) != group:
                    os.kill(pid, number)

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
        settings = self._setup.settings
        pruned = Write("prune", partial(prune, self._setup.directory, self._entry.key, settings.keep_runs))
        pruned.why_not(until)
        self._report({"end": record.to_json(), "unwritten": why})
        pruned.why_not(time.monotonic() + LAST_S)

    def _report(self, report: Mapping[str, object]) -> None:
        with suppress(OSError):  # the scheduler may be dead
            os.write(self._report_to, json.dumps(report).encode() + b"\n")
            os.close(self._report_to)

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


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name
