"""Reads the new part of a log: a limited number of bytes, without blocking, whatever kind of file the path is."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os
import re
import stat
import time
from binascii import crc32
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from resilience.runs.run_directory import RunDirectory
from resilience.watch.checks._log import lines
from resilience.watch.checks._log.digest import begun_again, digest, heartbeat_of
from resilience.watch.checks._log.positions import NUMBERS, RANKS
from resilience.watch.checks._log.reading import (
    CONFIRMED_S,
    LogReading,
    LogSettings,
    LogState,
    Moment,
    allowance,
    in_blocks,
    merged_pauses,
    packed,
    unpacked,
)

FIRST_BYTES = 65536
"""How much of the end of a log the first probe reads; more if it contains no step."""
REREAD_BYTES = 65536
"""A longer unfinished line is not read again by the next probe."""
MARK_BYTES = 64
SKEW_S = 5.0
"""A smaller clock difference to the file server is ignored."""
SHOWN_BYTES = 16384
EVIDENCE_LINES = 5
PATIENCE_S = 2.0
"""After this long a tick reads only the ends of the remaining logs: ten thousand new logs, or a flood of output."""
HURRIED_BYTES = 4096

LONG_AGO = 1.0
UNKNOWN_S = 7200.0
"""After this long the watchdog says that it finds no step in a log that goes on with new lines."""


class LogReader:
    """Reads the logs of one tick, within a time budget.

    Attributes:
        settings: of the watchdog.
        moment: (seconds since the epoch, monotonic seconds, boot id) of the tick.
        cpu_seconds: returns the CPU seconds that a job of a run has used so far; None if unknown.
        states: the current state of each log read so far.
        families: what the logs of earlier jobs taught, by their names without numbers; None until it is needed.
    """

    def __init__(
        self,
        settings: LogSettings,
        moment: Moment,
        own: re.Pattern[bytes] | None = None,
        arm: Callable[[str], None] | None = None,
        cpu_seconds: Callable[[RunDirectory, str], float | None] | None = None,
    ) -> None:
        self.cpu_seconds = cpu_seconds
        self.settings = settings
        self.moment = moment
        self.now = moment[0]
        self.states: dict[str, LogState] = {}
        self.families: dict[str, LogReading] | None = None
        self._own = own
        self._arm = arm
        self._hurries_at = time.monotonic() + PATIENCE_S

    def log(
        self,
        path: str,
        known: str | None,
        past: LogReading,
        info: os.stat_result | None = None,
        ignored: re.Pattern[bytes] = lines.PULSE,
    ) -> str:
        """Return the packed state of a log. A log that cannot be read keeps its state, with the error.

        `known` is the packed state from the previous probe, and `past` its reading, with what earlier logs taught;
        `info` saves a stat call. Lines that start with `ignored` count neither as output nor as faults.
        """
        before = _unpacked(known) or self._new(past)
        try:
            info = info or os.stat(path)
            if (
                known is not None
                and info.st_mtime_ns == before.mtime_ns
                and info.st_size == before.size
                and info.st_ino == before.inode
                and not before.trouble
            ):
                self.states[path] = before
                return known
            looked = max(before.looked, past.clock[0]) if before.looked else 0.0
            now = before._replace(looked=looked, pauses=before.pauses or past.pauses)
            state = self._read_regular(path, now, info, ignored)
        except FileNotFoundError:
            target = _link(path)
            state = _troubled(before, "missing", f"dangling link to {target}" if target else "no such file", self.now)
        except OSError as error:
            state = _troubled(before, "not-read", error.strerror or str(error), self.now)
        self.states[path] = state
        return packed(state)

    def _read_regular(self, path: str, state: LogState, info: os.stat_result, ignored: re.Pattern[bytes]) -> LogState:
        if not stat.S_ISREG(info.st_mode):
            return _troubled(state, "not-read", f"is {_kind(info.st_mode)}, not a log", self.now)
        if self._arm is not None:
            self._arm(path)
        hurries = time.monotonic() > self._hurries_at
        limit_bytes = HURRIED_BYTES if hurries else int(self.settings.read_bytes)
        return _read(path, state, self.now, limit_bytes, self._own, ignored)

    def _new(self, past: LogReading) -> LogState:
        """Return the state of a log that was never read, with the heartbeat that it is expected to have."""
        state, now = _unpacked(past.expected) or LogState(), self.now
        return state._replace(first_seen=now, last_progress_at=now, last_output_at=now, pauses=past.pauses)

    def reading(
        self,
        paths: Sequence[str],
        before: LogReading | None,
        infos: Mapping[str, os.stat_result] | None = None,
        *,
        ignored: re.Pattern[bytes] = lines.PULSE,
    ) -> LogReading:
        """Return the reading of these logs as one subject; `ignored` as in `log`."""
        before = before if before is not None else LogReading()
        known, pauses, at = dict(before.logs), before.pauses, infos or {}
        logs = tuple([(path, self.log(path, known.get(path), before, at.get(path), ignored)) for path in paths])
        path = paths[0] if len(paths) == 1 else max(paths, key=lambda one: self.states[one].last_progress_at)
        learned = [self.states[one].pauses for one in paths if self.states[one].pauses]
        if learned:
            pauses = tuple(map(tuple, merged_pauses(pauses, *learned)))
        return LogReading(
            logs=logs, lines=self._lines(path, pauses), clock=self.moment, pauses=pauses,
            told=self._told(self.states[path], before.told), taught=before.taught,
            expected="" if self.states[path].turned_at else before.expected,
            learns=before.learns or (self.now if self.states[path].turned_at else 0.0),
        )  # fmt: skip

    def _told(self, state: LogState, told: float) -> float:
        """Return when the watchdog first said that it finds no step: 0 if it has not, LONG_AGO once there are steps."""
        is_unknown = not state.kind or is_weak(state)
        if told:
            return told if is_unknown else LONG_AGO
        is_unknown = is_unknown and bool(state.size) and not state.end
        patience_s = self.settings.startup_s if state.kind else UNKNOWN_S
        return self.now if is_unknown and self.now - state.first_seen > patience_s else 0.0

    def _lines(self, path: str, pauses: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """Return the last lines as evidence if the log seems faulty; otherwise nothing."""
        settings, state = self.settings, self.states[path]
        quiet_s = self.now - state.last_progress_at
        is_odd = state.error or state.end or state.fell_from is not None
        if not is_odd and quiet_s < min(settings.floor_s, settings.timeout_s or settings.floor_s) - 1:
            return ()
        allowed_s = allowance(state.intervals, state.phase, settings, pauses, least_s=CONFIRMED_S).seconds
        if not is_odd and quiet_s < 0.9 * allowed_s - 1:
            return ()
        return last_lines(path, EVIDENCE_LINES)


def is_weak(state: LogState) -> bool:
    """Return whether the heartbeat of a log has neither a training word nor decimals: it may be a monitor's."""
    return state.kind == NUMBERS and any(one[0] == state.main and one[1] > RANKS[NUMBERS] for one in state.templates)


def expected_of(reading: LogReading) -> str:
    """Return the packed state that the log of the next job is expected to have; empty if no heartbeat is known."""
    states = [state for _, text in reading.logs if (state := _unpacked(text)) is not None and state.turned_at]
    newest = max(states, key=lambda state: state.turned_at, default=None)
    return reading.expected if newest is None else packed(heartbeat_of(newest))


def _unpacked(known: str | None) -> LogState | None:
    try:
        return unpacked(known) if known else None
    except (ValueError, TypeError):
        return None  # of another version: the log is read as if for the first time


def _troubled(state: LogState, kind: str, why: str, now: float) -> LogState:
    since = state.troubled if state.trouble_kind == kind else now
    return state._replace(trouble=why, trouble_kind=kind, troubled=since)


def _read(
    path: str,
    state: LogState,
    now: float,
    limit_bytes: int,
    own: re.Pattern[bytes] | None,
    ignored: re.Pattern[bytes],
) -> LogState:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return _troubled(state, "not-read", f"is {_kind(info.st_mode)}, not a log", now)
        size = info.st_size
        if state.inode and (info.st_ino != state.inode or size < state.offset):
            state = begun_again(state)
        is_new = state.looked == 0
        window = _window(descriptor, state.offset, size, min(FIRST_BYTES, limit_bytes) if is_new else limit_bytes)
        if state.inode and crc32(_mark(descriptor, state.offset) if window.skipped else window.mark) != state.mark:
            state = begun_again(state)  # rewritten in place: read it from its start
            window = _window(descriptor, 0, size, limit_bytes)
        written, skew_s = _written(info.st_mtime, state, now)
        if is_new:
            state = state._replace(first_seen=now, last_progress_at=written, last_output_at=written)
        blocks = in_blocks(size, not window.chunk.endswith((b"\n", b"\r")))
        after = digest(
            state, window.lines, written=written, own=own, in_blocks=blocks, ignored=ignored, skipped=window.skipped
        )
        if is_new and after.step is None and window.skipped and limit_bytes > FIRST_BYTES:
            window = _window(descriptor, 0, size, limit_bytes)
            after = digest(
                state, window.lines, written=written, own=own, in_blocks=blocks, ignored=ignored, skipped=window.skipped
            )
        if skew_s < 0 <= state.skew_s:
            after = after._replace(intervals=state.intervals)  # the interval would span two clocks
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
        skipped: number of unread bytes before it, beyond the limit.
    """

    start: int
    chunk: bytes
    mark: bytes
    skipped: int

    @property
    def lines(self) -> bytes:
        """The part without a truncated line at its start: half a number would be another step."""
        chunk = self.chunk
        if not self.mark or self.mark[-1:] in (b"\n", b"\r"):
            return chunk
        ends = [end for end in (chunk.find(b"\n"), chunk.find(b"\r")) if end >= 0]
        return chunk[min(ends) + 1 :] if ends else b"..." + chunk.lstrip(b"0123456789.")


def _window(descriptor: int, start: int, size: int, limit_bytes: int) -> _Window:
    """Return the file from `start`, in one read; only the last `limit_bytes` of it."""
    skipped = max(0, size - limit_bytes - start)
    start += skipped
    mark_at = max(0, start - MARK_BYTES)
    blob = os.pread(descriptor, size - mark_at, mark_at)
    return _Window(start, blob[start - mark_at :], blob[: start - mark_at], skipped)


def _mark(descriptor: int, offset: int) -> bytes:
    """Return the last bytes before an offset."""
    mark_at = max(0, offset - MARK_BYTES)
    return os.pread(descriptor, offset - mark_at, mark_at)


def _consumed(chunk: bytes) -> int:
    """Return the length of the part of a chunk that is not read again: all but an unfinished last line."""
    end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
    return end if len(chunk) - end <= REREAD_BYTES else len(chunk)


def _written(mtime: float, state: LogState, now: float) -> tuple[float, float]:
    """Return the time of the last write by our clock, and the least difference of the file server's clock.

    Output that was new in this probe was written after the previous one, whatever the file server reports.
    """
    since = state.looked
    if mtime > now:
        return now, mtime - now if mtime - now > SKEW_S else 0.0
    if since and mtime < since:
        return since, mtime - since if since - mtime > SKEW_S else 0.0
    return mtime, 0.0


def last_lines(path: str, count: int) -> tuple[str, ...]:
    """Return the last lines of a log for display, without status lines of watchdogs; none if it cannot be read."""
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
    printed = [lines.shown(line) for line in (*finished, rest) if line and not lines.PULSE.match(line)]
    return tuple([line for line in printed if line][-count:])


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
