"""Runs of an entry: the history, and active runs, which only their marks record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from resilience.cron.records import Outcome, RunRecord
from resilience.job import Liveness

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.table.running import Mark

Marks = Mapping[str, tuple["Mark", ...]]


def marks_of(cron: CronProject) -> Marks:
    """Return the marks of active runs, by the entry's key. Raise StateDirectoryError if they cannot be read."""
    from resilience.cron.table.running import marks

    found: dict[str, tuple[Mark, ...]] = {}
    for mark in marks(cron.state):
        found[mark.key] = (*found.get(mark.key, ()), mark)
    return found


def runs_of(cron: CronProject, key: str, marks: Marks | None = None) -> tuple[RunRecord, ...]:
    """Return the slots of an entry, oldest first, including active runs.

    Raise StateDirectoryError if they cannot be read.
    """
    runs = {run.slot: run for run in cron.state.history(key)}
    for mark in (marks_of(cron) if marks is None else marks).get(key, ()):
        if mark.slot not in runs or runs[mark.slot].outcome is Outcome.RUNNING:
            runs[mark.slot] = _under_way(cron, mark)
    return tuple(runs[slot] for slot in sorted(runs))


def _under_way(cron: CronProject, mark: Mark) -> RunRecord:
    """Return the record of a mark: RUNNING, or CUT_SHORT if no tick has noticed yet."""
    from resilience.cron.table.output import outputs
    from resilience.cron.table.running import liveness_of

    if mark.end is not None:
        return mark.end
    now = cron.project.system.clock.now()
    names = [
        name for name in outputs(cron.state, mark.key) if name.partition(".")[0].partition("-")[0] == f"{mark.slot}"
    ]
    record = RunRecord(
        name=mark.name, slot=mark.slot, outcome=Outcome.RUNNING, time=now, started=mark.started, host=mark.host,
        pid=mark.pid, output=names[-1] if names else "",
    )  # fmt: skip
    liveness, why = liveness_of(cron.state, mark, now=now)
    if liveness is Liveness.GONE:
        return replace(record, outcome=Outcome.CUT_SHORT, summary=why)
    return record
