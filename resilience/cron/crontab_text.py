"""Reads, parses and replaces the text of the project's crontab, which users edit as well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resilience.errors import ResilError
from resilience.system.files import make_directory, read_regular, write_atomic

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Table

CRONTAB = "crontab"
"""Its file name in the cron directory, and the prefix of its entries' names."""

LIMIT_BYTES = 2**20
"""Maximum size of a crontab (MAX_TAB_LINES of cron is 1000)."""

MARK = "by `resil cron add"
"""Part of the comment that `resil cron add` writes above a line; `remove` recognizes the comment by it."""


def parse(cron: CronProject, text: bytes) -> Table:
    """Parse the text of a crontab."""
    from resilience.cron.table.crontab_file import parse_crontab

    return parse_crontab(text, f"{cron.directory.name}/{CRONTAB}", cron.settings)


def read_crontab(path: Path) -> bytes:
    """Return the crontab, empty if it does not exist. Raise ResilError if it cannot be read."""
    found = read_regular(path.resolve(), LIMIT_BYTES + 1)
    if found is None:
        return b""
    if len(found[0]) > LIMIT_BYTES:
        raise ResilError(f"{path} is too large for a crontab", hint="check the file")
    return found[0]


def replace_crontab(path: Path, before: bytes, after: bytes) -> None:
    """Replace the crontab atomically; of a symbolic link, replace the target.

    Raise ResilError if the file has changed since it was read, or cannot be written.
    """
    target = path.resolve()
    make_directory(target.parent, mode=0o755)
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
    if read_crontab(path) != before:
        raise ResilError(f"{path} changed in the meantime", hint="try again", transient=True)
    write_atomic(target, after, mode=mode)
