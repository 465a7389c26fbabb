"""What is looked at, and what was seen there when. Pure words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

ReadingT = TypeVar("ReadingT")


@dataclass(frozen=True, slots=True)
class Target:
    """One place that is looked at by itself, in a child process with a deadline of its own.

    Attributes:
        name: a mount point, a folder of logs, the queue of a cluster; also what is said to be stuck.
        subjects: what findings are about, when that is known before looking; a target that gives no answer makes one
            UNKNOWN finding for each. Empty: the target itself.
        deadline_s: how long looking may take; None takes the setting's.
    """

    name: str
    subjects: tuple[str, ...] = ()
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timed(Generic[ReadingT]):
    """A reading and when it was taken, in seconds since the epoch."""

    time: float
    reading: ReadingT


@dataclass(frozen=True, slots=True)
class Memory:
    """How many readings of each subject are remembered from tick to tick, for `judge`.

    Attributes:
        count: at most so many, the newest included. 1 remembers only what the next look needs.
        spacing_s: readings closer together than this replace one another, so that a tick each minute does not push
            out what was seen yesterday.
    """

    count: int = 1
    spacing_s: float = 0.0


NO_MEMORY = Memory(count=0)
"""Nothing is remembered."""
