"""Reads what is new in a log, and no more: bounded bytes, never waiting, whatever lies in the log's place."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os
import re
import stat
import time
from binascii import crc32
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from resilience.watch.checks._log import lines
from resilience.watch.checks._log.digest import begun_again, digest
from resilience.watch.checks._log.reading import (
    LogReading,
    LogSettings,
    LogState,
    Moment,
    allowance,
    in_blocks,
    packed,
    unpacked,
)

FIRST_BYTES = 65536
"""Read of the end of a log that was never looked at; more if there is no step in it."""
REREAD_BYTES = 65536
"""An unfinished line is read again next time, unless it is longer than this."""
MARK_BYTES = 64
SKEW_S = 5.0
"""A file server's clock that is off by less is not worth a word."""
SHOWN_BYTES = 16384
EVIDENCE_LINES = 5
PATIENCE_S = 2.0
"""After so long a tick reads only the ends of what is left: ten thousand new logs at once, a flood of output."""
HURRIED_BYTES = 4096


class LogReader:
    """Looks at logs in one tick, at one moment, and remembers how long that has taken.

    Attributes:
        settings: the watchdog's.
        moment: (seconds since the epoch, monotonic seconds, boot) of the tick.
        states: what is known now of each log that was looked at.
    """

    def __init__(
        self,
        settings: LogSettings,
        moment: Moment,
        own: re.Pattern[bytes] | None = None,
        arm: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.moment = moment
        self.now = moment[0]
        self.states: dict[str, LogState] = {}
        self._own = own
        self._arm = arm
        self._hurries_at = time.monotonic() + PATIENCE_S

    def log(self, path: str, known: str | None, looked: float, info: os.stat_result | None = None) -> str:
        """What is known of a log now, packed. A log that cannot be read keeps what was known, and says why.

        `known` is what was known at the look before, which was at `looked`; `info` spares a system call.
        """
        before = _unpacked(known)
        try:
            info = info or os.stat(path)
            if (
                before is not None
                and known is not None
                and info.st_mtime_ns == before.mtime_ns
                and info.st_size == before.size
                and info.st_ino == before.inode
                and not before.trouble
            ):
                self.states[path] = before
                return known
            state = self._look(path, self._state(before, looked), info)
        except FileNotFoundError:
            target = _link(path)
            why = f"a link to {target}, which is not there" if target else "there is no such file"
            state = _troubled(self._state(before, looked), "missing", why, self.now)
        except OSError as error:
            state = _troubled(self._state(before, looked), "not-read", error.strerror or str(error), self.now)
        self.states[path] = state
        return packed(state)

    def _look(self, path: str, state: LogState, info: os.stat_result) -> LogState:
        if not stat.S_ISREG(info.st_mode):
            return _troubled(state, "not-read", f"it is {_kind(info.st_mode)}, not a log", self.now)
        if self._arm is not None:
            self._arm(path)
        hurries = time.monotonic() > self._hurries_at
        return _read(path, state, self.now, HURRIED_BYTES if hurries else int(self.settings.read_bytes), self._own)

    def _state(self, before: LogState | None, looked: float) -> LogState:
        if before is None:
            return LogState(first_seen=self.now, last_progress_at=self.now, last_output_at=self.now)
        return before._replace(looked=max(before.looked, looked)) if before.looked else before

    def reading(
        self,
        paths: Sequence[str],
        before: LogReading | None,
        infos: Mapping[str, os.stat_result] | None = None,
    ) -> LogReading:
        """Look at these logs as one subject."""
        known = dict(before.logs) if before is not None else {}
        looked = before.clock[0] if before is not None else 0.0
        at = infos or {}
        logs = tuple([(path, self.log(path, known.get(path), looked, at.get(path))) for path in paths])
        path = paths[0] if len(paths) == 1 else max(paths, key=lambda one: self.states[one].last_progress_at)
        return LogReading(logs=logs, lines=self._lines(path), clock=self.moment)

    def _lines(self, path: str) -> tuple[str, ...]:
        """The last lines, for evidence, where something seems to be wrong."""
        settings, state = self.settings, self.states[path]
        quiet_s = self.now - state.last_progress_at
        is_odd = state.error or state.end or state.fell_from is not None
        if not is_odd and quiet_s < min(settings.floor_s, settings.timeout_s or settings.floor_s) - 1:
            return ()
        if not is_odd and quiet_s < 0.9 * allowance(state.intervals, state.phase, settings).seconds - 1:
            return ()
        return last_lines(path, EVIDENCE_LINES)


def _unpacked(known: str | None) -> LogState | None:
    try:
        return unpacked(known) if known is not None else None
    except (ValueError, TypeError):
        return None  # of another version: the log is looked at as if for the first time


def _troubled(state: LogState, kind: str, why: str, now: float) -> LogState:
    since = state.troubled if state.trouble_kind == kind else now
    return state._replace(trouble=why, trouble_kind=kind, troubled=since)


def _read(path: str, state: LogState, now: float, limit_bytes: int, own: re.Pattern[bytes] | None) -> LogState:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return _troubled(state, "not-read", f"it is {_kind(info.st_mode)}, not a log", now)
        size = info.st_size
        if state.inode and (info.st_ino != state.inode or size < state.offset):
            state = begun_again(state)
        is_new = state.looked == 0
        window = _window(descriptor, state.offset, size, min(FIRST_BYTES, limit_bytes) if is_new else limit_bytes)
        if state.inode and crc32(_mark(descriptor, state.offset) if window.skipped else window.mark) != state.mark:
            state = begun_again(state)  # rewritten in place: nothing of it was read
            window = _window(descriptor, 0, size, limit_bytes)
        written, skew_s = _written(info.st_mtime, state, now)
        if is_new:
            state = state._replace(first_seen=now, last_progress_at=written, last_output_at=written)
        blocks = in_blocks(size, not window.chunk.endswith((b"\n", b"\r")))
        after = digest(state, window.lines, written=written, own=own, in_blocks=blocks)
        if is_new and after.step is None and window.skipped and limit_bytes > FIRST_BYTES:
            window = _window(descriptor, 0, size, limit_bytes)
            after = digest(state, window.lines, written=written, own=own, in_blocks=blocks)
        if skew_s < 0 <= state.skew_s:
            after = after._replace(intervals=state.intervals)  # from one clock's time to another's
        offset = window.start + _consumed(window.chunk)
        mark = crc32((window.mark + window.chunk[: offset - window.start])[-MARK_BYTES:])
    finally:
        os.close(descriptor)
    return after._replace(
        inode=info.st_ino, mtime_ns=info.st_mtime_ns, size=size, offset=offset, mark=mark, looked=now,
        skipped=0 if is_new else window.skipped,
        skew_s=skew_s, trouble="", trouble_kind="", troubled=0.0,
    )  # fmt: skip


class _Window(NamedTuple):
    """A part of a file: from `start` to its end.

    Attributes:
        mark: the last bytes before it.
        skipped: how many bytes before it were to be read as well, and were too many.
    """

    start: int
    chunk: bytes
    mark: bytes
    skipped: int

    @property
    def lines(self) -> bytes:
        """It without the half line at its beginning: half a number would be another step."""
        chunk = self.chunk
        if not self.mark or self.mark[-1:] in (b"\n", b"\r"):
            return chunk
        ends = [end for end in (chunk.find(b"\n"), chunk.find(b"\r")) if end >= 0]
        return chunk[min(ends) + 1 :] if ends else b"..." + chunk.lstrip(b"0123456789.")


def _window(descriptor: int, start: int, size: int, limit_bytes: int) -> _Window:
    """What lies behind `start`, in one read; of more than `limit_bytes` only the end."""
    skipped = max(0, size - limit_bytes - start)
    start += skipped
    mark_at = max(0, start - MARK_BYTES)
    blob = os.pread(descriptor, size - mark_at, mark_at)
    return _Window(start, blob[start - mark_at :], blob[: start - mark_at], skipped)


def _mark(descriptor: int, offset: int) -> bytes:
    """The last bytes before a place."""
    mark_at = max(0, offset - MARK_BYTES)
    return os.pread(descriptor, offset - mark_at, mark_at)


def _consumed(chunk: bytes) -> int:
    """How much of a chunk is done with: all but the unfinished line at its end."""
    end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
    return end if len(chunk) - end <= REREAD_BYTES else len(chunk)


def _written(mtime: float, state: LogState, now: float) -> tuple[float, float]:
    """When the last of a log was written, by our clock, and by how much the file server's clock is off at least.

    What was not there at the last look was written after it, whatever the file server says.
    """
    since = state.looked
    if mtime > now:
        return now, mtime - now if mtime - now > SKEW_S else 0.0
    if since and mtime < since:
        return since, mtime - since if since - mtime > SKEW_S else 0.0
    return mtime, 0.0


def last_lines(path: str, count: int) -> tuple[str, ...]:
    """The last lines of a log as people are shown them, ours left out; none if it cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ()
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            chunk = os.pread(descriptor, SHOWN_BYTES, max(0, size - SHOWN_BYTES))
        finally:
            os.close(descriptor)
    except OSError:
        return ()
    finished, rest = lines.split(chunk)
    told = [lines.shown(line) for line in (*finished, rest) if line and not lines.PULSE.match(line)]
    return tuple([line for line in told if line][-count:])


def _kind(mode: int) -> str:
    names = (
        (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    )  # fmt: skip
    return next((name for test, name in names if test(mode)), "no regular file")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
