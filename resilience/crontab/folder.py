"""Read the cron folder: its drop-ins, and its crontab."""

from __future__ import annotations

from pathlib import Path

from resilience.model.cron import Table
from resilience.model.cron_settings import CronSettings


def read_table(
    folder: Path, settings: CronSettings, *, uid: int | None = None, group: str = "", project: Path | None = None
) -> Table:
    """Read what a cron folder says: a missing one is an empty table.

    `uid` is of whose rights everything runs with (default: this process), `group` the Unix group that may operate the
    project, or empty; `project` the project's folder, up to which the folders above the cron folder are judged
    (default: the cron folder's parent). Raise StateDirectoryError if the folder cannot be read: that is no empty table.
    """
    return Table()
