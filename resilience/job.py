"""Jobs as SLURM knows them: their states, their ids, and whether they exist. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import total_ordering

from resilience.errors import UsageError


class Fault(StrEnum):
    """The party that ended a job."""

    NOBODY = "nobody"
    TRAINING = "training"
    CLUSTER = "cluster"
    POLICY = "policy"


class JobState(StrEnum):
    """A job's state, base states and the flags that squeue shows in their place.

    Source: squeue(1), "JOB STATE CODES", and https://slurm.schedmd.com/job_state_codes.html (20.11 to 26.05).
    """

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    EXPEDITING = "EXPEDITING"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    POWER_UP_NODE = "POWER_UP_NODE"
    PREEMPTED = "PREEMPTED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"
    UPDATE_DB = "UPDATE_DB"
    UNKNOWN = "UNKNOWN"
    """A word this table does not have. Counts as alive: a newer SLURM's state must never read as dead."""

    @classmethod
    def parse(cls, text: str) -> JobState:
        """Given a state as squeue, scontrol or sacct print it, return it; UNKNOWN if there is no such word.

        sacct's `CANCELLED by 1001` and `CANCELLED+` are CANCELLED.
        """
        word = text.strip().split(" ")[0].rstrip("+").upper()
        return cls.__members__.get(word, cls.UNKNOWN)

    @property
    def is_final(self) -> bool:
        """Return whether the job will never run again under this id unless it is requeued."""
        return self in _FINAL

    @property
    def is_alive(self) -> bool:
        """Return whether processes may run now or later."""
        return self not in _FINAL

    @property
    def is_waiting(self) -> bool:
        """Return whether the job sits in the queue with no process of its own."""
        return self in _WAITING

    @property
    def may_have_processes(self) -> bool:
        """Return whether processes of the job may exist now. COMPLETING counts: they live on for up to KillWait."""
        return self.is_alive and not self.is_waiting

    @property
    def fault(self) -> Fault:
        """The party that ended the job, as far as the state alone tells."""
        if self in {JobState.FAILED, JobState.OUT_OF_MEMORY}:
            return Fault.TRAINING
        if self in {JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.LAUNCH_FAILED, JobState.RECONFIG_FAIL}:
            return Fault.CLUSTER
        if self in {
            JobState.TIMEOUT,
            JobState.DEADLINE,
            JobState.PREEMPTED,
            JobState.CANCELLED,
            JobState.REVOKED,
        }:
            return Fault.POLICY
        return Fault.NOBODY


_FINAL = frozenset(
    {
        JobState.BOOT_FAIL,
        JobState.CANCELLED,
        JobState.COMPLETED,
        JobState.DEADLINE,
        JobState.FAILED,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.REVOKED,
        JobState.TIMEOUT,
    }
)
_WAITING = frozenset(
    {
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESV_DEL_HOLD,
        JobState.SPECIAL_EXIT,
    }
)


class Liveness(StrEnum):
    """ALIVE: a row proves it. GONE: a successful answer without it, confirmed. UNKNOWN: everything else."""

    ALIVE = "ALIVE"
    GONE = "GONE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Presence:
    """Liveness of a job, and the evidence.

    Attributes:
        liveness: the answer. UNKNOWN is never acted upon.
        reason: a sentence that says how we know, or why we do not.
        job: the record that proves ALIVE, or the final record that proves GONE, where there is one.
    """

    liveness: Liveness
    reason: str
    job: Job | None = None


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
        """Return whether this record stands for the pending tasks of an array."""
        return bool(self.tasks)


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """Changes of a job that is already queued or running. None leaves a setting as it is.

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
