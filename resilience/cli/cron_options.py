"""What the commands of `resil cron` share: the cron of the project, and the names of its entries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from resilience.errors import UsageError
from resilience.quantities import parse_duration_s

if TYPE_CHECKING:
    from resilience.cron.project import CronProject


def open_cron_project(
    config: Path | None = None, *, apart: bool = False, overrides: Mapping[str, str] | None = None
) -> CronProject:
    """The cron of the project that the command line means; `overrides` are its settings that the command line gives.

    `apart`: read the settings in a child with a deadline, for commands that must answer whatever hangs.
    """
    from resilience.cron.project import open_cron
    from resilience.runs.project import Project
    from resilience.settings.load import load
    from resilience.system.world import World

    world = World()
    if apart:
        from resilience.watch.watchdogs import open_in_child

        return open_cron(open_in_child(world, path=config, overrides=overrides))
    return open_cron(Project(world, load(world, wanted=config, overrides=overrides)))


def complete_entries(incomplete: str) -> list[str]:
    """Names of entries for tab completion: those of the table, and those that ran once."""
    try:
        from resilience.cron.entries import known_names

        return [name for name in known_names(open_cron_project()) if name.startswith(incomplete)]
    except Exception:  # completion must never print a traceback into somebody's prompt
        return []


def complete_backends(incomplete: str) -> list[str]:
    """Names of backends for tab completion."""
    try:
        from resilience.cron.driver_choice import AUTO, drivers

        return [name for name in (AUTO, *drivers().names()) if name.startswith(incomplete)]
    except Exception:
        return []


CronNameArgument = typer.Argument(
    metavar="[NAME]",
    help="The entry: cron.hourly/backup, or backup alone where only one is called so.",
    autocompletion=complete_entries,
    show_default=False,
)


def duration_s(option: str, text: str) -> float:
    """Given what stands behind an option, return seconds. Raise UsageError if it is no duration."""
    from resilience.errors import QuantityError

    try:
        return parse_duration_s(text)
    except QuantityError as error:
        raise UsageError(f"{option} {text}: {error.message}", hint=error.hint) from None
