"""Reads the queue of a spool: submissions, jobs, and their pending reasons. Read only."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from resilience.errors import NoSuchJob, SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId, JobState
from resilience.schedulers._local import rules
from resilience.schedulers._local.dependency import job_ids, with_array_ids
from resilience.schedulers._local.records import Entry, Task, job_of, jobs_of
from resilience.schedulers._local.spool import SPOOL_VARIABLE, RecordQuarantined, Spool

Entries = dict[int, Entry]
Tasks = dict[int, Sequence[Task]]
_TASK_NAME = re.compile(r"(\d+)_(\d+)")


class Queue:
    """The queue of one spool, read by every method. Every method may raise SchedulerUnavailable."""

    def __init__(self, spool: Spool, *, host: str, cpus: int) -> None:
        self._spool = spool
        self._host = host
        self._cpus = cpus

    def require(self) -> None:
        """Raise SchedulerUnavailable if there is no spool, because jobs may be alive elsewhere."""
        if not self._spool.exists():
            raise SchedulerUnavailable(
                f"there is no spool of the embedded scheduler at {self._spool.root}",
                hint=f"nothing was submitted yet, or ${SPOOL_VARIABLE} or the file system has changed",
            )
        self._spool.refuse_other_machine()

    def locate(self, job_id: JobId) -> tuple[Entry, list[int]]:
        """Return the submission of a job id, and the raw ids of the selected jobs. Raise NoSuchJob."""
        entry = self._spool.owner_of(job_id.array)
        if entry is not None and job_id.task is None:
            return entry, list(entry.raw_ids) if entry.id == job_id.array else [job_id.array]
        raws = [raw for raw in entry.raw_ids if entry.index_of(raw) == job_id.task] if entry is not None else []
        if entry is None or not raws or entry.id != job_id.array:
            raise NoSuchJob(
                f"Invalid job id specified: there is no job {job_id}",
                hint="ended jobs are kept for a week; `resil status` lists the jobs of a run",
            )
        return entry, raws

    def load(self, *, finished: bool = False) -> tuple[Entries, Tasks]:
        """Return the active submissions, or with `finished` all submissions, and their jobs."""
        entries: Entries = {}
        tasks: Tasks = {}
        for key in self._spool.everything() if finished else self._spool.active():
            # A damaged record is logged in daemon.log, and its job's presence is UNKNOWN.
            with contextlib.suppress(RecordQuarantined):
                entry = self._spool.entry(key)
                if entry is not None:
                    entries[key] = entry
                    tasks[key] = self._spool.tasks(entry)
        return entries, tasks

    def records(self, entries: Entries, tasks: Tasks, now: float, *, finished: bool) -> tuple[Job, ...]:
        """Return the records as shown by squeue, with pending reasons."""
        reasons = self._plan(entries, tasks, now).reasons
        result: list[Job] = []
        for key, entry in entries.items():
            shown = [_with_reason(task, reasons) for task in tasks[key]]
            result.extend(jobs_of(entry, [task for task in shown if finished or task.state.is_alive], self._host))
        return tuple(result)

    def records_of(self, entry: Entry, now: float, *, only: int | None = None) -> tuple[Job, ...]:
        """Return the records of a submission, including ended jobs; with `only`, the record of this job."""
        entries, tasks = self.load()
        entries[entry.id], tasks[entry.id] = entry, self._spool.tasks(entry)
        reasons = self._plan(entries, tasks, now).reasons
        shown = [_with_reason(task, reasons) for task in tasks[entry.id]]
        if only is not None:
            return tuple(job_of(entry, task, self._host) for task in shown if task.raw == only)
        return jobs_of(entry, shown, self._host)

    def forecast(self, entry: Entry, now: float) -> str:
        """Return why a new submission would wait; empty if it would start now."""
        entries, tasks = self.load()
        entries[entry.id] = entry
        tasks[entry.id] = [entry.fresh(raw) for raw in entry.raw_ids]
        plan = self._plan(entries, tasks, now)
        first = entry.raw_ids[0]
        return "" if first in plan.start else plan.reasons.get(first, "")

    def resolve(self, dependency: str) -> str:
        """Return a dependency with tasks as `array_index`. Raise SchedulerError if one of its jobs does not exist."""
        names: dict[int, tuple[int, int]] = {}
        for key in job_ids(dependency):
            entry = self._spool.owner_of(key) if self._spool.exists() else None
            if entry is None:
                raise _dependency_problem(f"there is no job {key}")
            if entry.id != key:
                index = entry.index_of(key)
                names[key] = (entry.id, index if index is not None else 0)
        for array, index in _TASK_NAME.findall(dependency):
            entry = self._spool.entry(int(array))
            if entry is None or entry.indices is None or int(index) not in entry.indices:
                raise _dependency_problem(f"there is no job {array}_{index}")
        return with_array_ids(dependency, names) if names else dependency

    def _plan(self, entries: Entries, tasks: Tasks, now: float) -> rules.Plan:
        known = dict(tasks)
        for group in tasks.values():
            for task in group:
                for key in job_ids(task.dependency) if task.dependency and task.state.is_alive else ():
                    if key not in known and (entry := self._spool.entry(key)) is not None:
                        known[key] = self._spool.tasks(entry)
        return rules.plan(entries, known, now, self._cpus)


def _with_reason(task: Task, reasons: Mapping[int, str]) -> Task:
    """Return a pending job with its reason; a job about to start keeps the reason of its requeue."""
    if task.state is not JobState.PENDING:
        return task
    return replace(task, reason=reasons.get(task.raw) or task.reason or "None")


def _dependency_problem(why: str) -> SchedulerError:
    return SchedulerError(
        f"Batch job submission failed: Job dependency problem ({why})",
        hint="`resil status` shows the known jobs; ended jobs are kept for a week",
    )
