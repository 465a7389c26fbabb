"""One attempt of a run: one job, array task or requeue that took its turn. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AttemptEnd(StrEnum):
    """Why an attempt is over, as its own batch shell saw it."""

    FINISHED = "finished"
    """The training ended with exit code 0 and wrote `finished`."""
    EXITED = "exited"
    """The training ended by itself; the exit code says how."""
    STOPPED = "stopped"
    """It was asked to stop (time nearly over, or a kill switch) and did, with 75."""
    SUPERSEDED = "superseded"
    """A newer attempt had begun; this one was ended without saving."""
    TERMINATED = "terminated"
    """SIGTERM came (time limit, cancel, requeue, preemption), or the batch shell sent it (a kill switch, `stop_after`),
    and the training ended after it."""
    LOST = "lost"
    """No end was ever written: SIGKILL, a dead node."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, read from `attempts/` of the run directory.

    Attributes:
        number: the fencing token, from 1.
        job_id: SLURM_JOB_ID of the job (the raw id).
        label: the id as people write it, `12_3`.
        restart: SLURM_RESTART_COUNT, 0 at first.
        host: node of the batch shell.
        pid: of the batch shell.
        start_time: seconds since the epoch.
        end_time: None while it runs, or when the end was never written.
        end: None while it runs or is not known to be over.
        exit_code: the launch's true exit code; None while unknown.
        why: what the batch shell and the guards say about the end, or empty.
    """

    number: int
    job_id: int
    label: str
    restart: int
    host: str
    pid: int
    start_time: float
    end_time: float | None = None
    end: AttemptEnd | None = None
    exit_code: int | None = None
    why: str = ""
