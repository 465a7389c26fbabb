"""The values that watchdogs share: targets, readings with their times, and how many are remembered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

ReadingT = TypeVar("ReadingT")


class Target(NamedTuple):
    """One place that is probed by itself, in a child process with a deadline of its own.

    Attributes:
        name: a mount point, a directory of logs, the queue of a cluster; also the name that is reported as stuck.
        subjects: the subjects of its findings, when they are known before probing; a target that gives no answer
            makes one UNKNOWN finding for each. Empty: the target itself.
        deadline_s: how long the probe may take; None takes the setting's.
    """

    name: str
    subjects: tuple[str, ...] = ()
    deadline_s: float | None = None


class Timed(NamedTuple, Generic[ReadingT]):
    """A reading and when it was taken, in seconds since the epoch."""

    time: float
    reading: ReadingT


@dataclass(frozen=True, slots=True)
class Memory:
    """How many readings of each subject are remembered from tick to tick, for `judge`.

    Attributes:
        count: at most so many, the newest included. 1 remembers only what the next probe needs.
        spacing_s: readings closer together than this replace one another, so that a tick each minute does not push
            out yesterday's readings.
    """

    count: int = 1
    spacing_s: float = 0.0


NO_MEMORY = Memory(count=0)
"""Nothing is remembered."""


def remember(
    series: Sequence[Timed[ReadingT]], new: Sequence[Timed[ReadingT]], memory: Memory
) -> tuple[Timed[ReadingT], ...]:
    """Given what is remembered of a subject and what was seen since, return what to remember, oldest first.

    The newest is always kept. The one before it gives way as long as it is closer than `spacing_s` to the one before
    itself: a tick each minute with a spacing of an hour leaves a reading for each hour, and the newest. Two of the same
    moment are the same. For instance, spacing 60 and readings at 0, 20, 40, 60, 80 leave those at 0, 60, 80.
    """
    kept: list[Timed[ReadingT]] = []
    for timed in sorted((*series, *new), key=lambda timed: timed.time):
        gives_way = len(kept) > 1 and kept[-1].time - kept[-2].time < memory.spacing_s
        if kept and (gives_way or kept[-1].time == timed.time):
            kept.pop()
        kept.append(timed)
    return tuple(kept[-memory.count :]) if memory.count > 0 else ()
