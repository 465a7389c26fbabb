"""`resil cron status`: scheduler health, delay, next runs and recent results.

A child with a deadline reads the disk, and the driver has deadlines of its own, so neither a hung file system nor a
dead controller blocks the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from resilience.cron.driver_choice import chain_problem, driver_state
from resilience.cron.entries import Listing, lateness_s, list_entries
from resilience.cron.health import Health, Judgement, awake_since, judge_scheduler
from resilience.cron.records import Heartbeat, Installation
from resilience.errors import ResilError

if TYPE_CHECKING:
    from resilience.cron.drivers import DriverState
    from resilience.cron.project import CronProject

READ_S = 10.0
"""Time limit for reading the state directory and the cron directory together."""

RECENT = 200
"""Number of recent runs whose delay is counted."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Delays between slot and start of recent runs, in seconds."""

    median_s: float
    p95_s: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStatus:
    """Status of the scheduler.

    Attributes:
        now: time of the check.
        directory: the cron directory, for display.
        judgement: health of the scheduler.
        installation: recorded installation; None: none.
        driver: state of its driver; None: nothing is installed.
        heartbeat: the last heartbeat; None: none.
        stopped: who stopped it, why and when; None: not stopped.
        lateness: of recent runs; None: none.
        listing: the entries.
        trouble: errors while reading.
    """

    now: float
    directory: str
    judgement: Judgement
    installation: Installation | None = None
    driver: DriverState | None = None
    heartbeat: Heartbeat | None = None
    stopped: Mapping[str, Any] | None = None
    lateness: Lateness | None = None
    listing: Listing = field(default_factory=Listing)
    trouble: tuple[str, ...] = ()


def cron_status(cron: CronProject) -> CronStatus:
    """Read the status, with deadlines; never raises ResilError."""
    from resilience.watch.watchdogs import context_of

    now = cron.project.system.clock.now()
    try:
        found = cron.read_in_child("status", lambda: _read(cron, now), READ_S)
    except ResilError as error:
        trouble = f"the state directory {cron.state.path.parent}: {error.message}"
        judgement = Judgement(Health.UNKNOWN, trouble, _HINT_HUNG)
        return CronStatus(now=now, directory=str(cron.directory), judgement=judgement, trouble=(trouble,))
    if found.installation is None:
        return found
    driver = driver_state(found.installation, cron.settings, context_of(cron.project))
    return _judge(cron, found, driver)


_HINT_HUNG = "try again, or from another node; the file system of the state directory may be hung"


def _judge(cron: CronProject, found: CronStatus, driver: DriverState | None = None) -> CronStatus:
    judgement = judge_scheduler(
        found.installation, found.heartbeat, driver, found.stopped, now=found.now, settings=cron.settings,
        awake_since=awake_since(found.now),
    )  # fmt: skip
    return replace(found, driver=driver, judgement=judgement)


def _read(cron: CronProject, now: float) -> CronStatus:
    """Return what the disk knows: all but the driver's state."""
    from resilience.cron.report import send_failures

    state, judgement = cron.state, Judgement(Health.UNKNOWN, "")
    found = CronStatus(now=now, directory=str(cron.directory), judgement=judgement)
    try:
        found = replace(found, installation=state.installation(), heartbeat=state.heartbeat(), stopped=state.stopped())
    except ResilError as error:
        return replace(found, judgement=Judgement(Health.UNKNOWN, error.message, error.hint or _HINT_HUNG))
    found, trouble = _judge(cron, found), [chain_problem(state.path, found.installation) if not found.stopped else ""]
    try:
        found = replace(found, listing=list_entries(cron), lateness=lateness_of(_recent_lateness(cron)))
    except ResilError as error:
        trouble += [error.message]
    trouble += [*found.listing.trouble, *send_failures(cron)]
    return replace(found, trouble=tuple(dict.fromkeys(filter(None, trouble))))


def _recent_lateness(cron: CronProject) -> list[float]:
    runs = (run for key in cron.state.keys() for run in cron.state.history(key)[-RECENT:])  # noqa: SIM118 - no mapping
    late = sorted((run.slot, seconds) for run in runs if (seconds := lateness_s(run)) is not None)
    return [seconds for _, seconds in late[-RECENT:]]


def lateness_of(seconds: Sequence[float]) -> Lateness | None:
    """Return the median and the 95th percentile (nearest rank) of delays. Pure."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    median_s, p95_s = (ordered[max(0, -(-percent * len(ordered) // 100) - 1)] for percent in (50, 95))
    return Lateness(median_s, p95_s, len(ordered))
