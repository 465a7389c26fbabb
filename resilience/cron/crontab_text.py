"""The project's crontab as a text that people edit too: read, understood as the scheduler does, and replaced whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import ResilError
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Table

CRONTAB = "crontab"
"""Its name in the cron directory, and what the names of its entries begin with."""

LIMIT_BYTES = 2**20
"""No crontab is larger (MAX_TAB_LINES of cron's is 1000)."""

MARK = "by `resil cron add"
"""Stands in the comment above what `resil cron add` wrote, and is how `remove` knows that comment."""


def parse(cron: CronProject, text: bytes) -> Table:
    """What a crontab's text means."""
    from resilience.cron.table.crontab_file import parse_crontab

    return parse_crontab(text, f"{cron.directory.name}/{CRONTAB}", cron.settings)


def read_crontab(path: Path) -> bytes:
    """The crontab; empty where there is none. Raise ResilError if it cannot be read."""
    found = read_regular(path.resolve(), LIMIT_BYTES + 1)
    if found is None:
        return b""
    if len(found[0]) > LIMIT_BYTES:
        raise ResilError(f"{path} is larger than any crontab", hint="look at it")
    return found[0]


def replace_crontab(path: Path, before: bytes, after: bytes) -> None:
    """Write the crontab anew, whole or not at all; what it links to stays a file of its own place.

    Raise ResilError if somebody else has changed it meanwhile, or it cannot be written.
    """
    target = path.resolve()
    make_directory(target.parent, mode=0o755)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    if read_crontab(path) != before:
        raise ResilError(f"{path} was changed meanwhile", hint="try again", transient=True)
    write_atomic(target, after, mode=mode)
