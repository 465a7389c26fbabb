"""Which drivers of cron there are, which of them can be used here, and which one is taken."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from resilience.actions.project import Project
from resilience.model.driver import Availability
from resilience.plugins import Family
from resilience.system.ports import Driver

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


def choose(project: Project, wanted: str = AUTO) -> Choice:
    """The driver that `wanted` names, or the best that can be used here.

    Raise UsageError if there is none of that name, ResilError if it cannot be used here, saying why.
    """
    raise NotImplementedError
