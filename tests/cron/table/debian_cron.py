"""What Debian's cron does, minute by minute, and with a line: an oracle that shares no code with ours.

Written after entry.c (load_entry, get_list, get_range), do_command.c and cron.c (main, find_jobs) of cron 3.0pl1-162,
as released with Debian 12: bits of fields, MIN_STAR and HR_STAR, and a virtual clock that is led to the clock on the
wall.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from resilience.cron.table.expression import Schedule

_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES = {3: {name: n for n, name in enumerate(_MONTHS, 1)}, 4: {name: n for n, name in enumerate(_DAYS)}}


class DebianCron:
    """One crontab line of one user, on a machine in one time zone."""

    def __init__(self, expression: str, zone: str) -> None:
        words = expression.lower().split()
        self.zone = zone
        self.bits = [_bits(word, index) for index, word in enumerate(words)]
        if self.bits[4] & {0, 7}:
            self.bits[4] |= {0, 7}  # "make sundays equivalent"
        self.is_wild = words[0].startswith("*") or words[1].startswith("*")
        self.has_star_day = words[2].startswith("*") or words[4].startswith("*")

    def matches(self, minute: int) -> bool:
        """find_jobs: whether the fields fit a minute of the clock on the wall, counted from 1970."""
        at = datetime.fromtimestamp(minute * 60, UTC)
        if at.minute not in self.bits[0] or at.hour not in self.bits[1] or at.month not in self.bits[3]:
            return False
        by_date, by_week = at.day in self.bits[2], at.isoweekday() % 7 in self.bits[4]
        return (by_date and by_week) if self.has_star_day else (by_date or by_week)

    def runs(self, after: int, until: int) -> list[int]:
        """The real seconds at which it runs in (after, until], by cron's main loop. (Twice in a minute counts once.)"""
        found: dict[int, None] = {}
        virtual = (after - 86400 + offset(self.zone, after - 86400)) // 60
        for now in range((after - 86400) // 60 * 60 + 60, until + 1, 60):
            running = (now + offset(self.zone, now)) // 60
            behind = running - virtual
            if behind == 1 or behind <= -180 or behind > 180:  # as ever, or "time has changed a *lot*"
                virtual = running
                hit = self.matches(virtual)
            elif behind <= 0:  # summer time ended: only wildcard jobs, until the virtual clock is caught up
                hit = self.is_wild and self.matches(running)
            elif self.is_wild:  # summer time began
                virtual, hit = running, self.matches(running)
            else:  # and what would otherwise be skipped
                hit = any(self.matches(skipped) for skipped in range(virtual + 1, running + 1))
                virtual = running
            if hit and now > after:
                found[now] = None
        return list(found)

    def year(self, after: int, until: int) -> Iterator[int]:
        """The same for a long time: minute by minute only within a day and a half of each change of the clocks."""
        edges = [after, until]
        for change in changes(self.zone):
            if after < change <= until:
                edges += [max(after, change - 129600), min(until, change + 129600)]
        edges.sort()
        for index, (start, end) in enumerate(pairwise(edges)):
            if index % 2:
                yield from self.runs(start, end)
            else:
                by = offset(self.zone, end)
                yield from (60 * minute - by for minute in self._plain((start + by) // 60 + 1, (end + by) // 60 + 1))

    def _plain(self, first: int, last: int) -> Iterator[int]:
        """Where the clocks stand: the minutes of [first, last) that match."""
        of_day = [m for m in range(1440) if m % 60 in self.bits[0] and m // 60 in self.bits[1]]
        if not of_day:
            return
        for day in range(first // 1440, last // 1440 + 1):
            if self.matches(day * 1440 + of_day[0]):
                yield from (m for m in (day * 1440 + one for one in of_day) if first <= m < last)


def between(schedule: Schedule, after: float, until: float) -> Iterator[int]:
    """The slots of one of our schedules in (after, until]."""
    slot = schedule.next_after(after)
    while slot is not None and slot <= until:
        yield slot
        slot = schedule.next_after(slot)


def command_and_input(text: str) -> tuple[str, str]:
    """do_command.c: what its shell gets after -c, and through a pipe."""
    command, escaped, rest = "", False, ""
    for position, character in enumerate(text):
        if escaped:
            if character == "%":
                command = command[:-1]
            command, escaped = command + character, False
        elif character == "%":
            rest = text[position + 1 :]
            break
        else:
            command, escaped = command + character, character == "\\"
    given, escaped = "", False
    for character in rest:
        if escaped and character != "%":
            given += "\\"
        if not escaped and character == "%":
            character = "\n"
        escaped = character == "\\"
        given += "" if escaped else character
    given += "\\" if escaped else ""
    return command, given if not given or given.endswith("\n") else given + "\n"


def _bits(word: str, index: int) -> set[int]:
    low, high = _BOUNDS[index]
    names = _NAMES.get(index, {})
    found: set[int] = set()
    for term in word.split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = low, high
        else:
            ends = [names.get(end, -1) if end in names else int(end) for end in span.split("-")]
            first, last = ends[0], ends[-1]
        found.update(range(first, last + 1, int(step or 1)))
    return found


@cache
def _offsets(zone: str) -> tuple[list[int], list[int]]:
    """When the clocks of a zone change, 2024 to 2029, and by how much they are from UTC from then on."""
    info = ZoneInfo(zone)

    def at(second: int) -> int:
        by = datetime.fromtimestamp(second, info).utcoffset()
        assert by is not None
        return int(by.total_seconds())

    times, values = [0], [at(1704067200)]
    for day in range(1704067200, 1861920000, 86400):
        if at(day + 86400) != values[-1]:
            for second in range(day, day + 86401, 900):  # all zones change at a quarter of an hour
                if at(second) != values[-1]:
                    times.append(second)
                    values.append(at(second))
    return times, values


def offset(zone: str, second: int) -> int:
    """Seconds to add to UTC, by a table of our own."""
    times, values = _offsets(zone)
    return values[bisect_right(times, second) - 1]


def changes(zone: str) -> list[int]:
    """When the clocks change, 2024 to 2029."""
    return _offsets(zone)[0][1:]
