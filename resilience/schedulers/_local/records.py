"""The embedded scheduler's records of submissions and jobs, and their JSON. Pure."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import Any, TypeVar

from resilience.errors import ResilError
from resilience.job import ExitCode, Job, JobId, JobState


class DamagedRecord(ResilError):
    """A record is incomplete or invalid."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One submission: a job, or an array. Written once; only `throttle` may change.

    Attributes:
        id: the job's or the array's id.
        indices: task indices of an array, sorted; None for a single job.
        throttle: maximum number of running tasks; 0: no limit.
        time_limit_s: seconds; None: no limit.
        signal: number of the signal to send before the time limit; 0: none.
        signal_lead_s: seconds before the time limit.
        signal_batch: whether the signal is sent to the batch shell (`B:`) instead of the steps.
        directory: the job's working directory; `submit_dir`: working directory of sbatch.
        kill_wait_s: seconds between SIGTERM and SIGKILL.
    """

    id: int
    name: str
    user: str
    token: str
    comment: str
    submit_time: float
    command: str
    script_args: tuple[str, ...]
    directory: str
    submit_dir: str
    indices: tuple[int, ...] | None = None
    step: int = 1
    throttle: int = 0
    ntasks: int = 1
    cpus_per_task: int | None = None
    time_limit_s: int | None = None
    signal: int = 0
    signal_lead_s: int = 60
    signal_batch: bool = False
    requeue: bool = True
    output: str = ""
    error: str = ""
    input: str = ""
    append: bool = False
    begin: float | None = None
    held: bool = False
    dependency: str = ""
    kill_invalid: bool = False
    kill_wait_s: float = 30.0
    umask: int = 0o022
    oversubscribe: bool = False

    @property
    def cpus(self) -> int:
        """Return the CPUs that each job occupies; none for an oversubscribed job."""
        return 0 if self.oversubscribe else self.ntasks * (self.cpus_per_task or 1)

    @property
    def raw_ids(self) -> tuple[int, ...]:
        """Return the raw ids of its jobs: its id, or for an array the numbers after the array's id."""
        if self.indices is None:
            return (self.id,)
        return tuple(self.id + 1 + position for position in range(len(self.indices)))

    def index_of(self, raw: int) -> int | None:
        """Return the task index of one of its jobs; None for a single job."""
        return None if self.indices is None else self.indices[raw - self.id - 1]

    def fresh(self, raw: int) -> Task:
        """Return the job `raw` as initially submitted."""
        return Task(
            raw=raw,
            index=self.index_of(raw),
            held=self.held,
            begin=self.begin,
            dependency=self.dependency,
            time_limit_s=self.time_limit_s,
            queued_at=self.submit_time,
        )


@dataclass(frozen=True, slots=True)
class Task:
    """One job: a single job, or one task of an array.

    Attributes:
        raw: the raw id (SLURM_JOB_ID).
        queued_at: time of submission or of the last requeue; earlier jobs start first.
        supervisor: pid of its watcher; `supervisor_ticks` (its start) and `boot` distinguish the watcher from
            another process with the same pid.
        ending: the requested end state (CANCELLED, TIMEOUT, or REQUEUED), or empty.
        ending_at: time of that request.
    """

    raw: int
    index: int | None = None
    state: JobState = JobState.PENDING
    reason: str = ""
    held: bool = False
    begin: float | None = None
    dependency: str = ""
    time_limit_s: int | None = None
    queued_at: float = 0.0
    start: float | None = None
    end: float | None = None
    exit_status: int | None = None
    exit_signal: int = 0
    restarts: int = 0
    supervisor: int = 0
    supervisor_ticks: int = 0
    boot: str = ""
    signalled: bool = False
    ending: str = ""
    ending_at: float | None = None
    termed: bool = False
    requeue_held: bool = False
    stdout: str = ""
    stderr: str = ""

    @property
    def deadline(self) -> float | None:
        """Return the end of the time limit; None if not running or without a limit."""
        if self.start is None or self.time_limit_s is None:
            return None
        return self.start + self.time_limit_s

    @property
    def is_running(self) -> bool:
        """Return whether the job may have processes."""
        return self.state in (JobState.RUNNING, JobState.COMPLETING)


R = TypeVar("R", Entry, Task)


def to_json(record: Entry | Task) -> str:
    """Return a record as JSON. File names that are not UTF-8 are kept as escaped surrogates."""
    return json.dumps(asdict(record), separators=(",", ":")) + "\n"


def from_json(kind: type[R], text: str) -> R:
    """Parse a record. Raise DamagedRecord for an invalid text; keys of newer releases are ignored."""
    try:
        known = {field.name for field in fields(kind)}
        data: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(text).items()
            if key in known
        }
        if kind is Task:
            data["state"] = JobState(data["state"])
        return kind(**data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedRecord(f"no record of a {kind.__name__.lower()}: {error}") from error


def default_output(is_array: bool) -> str:
    """Return the default of --output (sbatch(1))."""
    return "slurm-%A_%a.out" if is_array else "slurm-%j.out"


def job_of(entry: Entry, task: Task, host: str) -> Job:
    """Return a task as `Job`. Before its start, `stdout` has the fields of sbatch(1), "filename pattern"."""
    return Job(
        id=JobId(entry.id, task.index),
        raw_id=task.raw,
        name=entry.name,
        state=task.state,
        user=entry.user,
        reason=task.reason,
        partition="local",
        nodes=host if task.start is not None else "",
        node_count=1,
        submit_time=task.queued_at,
        start_time=task.start,
        end_time=task.end if task.end is not None else task.deadline,
        time_limit_s=task.time_limit_s,
        dependency=f"{task.dependency}(unfulfilled)" if task.dependency and task.start is None else "",
        comment=entry.comment,
        command=" ".join((entry.command, *entry.script_args)),
        stdout=task.stdout
        or posixpath.join(entry.directory, entry.output or default_output(entry.indices is not None)),
        restarts=task.restarts,
        exit_code=None if task.exit_status is None else ExitCode(task.exit_status, task.exit_signal),
        cancelled_by=entry.user if task.state is JobState.CANCELLED and not task.reason else "",
    )


def jobs_of(entry: Entry, tasks: Sequence[Task], host: str) -> tuple[Job, ...]:
    """Return the records of a submission as shown by squeue.

    Pending tasks with the same reason that never ran are one record (`2-10%1`); every other task has its own.
    """
    if entry.indices is None:
        return tuple(job_of(entry, task, host) for task in tasks)
    groups: dict[object, list[Task]] = {}
    own: list[Job] = []
    for task in tasks:
        if task.state is JobState.PENDING and not task.restarts:
            key = (task.held, task.begin, task.dependency, task.time_limit_s)
            groups.setdefault(key, []).append(task)
        else:
            own.append(job_of(entry, task, host))
    folded: list[Job] = []
    for group in sorted(groups.values(), key=len, reverse=True):
        if folded and len(group) == 1:
            own.append(job_of(entry, group[0], host))
        else:
            folded.append(_folded(entry, group, host))
    return (*folded, *sorted(own, key=lambda job: job.id))


def _folded(entry: Entry, group: Sequence[Task], host: str) -> Job:
    indices = format_indices([task.index for task in group if task.index is not None])
    throttle = f"%{entry.throttle}" if entry.throttle else ""
    # squeue shows the reason of the first task.
    return replace(
        job_of(entry, group[0], host),
        id=JobId(entry.id),
        raw_id=entry.id,
        tasks=indices + throttle,
        task_count=len(group),
    )


def format_indices(indices: Sequence[int]) -> str:
    """Return SLURM's short form of task indices. For instance, 1, 2, 3, 7 gives `1-3,7`."""
    parts = []
    # Within consecutive indices, index and position increase together.
    for _, neighbours in groupby(enumerate(sorted(indices)), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in neighbours]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)
