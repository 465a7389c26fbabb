"""A job and its names: what a scheduler says about one record of its queue. Pure words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

from resilience.errors import UsageError
from resilience.model.job_state import JobState

_JOB_ID = re.compile(r"(?P<array>\d{1,18})(?:_(?:(?P<task>\d{1,18})|\[(?P<tasks>[\d,:%-]+)\]|\*))?", re.ASCII)


@total_ordering
@dataclass(frozen=True, slots=True)
class JobId:
    """A job's id, or an array's, or one task's of an array. Sorted, a whole array comes before its tasks.

    Attributes:
        array: the job id, or the array's id (SLURM_ARRAY_JOB_ID).
        task: the task's index (SLURM_ARRAY_TASK_ID), or None for a plain job or a whole array.
    """

    array: int
    task: int | None = None

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Given `123` or `123_4`, return the id; a set of tasks such as `123_[2-5%1]` gives the whole array.

        Raise UsageError if the text is no job id.
        """
        match = _JOB_ID.fullmatch(text.strip())
        if match is None or int(match["array"]) == 0:
            raise UsageError(f"{text!r} is not a job id", hint="write for instance 123 or 123_4")
        return cls(int(match["array"]), None if match["task"] is None else int(match["task"]))

    @property
    def whole(self) -> JobId:
        """The array that this task belongs to, or the job itself."""
        return JobId(self.array)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, JobId):
            return NotImplemented
        return (self.array, -1 if self.task is None else self.task) < (
            other.array,
            -1 if other.task is None else other.task,
        )

    def __str__(self) -> str:
        return str(self.array) if self.task is None else f"{self.array}_{self.task}"


@dataclass(frozen=True, slots=True)
class ExitCode:
    """How a job ended: `status` from exit(), or the `signal` that ended it, as SLURM's `status:signal`."""

    status: int
    signal: int = 0

    def __str__(self) -> str:
        return f"{self.status}:{self.signal}"


@dataclass(frozen=True, slots=True)
class Job:
    """One record of a scheduler's queue or history.

    A pending array is one record that stands for many tasks. Times are seconds since the epoch, or None when the
    scheduler does not know them yet.

    Attributes:
        id: the id as people write it.
        raw_id: the number SLURM keeps it under (SLURM_JOB_ID in the job); the array's id for a pending array.
        tasks: the task indices of a record that stands for several, as SLURM writes them (`2-10%1`), or empty.
        task_count: how many tasks this record stands for; 1 for anything but a pending array.
        reason: SLURM's reason code or sentence, empty when there is none.
        nodes: hostlist expression of the allocated nodes, or empty.
        time_limit_s: None when unlimited.
        dependency: what it still waits for, as SLURM writes it (`afterany:15(unfulfilled)`), or empty.
        comment: free text of the submitter; resil keeps `resil:<run>:<token>` there.
        command: path of the batch script, empty when it came by standard input or is not known.
        restarts: how often it was requeued.
        exit_code: None while unknown.
    """

    id: JobId
    raw_id: int
    name: str
    state: JobState
    user: str = ""
    reason: str = ""
    tasks: str = ""
    task_count: int = 1
    partition: str = ""
    account: str = ""
    qos: str = ""
    nodes: str = ""
    node_count: int = 0
    submit_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    time_limit_s: int | None = None
    dependency: str = ""
    comment: str = ""
    command: str = ""
    stdout: str = ""
    restarts: int = 0
    exit_code: ExitCode | None = None

    @property
    def is_array_record(self) -> bool:
        """Whether this record stands for the pending tasks of an array."""
        return bool(self.tasks)


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """What may be changed of a job that is already queued or running. None leaves a thing as it is.

    Attributes:
        exclude: hostlist of nodes never to use; an empty text clears it.
        array_throttle: how many tasks of the array may run at once.
        end_time: seconds since the epoch. Owners may shorten a running job this way, to the second; only
            administrators may lengthen it.
        time_limit_s: the new limit.
        dependency: a new dependency expression; an empty text clears it.
        begin_time: seconds since the epoch before which it must not start.
    """

    exclude: str | None = None
    array_throttle: int | None = None
    end_time: float | None = None
    time_limit_s: int | None = None
    dependency: str | None = None
    begin_time: float | None = None
