"""How far a run has come, as its own files tell: heartbeats first, then the end of its newest log."""

from __future__ import annotations

import os
import re
from pathlib import Path

from resilience.model import layout
from resilience.system.run_directory import RunDirectory

TAIL_BYTES = 65536
_BEAT_STEP = re.compile(rb"^step\s*=\s*(\d+)", re.MULTILINE)
_LOG_STEP = re.compile(rb"\b(?:global[_ ]step|step|iteration|iter)\b[\s:=#\[(]*(\d+)", re.IGNORECASE)


def last_step(directory: RunDirectory) -> int | None:
    """The last step that a heartbeat or a log of the run shows, or None when nothing tells."""
    return _from_beats(directory.path / layout.BEATS) or _from_log(newest_log(directory))


def newest_log(directory: RunDirectory) -> Path | None:
    """The run's log written to last, or None."""
    logs = list(_by_age(directory.path / layout.LOGS))
    return logs[-1] if logs else None


def _by_age(folder: Path) -> list[Path]:
    try:
        entries = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return []
    return [Path(path) for _, path in sorted(entries)]


def _from_beats(folder: Path) -> int | None:
    for path in reversed(_by_age(folder)):
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
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES)
    except OSError:
        return b""
