"""Recovers runs whose supervisor died: kills their processes, and records their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from resilience.base.processes import is_alive
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.history import add
from resilience.cron.table.running import Here, Mark, here, liveness_of, marks, remove_mark
from resilience.errors import StateDirectoryError
from resilience.job import Liveness


def kill_session(leader: int) -> int:
    """Kill the processes of a session whose leader has died; return how many.

    The kernel does not reuse the number of a session while a process of it exists (setsid(2), alloc_pid): its processes
    belong to that session, unless the number is that of a live process.
    """
    if leader <= 1 or is_alive(leader):
        return 0
    ended = 0
    for pid in session_members(leader):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            ended += 1
    return ended


def session_members(leader: int) -> tuple[int, ...]:
    """Return the live processes of a session (proc_pid_stat(5), field 6)."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names only
        if not name.isdigit():
            continue
        with suppress(OSError):
            fields = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
            if len(fields) > 3 and int(fields[3]) == leader and fields[0] not in (b"Z", b"X") and int(name) != leader:
                found.append(int(name))
    return tuple(found)


def settle_dead_runs(directory: CronDirectory, *, now: float, at: Here | None = None) -> tuple[RunRecord, ...]:
    """Finish runs whose supervisor died: record CUT_SHORT (or an end that could not be recorded before), kill remaining
    processes on this host, remove the mark, and return the records.

    Called at the start of each tick; of several concurrent callers, one gets the record. Raise StateDirectoryError if
    the marks cannot be read, or nothing can be written.
    """
    found = []
    at = at or here()
    for mark in marks(directory):
        if mark.end is not None:
            record = mark.end
        else:
            state, reason = liveness_of(directory, mark, now=now, at=at)
            if state is not Liveness.GONE:
                continue
            if (mark.host, mark.boot, mark.namespace) == at:
                kill_session(mark.pid)
            known = next((run for run in directory.history(mark.key) if run.slot == mark.slot), None)
            if (
                known is not None and known.outcome is not Outcome.RUNNING
            ):  # it died between writing the history and removing the mark
                record = known
            else:
                record = RunRecord(
                    name=mark.name, slot=mark.slot, outcome=Outcome.CUT_SHORT, time=now, started=mark.started,
                    host=mark.host, pid=mark.pid, summary=f"its supervisor died: {reason}",
                )  # fmt: skip
        add(directory, mark.key, record)
        if remove_mark(directory, mark):
            found.append(record)
    return tuple(found)


def record_end(directory: CronDirectory, mark: Mark, record: RunRecord) -> RunRecord:
    """Record the end of a run whose supervisor is gone; return the record, with a note if it cannot be written."""
    try:
        add(directory, mark.key, record)
        remove_mark(directory, mark)
    except StateDirectoryError as error:
        return with_note(record, f"not in the history yet: {error}")
    return record


def with_note(record: RunRecord, note: str) -> RunRecord:
    """Return the record with a note appended to its summary."""
    return replace(record, summary=f"{record.summary}; {note}" if record.summary else note)
