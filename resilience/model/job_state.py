"""What SLURM says a job is doing. Pure words, copied from squeue(1) and job_state_codes."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Whose doing the end of a job was."""

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
        """Whether the job will never run again under this id unless somebody requeues it."""
        return self in _FINAL

    @property
    def is_alive(self) -> bool:
        """Whether processes may run now or later."""
        return self not in _FINAL

    @property
    def is_waiting(self) -> bool:
        """Whether the job sits in the queue with no process of its own."""
        return self in _WAITING

    @property
    def may_have_processes(self) -> bool:
        """Whether processes of the job may exist now. COMPLETING counts: they live on for up to KillWait."""
        return self.is_alive and not self.is_waiting

    @property
    def fault(self) -> Fault:
        """Whose doing the end was, as far as the state alone can tell."""
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
