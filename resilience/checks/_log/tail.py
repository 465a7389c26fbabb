"""Reads what is new in a log, and no more: bounded bytes, never waiting, whatever lies in the log's place."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os
import re
import stat
from binascii import crc32

from resilience.checks._log import lines
from resilience.checks._log.digest import begun_again, digest
from resilience.checks._log.words import LogState

FIRST_BYTES = 65536
"""Read of the end of a log that was never looked at; more if there is no step in it."""
REREAD_BYTES = 65536
"""An unfinished line is read again next time, unless it is longer than this."""
MARK_BYTES = 64
SHOWN_BYTES = 16384
SKEW_S = 5.0


def look(
    path: str, before: LogState | None, now: float, *, limit_bytes: int, own: re.Pattern[bytes] | None
) -> LogState:
    """What is known of a log now. A log that cannot be read keeps what was known, and says why."""
    state = before or LogState(first_seen=now, advanced=now, talked=now)
    try:
        info = os.stat(path)
        if (
            info.st_mtime_ns == state.mtime_ns
            and info.st_size == state.size
            and info.st_ino == state.inode
            and not state.trouble
        ):
            return state._replace(looked=now, skipped=0) if state.skipped else state._replace(looked=now)
        if not stat.S_ISREG(info.st_mode):
            return _troubled(state, "not-read", f"it is {_kind(info.st_mode)}, not a log", now)
        return _read(path, state, now, limit_bytes, own)
    except FileNotFoundError:
        target = _link(path)
        why = f"a link to {target}, which is not there" if target else "there is no such file"
        return _troubled(state, "missing", why, now)
    except OSError as error:
        return _troubled(state, "not-read", error.strerror or str(error), now)


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
