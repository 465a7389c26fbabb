"""ALIVE, GONE or UNKNOWN: the three answers about whether a job exists. Pure words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from resilience.model.job import Job


class Liveness(StrEnum):
    """ALIVE: a row proves it. GONE: a successful answer without it, confirmed. UNKNOWN: everything else."""

    ALIVE = "ALIVE"
    GONE = "GONE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether a job exists, and how we know.

    Attributes:
        liveness: the answer. UNKNOWN is never acted upon.
        reason: a sentence that says how we know, or why we do not.
        job: the record that proves ALIVE, or the final record that proves GONE, where there is one.
    """

    liveness: Liveness
    reason: str
    job: Job | None = None
