"""Learns from whole logs of earlier jobs how long a training pauses: `resil watch log --learn OLD.log`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from resilience.errors import ProbeError
from resilience.watch.checks._log.digest import digest
from resilience.watch.checks._log.reading import LogReading, LogState, Pause, merged_pauses

CHUNK_BYTES = 2**22
MOST_BYTES = 2**30
"""The most that is read of one log, from its end."""


def taught(
    known: Mapping[str, LogReading], subjects: Sequence[str], paths: Sequence[str], own: re.Pattern[bytes] | None
) -> dict[str, LogReading]:
    """Return the previous readings with what these logs teach about the subjects; each log is read once.

    Raise ProbeError if a log cannot be read or teaches nothing.
    """
    logs = tuple(_identity(path) for path in paths)
    readings = dict(known)
    learners = [one for one in subjects if readings.get(one, LogReading()).taught != logs]
    if not learners:
        return readings
    pauses = merged_pauses(*(_pauses(path, own) for path in paths))
    for subject in learners:
        before = readings.get(subject, LogReading())
        both = tuple(map(tuple, merged_pauses(before.pauses, pauses)))
        readings[subject] = replace(before, pauses=both, taught=logs)
    return readings


def _identity(path: str) -> tuple[str, int, int]:
    try:
        info = Path(path).stat()
    except OSError as error:
        raise ProbeError(f"cannot learn from {path}: {error.strerror}", hint="ls -l the logs of earlier jobs") from None
    if not stat.S_ISREG(info.st_mode):
        raise ProbeError(f"cannot learn from {path}: not a regular file")
    return (path, info.st_size, info.st_mtime_ns)


def _pauses(path: str, own: re.Pattern[bytes] | None) -> Sequence[Pause]:
    """Return the pauses between the lines with progress, by their timestamps."""
    state, rest = LogState(), b""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_BYTES))
            while chunk := file.read(CHUNK_BYTES):
                whole, end, rest = (rest + chunk).rpartition(b"\n")
                state = digest(state, whole + end, written=0.0, own=own, most_lines=CHUNK_BYTES)
    except OSError as error:
        raise ProbeError(f"cannot learn from {path}: {error.strerror}") from None
    if not state.kind:
        raise ProbeError(f"cannot learn from {path}: no step found in it", hint="set progress_regex in [watch.log]")
    if not state.stamp or not (state.intervals or state.pauses):
        raise ProbeError(
            f"cannot learn from {path}: its lines with progress have no timestamps ({state.shape})",
            hint="let the watchdog see one evaluation and one save: it remembers them for the jobs to come",
        )
    return [Pause(*one) for one in state.pauses]
