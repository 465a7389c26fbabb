"""Decides what happens next on one machine: which jobs start, which signals are due, how an end is recorded. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from resilience.errors import SchedulerError
from resilience.job import JobId, JobState, JobUpdate
from resilience.schedulers._local.dependency import Answer, after_start, judge, needs_singleton
from resilience.schedulers._local.records import Entry, Task

LAUNCH_FAILURE = (0, 53)
"""SLURM's exit code of a job whose output file could not be opened (`0:53`, reason JobLaunchFailure)."""

NODE_DOWN = "NodeDown"
"""The reason of a job that was lost: how it ended, or why it waits to run again."""

LOST_WAIT_S = 2.0
"""How long a lost job waits before it runs again, so that the first query after a power cut shows that the job was
lost (often that query starts the daemon). SLURM makes a requeued job wait two minutes."""

RECHECK_S = 1.0
"""How soon a delay of minutes (`after:7+1`) is checked again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next actions for the queue.

    Attributes:
        start: raw ids of the jobs to start, in order.
        cancel: raw ids of jobs with --kill-on-invalid-dep whose dependency can never be met.
        reasons: why each other queued job waits, by raw id, in SLURM's words.
        again_at: when the answer may change without anything happening; None when it will not.
    """

    start: tuple[int, ...] = ()
    cancel: tuple[int, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    again_at: float | None = None


def plan(entries: Mapping[int, Entry], tasks: Mapping[int, Sequence[Task]], now: float, cpus: int) -> Plan:
    """Say which queued jobs may start on a machine with `cpus` CPUs, and why the others wait.

    `tasks` has the jobs of every live submission, and of ended ones that others depend on. First come, first
    served: a job that fits the machine but not its free CPUs holds back the later ones, so that it is never starved.
    """
    everything = [(entries[key], task) for key, group in tasks.items() if key in entries for task in group]
    free = cpus - sum(entry.cpus for entry, task in everything if task.is_running)
    running = {key: sum(task.is_running for task in group) for key, group in tasks.items()}
    start: list[int] = []
    cancel: list[int] = []
    reasons: dict[int, str] = {}
    times: list[float] = []
    blocked = False
    queue = [pair for pair in everything if pair[1].state is JobState.PENDING]
    for entry, task in sorted(queue, key=lambda pair: (pair[1].queued_at, pair[1].raw)):
        reason = _own_reason(entry, task, everything, tasks, now)
        if reason == "BeginTime" and task.begin is not None:
            times.append(task.begin)
        elif reason == "Dependency" and "+" in task.dependency:
            times.append(now + RECHECK_S)
        elif reason == "DependencyNeverSatisfied" and entry.kill_invalid:
            cancel.append(task.raw)
        if not reason:
            if entry.throttle and running[entry.id] >= entry.throttle:
                reason = "JobArrayTaskLimit"
            elif entry.cpus > cpus:
                reason = "Resources"
            elif blocked:
                reason = "Priority"
            elif entry.cpus > free:
                reason, blocked = "Resources", True
        if reason:
            needs_person = task.held or reason == "DependencyNeverSatisfied"
            reasons[task.raw] = NODE_DOWN if task.reason == NODE_DOWN and not needs_person else reason
        else:
            start.append(task.raw)
            free -= entry.cpus
            running[entry.id] += 1
    return Plan(tuple(start), tuple(cancel), reasons, min(times, default=None))


def _own_reason(
    entry: Entry,
    task: Task,
    everything: Sequence[tuple[Entry, Task]],
    tasks: Mapping[int, Sequence[Task]],
    now: float,
) -> str:
    """Why it may not start whatever is free; empty when it may."""
    if task.held:
        return "JobHeldUser" if task.reason in ("", NODE_DOWN) else task.reason
    if task.begin is not None and task.begin > now:
        return "BeginTime"
    if task.dependency:
        alone = not needs_singleton(task.dependency) or _is_alone(entry, everything)
        answer = judge(task.dependency, task.index, tasks, now, singleton=alone)
        if answer is not Answer.YES:
            return "Dependency" if answer is Answer.NOT_YET else "DependencyNeverSatisfied"
    return ""


def _is_alone(entry: Entry, everything: Sequence[tuple[Entry, Task]]) -> bool:
    """True if no other job of this name runs, and no earlier one waits (sbatch(1), singleton)."""
    return not any(
        other.name == entry.name
        and other.id != entry.id
        and (task.is_running or (task.state is JobState.PENDING and other.id < entry.id))
        for other, task in everything
    )


class Due(StrEnum):
    """The signal that a running job is due: the early one, SIGTERM at the time limit, SIGTERM or SIGKILL on request."""

    NOTHING = "nothing"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    TERM = "term"
    KILL = "kill"


def due(entry: Entry, task: Task, now: float) -> Due:
    """Return the signal that is due for a running job. Limits are exact; SLURM checks only every 30 seconds."""
    if not task.is_running:
        return Due.NOTHING
    if task.ending and task.ending_at is not None:
        # A job that is still starting cannot be terminated yet, and is killed a second later.
        if now >= task.ending_at + entry.kill_wait_s + (0.0 if task.termed else 1.0):
            return Due.KILL
        return Due.NOTHING if task.termed else Due.TERM
    deadline = task.deadline
    if deadline is None or task.state is not JobState.RUNNING:
        return Due.NOTHING
    if now >= deadline:
        return Due.TIMEOUT
    if entry.signal and not task.signalled and now >= deadline - entry.signal_lead_s:
        return Due.SIGNAL
    return Due.NOTHING


def next_due(entry: Entry, task: Task) -> float | None:
    """Return the time at which the result of `due` may change, or None."""
    if not task.is_running:
        return None
    if task.ending and task.ending_at is not None:
        return task.ending_at + entry.kill_wait_s
    if task.deadline is None:
        return None
    return task.deadline - entry.signal_lead_s if entry.signal and not task.signalled else task.deadline


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of the batch shell.

    Attributes:
        launch_failure: why the batch shell could not be started, or empty.
    """

    status: int
    signal: int
    at: float
    launch_failure: str = ""


def ended(entry: Entry, task: Task, exit_: Exit | None, now: float) -> Task:
    """Return the record of a job without processes. `exit_` is None if unknown.

    A job with an unknown exit that was not ended on request is lost: it is requeued with reason NODE_DOWN, or is
    NODE_FAIL if it may not be requeued.
    """
    at = exit_.at if exit_ is not None else now
    if task.ending == JobState.REQUEUED:
        return requeued(task, now)
    if task.ending:
        status, number = (exit_.status, exit_.signal) if exit_ is not None else (0, int(signal.SIGKILL))
        return _final(task, JobState(task.ending), status, number, task.ending_at or at, "")
    if exit_ is None:
        if not entry.requeue:
            return _final(task, JobState.NODE_FAIL, 0, 0, now, NODE_DOWN)
        return replace(requeued(task, now), reason=NODE_DOWN, begin=now + LOST_WAIT_S)
    if exit_.launch_failure:
        return _final(task, JobState.FAILED, *LAUNCH_FAILURE, at, "JobLaunchFailure")
    if exit_.status or exit_.signal:
        reason = "NonZeroExitCode" if exit_.status else f"RaisedSignal:{exit_.signal}({signal.strsignal(exit_.signal)})"
        return _final(task, JobState.FAILED, exit_.status, exit_.signal, at, reason)
    return _final(task, JobState.COMPLETED, 0, 0, at, "")


def not_started(task: Task) -> Task:
    """Return the record of a job that had not begun when the daemon died, and is pending again."""
    return replace(task, state=JobState.PENDING, start=None, supervisor=0, supervisor_ticks=0)


_FRESH: Mapping[str, Any] = {
    "end": None,
    "exit_status": None,
    "exit_signal": 0,
    "signalled": False,
    "ending": "",
    "ending_at": None,
    "termed": False,
    "requeue_held": False,
}
"""Fields of a run at its start."""


def started(task: Task, now: float) -> Task:
    """Return the record of a queued job that starts now."""
    return replace(
        task, **_FRESH, state=JobState.RUNNING, reason="", start=now, dependency=after_start(task.dependency)
    )


def requeued(task: Task, now: float) -> Task:
    """Return the record of a requeued job, at the end of the queue."""
    return replace(
        not_started(task),
        **_FRESH,
        reason="job requeued in held state" if task.requeue_held else "",
        held=task.held or task.requeue_held,
        queued_at=now,
        restarts=task.restarts + 1,
        begin=None,
    )


def cancelled(task: Task, now: float) -> Task:
    """Return the record of a cancelled job: final if pending, with a request to end if running."""
    if task.state.is_final:
        return task
    if task.is_running:
        if task.ending != JobState.REQUEUED and (task.ending or task.state is JobState.COMPLETING):
            return task  # already ending
        return replace(
            task, ending=JobState.CANCELLED.value, ending_at=task.ending_at or now, requeue_held=False, held=False
        )
    return _final(task, JobState.CANCELLED, 0, 0, now, task.reason)


def ending(task: Task, how: JobState, now: float) -> Task:
    """Return the record of a running job that is ended with the state `how`."""
    if task.ending:
        return task
    return replace(task, ending=how.value, ending_at=now)


def _final(task: Task, state: JobState, status: int, number: int, at: float, reason: str) -> Task:
    return replace(
        task, state=state, reason=reason, end=at, exit_status=status, exit_signal=number, held=False, dependency=""
    )


def updated(task: Task, change: JobUpdate, job_id: JobId) -> Task:
    """Return the changed record of a live job. Raise SchedulerError if its state does not allow the change."""
    if task.state is not JobState.PENDING and (change.dependency is not None or change.begin_time is not None):
        raise SchedulerError(f"Job is no longer pending execution for job {job_id}")
    if change.dependency is not None:
        task = replace(task, dependency=change.dependency)
    if change.begin_time is not None:
        task = replace(task, begin=change.begin_time)
    if change.time_limit_s is not None:
        task = replace(task, time_limit_s=change.time_limit_s or None)
    if change.end_time is not None:
        if task.start is None:
            raise SchedulerError(
                f"Job is pending execution for job {job_id}", hint="it has no end yet: change its time"
            )
        task = replace(task, time_limit_s=max(1, round(change.end_time - task.start)))
    return task
