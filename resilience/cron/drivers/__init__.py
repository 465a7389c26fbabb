"""Drivers: each file is one way to make the ticks of cron, and exports it as DRIVER."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from resilience.errors import ProbeError, ResilError
from resilience.job import Liveness

if TYPE_CHECKING:
    from resilience.cron.records import Installation
    from resilience.runs.context import Context
    from resilience.settings.cron_settings import CronSettings


class ProgramFailed(ProbeError):
    """A table of the user could not be read."""


class ProgramUnavailable(ProgramFailed):
    """The program of a table is missing, or does not serve this user or this machine; a retry will not help."""


class Availability(NamedTuple):
    """Whether this user can use a driver on this machine.

    Attributes:
        is_available: whether `auto` may choose it.
        reason: one sentence: what was found, or what is missing.
        hint: how to make it available; may be empty.
    """

    is_available: bool
    reason: str
    hint: str = ""


class Step(NamedTuple):
    """One step of `resil cron install`.

    Attributes:
        what: one sentence for the user.
        text: the exact text written or run: crontab lines, a unit, a batch script, a command.
    """

    what: str
    text: str = ""


class DriverState(NamedTuple):
    """Whether the installation is present and will tick again.

    Attributes:
        liveness: ALIVE: present. GONE: checked and absent. UNKNOWN: could not be checked.
        summary: one sentence for the user: `job 88 runs on n1 until 14:00; its successor 89 waits`.
        next_tick: time of the next tick, seconds since the epoch, if known.
        hint: what to try if something is wrong.
    """

    liveness: Liveness
    summary: str
    next_tick: float | None = None
    hint: str = ""


class Driver(Protocol):
    """Makes the ticks of cron: a file in drivers/ (or in a plugin directory) that exports it as DRIVER.

    A driver writes to tables of its host (a crontab, a unit, the queue), and only entries that carry the installation's
    token; all other content stays unchanged, byte for byte.

    Attributes:
        summary: one line for the user.
        rank: `auto` takes the available driver with the lowest rank.
    """

    summary: str
    rank: int

    def availability(self, context: Context) -> Availability:
        """Return whether it can be used here, and why. Checks with deadlines; changes nothing.

        Raise ResilError if it cannot be used for that reason.
        """
        ...

    def plan(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[Step]:
        """Return the steps of `install`, for `--dry-run`; empty if there is nothing to do. Changes nothing."""
        ...

    def install(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Install it, and return one line per completed step. Repeating it changes nothing.

        Raise ResilError if it fails; then nothing is left half done.
        """
        ...

    def uninstall(self, installation: Installation, settings: CronSettings, context: Context) -> Sequence[str]:
        """Remove it, and return one line per completed step. An absent installation is no error."""
        ...

    def state(self, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
        """Return whether the installation is present and will tick again. Called in a child with a deadline.

        Raise ResilError if the check fails: the state is UNKNOWN then.
        """
        ...


def availability_of(driver: Driver, context: Context) -> Availability:
    """Return whether a driver can be used here. Never raises: a check that fails is a reason why not."""
    try:
        return driver.availability(context)
    except ResilError as error:
        return Availability(False, error.message, error.hint)
    except Exception as error:  # a third-party plugin may raise anything
        return Availability(False, f"the check failed: {type(error).__name__}: {error}")


def state_of(driver: Driver, installation: Installation, settings: CronSettings, context: Context) -> DriverState:
    """Return the state of an installation. Never raises: a check that fails is UNKNOWN."""
    try:
        return DriverState(*driver.state(installation, settings, context))
    except ResilError as error:
        return DriverState(Liveness.UNKNOWN, error.message, hint=error.hint)
    except Exception as error:  # a third-party plugin may raise anything
        return DriverState(Liveness.UNKNOWN, f"the query failed: {type(error).__name__}: {error}")
