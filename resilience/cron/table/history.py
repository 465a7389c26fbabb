"""Limits the length of an entry's history without losing lines of concurrent writers.

A new file without the old lines replaces the old one. A writer may still append to the old file, so the old file is
read again after the replacement, and every writer checks that its line is in the current file. Lines appended before
the replacement are found by the first check, later ones by the second. At worst a line appears twice, which is
harmless: the last line of each slot counts.
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
"""Longer histories are shortened."""

KEPT_LINES = 500
"""Number of lines kept then."""

_LEAST_BYTES = MOST_LINES * 40
"""Smaller files cannot have that many lines."""

_CHECKED_BYTES = 65536
_ATTEMPTS = 3


def add(directory: CronDirectory, key: str, run: RunRecord) -> None:
    """Append a line to an entry's history, and make sure that it is there. Raise StateDirectoryError if that fails."""
    path = directory.path / "history" / f"{key}.jsonl"
    for _ in range(_ATTEMPTS):
        directory.record(key, run)
        if _contains(path, run):
            return


def _contains(path: Path, run: RunRecord) -> bool:
    line = json.dumps(run.to_json(), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            return line in os.pread(descriptor, _CHECKED_BYTES, max(0, size - _CHECKED_BYTES))
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explain_os_error(error, "read", path) from error


def shorten(directory: CronDirectory, key: str, *, most: int = MOST_LINES, kept: int = KEPT_LINES) -> int:
    """Shorten a history of more than `most` lines to the newest `kept`; return how many lines were removed.

    RUNNING lines of finished slots are removed first. Raise StateDirectoryError if the history cannot be written.
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
        late = _rest(descriptor, len(old))  # appended to the old file while the new one was written
        for line in late.splitlines():
            with suppress(ValueError, KeyError, TypeError):
                add(directory, key, RunRecord.from_json(json.loads(line)))
        return len(lines) - len(left)
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int, path: Path) -> bool:
    """Return whether this process alone may rewrite the file: two at once could each drop lines that the other kept."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        # A file server without locks: the race is limited to one write.
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
