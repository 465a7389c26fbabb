"""Has something make the ticks of cron, or nothing any more: install, uninstall, stop."""

from __future__ import annotations

from typing import NamedTuple

from resilience.actions.cron_drivers import Choice
from resilience.actions.project import Project
from resilience.model.cron import Installation
from resilience.model.driver import Step


class Installed(NamedTuple):
    """What `install` did, or would do.

    Attributes:
        choice: which driver, why, and why none of the others.
        installation: as it stands in driver.json; of a dry run: as it would.
        steps: what is (to be) done, word for word. Empty: there is nothing to do.
        lines: a line for each thing that was done; empty in a dry run, and where everything was there already.
        notes: what the person should know besides: a stop that was taken back, an older backend that was taken out.
    """

    choice: Choice
    installation: Installation
    steps: tuple[Step, ...] = ()
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Removed(NamedTuple):
    """What `uninstall` or `stop` did.

    Attributes:
        installation: what made the ticks; None: nothing did.
        lines: a line for each thing that was done.
        notes: what could not be done, and what follows from that.
    """

    installation: Installation | None
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def install(project: Project, backend: str = "", *, dry_run: bool = False, replace: bool = False) -> Installed:
    """Have a driver make the ticks of this project. Doing it again does nothing, and takes back a `stop`.

    `backend` (empty: the settings') is `auto` or a driver's name. With `replace`, one that is installed already is
    taken out first. Raise ResilError, saying whose, if somebody else's, or another driver, makes the ticks; then, and
    after every failure, everything is as it was.
    """
    raise NotImplementedError


def uninstall(project: Project, *, force: bool = False) -> Removed:
    """Have nothing make the ticks any more. Raise ResilError if it could not be taken out; `force` forgets it then."""
    raise NotImplementedError


def stop(project: Project, why: str = "") -> Removed:
    """Have no tick run anything any more, and take away what is queued. `install` takes it back."""
    raise NotImplementedError
