"""Keeps an entry's history bounded, and loses no line of another writer over it.

The file is written anew without its old lines, and takes the old one's place. Whoever adds a line meanwhile may add it
to the old file: so the old one is looked at again after the change, and every writer looks whether its own line stands
in the file that counts. A line that was added before the change is seen by the first look, one that was added after it
by the second. What can happen is a line twice, which means nothing: of each slot, the last line counts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path

from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.system.files import explain_os_error, write_atomic

MOST_LINES = 1000
"""Beyond this, the history is written anew."""

KEPT_LINES = 500
"""So many are kept then."""

_LEAST_BYTES = MOST_LINES * 40
"""No file that is smaller has so many lines."""

_LOOK_AT_BYTES = 65536
_AGAIN = 3


def add(directory: CronDirectory, key: str, run: RunRecord) -> None:
    """Add a line to an entry's history, and see to it that it stands there. Raise StateDirectoryError if it cannot."""
    path = directory.path / "history" / f"{key}.jsonl"
    for _ in range(_AGAIN):
        directory.record(key, run)
        if _stands(path, run):
            return


def _stands(path: Path, run: RunRecord) -> bool:
    line = json.dumps(run.to_json(), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            return line in os.pread(descriptor, _LOOK_AT_BYTES, max(0, size - _LOOK_AT_BYTES))
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def shorten(directory: CronDirectory, key: str, *, most: int = MOST_LINES, kept: int = KEPT_LINES) -> int:
    """Where an entry's history has more than `most` lines, keep the newest `kept`; return how many went.

    RUNNING lines of slots that have ended go first. Raise StateDirectoryError if it cannot be written.
    """
    path = directory.path / "history" / f"{key}.jsonl"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    try:
        if os.fstat(descriptor).st_size < min(_LEAST_BYTES, most * 40) or not _is_ours(descriptor, path):
            return 0
        old = _rest(descriptor, 0)
        lines = old.splitlines(keepends=True)
        if len(lines) <= most:
            return 0
        left = _without_superseded(lines)[-kept:]
        write_atomic(path, b"".join(left), mode=directory.file_mode)
        late = _rest(descriptor, len(old))  # added to the old file while the new one was written
        for line in late.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                add(directory, key, RunRecord.from_json(json.loads(line)))
        return len(lines) - len(left)
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int, path: Path) -> bool:
    """Whether this process alone may write it anew: two at once could each drop what the other has kept."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        # A file server without locks: the window is the time of one write.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _rest(descriptor: int, begin: int) -> bytes:
    found = bytearray()
    while chunk := os.pread(descriptor, 2**18, begin + len(found)):
        found += chunk
    return bytes(found)


def _without_superseded(lines: list[bytes]) -> list[bytes]:
    found: list[bytes] = []
    ended: set[int] = set()
    for line in reversed(lines):
        try:
            run = RunRecord.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, StateDirectoryError):
            continue
        if run.outcome is Outcome.RUNNING and run.slot in ended:
            continue
        ended.add(run.slot)
        found.append(line if line.endswith(b"\n") else line + b"\n")
    return found[::-1]
