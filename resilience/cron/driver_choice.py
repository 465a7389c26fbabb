"""Finds the drivers that work here, chooses one, and asks the installed one for its state."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.cron.drivers import Availability, DriverState, availability_of, state_of
from resilience.errors import ResilError, UsageError
from resilience.job import Liveness
from resilience.plugins import Family
from resilience.runs.project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from resilience.cron.drivers import Driver
    from resilience.cron.records import Installation
    from resilience.runs.context import Context
    from resilience.settings.cron_settings import CronSettings

AUTO = "auto"

DRIVER_S = 15.0
"""Time limit for the driver's state: each command to a hung controller takes a minute, and a driver runs several."""


@cache
def drivers() -> Family:
    """Return the family of driver plugins."""
    return Family("drivers", "DRIVER")


class Offer(NamedTuple):
    """One driver and its availability.

    Attributes:
        name: name of the plugin.
        rank: `auto` takes the available driver with the lowest rank.
    """

    name: str
    rank: int
    availability: Availability


class Choice(NamedTuple):
    """The driver chosen.

    Attributes:
        name: name of the plugin.
        why: one sentence: requested, or the best available.
        offers: all drivers checked, by rank, with the reasons of those that are unavailable.
    """

    name: str
    driver: Driver
    why: str
    offers: tuple[Offer, ...]


def driver_of(name: str) -> Driver:
    """Return the driver of a name. Raise UsageError if it does not exist or cannot be loaded."""
    found: Driver = drivers().load(name)
    return found


def check_backend(wanted: str) -> None:
    """Raise UsageError unless `wanted` is `auto` or the name of a driver."""
    if wanted != AUTO and wanted not in drivers().names():
        from resilience.messages import suggest

        hint = suggest(wanted, (AUTO, *drivers().names()), cutoff=0.6)
        raise UsageError(f"unknown cron backend {wanted!r}", hint=hint)


def choose(project: Project, wanted: str = AUTO) -> Choice:
    """Return the driver that `wanted` names, or the best available one. Checks with deadlines; changes nothing.

    Raise UsageError for an unknown name, ResilError, with the reason, if the driver is not available here.
    """
    from resilience.watch.watchdogs import context_of

    check_backend(wanted)
    context = context_of(project)
    names = drivers().names() if wanted == AUTO else (wanted,)
    offers = tuple(sorted((check_driver(name, context) for name in names), key=lambda offer: (offer.rank, offer.name)))
    return decide(wanted, offers)


def decide(wanted: str, offers: tuple[Offer, ...]) -> Choice:
    """Return the best of the drivers checked. Raise ResilError if none is available."""
    for offer in offers:
        if offer.availability.is_available:
            why = (
                "requested" if wanted != AUTO else "best of the available backends" if len(offers) > 1 else "available"
            )
            return Choice(offer.name, driver_of(offer.name), f"{why}: {offer.availability.reason}", offers)
    if wanted != AUTO:
        reason, hint = offers[0].availability[1:]
        raise ResilError(
            f"backend {wanted} is not available here: {reason}",
            hint=hint or "list the backends: resil cron install --dry-run",
        )
    reasons = "; ".join(f"{offer.name}: {offer.availability.reason}" for offer in offers)
    raise ResilError(
        f"no cron backend is available here: {reasons}", hint="let another scheduler call: resil cron tick"
    )


def next_best(choice: Choice, error: ResilError) -> Choice | None:
    """Return the best driver besides one that could not be installed; None: there is none."""
    failed = Availability(False, f"could not be installed: {error.message}", error.hint)
    offers = tuple(
        offer._replace(availability=failed) if offer.name == choice.name else offer for offer in choice.offers
    )
    try:
        return decide(AUTO, offers)
    except ResilError:
        return None


def check_driver(name: str, context: Context) -> Offer:
    """Check one driver. A driver that raises counts as unavailable, so that it does not hide the others."""
    try:
        driver = driver_of(name)
    except UsageError as error:
        return Offer(name, 1000, Availability(False, error.message, error.hint))
    return Offer(name, driver.rank, availability_of(driver, context))


def driver_state(
    installation: Installation, settings: CronSettings, context: Context, limit_s: float = 0.0
) -> DriverState:
    """Return the driver's state. Any failure is UNKNOWN, with the reason; never raises.

    `limit_s`: time limit; 0: DRIVER_S.
    """
    from resilience.system.child import run_in_child

    def ask() -> tuple[Any, ...]:
        found = state_of(driver_of(installation.driver), installation, settings, context)
        return found.liveness.value, *found[1:]

    limit_s = limit_s or DRIVER_S
    ((_, answer),) = run_in_child({0: (ask, limit_s)})
    if answer.error is None:
        return DriverState(Liveness(answer.value[0]), *answer.value[1:])
    slow = f"backend {installation.driver} did not respond within {limit_s:g} s"
    return DriverState(Liveness.UNKNOWN, slow if answer.is_overdue else answer.error.message, hint=answer.error.hint)


def chain_problem(directory: Path, installation: Installation | None) -> str:
    """Return the problem of an installation's chain in `<state_dir>/.cron`; empty: none, or the chain has no jobs."""
    if installation is None or installation.driver != "slurm":
        return ""
    from resilience.cron.drivers._slurm.keeper import trouble_of

    trouble, since = trouble_of(directory)
    return trouble if since >= installation.time else ""
