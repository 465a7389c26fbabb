"""Which drivers of cron there are, which of them can be used here, and which one is taken."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.drivers import Availability
from resilience.errors import ResilError, UsageError
from resilience.plugins import Family
from resilience.runs.project import Project

if TYPE_CHECKING:
    from resilience.cron.drivers import Driver
    from resilience.runs.context import Context

AUTO = "auto"


@cache
def drivers() -> Family:
    """The plugins there are."""
    return Family("drivers", "DRIVER")


class Offer(NamedTuple):
    """One driver, and whether it can be used here.

    Attributes:
        name: the plugin's name.
        rank: `auto` takes the lowest that is available.
        summary: one line for people.
    """

    name: str
    rank: int
    summary: str
    availability: Availability


class Choice(NamedTuple):
    """Which driver makes the ticks.

    Attributes:
        name: the plugin's name.
        why: one sentence: it was asked for, or it is the best that was found.
        offers: all that were looked at, by rank; those that are not taken say why not.
    """

    name: str
    driver: Driver
    why: str
    offers: tuple[Offer, ...]


def driver_of(name: str) -> Driver:
    """The driver of a name. Raise UsageError if there is none, or it cannot be loaded."""
    found: Driver = drivers().load(name)
    return found


def choose(project: Project, wanted: str = AUTO) -> Choice:
    """The driver that `wanted` names, or the best that can be used here. Looks with deadlines, and changes nothing.

    Raise UsageError if there is none of that name, ResilError if it cannot be used here, saying why.
    """
    from resilience.watch.watchdogs import context_of

    if wanted != AUTO and wanted not in drivers().names():
        from resilience.messages import suggest

        hint = suggest(wanted, (AUTO, *drivers().names()), cutoff=0.6)
        raise UsageError(f"no backend of cron is called {wanted!r}", hint=hint)
    context = context_of(project)
    names = drivers().names() if wanted == AUTO else (wanted,)
    offers = tuple(sorted((look(name, context) for name in names), key=lambda offer: (offer.rank, offer.name)))
    return decide(wanted, offers)


def decide(wanted: str, offers: tuple[Offer, ...]) -> Choice:
    """Given what was found, take the best. Raise ResilError if there is nothing to take."""
    for offer in offers:
        if offer.availability.is_available:
            why = "asked for" if wanted != AUTO else "the best that was found here" if len(offers) > 1 else "found here"
            return Choice(offer.name, driver_of(offer.name), f"{why}: {offer.availability.reason}", offers)
    if wanted != AUTO:
        reason, hint = offers[0].availability[1:]
        raise ResilError(
            f"{wanted} cannot make the ticks here: {reason}", hint=hint or "see what can: resil cron install --dry-run"
        )
    reasons = "; ".join(f"{offer.name}: {offer.availability.reason}" for offer in offers)
    raise ResilError(f"nothing here can make the ticks: {reasons}", hint="have another scheduler call: resil cron tick")


def look(name: str, context: Context) -> Offer:
    """Whether a driver can be used. One that breaks cannot; it must not keep us from the others."""
    try:
        driver = driver_of(name)
    except UsageError as error:
        return Offer(name, 1000, "", Availability(False, error.message, error.hint))
    try:
        availability = driver.availability(context)
    except Exception as error:
        availability = Availability(False, f"it could not be asked: {type(error).__name__}: {error}")
    return Offer(name, driver.rank, driver.summary, availability)
