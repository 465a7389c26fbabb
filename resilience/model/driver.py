"""What the drivers of cron say of themselves. Pure words."""

from __future__ import annotations

from typing import NamedTuple

from resilience.model.presence import Liveness


class Availability(NamedTuple):
    """Whether a driver can be used on this machine, by this person.

    Attributes:
        is_available: whether `auto` may take it.
        reason: one sentence: what was found, or what is missing.
        hint: what would make it available; may be empty.
    """

    is_available: bool
    reason: str
    hint: str = ""


class Step(NamedTuple):
    """One thing that `resil cron install` does.

    Attributes:
        what: one sentence, for people.
        text: what is written or run, word for word: lines of a crontab, a unit, a batch script, a command.
    """

    what: str
    text: str = ""


class DriverState(NamedTuple):
    """Whether what was installed is there, and will tick again.

    Attributes:
        liveness: ALIVE: it is there. GONE: it was looked for and is not there. UNKNOWN: it could not be looked at.
        summary: one sentence for people: `job 88 runs on n1 until 14:00; its successor 89 waits`.
        next_tick: when it ticks next, seconds since the epoch, where that is known.
        hint: what to try where it is not well.
    """

    liveness: Liveness
    summary: str
    next_tick: float | None = None
    hint: str = ""
