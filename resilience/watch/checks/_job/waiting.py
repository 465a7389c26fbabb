"""Sorts what waits: what will start, what waits for others, what never starts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilience.job import JobState
from resilience.watch.checks._job.reading import SeenJob

_BEHIND = frozenset({"Dependency", "JobArrayTaskLimit"})
"""Reasons of what waits for another job, which may be one of the same run that never starts."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The living jobs of one subject, by what they do.

    Attributes:
        running: what has processes, or will in a moment: configuring, suspended and completing jobs too.
        never: what waits and will not start unless somebody does something to it.
        blocked: what waits until others act: a partition that is down, a limit, a node.
        startable: what starts by itself.
        behind: what waits for another job.
    """

    running: tuple[SeenJob, ...]
    never: tuple[SeenJob, ...]
    blocked: tuple[SeenJob, ...]
    startable: tuple[SeenJob, ...]
    behind: tuple[SeenJob, ...]

    @property
    def is_stuck(self) -> bool:
        """Whether nothing runs and nothing can start, and why is known."""
        return not self.running and not self.startable and bool(self.never or self.blocked)

    @property
    def queued(self) -> int:
        """How many jobs and tasks wait that may start one day."""
        return sum(job.count for job in (*self.blocked, *self.startable, *self.behind))

    @property
    def waiting(self) -> tuple[SeenJob, ...]:
        """Everything that waits."""
        return (*self.never, *self.blocked, *self.startable, *self.behind)

    @property
    def is_ending(self) -> bool:
        """Whether all that runs is about to be gone."""
        return bool(self.running) and all(job.job_state is JobState.COMPLETING for job in self.running)


def sort(seen: Sequence[SeenJob]) -> Standing:
    """Given the living jobs of a subject, return them by what they do."""
    waiting = [job for job in seen if job.waits]
    never = [job for job in waiting if job.why.blocks_for_ever]
    blocked = [job for job in waiting if job.why.needs_others and job not in never]
    rest = [job for job in waiting if job not in never and job not in blocked]
    behind = [job for job in rest if job.reason in _BEHIND]
    startable = [job for job in rest if job not in behind]
    running = [job for job in seen if not job.waits]
    if not running and not never and not blocked and not startable:
        startable, behind = behind, []  # what it waits for is none of these: it may start
    return Standing(tuple(running), tuple(never), tuple(blocked), tuple(startable), tuple(behind))


def is_waiting(seen: Sequence[SeenJob]) -> bool:
    """Whether something waits and nothing runs."""
    return bool(seen) and all(job.waits for job in seen)


def is_blocked(seen: Sequence[SeenJob]) -> bool:
    """Whether nothing runs and all waits for others."""
    standing = sort(seen)
    return standing.is_stuck and not standing.never
