"""Slots of a schedule, as seconds since the epoch. Pure.

An expression means what it means to Debian's cron (crontab(5), cron(8), and entry.c, cron.c of its package). cronsim
parses the fields and walks the calendar; cron(8) specifies clock changes:

- an entry with fixed times (neither minute nor hour begins with `*`) in the skipped hour runs at the change, and in the
  repeated hour only the first time;
- any other entry follows the wall clock: skipped times do not run, repeated times run twice.

So cronsim only handles times without a zone, and zones.py converts them. (cron differs only where a whole day was
skipped, as in Samoa in 2011: it omits that day's entries, and here they run at its end.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING

from resilience.cron.table.zones import DAY_S, Offset, first_change, offset_of, spans

if TYPE_CHECKING:
    from cronsim import CronSim

_EARLIEST, _LATEST = -62_000_000_000, 253_300_000_000
"""The years 5 and 9996: cronsim uses datetimes, which end soon after."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times at which an entry runs. Slots are whole seconds since the epoch.

    Attributes:
        text: as written.
        zone: IANA name; empty: this machine's.
        expression: the five fields; empty for @reboot and @every.
        every_s: for `@every 90s`: runs at the multiples of it since the epoch. 0 for all others.
    """

    text: str
    zone: str = ""
    expression: str = ""
    every_s: int = 0

    @property
    def is_reboot(self) -> bool:
        """Return whether it runs once per start of the scheduler."""
        return not self.expression and not self.every_s

    def next_after(self, t: float) -> int | None:
        """Return the first slot after `t`; None: none."""
        now = floor(t)
        if not _EARLIEST < now < _LATEST or self.is_reboot:
            return None
        if self.every_s:
            return (now // self.every_s + 1) * self.every_s
        offset = offset_of(self.zone)
        if _is_fixed(self.expression):
            local = _first(self.expression, _reached(offset, now) + 1)
            return None if local is None else _moment(offset, local)
        return _next_on_the_wall(self.expression, offset, now)

    def newest_until(self, t: float) -> int | None:
        """Return the newest slot at or before `t`; None: none."""
        now = floor(t)
        if not _EARLIEST < now < _LATEST or self.is_reboot:
            return None
        if self.every_s:
            return now // self.every_s * self.every_s
        offset = offset_of(self.zone)
        if _is_fixed(self.expression):
            local = _last(self.expression, _reached(offset, now))
            return None if local is None else _moment(offset, local)
        return _newest_on_the_wall(self.expression, offset, now)

    def between(self, after: float, until: float) -> Iterator[int]:
        """Yield the slots after `after` up to and including `until`, oldest first."""
        slot = self.next_after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self.next_after(slot)

    def count(self, after: float, until: float) -> int:
        """Return the number of slots in `between`; takes milliseconds for a year of minutes."""
        first, last = max(floor(after), _EARLIEST), min(floor(until), _LATEST)
        if last <= first or self.is_reboot:
            return 0
        if self.every_s:
            return last // self.every_s - first // self.every_s
        offset = offset_of(self.zone)
        if not _is_fixed(self.expression):
            return sum(_matches(self.expression, a + by, b + by) for a, b, by in spans(offset, first, last))
        found = _matches(self.expression, _reached(offset, first) + 1, _reached(offset, last) + 1)
        change = first_change(offset, first, last)
        while change is not None:
            # All times in the skipped hour, and the one at its end, are one slot: the change.
            in_gap = _matches(self.expression, change + offset(change - 1), change + offset(change) + 1)
            found -= max(0, in_gap - 1)
            change = first_change(offset, change, last)
        return found

    def period_s(self, now: float) -> float:
        """Return the seconds from the next slot to the one after it; infinite if there are not two."""
        first = self.next_after(now)
        second = self.next_after(first) if first is not None else None
        return float("inf") if first is None or second is None else float(second - first)


@lru_cache(maxsize=512)
def fields_of(expression: str) -> CronSim:
    """Return the expression's fields as cronsim parses them. Raise CronSimError if it never matches."""
    from datetime import datetime

    from cronsim import CronSim

    return CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - clocks without a zone: see the module


def _is_fixed(expression: str) -> bool:
    """Return whether cron treats an entry as fixed in time: cron(8), "Only jobs that run at a particular time"."""
    minute, hour, *_ = expression.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _first(expression: str, local: int) -> int | None:
    """Return the first match at or after `local`: seconds since 1970 by the wall clock."""
    return _walk(expression, local - 1, reverse=False)


def _last(expression: str, local: int) -> int | None:
    """Return the last match at or before `local`."""
    return _walk(expression, local + 1, reverse=True)


def _walk(expression: str, local: int, *, reverse: bool) -> int | None:
    from datetime import datetime, timedelta

    from cronsim import CronSim

    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - clocks without a zone: see the module
    try:
        found = next(CronSim(expression, epoch + timedelta(seconds=local), reverse=reverse))
    except (StopIteration, OverflowError, ValueError):  # nothing in 50 years, or the end of the calendar
        return None
    return (found - epoch) // timedelta(seconds=1)


def _matches(expression: str, start: int, end: int) -> int:
    """Return the number of matches in [start, end) by the wall clock. Counts days, not minutes."""
    from datetime import date

    fields = fields_of(expression)
    minutes = sorted(60 * hour + minute for hour in fields.hours for minute in fields.minutes)
    if end <= start:  # where clocks are set back
        return 0
    first_day, first = divmod(-(-start // 60), 1440)
    last_day, last = divmod(-(-end // 60), 1440)
    epoch = date(1970, 1, 1).toordinal()

    def runs_on(day: int) -> bool:
        at = date.fromordinal(epoch + day)
        return at.month in fields.months and fields.match_day(at)

    whole = sum(runs_on(day) for day in range(first_day, last_day))
    before = bisect_left(minutes, first) if first and runs_on(first_day) else 0
    rest = bisect_left(minutes, last) if last and runs_on(last_day) else 0
    return whole * len(minutes) - before + rest


def _reached(offset: Offset, now: int) -> int:
    """Return the latest wall clock time shown by `now`: cron's "virtual time", which never goes back."""
    change = first_change(offset, now - DAY_S, now)
    shown = now + offset(now)
    return shown if change is None else max(shown, change - 1 + offset(change - 1))


def _moment(offset: Offset, local: int) -> int:
    """Return the first second at which the wall clock shows `local` or later."""
    before, after = local - 2 * DAY_S, local + 2 * DAY_S  # no zone is further from UTC than a day
    change = first_change(offset, before, after)
    old = offset(before)
    if change is None or local < change + old:
        return local - old
    return max(change, local - offset(change))


def _next_on_the_wall(expression: str, offset: Offset, now: int) -> int | None:
    start = now + 1
    while True:
        by = offset(start)
        local = _first(expression, start + by)
        if local is None:
            return None
        slot = local - by
        near = min(slot, start + DAY_S)
        change = first_change(offset, start, near)
        if change is not None:
            # The offset is valid up to the change; continue the search there.
            start = change
        elif near == slot:
            return slot
        else:
            # No earlier match exists with any offset within a day of this one.
            start = max(near, slot - 2 * DAY_S)


def _newest_on_the_wall(expression: str, offset: Offset, now: int) -> int | None:
    end = now
    while True:
        by = offset(end)
        local = _last(expression, end + by)
        if local is None:
            return None
        slot = local - by
        near = max(slot, end - DAY_S)
        change = first_change(offset, near, end)
        if change is not None:
            end = change - 1
        elif near == slot:
            return slot
        else:
            end = min(near, slot + 2 * DAY_S)
