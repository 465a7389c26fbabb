"""`resil cron remove`: removes a drop-in (of a symbolic link, the link), or a crontab line."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.crontab_text import CRONTAB, MARK, parse, read_crontab, replace_crontab
from resilience.cron.entries import find_name
from resilience.errors import ResilError, UsageError
from resilience.system.files import explain_os_error

if TYPE_CHECKING:
    from resilience.cron.project import CronProject
    from resilience.cron.records import Entry, Ignored, Table


@dataclass(frozen=True, slots=True)
class Gone:
    """An entry removed, or with a dry run the entry to remove.

    Attributes:
        name: name of the entry.
        place: the file; for a line, with its number.
        text: the removed lines; for a link, its target.
    """

    name: str
    place: str
    text: str = ""
    is_link: bool = False


def remove(cron: CronProject, names: Sequence[str], *, dry_run: bool = False) -> tuple[Gone, ...]:
    """Remove all named entries, or none. Raise UsageError, with the nearest name, for an unknown entry."""
    table = cron.read_table()
    entries = [_find(table, name) for name in dict.fromkeys(names)]
    return tuple(_remove(cron, entry, dry_run=dry_run) for entry in dict.fromkeys(entry.name for entry in entries))


def _find(table: Table, wanted: str) -> Entry:
    by_name = {entry.name: entry for entry in table.entries}
    try:
        return by_name[find_name(by_name, wanted)]
    except UsageError:
        if (ignored := _ignored(table, wanted)) is not None:
            raise UsageError(
                f"{ignored.place} is not an entry: {ignored.reason}", hint=f"remove the file: rm {ignored.place}"
            ) from None
        raise


def _ignored(table: Table, wanted: str) -> Ignored | None:
    ends = [i for i in table.ignored if i.place.endswith(f"/{wanted}")]
    return ends[0] if len(ends) == 1 and ":" not in ends[0].place.rpartition("/")[2] else None


def _remove(cron: CronProject, name: str, *, dry_run: bool) -> Gone:
    entry = next((entry for entry in cron.read_table().entries if entry.name == name), None)
    if entry is None:
        raise ResilError(f"{name} no longer exists: another process removed it", hint="resil cron list")
    return _remove_file(cron, entry, dry_run=dry_run) if entry.path else _remove_line(cron, entry, dry_run=dry_run)


def _remove_file(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    # The path in the directory, not the target of a link.
    path = cron.directory / entry.name
    if not os.path.lexists(path):
        path = Path(entry.path)
    try:
        target = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 - as it was written
        if not dry_run:
            path.unlink()
    except OSError as error:
        raise explain_os_error(error, "remove", path) from error
    return Gone(entry.name, str(path), target, bool(target))


def _remove_line(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    """Remove the line, the options above it, and the comment that `resil cron add` wrote."""
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    number = entry.place.rpartition(":")[2]
    lines = [line + b"\n" for line in before.split(b"\n")]
    last = int(number) - 1 if number.isdigit() else -1
    if not 0 <= last < len(lines):
        raise ResilError(f"{entry.place} no longer exists", hint="try again", transient=True)
    first = last
    options, mark = re.compile(rb"[ \t]*#+[ \t]*resil:"), os.fsencode(f"{MARK} ")
    if first and options.match(lines[first - 1]):
        first -= 1
    if first and lines[first - 1].lstrip().startswith(b"#") and mark in lines[first - 1]:
        first -= 1
    removed, left = lines[first : last + 1], [*lines[:first], *lines[last + 1 :]]
    after = b"".join(left).removesuffix(b"\n")
    _check_others_unchanged(cron, before, after, entry)
    if not dry_run:
        replace_crontab(path, before, after)
    return Gone(entry.name, entry.place, os.fsdecode(b"".join(removed)).rstrip("\n"))


def _check_others_unchanged(cron: CronProject, before: bytes, after: bytes, entry: Entry) -> None:
    """Raise ResilError if more than this entry would change, because the file changed since it was read."""
    there = [_meaning(other) for other in parse(cron, before).entries]
    left = [_meaning(other) for other in parse(cron, after).entries]
    if _meaning(entry) in there:
        there.remove(_meaning(entry))
    # Compared without names: of two equal lines, the second takes over the name of the first.
    if there != left:
        raise ResilError(f"{entry.place} changed in the meantime", hint="try again", transient=True)


def _meaning(entry: Entry) -> tuple[object, ...]:
    return entry.schedule, entry.zone, entry.argv, entry.options
