"""The life of a supervisor: one process that watches over one run, and writes down how it ended.

It is forked by the scheduler, outlives it, and is the parent of everything that the run leaves behind
(PR_SET_CHILD_SUBREAPER, prctl(2)): so no zombie stays, no process escapes the timeout, and when there is no child left,
nothing is left. What it writes to the state directory is written by a thread beside it (scribe.py): a disk that hangs
keeps no run from being ended.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from resilience.crontab.bounded import Bounded, Secrets, last_line
from resilience.crontab.ended import Cause, End, judge_end, why_not_started
from resilience.crontab.environment import secrets_of
from resilience.crontab.history import add, shorten
from resilience.crontab.launch import (
    PR_SET_CHILD_SUBREAPER,
    Launched,
    close_all,
    explain,
    launch,
    prctl,
    reset_signals,
)
from resilience.crontab.output import OutputFile, prune
from resilience.crontab.running import REFRESH_S, Here, Mark, marks, remove_mark, touch_mark, write_end, write_mark
from resilience.crontab.scribe import Scribe, Task
from resilience.model.cron import Entry, Ignored, Outcome, RunRecord
from resilience.system.cron_folder import CronFolder
from resilience.system.ports import Clock
from resilience.system.process_tree import descendants, is_alive, start_ticks

KILL_AFTER_S = 10.0
"""Between SIGTERM and SIGKILL."""

LINGER_S = 5.0
"""What a run leaves behind may take so long to end by itself, when its program has ended."""

GIVE_UP_S = 5.0
"""Who is still there so long after SIGKILL waits in the kernel, and is left there."""

PATIENCE_S = 10.0
"""The scheduler hears of an end at the latest so long after it, even if it cannot be written down."""

LAST_S = 60.0
"""A file system that does not answer has so long to take the end of a run."""

SPILL_S = 1.0
"""Whoever looks at the output of a run under way sees what is older than this."""

_SIGN_ON_S = 5.0
_AGAIN_S = 0.05
_CHUNK_BYTES = 2**18
_DRAIN = 64


class _Phase(Enum):
    """How far the end of a run is. `_moment` is when the next phase begins."""

    RUNS = "its program runs"
    LINGERS = "its program has ended, and something of it is still there"
    TERMED = "it was asked to end"
    KILLED = "it is killed"


class Order(NamedTuple):
    """What a supervisor is to do.

    Attributes:
        entry, slot: what is run.
        folder: where it is written down.
        project: the working folder.
        environment: of the program.
        secrets: what must stand in no output.
        output_bytes, keep_runs: as in CronSettings.
        refuse: asked in the last moment.
        replace: the runs to end before.
        at: this machine.
        clock: for moments that people read.
    """

    entry: Entry
    slot: int
    folder: CronFolder
    project: Path
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    output_bytes: int
    keep_runs: int
    refuse: Callable[[Entry], Ignored | None]
    replace: tuple[Mark, ...]
    at: Here
    clock: Clock


def longest_s(timeout_s: float) -> float:
    """How long a supervisor lives at most, given its run's timeout."""
    return _SIGN_ON_S + timeout_s + KILL_AFTER_S + LINGER_S + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S


def live(order: Order, news: int) -> NoReturn:
    """The supervisor's whole life. What there is to tell the scheduler goes into the pipe `news`, as JSON lines."""
    code = 1
    try:
        reset_signals()
        os.setsid()
        for stream in range(3):
            with suppress(OSError):
                os.close(stream)
        for _ in range(3):  # the lowest free ones
            os.open(os.devnull, os.O_RDWR)
        close_all([news])
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what the scheduler had not flushed is its own
        os.umask(0o007 if order.folder.group else 0o077)
        with suppress(OSError):
            os.chdir("/")  # a folder that is unmounted, or hangs, is nothing to us
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        WatchedRun(order, news).live()
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(news, json.dumps({"fault": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
    finally:
        os._exit(code)


class WatchedRun:
    """One run, from its mark to its end."""

    def __init__(self, order: Order, news: int) -> None:
        self._order, self._news = order, news
        self._entry, self._folder = order.entry, order.folder
        self._cause, self._asked = Cause.NONE, 0
        self._program: Launched | None = None
        self._status: int | None = None
        self._trouble = b""
        self._phase, self._moment, self._kills_again = _Phase.RUNS, float("inf"), 0.0
        self._alone = self._gave_up = self._hurries = False
        self._left = 0
        now = order.clock.now()
        timeout_s = order.entry.options.timeout_s
        self._mark = Mark(
            self._entry.name, self._entry.key, order.slot, *order.at, os.getpid(), start_ticks(os.getpid()) or 0, now,
            now + longest_s(timeout_s) if timeout_s else None,
        )  # fmt: skip
        self._secrets = Secrets((*order.secrets, *secrets_of(order.environment)))
        self._words = Bounded(order.output_bytes, self._secrets)
        self._file = OutputFile(order.folder, self._entry.key, order.slot)
        self._started: float | None = None
        self._notes: list[str] = []
        self._wake, waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number, handler in ((signal.SIGTERM, self._stop), (signal.SIGUSR1, self._replaced)):
            signal.signal(number, handler)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._scribe = Scribe()

    def live(self) -> None:
        """Do all of it."""
        self._sign_on()
        end = self._end_earlier() or self._begin() or self._watch()
        self._sign_off(end)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _sign_on(self) -> None:
        """Leave the mark, and say in the history that it runs; go on without where neither can be written: what runs
        may be what frees the disk, or what tells of it."""
        until = time.monotonic() + _SIGN_ON_S
        running = RunRecord(
            name=self._entry.name, slot=self._order.slot, outcome=Outcome.RUNNING, time=self._mark.started,
            started=self._mark.started, host=self._mark.host, pid=self._mark.pid,
        )  # fmt: skip
        for task in (
            self._scribe.do("say that it runs", lambda: write_mark(self._folder, self._mark)),
            self._scribe.do("write its history", lambda: add(self._folder, self._entry.key, running)),
        ):
            task.wait(until)
            if why := task.why_not():
                self._notes.append(why)

    def _end_earlier(self) -> End | None:
        """End the runs that this one replaces; return an end where that cannot be done."""
        for mark in self._order.replace:
            until = time.monotonic() + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S
            try:
                if _is_that(mark):
                    os.kill(mark.pid, signal.SIGUSR1)
            except PermissionError:
                why = f"an earlier run is under way, and process {mark.pid} may not be ended by us"
                return End(Outcome.SKIPPED, None, why)
            except ProcessLookupError:
                continue
            while _is_that(mark) and time.monotonic() < until and self._cause is Cause.NONE:
                time.sleep(_AGAIN_S)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
            if _is_that(mark) and self._cause is Cause.NONE:
                return End(Outcome.SKIPPED, None, f"an earlier run is under way: process {mark.pid} does not end")
        return None

    def _begin(self) -> End | None:
        """Start the program; return an end where it cannot be started."""
        if self._cause is not Cause.NONE:
            return judge_end(None, self._cause, self._entry.options)
        self._started = self._order.clock.now()
        try:
            self._program = launch(
                self._entry.argv,
                self._order.environment,
                folder=self._order.project,
                umask=0o007 if self._folder.group else 0o077,
                refuse=lambda: self._order.refuse(self._entry),
            )
        except OSError as error:
            return self._refused(*why_not_started(self._entry.argv[0], error.errno or 0, facts={}))
        return None

    def _refused(self, reason: str, hint: str) -> End:
        self._started = None
        return End(Outcome.REFUSED, None, f"{reason} ({hint})" if hint else reason)

    # ---- while it runs ----------------------------------------------------------------------------------------

    def _watch(self) -> End:
        """Take what it writes, end it when its time is up, and return when nothing of it is left."""
        assert self._program is not None
        now = time.monotonic()
        timeout_s = self._entry.options.timeout_s
        if timeout_s > 0:
            self._moment = now + timeout_s
        self._spills, self._touches = now + SPILL_S, now + REFRESH_S
        spill: Task | None = None
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._program.output, self._program.trouble, self._wake):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                for ready, _ in selector.select(self._pause()):
                    if not self._receive(ready.fd):
                        selector.unregister(ready.fd)
                self._reap()
                if self._status is not None and self._alone:
                    break
                now = time.monotonic()
                self._decide(now)
                if self._gave_up:
                    break
                if now >= self._spills:
                    self._spills = now + SPILL_S
                    if (spill is None or spill.is_over) and (words := self._words.take_head()):
                        spill = self._scribe.do("keep its output", partial(self._file.append, words))
                if now >= self._touches:
                    self._touches = now + REFRESH_S
                    self._scribe.do("touch its mark", lambda: touch_mark(self._folder, self._mark))
        for _ in range(_DRAIN):  # what lies in the pipe; not for ever: somebody else may hold it
            if not self._receive(self._program.output, at_end=True):
                break
        while self._receive(self._program.trouble, at_end=True):
            pass
        if self._trouble:
            return self._refused(*explain(self._trouble, self._entry.argv[0]))
        stuck = len(_alive_descendants()) if self._gave_up else 0
        return judge_end(self._status, self._cause, self._entry.options, left=self._left, stuck=stuck)

    def _pause(self) -> float:
        moment = min(self._moment, self._touches)
        if self._phase is _Phase.KILLED:
            moment = min(moment, self._kills_again)
        if self._words.has_head:
            moment = min(moment, self._spills)
        return min(max(0.0, moment - time.monotonic()), 3600.0)

    def _receive(self, descriptor: int, *, at_end: bool = False) -> bool:
        """Take what has come; return whether more may come (at the end: whether something had come)."""
        assert self._program is not None
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return not at_end
        if descriptor == self._program.output:
            self._words.add(chunk)
        elif descriptor == self._program.trouble:
            self._trouble += chunk
        return bool(chunk)

    def _reap(self) -> None:
        """Take note of ends: of the program, and of all that has lost its parent."""
        assert self._program is not None
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

    def _decide(self, now: float) -> None:
        """Do what is due: SIGTERM, SIGKILL, or give up."""
        is_time = now >= self._moment
        if self._phase is _Phase.RUNS and self._status is not None:
            self._phase, self._moment, is_time = _Phase.LINGERS, now + LINGER_S, False
        elif self._phase is _Phase.RUNS and is_time and self._cause is Cause.NONE:
            self._cause = Cause.TIMEOUT
        if self._phase in (_Phase.RUNS, _Phase.LINGERS) and (is_time or self._hurries):
            if self._status is not None:
                self._left = len(_alive_descendants())
            self._signal_all(signal.SIGTERM)
            self._signal_all(signal.SIGCONT)  # who is stopped hears nothing else
            self._phase, self._moment, is_time = _Phase.TERMED, now + KILL_AFTER_S, False
        if self._phase is _Phase.TERMED and (is_time or self._asked > 1):
            self._phase, self._moment, is_time = _Phase.KILLED, now + GIVE_UP_S, False
        if self._phase is _Phase.KILLED and now >= self._kills_again:  # again and again: it may be starting others
            self._signal_all(signal.SIGKILL)
            self._kills_again = now + _AGAIN_S
        self._gave_up = self._phase is _Phase.KILLED and is_time

    def _signal_all(self, number: int) -> None:
        """To the process group, and to each that has left it."""
        assert self._program is not None
        group = self._program.pid if self._status is None else 0  # its number may be another's after that
        if group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                if not group or os.getpgid(pid) != group:
                    os.kill(pid, number)

    def _stop(self, *_: Any) -> None:
        self._asked += 1
        self._hurry(Cause.STOPPED)

    def _replaced(self, *_: Any) -> None:
        self._hurry(Cause.REPLACED)

    def _hurry(self, cause: Cause) -> None:
        self._hurries = True
        if self._status is None:  # whose program has ended has done its work
            self._cause = self._cause or cause

    # ---- end --------------------------------------------------------------------------------------------------

    def _sign_off(self, end: End) -> None:
        """Keep the output, write the end into the history, remove the mark, and tell the scheduler."""
        until = time.monotonic() + PATIENCE_S
        words = self._words.finish()
        kept = self._scribe.do("keep its output", lambda: self._keep(words))
        kept.wait(until)
        if why := kept.why_not():
            self._notes.append(why)
        record = RunRecord(
            name=self._entry.name, slot=self._order.slot, outcome=end.outcome, time=self._order.clock.now(),
            started=self._started, exit_code=end.exit_code, host=self._mark.host, pid=self._mark.pid,
            summary=self._summary(end, words), output=self._file.name if kept.is_over else "",
        )  # fmt: skip
        written = self._scribe.do("write its end", lambda: self._write_end(record))
        written.wait(until)
        pruned = self._scribe.do("prune", lambda: self._prune())
        pruned.wait(until)
        told = {"end": record.to_json(), "unwritten": written.why_not()}
        with suppress(OSError):  # the scheduler may be dead
            os.write(self._news, json.dumps(told).encode() + b"\n")
            os.close(self._news)
        pruned.wait(time.monotonic() + LAST_S)

    def _summary(self, end: End, words: bytes) -> str:
        said = last_line(words) if end.outcome is not Outcome.REFUSED else ""
        about = "; ".join(part for part in (end.summary, *dict.fromkeys(self._notes)) if part)
        text = f"{about}: {said}" if about and said else about or said
        return self._secrets.redact(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def _keep(self, words: bytes) -> None:
        self._file.append(words)
        self._file.close()

    def _write_end(self, record: RunRecord) -> None:
        try:
            add(self._folder, self._entry.key, record)
        except Exception:
            write_end(self._folder, self._mark, record)  # the next tick writes it into the history
            raise
        remove_mark(self._folder, self._mark)

    def _prune(self) -> None:
        shorten(self._folder, self._entry.key)
        runs = frozenset(mark.slot for mark in marks(self._folder) if mark.key == self._entry.key)
        prune(self._folder, self._entry.key, self._order.keep_runs, running=runs)


def _is_that(mark: Mark) -> bool:
    return start_ticks(mark.pid) == mark.ticks and is_alive(mark.pid)


def _alive_descendants() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if is_alive(pid)]
