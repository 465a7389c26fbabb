"""Values that all watchdogs use: targets, timed readings, and how many readings to remember. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

ReadingT = TypeVar("ReadingT")


class Target(NamedTuple):
    """One target: probed in a child process of its own, with its own deadline.

    Attributes:
        name: a mount point, a directory of logs, the queue of a cluster; reported if the probe hangs.
        subjects: the subjects of its findings, if known before probing; a probe that times out or fails gives an
            UNKNOWN finding for each. Empty: the target itself.
        deadline_s: the deadline of the probe; None: [watch] deadline_s.
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
    """How many readings of each subject are remembered between ticks, for `judge`.

    Attributes:
        count: at most this many, the newest included. 1: only what the next probe needs.
        spacing_s: readings closer together than this replace one another, so that ticks every minute do not push out
            yesterday's readings.
    """

    count: int = 1
    spacing_s: float = 0.0


NO_MEMORY = Memory(count=0)
"""Nothing is remembered."""


def remember(
    series: Sequence[Timed[ReadingT]], new: Sequence[Timed[ReadingT]], memory: Memory
) -> tuple[Timed[ReadingT], ...]:
    """Return the readings of a subject to store, from the stored and the new ones, oldest first.

    The newest is always kept. The one before it is dropped if it is closer than `spacing_s` to its predecessor: ticks
    every minute with a spacing of an hour leave one reading per hour, and the newest. Of two readings with the same
    time, the later one is kept. For instance, spacing 60 and readings at 0, 20, 40, 60, 80 leave those at 0, 60, 80.
    """
    kept: list[Timed[ReadingT]] = []
    for timed in sorted((*series, *new), key=lambda timed: timed.time):
        is_too_close = len(kept) > 1 and kept[-1].time - kept[-2].time < memory.spacing_s
        if kept and (is_too_close or kept[-1].time == timed.time):
            kept.pop()
        kept.append(timed)
    return tuple(kept[-memory.count :]) if memory.count > 0 else ()
