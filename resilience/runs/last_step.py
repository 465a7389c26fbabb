"""How far a run has come, as its own files tell: heartbeats first, then the end of its newest log."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.attempts import read_attempts
from resilience.runs.run_directory import RunDirectory
from resilience.system.files import open_without_waiting

TAIL_BYTES = 65536
LOGS_READ = 8
BEATS_READ = 64
"""A run of a thousand nodes has as many heartbeats; the newest few tell."""
# At most 18 digits: int() refuses very long texts. No line ends: the number on the next line may be a date.
_BEAT_STEP = re.compile(rb"^step[ \t]*=[ \t]*([0-9]{1,18})", re.MULTILINE)
_LOG_STEP = re.compile(rb"\b(?:global[_ ]step|step|iteration|iter)\b[ \t:=#\[(]*([0-9]{1,18})(?![0-9])", re.IGNORECASE)


def last_step(directory: RunDirectory) -> int | None:
    """The last step that a heartbeat or a log of the run shows, or None when nothing tells."""
    step = _from_beats(directory.path / layout.BEATS)
    if step is not None:
        return step
    # A job that has just begun has written nothing yet; the one before has.
    newest = newest_log(directory)
    older = [path for path in reversed(logs_by_age(directory)[-LOGS_READ:]) if path != newest]
    return next((found for path in (newest, *older) if (found := _from_log(path)) is not None), None)


def newest_log(directory: RunDirectory) -> Path | None:
    """The log of the last attempt, else the one written to last, or None.

    A job that found the run finished or killed writes a log as well, which would hide what people look for.
    """
    logs = logs_by_age(directory)
    with suppress(StateDirectoryError):
        for attempt in read_attempts(directory, newest=1):
            own = [path for path in logs if path.stem.endswith(f"-{attempt.label}")]
            return own[-1] if own else logs[-1] if logs else None
    return logs[-1] if logs else None


def logs_by_age(directory: RunDirectory) -> list[Path]:
    """The run's logs, the one written to last at the end."""
    return _by_age(directory.path / layout.LOGS)


def _by_age(folder: Path) -> list[Path]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Files are renamed here all the time: one that just went away must not hide the others.
                with suppress(OSError):
                    if not entry.name.startswith(".") and entry.is_file():
                        found.append((entry.stat().st_mtime, entry.path))
    except OSError:
        return []
    return [Path(path) for _, path in sorted(found)]


def _from_beats(folder: Path) -> int | None:
    for path in reversed(_by_age(folder)[-BEATS_READ:]):
        match = _BEAT_STEP.search(_tail(path))
        if match:
            return int(match[1])
    return None


def _from_log(path: Path | None) -> int | None:
    if path is None:
        return None
    steps = _LOG_STEP.findall(_tail(path))
    return int(steps[-1]) if steps else None


def _tail(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""
