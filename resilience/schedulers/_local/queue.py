"""Reads the queue in a spool: submissions, jobs, and the reasons why they wait. Changes nothing."""

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
    """The queue of one spool, read afresh by every method. Every method may raise SchedulerUnavailable."""

    def __init__(self, spool: Spool, *, host: str, cpus: int) -> None:
        self._spool = spool
        self._host = host
        self._cpus = cpus

    def require(self) -> None:
        """Raise SchedulerUnavailable where there is no spool: its jobs may live."""
        if not self._spool.exists():
            raise SchedulerUnavailable(
                f"there is no spool of the embedded scheduler at {self._spool.root}",
                hint=f"nothing was submitted yet, or ${SPOOL_VARIABLE} or the file system is another one now",
            )
        self._spool.refuse_other_machine()

    def locate(self, job_id: JobId) -> tuple[Entry, list[int]]:
        """The submission, and the raw ids of those of its jobs that are meant. Raise NoSuchJob."""
        entry = self._spool.owner_of(job_id.array)
        if entry is not None and job_id.task is None:
            return entry, list(entry.raw_ids) if entry.id == job_id.array else [job_id.array]
        raws = [raw for raw in entry.raw_ids if entry.index_of(raw) == job_id.task] if entry is not None else []
        if entry is None or not raws or entry.id != job_id.array:
            raise NoSuchJob(
                f"Invalid job id specified: there is no job {job_id}",
                hint="ended jobs are remembered for a week; `resil status` lists the jobs of a run",
            )
        return entry, raws

    def load(self, *, finished: bool = False) -> tuple[Entries, Tasks]:
        """Every submission that is not over, or with `finished` all, and their jobs."""
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
        """The records as squeue shows them, with the reasons why jobs wait."""
        reasons = self._plan(entries, tasks, now).reasons
        result: list[Job] = []
        for key, entry in entries.items():
            shown = [_with_reason(task, reasons) for task in tasks[key]]
            result.extend(jobs_of(entry, [task for task in shown if finished or task.state.is_alive], self._host))
        return tuple(result)

    def records_of(self, entry: Entry, now: float, *, only: int | None = None) -> tuple[Job, ...]:
        """The records of one submission, ended jobs included; with `only`, that of this one of its jobs."""
        entries, tasks = self.load()
        entries[entry.id], tasks[entry.id] = entry, self._spool.tasks(entry)
        reasons = self._plan(entries, tasks, now).reasons
        shown = [_with_reason(task, reasons) for task in tasks[entry.id]]
        if only is not None:
            return tuple(job_of(entry, task, self._host) for task in shown if task.raw == only)
        return jobs_of(entry, shown, self._host)

    def forecast(self, entry: Entry, now: float) -> str:
        """Why a submission that is not queued yet would wait; empty when it would start now."""
        entries, tasks = self.load()
        entries[entry.id] = entry
        tasks[entry.id] = [entry.fresh(raw) for raw in entry.raw_ids]
        plan = self._plan(entries, tasks, now)
        first = entry.raw_ids[0]
        return "" if first in plan.start else plan.reasons.get(first, "")

    def resolve(self, dependency: str) -> str:
        """Check that every job it names exists, and name tasks of arrays as such. Raise SchedulerError otherwise."""
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
    """A waiting job with why it waits; one that is about to start keeps the reason it was put back for."""
    if task.state is not JobState.PENDING:
        return task
    return replace(task, reason=reasons.get(task.raw) or task.reason or "None")


def _dependency_problem(why: str) -> SchedulerError:
    return SchedulerError(
        f"Batch job submission failed: Job dependency problem ({why})",
        hint="`resil status` shows the jobs that are known; ended ones are remembered for a week",
    )
