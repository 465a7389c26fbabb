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

from resilience.checks._log import lines
from resilience.checks._log.digest import begun_again, digest
from resilience.checks._log.threshold import allowance
from resilience.checks._log.words import LogReading, LogSettings, LogState, Moment, Raw

FIRST_BYTES = 65536
"""Read of the end of a log that was never looked at; more if there is no step in it."""
REREAD_BYTES = 65536
"""An unfinished line is read again next time, unless it is longer than this."""
MARK_BYTES = 64
SHOWN_BYTES = 16384
EVIDENCE_LINES = 5
PATIENCE_S = 2.0
"""After so long a tick reads only the ends of what is left: ten thousand new logs at once, a flood of output."""
HURRIED_BYTES = 4096
INODE, MTIME_NS, SIZE, ADVANCED, FELL_FROM, INTERVALS, PHASE, END, ERROR, TROUBLE = map(
    LogState._fields.index,
    ("inode", "mtime_ns", "size", "advanced", "fell_from", "intervals", "phase", "end", "error", "trouble"),
)
"""Where these stand in a plain tuple: most logs are unchanged, and need nothing else."""
SKEW_S = 5.0


class Looker:
    """Looks at logs in one tick, at one moment, and remembers how long that has taken.

    Attributes:
        settings: the watchdog's.
        moment: (seconds since the epoch, monotonic seconds, boot) of the tick.
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
        self._own = own
        self._arm = arm
        self._hurries_at = time.monotonic() + PATIENCE_S

    def log(self, path: str, raw: Raw | None, looked: float, info: os.stat_result | None = None) -> Raw:
        """What is known of a log now, as a plain tuple. A log that cannot be read keeps what was known, and says why.

        `raw` is what was known at the look before, which was at `looked`; `info` spares a system call.
        """
        try:
            info = info or os.stat(path)
            if (
                raw is not None
                and info.st_mtime_ns == raw[MTIME_NS]
                and info.st_size == raw[SIZE]
                and info.st_ino == raw[INODE]
                and not raw[TROUBLE]
            ):
                return raw
            state = self._state(raw, looked)
            if not stat.S_ISREG(info.st_mode):
                return tuple(_troubled(state, "not-read", f"it is {_kind(info.st_mode)}, not a log", self.now))
            if self._arm is not None:
                self._arm(path)
            hurries = time.monotonic() > self._hurries_at
            limit_bytes = HURRIED_BYTES if hurries else int(self.settings.read_bytes)
            return tuple(_read(path, state, self.now, limit_bytes, self._own))
        except FileNotFoundError:
            target = _link(path)
            why = f"a link to {target}, which is not there" if target else "there is no such file"
            return tuple(_troubled(self._state(raw, looked), "missing", why, self.now))
        except OSError as error:
            why = error.strerror or str(error)
            return tuple(_troubled(self._state(raw, looked), "not-read", why, self.now))

    def _state(self, raw: Raw | None, looked: float) -> LogState:
        if raw is None:
            return LogState(first_seen=self.now, advanced=self.now, talked=self.now)
        state = LogState(*raw)
        return state._replace(looked=max(state.looked, looked)) if state.looked else state

    def reading(
        self,
        paths: Sequence[str],
        before: LogReading | None,
        infos: Mapping[str, os.stat_result] | None = None,
    ) -> LogReading:
        """Look at these logs as one subject."""
        known = dict(before.logs) if before is not None else {}
        looked = before.clock[0] if before is not None else 0.0
        logs = tuple(
            [(path, self.log(path, known.get(path), looked, infos.get(path) if infos else None)) for path in paths]
        )
        path, newest = logs[0] if len(logs) == 1 else max(logs, key=_advanced)
        return LogReading(logs=logs, lines=self._lines(path, newest), clock=self.moment)

    def _lines(self, path: str, raw: Raw) -> tuple[str, ...]:
        """The last lines, for evidence, where something seems to be wrong."""
        settings = self.settings
        quiet_s = self.now - raw[ADVANCED]
        is_odd = raw[ERROR] or raw[END] or raw[FELL_FROM] is not None
        if not is_odd and quiet_s < min(settings.floor_s, settings.timeout_s or settings.floor_s) - 1:
            return ()
        if not is_odd and quiet_s < 0.9 * allowance(raw[INTERVALS], raw[PHASE], settings).seconds - 1:
            return ()
        return last_lines(path, EVIDENCE_LINES)


def _advanced(log: tuple[str, Raw]) -> float:
    return float(log[1][ADVANCED])


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
        is_known = state.inode != 0
        if is_known and not _goes_on(descriptor, info, state):
            state, is_known = begun_again(state), False
        is_new = not is_known and state.looked == 0
        start = state.offset
        skipped = 0
        if is_new:
            start = max(0, size - min(FIRST_BYTES, limit_bytes))
        elif size - start > limit_bytes:
            skipped = size - limit_bytes - start
            start = size - limit_bytes
        chunk = os.pread(descriptor, size - start, start)
        written, skew_s = _written(info.st_mtime, state, now)
        if is_new:
            state = state._replace(first_seen=now, advanced=written, talked=written)
        after = digest(state, _whole_lines(descriptor, chunk, start), written=written, own=own)
        if is_new and after.step is None and start > 0 and limit_bytes > len(chunk):
            start = max(0, size - limit_bytes)
            chunk = os.pread(descriptor, size - start, start)
            after = digest(state, _whole_lines(descriptor, chunk, start), written=written, own=own)
        offset = start + _consumed(chunk)
        mark_at = max(0, offset - MARK_BYTES)
        mark = crc32(os.pread(descriptor, offset - mark_at, mark_at))
    finally:
        os.close(descriptor)
    return after._replace(
        inode=info.st_ino, mtime_ns=info.st_mtime_ns, size=size, offset=offset, mark=mark, looked=now, skipped=skipped,
        skew_s=skew_s, trouble="", trouble_kind="", troubled=0.0,
    )  # fmt: skip


def _goes_on(descriptor: int, info: os.stat_result, state: LogState) -> bool:
    """Whether the file is the one that was read, with something more at its end."""
    if info.st_ino != state.inode or info.st_size < state.offset:
        return False
    mark_at = max(0, state.offset - MARK_BYTES)
    return crc32(os.pread(descriptor, state.offset - mark_at, mark_at)) == state.mark


def _whole_lines(descriptor: int, chunk: bytes, start: int) -> bytes:
    """A chunk without the half line at its beginning: half a number would be another step."""
    if start == 0 or os.pread(descriptor, 1, start - 1) in (b"\n", b"\r"):
        return chunk
    ends = [end for end in (chunk.find(b"\n"), chunk.find(b"\r")) if end >= 0]
    return chunk[min(ends) + 1 :] if ends else b"..." + chunk.lstrip(b"0123456789.")


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
        (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    )  # fmt: skip
    return next((name for test, name in names if test(mode)), "no regular file")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
