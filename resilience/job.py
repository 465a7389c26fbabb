"""SLURM jobs: states, ids, records and presence. Pure."""

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
    """State of a job: base states, and the flags that squeue shows instead of them.

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
    """A state that is not in this table. Counts as alive: a state of a newer SLURM must never read as dead."""

    @classmethod
    def parse(cls, text: str) -> JobState:
        """Return the state for the output of squeue, scontrol or sacct; UNKNOWN if there is no such state.

        sacct's `CANCELLED by 1001` and `CANCELLED+` are CANCELLED.
        """
        word = text.strip().split(" ")[0].rstrip("+").upper()
        return cls.__members__.get(word, cls.UNKNOWN)

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended and will not run again under this id unless requeued."""
        return self in _FINAL

    @property
    def is_alive(self) -> bool:
        """Return whether processes may run now or later."""
        return self not in _FINAL

    @property
    def is_waiting(self) -> bool:
        """Return whether the job is queued and has no processes."""
        return self in _WAITING

    @property
    def may_have_processes(self) -> bool:
        """Return whether processes of the job may exist now. COMPLETING counts: processes live up to KillWait."""
        return self.is_alive and not self.is_waiting

    @property
    def fault(self) -> Fault:
        """Return the party that ended the job, derived from the state alone."""
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
    """ALIVE: a row proves it. GONE: confirmed by successful queries without the job. UNKNOWN: everything else."""

    ALIVE = "ALIVE"
    GONE = "GONE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Presence:
    """Liveness of a job, with evidence.

    Attributes:
        liveness: the liveness. UNKNOWN never triggers an action.
        reason: a sentence that explains the liveness.
        job: the record that proves ALIVE, or the final record that proves GONE, if there is one.
    """

    liveness: Liveness
    reason: str
    job: Job | None = None


_JOB_ID = re.compile(r"(?P<array>\d{1,18})(?:_(?:(?P<task>\d{1,18})|\[(?P<tasks>[\d,:%-]+)\]|\*))?", re.ASCII)


@total_ordering
@dataclass(frozen=True, slots=True)
class JobId:
    """Id of a job, of an array, or of one task of an array. In sort order, an array precedes its tasks.

    Attributes:
        array: the job id, or the array's id (SLURM_ARRAY_JOB_ID).
        task: the task's index (SLURM_ARRAY_TASK_ID), or None for a plain job or a whole array.
    """

    array: int
    task: int | None = None

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Parse `123` or `123_4`. A set of tasks such as `123_[2-5%1]` gives the whole array.

        Raise UsageError if the text is not a job id.
        """
        match = _JOB_ID.fullmatch(text.strip())
        if match is None or int(match["array"]) == 0:
            raise UsageError(f"{text!r} is not a job id", hint="write for instance 123 or 123_4")
        return cls(int(match["array"]), None if match["task"] is None else int(match["task"]))

    @property
    def whole(self) -> JobId:
        """Return the id of the task's array, or the id of the job itself."""
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
    """Exit code of a job: the `status` of exit(), or the `signal` that ended the job, as SLURM's `status:signal`."""

    status: int
    signal: int = 0

    def __str__(self) -> str:
        return f"{self.status}:{self.signal}"


@dataclass(frozen=True, slots=True)
class Job:
    """One record of a scheduler's queue or history.

    A pending array is one record for many tasks. Times are seconds since the epoch, or None if not yet known.

    Attributes:
        id: the id as shown to users.
        raw_id: SLURM's internal job id (SLURM_JOB_ID in the job); the array's id for a pending array.
        tasks: the task indices of a record for several tasks, in SLURM's form (`2-10%1`), or empty.
        task_count: number of tasks of this record; 1 except for a pending array.
        reason: SLURM's reason code or sentence, or empty.
        nodes: hostlist expression of the allocated nodes, or empty.
        excluded: hostlist expression of nodes that it must not use; only in the details of one job.
        time_limit_s: None if unlimited.
        dependency: the unfulfilled dependencies, in SLURM's form (`afterany:15(unfulfilled)`), or empty.
        comment: free text of the submitter; resil stores `resil:<run>:<token>` in it.
        command: path of the batch script; empty if unknown or submitted on standard input.
        restarts: number of requeues.
        exit_code: None while unknown.
        cancelled_by: login name or user id of the user who cancelled it; empty if unknown: only accounting records it.
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
    excluded: str = ""
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
    cancelled_by: str = ""

    @property
    def is_array_record(self) -> bool:
        """Return whether this is the record of the pending tasks of an array."""
        return bool(self.tasks)


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """Changes of a queued or running job. None leaves a setting unchanged.

    Attributes:
        exclude: hostlist of excluded nodes; an empty text clears the list.
        array_throttle: maximum number of tasks of the array that run at the same time.
        end_time: seconds since the epoch. Owners may shorten a running job this way, to the second; only
            administrators may extend a job.
        time_limit_s: the new time limit.
        dependency: the new dependency expression; an empty text clears the dependency.
        begin_time: earliest start, seconds since the epoch.
    """

    exclude: str | None = None
    array_throttle: int | None = None
    end_time: float | None = None
    time_limit_s: int | None = None
    dependency: str | None = None
    begin_time: float | None = None
