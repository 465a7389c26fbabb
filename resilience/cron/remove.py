"""`resil cron remove`: schedules something no more: removes the drop-in (of a link, the link), or the one line."""

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
    """What was, or would be, removed.

    Attributes:
        name: the entry's.
        place: the file; of a line, with its number.
        text: of lines: what they were; of a link: where it leads.
    """

    name: str
    place: str
    text: str = ""
    is_link: bool = False


def remove(cron: CronProject, names: Sequence[str], *, dry_run: bool = False) -> tuple[Gone, ...]:
    """Remove them all, or none. Raise UsageError, with the nearest name, if there is no such entry."""
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
                f"{ignored.place} does not run anyway: {ignored.reason}", hint=f"remove the file: rm {ignored.place}"
            ) from None
        raise


def _ignored(table: Table, wanted: str) -> Ignored | None:
    ends = [i for i in table.ignored if i.place.endswith(f"/{wanted}")]
    return ends[0] if len(ends) == 1 and ":" not in ends[0].place.rpartition("/")[2] else None


def _remove(cron: CronProject, name: str, *, dry_run: bool) -> Gone:
    entry = next((entry for entry in cron.read_table().entries if entry.name == name), None)
    if entry is None:
        raise ResilError(f"{name} is not there any more: somebody else has removed it", hint="resil cron list")
    return _remove_file(cron, entry, dry_run=dry_run) if entry.path else _remove_line(cron, entry, dry_run=dry_run)


def _remove_file(cron: CronProject, entry: Entry, *, dry_run: bool) -> Gone:
    # Where it lies in the directory, not where a link leads.
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
    """Take out the line, its options that stand above it, and the comment that `resil cron add` wrote for it."""
    path = cron.directory / CRONTAB
    before = read_crontab(path)
    number = entry.place.rpartition(":")[2]
    lines = [line + b"\n" for line in before.split(b"\n")]
    last = int(number) - 1 if number.isdigit() else -1
    if not 0 <= last < len(lines):
        raise ResilError(f"{entry.place} is not there any more", hint="try again", transient=True)
    first = last
    options, mark = re.compile(rb"[ \t]*#+[ \t]*resil:"), os.fsencode(f"{MARK} ")
    if first and options.match(lines[first - 1]):
        first -= 1
    if first and lines[first - 1].lstrip().startswith(b"#") and mark in lines[first - 1]:
        first -= 1
    removed, left = lines[first : last + 1], [*lines[:first], *lines[last + 1 :]]
    after = b"".join(left).removesuffix(b"\n")
    _must_leave_others(cron, before, after, entry)
    if not dry_run:
        replace_crontab(path, before, after)
    return Gone(entry.name, entry.place, os.fsdecode(b"".join(removed)).rstrip("\n"))


def _must_leave_others(cron: CronProject, before: bytes, after: bytes, entry: Entry) -> None:
    """Raise ResilError if more than this one entry would change: the file is not as it was read."""
    there = [_sense(other) for other in parse(cron, before).entries]
    left = [_sense(other) for other in parse(cron, after).entries]
    if _sense(entry) in there:
        there.remove(_sense(entry))
    # By what they do: of two lines that are the same, the second is called by the first one's name afterwards.
    if there != left:
        raise ResilError(f"{entry.place} was changed meanwhile", hint="try again", transient=True)


def _sense(entry: Entry) -> tuple[object, ...]:
    return entry.schedule, entry.zone, entry.argv, entry.options
