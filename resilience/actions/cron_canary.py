"""`resil cron canary`: a real alert on demand, raised and delivered by whoever's scheduler ticks next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.actions.cron_project import CronProject


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnswer:
    """What became of a canary.

    Attributes:
        id: as `ask` returned it.
        asked: when, seconds since the epoch.
        taken: when a tick took it up; None: none has yet.
        by: whose tick: driver and host; empty before.
        ended: when all channels had answered, or were given up; None: not yet.
        channels: of each channel, what it answered, and how many seconds after `asked`: ("email", True, "250 OK", 3.2).
        trouble: why nothing was sent; empty when something was.
    """

    id: str
    asked: float
    taken: float | None = None
    by: str = ""
    ended: float | None = None
    channels: tuple[tuple[str, bool, str, float], ...] = ()
    trouble: str = ""

    @property
    def is_well(self) -> bool:
        """Whether every channel took it."""
        return self.ended is not None and bool(self.channels) and all(ok for _, ok, _, _ in self.channels)


def ask(cron: CronProject) -> str:
    """Leave a request for the next tick, and return its id. Raise UsageError if no channel is set, StateDirectoryError
    if it cannot be written."""
    raise NotImplementedError


def answer(cron: CronProject, id: str) -> CanaryAnswer:
    """What became of a request so far. Raise UsageError if there is none of this id."""
    raise NotImplementedError
