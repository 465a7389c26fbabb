"""What `scontrol update` does to the record of a job. Pure."""

from __future__ import annotations

from dataclasses import replace

from resilience.errors import SchedulerError
from resilience.job import JobId, JobState, JobUpdate
from resilience.schedulers._local.records import Task


def updated(task: Task, change: JobUpdate, job_id: JobId) -> Task:
    """Given a job that has not ended, return its new record. Raise SchedulerError if it is too late, or early."""
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
