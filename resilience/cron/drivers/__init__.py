"""Drivers: each file is one way to make the ticks of cron, and exports it as DRIVER."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from resilience.job import Liveness

if TYPE_CHECKING:
    from resilience.cron.records import Installation
    from resilience.runs.context import Context
    from resilience.settings.cron_settings import CronSettings


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


class Driver(Protocol):
    """What makes the ticks of cron: a file in drivers/ (or in a plugin directory) that exports it as DRIVER.

    A driver writes where its host keeps such things (a crontab, a unit, the queue), and only what carries the token of
    the installation; what others wrote there stays as it is, byte for byte.

    Attributes:
        summary: one line for people.
        rank: where several are available, `auto` takes the lowest.
    """

    summary: str
    rank: int

    def availability(self, context: Context) -> Availability:
        """Whether it can be used here, and why. Looks, with deadlines; changes nothing and never raises."""
        ...

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """What `install` would do, for `--dry-run`. Changes nothing. Nothing to do is an empty sequence."""
        ...

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Do it, and return a line each for what was done. Doing it again does nothing.

        Raise ResilError if it could not be done; then nothing is left half done.
        """
        ...

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Undo it, and return a line each for what was done. Nothing there to undo is no error."""
        ...

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Whether what `install` made is still there and will tick again. Looks, with deadlines; never raises."""
        ...
