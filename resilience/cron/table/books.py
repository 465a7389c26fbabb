"""Closes the books of runs whose supervisor died: by the scheduler that sees it, or by the next tick that comes."""

from __future__ import annotations

from dataclasses import replace

from resilience.cron.records import Outcome, RunRecord
from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.history import add
from resilience.cron.table.leftovers import kill_session
from resilience.cron.table.running import Here, Mark, here, liveness_of, marks, remove_mark
from resilience.errors import StateDirectoryError
from resilience.job import Liveness


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
