"""The life of a supervisor: one process that watches over one run, and writes down how it ended.

It is forked by the scheduler, and outlives it. What it writes to the state directory is written by a thread beside it
(scribe.py): a disk that hangs keeps no run from being ended.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import sys
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
from resilience.cron.table.scribe import Scribe, Task
from resilience.cron.table.watched_program import GIVE_UP_S, KILL_AFTER_S, LINGER_S, Watch, Watched, Wishes
from resilience.system.ports import Clock

PATIENCE_S = 10.0
"""The scheduler hears of an end at the latest so long after it, even if it cannot be written down."""

LAST_S = 60.0
"""A file system that does not answer has so long to take the end of a run."""

_SIGN_ON_S = 5.0
_AGAIN_S = 0.05


class Order(NamedTuple):
    """What a supervisor is to do.

    Attributes:
        entry, slot: what is run.
        directory: where it is written down.
        project: the working directory.
        environment: of the program.
        secrets: what must stand in no output.
        output_bytes, keep_runs: as in CronSettings.
        refuse: asked in the last moment.
        replace: the runs to end before.
        at: this machine.
        clock: for moments that people read.
        signed_on: called when the mark stands there, or the end.
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
    signed_on: Callable[[], None] = lambda: None


def longest_s(timeout_s: float) -> float:
    """How long a supervisor lives at most, given its run's timeout."""
    return _SIGN_ON_S + timeout_s + KILL_AFTER_S + LINGER_S + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S


def live(order: Order, news: int, asked: int) -> NoReturn:
    """The supervisor's whole life. What there is to tell the scheduler goes into the pipe `news`, as a line of JSON;
    why the scheduler ends a run comes out of the pipe `asked`."""
    code = 1
    try:
        gc.freeze()  # pages that we share with the scheduler stay shared
        reset_signals()
        news, asked = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (news, asked))
        os.setsid()
        for stream in range(3):
            with suppress(OSError):
                os.close(stream)
        for _ in range(3):  # the lowest free ones
            os.open(os.devnull, os.O_RDWR)
        close_all([news, asked])
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - what the scheduler had not flushed is its own
        os.umask(0o007 if order.directory.group else 0o077)
        with suppress(OSError):
            os.chdir("/")  # a directory that is unmounted, or hangs, is nothing to us
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        WatchedRun(order, news, asked).live()
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(news, json.dumps({"fault": f"{type(error).__name__}: {error}"[:1000]}).encode() + b"\n")
    finally:
        os._exit(code)


class WatchedRun:
    """One run, from its mark to its end."""

    def __init__(self, order: Order, news: int, asked: int) -> None:
        self._order, self._news, self._asked = order, news, asked
        self._entry, self._directory = order.entry, order.directory
        self._wishes = Wishes()
        self._program: Launched | None = None
        now = order.clock.now()
        timeout_s = order.entry.options.timeout_s
        self._mark = Mark(
            self._entry.name, self._entry.key, order.slot, *order.at, os.getpid(), start_ticks(os.getpid()) or 0, now,
            now + longest_s(timeout_s) if timeout_s else None,
        )  # fmt: skip
        self._secrets = Secrets((*order.secrets, *secrets_of(order.environment)))
        self._words = Bounded(order.output_bytes, self._secrets)
        self._file = OutputFile(order.directory, self._entry.key, order.slot)
        self._started: float | None = None
        self._notes: list[str] = []
        self._scribe = Scribe()

    def live(self) -> None:
        """Do all of it."""
        self._sign_on()
        end = self._end_earlier() or self._begin() or self._watch()
        self._sign_off(end)

    # ---- begin ------------------------------------------------------------------------------------------------

    def _sign_on(self) -> None:
        """Leave the mark; go on without where it cannot be written: what runs may be what frees the disk, or what tells
        of it."""

        def sign() -> None:
            write_mark(self._directory, self._mark)
            self._order.signed_on()

        task = self._scribe.do("say that it runs", sign)
        task.wait(time.monotonic() + _SIGN_ON_S)
        if why := task.why_not():
            self._notes.append(why)

    def _end_earlier(self) -> End | None:
        """End the runs that this one replaces; return an end where that cannot be done."""
        for mark in self._order.replace:
            until = time.monotonic() + KILL_AFTER_S + GIVE_UP_S + PATIENCE_S
            try:
                if is_same(mark.pid, mark.ticks):
                    os.kill(mark.pid, signal.SIGUSR1)
            except PermissionError:
                why = f"an earlier run is under way, and process {mark.pid} may not be ended by us"
                return End(Outcome.SKIPPED, None, why)
            except ProcessLookupError:
                continue
            while is_same(mark.pid, mark.ticks) and time.monotonic() < until and self._wishes.cause is Cause.NONE:
                time.sleep(_AGAIN_S)
                with suppress(ChildProcessError):
                    os.waitpid(-1, os.WNOHANG)
            if is_same(mark.pid, mark.ticks) and self._wishes.cause is Cause.NONE:
                return End(Outcome.SKIPPED, None, f"an earlier run is under way: process {mark.pid} does not end")
        return None

    def _begin(self) -> End | None:
        """Start the program; return an end where it cannot be started."""
        if self._wishes.cause is not Cause.NONE:
            return self._judge(Watched(None))
        self._started = self._order.clock.now()
        try:
            self._program = launch(
                self._entry.argv,
                self._order.environment,
                directory=self._order.project,
                umask=0o007 if self._directory.group else 0o077,
                refuse=lambda: self._order.refuse(self._entry),
            )
        except OSError as error:
            return self._refused(*why_not_started(self._entry.argv[0], error.errno or 0, facts={}))
        return None

    def _refused(self, reason: str, hint: str) -> End:
        self._started = None
        return End(Outcome.REFUSED, None, f"{reason} ({hint})" if hint else reason)

    def _watch(self) -> End:
        """Take what it writes, end it when its time is up, and return when nothing of it is left."""
        assert self._program is not None
        options = self._entry.options
        spill: Task | None = None
        touched = time.monotonic()

        def each_second(now: float) -> None:
            nonlocal spill, touched
            if (spill is None or spill.is_over) and (words := self._words.take_head()):
                spill = self._scribe.do("keep its output", partial(self._file.append, words))
            if now - touched >= REFRESH_S:
                touched = now
                self._scribe.do("touch its mark", partial(touch_mark, self._directory, self._mark))

        seen = Watch(self._program, options.timeout_s, self._words, self._wishes).keep(each_second)
        if seen.trouble:
            return self._refused(*explain(seen.trouble, self._entry.argv[0]))
        return self._judge(seen)

    def _judge(self, seen: Watched) -> End:
        why = ""
        if self._wishes.cause is Cause.STOPPED:
            with suppress(OSError):
                why = os.read(self._asked, 4096).decode("utf-8", "replace")
        options = self._entry.options
        return judge_end(seen.status, self._wishes.cause, options, why=why, left=seen.left, stuck=seen.stuck)

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
            summary=self._summary(end), output=self._file.name if kept.is_over else "",
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

    def _summary(self, end: End) -> str:
        said = self._words.last_line() if end.outcome is not Outcome.REFUSED else ""
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
        self._order.signed_on()

    def _prune(self) -> None:
        shorten(self._directory, self._entry.key)
        runs = frozenset(mark.slot for mark in marks(self._directory) if mark.key == self._entry.key)
        prune(self._directory, self._entry.key, self._order.keep_runs, running=runs)
