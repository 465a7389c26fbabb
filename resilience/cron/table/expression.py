"""Schedules: five fields, `@hourly` etc., `@every 90s`, and the slots at which they run. Pure, except for zone files.

An expression means what it means to Debian's cron (crontab(5), cron(8), and entry.c, cron.c of its package), and is
refused where cron misreads it: `5-1`, which never matches, or `1.5`, of which cron reads the 1. Clock changes:

- an entry with fixed times (neither minute nor hour begins with `*`) in the skipped hour runs at the change, and in the
  repeated hour only the first time;
- any other entry follows the wall clock: skipped times do not run, repeated times run twice.

(cron differs only where a whole day was skipped, as in Samoa in 2011: it omits that day's entries, and here they run at
its end.) All time arithmetic uses whole seconds: adding a timedelta to a datetime with a zone drops its `fold`, and a
loop that does so repeats the last hour of summer time forever.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import pairwise, takewhile
from math import floor, inf
from typing import NamedTuple

from resilience.errors import QuantityError, UsageError
from resilience.messages import plural, suggest
from resilience.quantities import parse_duration_s

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""crontab(5). @reboot and our own @every are not expressions."""

REBOOT = "@reboot"
EVERY = "@every"

DAY_S = 86400
_LONGEST_S = 10 * 366 * DAY_S
_SEARCHED_MONTHS = 50 * 12
"""29 February is a given day of the week every 40 years at the latest."""
_EARLIEST, _LATEST = -62_000_000_000, 253_300_000_000
"""The years 5 and 9996: datetimes end soon after."""
_EPOCH_S = 719_163 * DAY_S
"""1970-01-01 as a proleptic Gregorian ordinal, in seconds."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_TERM = r"(?ai)(?:\*|(?P<first>[a-z]+|\d{1,9})(?:-(?P<last>[a-z]+|\d{1,9}))?)(?P<stepped>/(?P<step>\d{1,9}))?"


class ScheduleError(UsageError, ValueError):
    """The text is not a schedule, or never matches."""


class ZoneError(UsageError, ValueError):
    """The time zone is unknown on this machine."""


# ---- time zones ------------------------------------------------------------------------------------------------

Offset = Callable[[int], int]
"""Maps seconds since the epoch to the UTC offset in seconds."""


def _machine_offset(t: int) -> int:
    """Return this machine's own offset: $TZ as libc reads it (also `CET-1CEST`), else /etc/localtime."""
    return time.localtime(t).tm_gmtoff


@lru_cache(maxsize=64)
def offset_of(zone: str) -> Offset:
    """Return the offset of an IANA name (empty: this machine's zone). Raise ZoneError if it is unknown."""
    if not zone:
        return _machine_offset
    if zone in {"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/UCT"}:
        return lambda _: 0
    from datetime import UTC, datetime, timedelta
    from zoneinfo import ZoneInfo

    try:
        info = ZoneInfo(zone)
    except (OSError, ValueError, LookupError, UnicodeError) as error:
        # LookupError: no such file. OSError: a directory (`America`). ValueError: `../etc`, or a file that is no zone.
        raise ZoneError(f"unknown time zone {zone!r}", hint=_zone_hint(zone)) from error
    epoch, second = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)

    def offset(t: int) -> int:
        local = (epoch + t * second).astimezone(info)
        return (local.utcoffset() or timedelta()) // second

    return offset


def _zone_hint(zone: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        return "this machine has no time zones: install the package tzdata, or write CRON_TZ=UTC"
    # `paris` for Europe/Paris: users omit the continent.
    names = {name.lower().rpartition("/")[2]: name for name in sorted(known) if not name.startswith("posix/")}
    names |= {name.lower(): name for name in known}
    wanted = zone.strip().lower().replace(" ", "_")
    if close := [wanted] if wanted in names else get_close_matches(wanted, names, n=1, cutoff=0.75):
        return f"did you mean {names[close[0]]}?"
    return "write an IANA name, for instance Europe/Paris; `timedatectl list-timezones` shows them"


def _first_change(offset: Offset, after: int, until: int) -> int | None:
    """Return the first second in (after, until] with a different offset than the second before; None: none.

    Two changes within a day that cancel each other would be missed: no zone has had any since 1970.
    """
    old = offset(after)
    while after < until:
        end = min(after + DAY_S, until)
        if offset(end) != old:
            return after + bisect_left(range(after, end), True, lo=1, key=lambda t: offset(t) != old)
        after = end
    return None


# ---- schedules -------------------------------------------------------------------------------------------------


class _Fields(NamedTuple):
    """The times of an expression.

    Attributes:
        minutes: minutes of a day, ascending.
        days, months, weekdays: of the month; of the year; Sunday is 0.
        needs_both: whether a day has to be in `days` and in `weekdays`; otherwise one is enough.
        is_fixed: whether the entry has fixed times: cron(8), "Only jobs that run at a particular time".
    """

    minutes: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    needs_both: bool
    is_fixed: bool

    def walk_days(self, first: int, step: int) -> Iterator[int]:
        """Yield the matching days as ordinals: from `first` on, or backwards (`step` -1), for 50 years."""
        at = date.fromordinal(first)
        month = 12 * at.year + at.month - 1
        for number in range(month, month + step * _SEARCHED_MONTHS, step):
            year, index = divmod(number, 12)
            if index + 1 not in self.months or not 1 < year < 9999:
                continue
            start = date(year, index + 1, 1).toordinal()
            end = date(year + index // 11, (index + 1) % 12 + 1, 1).toordinal()
            for day in range(max(start, first), end) if step > 0 else range(min(end - 1, first), start - 1, -1):
                by_date, by_week = day - start + 1 in self.days, day % 7 in self.weekdays
                if (by_date and by_week) if self.needs_both else (by_date or by_week):
                    yield day

    def walk(self, local: int, step: int) -> Iterator[int]:
        """Yield the matching times in seconds since 1970 by the wall clock: from `local` on, or backwards."""
        first, second = divmod(local + _EPOCH_S, DAY_S)
        for day in self.walk_days(first, step):
            minutes = self.minutes
            if day == first:
                start, end = bisect_left(minutes, -(-second // 60)), bisect_right(minutes, second // 60)
                minutes = minutes[start:] if step > 0 else minutes[:end]
            yield from (day * DAY_S - _EPOCH_S + 60 * minute for minute in minutes[::step])

    def between(self, start: int, end: int) -> int:
        """Return the number of matches in [start, end) by the wall clock, negative if `end` is earlier. Counts days."""
        if end < start:
            return -self.between(end, start)
        (first_day, first), (last_day, last) = (divmod(-(-(at + _EPOCH_S) // 60), 1440) for at in (start, end))
        days = list(takewhile(lambda day: day <= last_day, self.walk_days(first_day, 1)))
        before = bisect_left(self.minutes, first) if days[:1] == [first_day] else 0
        rest = len(self.minutes) - bisect_left(self.minutes, last) if days[-1:] == [last_day] else 0
        return len(days) * len(self.minutes) - before - rest


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times at which an entry runs. Slots are whole seconds since the epoch.

    Attributes:
        text: as written.
        zone: IANA name; empty: this machine's.
        fields: times of an expression; None for @reboot and @every.
        every_s: for `@every 90s`: runs at the multiples of it since the epoch. 0 for all others.
    """

    text: str
    zone: str = ""
    fields: _Fields | None = field(default=None, repr=False)
    every_s: int = 0

    @property
    def is_reboot(self) -> bool:
        """Return whether it runs once per start of the scheduler."""
        return self.fields is None and not self.every_s

    @property
    def shortest_s(self) -> float:
        """Return the shortest time between two slots on one day, or over midnight if it runs on every day."""
        if self.fields is None:
            return self.every_s or inf
        minutes, *days = self.fields.minutes, self.fields.days, self.fields.months, self.fields.weekdays
        if list(map(len, days)) == [31, 12, 7]:
            minutes = (*minutes, minutes[0] + 1440)
        return min((60.0 * (later - earlier) for earlier, later in pairwise(minutes)), default=DAY_S)

    def next_after(self, t: float) -> int | None:
        """Return the first slot after `t`; None: none."""
        return self._nearest(floor(t), 1)

    def newest_until(self, t: float) -> int | None:
        """Return the newest slot at or before `t`; None: none."""
        return self._nearest(floor(t), -1)

    def _nearest(self, now: int, step: int) -> int | None:
        """Return the first slot after `now`, or with `step` -1 the last until `now`."""
        if self.is_reboot or not _EARLIEST < now < _LATEST:
            return None
        if self.fields is None:
            return (now // self.every_s + (step > 0)) * self.every_s
        offset, best = offset_of(self.zone), None
        farthest = max if step > 0 else min
        shown = (now + offset(now), now + offset(now + step * 2 * DAY_S))
        for local in self.fields.walk(min(shown) if step > 0 else max(shown), step):
            offsets = offset(local - 2 * DAY_S), offset(local + 2 * DAY_S)  # no zone is further from UTC than a day
            for slot in _moments(offset, local, *offsets, is_fixed=self.fields.is_fixed):
                if (slot > now) == (step > 0) and (best is None or step * slot < step * best):
                    best = slot
            if best is not None and step * (local - farthest(offsets)) >= step * best:
                break  # repeated hours aside, a later time on the wall is a later slot
        return best

    def count(self, after: float, until: float) -> int:
        """Return the number of slots after `after` until `until`; takes milliseconds for a year of minutes."""
        first, last = max(floor(after), _EARLIEST), min(floor(until), _LATEST)
        if last <= first or self.is_reboot:
            return 0
        if self.fields is None:
            return last // self.every_s - first // self.every_s
        offset, count, is_fixed = offset_of(self.zone), self.fields.between, self.fields.is_fixed
        start, end = (_reached(offset, t) if is_fixed else t + offset(t) for t in (first, last))
        found = count(start + 1, end + 1)
        change = _first_change(offset, first, last)
        while change is not None:
            old, new = change + offset(change - 1), change + offset(change)
            # Of fixed times, all in the skipped hour, and the one at its end, are one slot: the change.
            found += min(0, 1 - count(old, new + 1)) if is_fixed else -count(old, new)
            change = _first_change(offset, change, last)
        return found

    def period_s(self, now: float) -> float:
        """Return the seconds from the next slot to the one after it; infinite if there are not two."""
        first = self.next_after(now)
        second = self.next_after(first) if first is not None else None
        return inf if first is None or second is None else float(second - first)


def _moments(offset: Offset, local: int, before: int, after: int, *, is_fixed: bool) -> tuple[int, ...]:
    """Return the seconds at which the wall clock shows `local`; of a fixed time, the first at which it is reached."""
    if before == after:
        return (local - before,)
    if not is_fixed:
        return tuple(local - by for by in (before, after) if offset(local - by) == by)
    change = _first_change(offset, local - 2 * DAY_S, local + 2 * DAY_S)
    return (local - before if change is None or local < change + before else max(change, local - offset(change)),)


def _reached(offset: Offset, now: int) -> int:
    """Return the latest wall clock time shown by `now`: cron's "virtual time", which never goes back."""
    change = _first_change(offset, now - DAY_S, now)
    shown = now + offset(now)
    return shown if change is None else max(shown, change - 1 + offset(change - 1))


# ---- as written ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parse_schedule(text: str, zone: str = "") -> Schedule:
    """Parse a schedule.

    For instance, `*/5 8-18 * * MON-FRI`, `@hourly`, `@every 90s`. Raise ScheduleError if it is invalid, if cron would
    misread it, or if it never matches; ZoneError if the zone is unknown.
    """
    words = text.split()
    zone = zone.strip()
    offset_of(zone)
    if words == [REBOOT]:
        return Schedule(REBOOT, zone)
    if words[:1] == [EVERY]:
        return Schedule(" ".join(words), zone, every_s=_parse_every(words[1:]))
    if words and words[0].startswith("@"):
        if len(words) == 1 and words[0] in ALIASES:
            return Schedule(words[0], zone, _parse_fields(ALIASES[words[0]].split()))
        raise ScheduleError(
            f"{text.strip()!r} is not a schedule", hint=suggest(words[0].lower(), [*ALIASES, REBOOT, EVERY])
        )
    if len(words) != len(_FIELDS):
        fields = ", ".join(name for name, *_ in _FIELDS)
        raise ScheduleError(
            f"{text.strip()!r} has {plural(len(words), 'field')} instead of five",
            hint=f"write {fields}: `30 4 * * *` is every day at 04:30",
        )
    return Schedule(" ".join(words), zone, _parse_fields(words))


def _parse_every(words: list[str]) -> int:
    text = f"{EVERY} {' '.join(words)}"
    try:
        seconds = parse_duration_s(" ".join(words))
    except QuantityError as error:
        raise ScheduleError(f"{text}: {error}", hint="write for instance @every 90s") from error
    if seconds < 1 or seconds != int(seconds):
        raise ScheduleError(f"{text} is not a whole number of seconds", hint="write @every 1s or more")
    if seconds > _LONGEST_S:
        raise ScheduleError(f"{text} is longer than ten years", hint="write @every 10m, or @yearly")
    return int(seconds)


def _parse_fields(words: list[str]) -> _Fields:
    is_fixed = not words[0].startswith("*") and not words[1].startswith("*")
    return _Fields(_minutes(words[0], words[1]), *_days(*words[2:]), is_fixed)


@lru_cache(maxsize=4096)
def _minutes(minutes: str, hours: str) -> tuple[int, ...]:
    every = sorted(_parse_field(minutes, 0))
    return tuple(60 * hour + minute for hour in sorted(_parse_field(hours, 1)) for minute in every)


@lru_cache(maxsize=4096)
def _days(days: str, months: str, weekdays: str) -> tuple[frozenset[int], frozenset[int], frozenset[int], bool]:
    found = _parse_field(days, 2), _parse_field(months, 3), frozenset(day % 7 for day in _parse_field(weekdays, 4))
    needs_both = days.startswith("*") or weekdays.startswith("*")
    if next(_Fields((), *found, needs_both, is_fixed=True).walk_days(1, 1), None) is None:
        raise ScheduleError(
            f"'{days} {months} {weekdays}' never matches: no such month has that day",
            hint="for the last day of a month run the script on `28-31`, and continue only if "
            '`[ "$(date -d tomorrow +%d)" = 01 ]`',
        )
    return *found, needs_both


@lru_cache(maxsize=4096)
def _parse_field(word: str, index: int) -> frozenset[int]:
    """Return the numbers of a field: a list of `*`, `A`, `A-B`, `*/N` and `A-B/N`, as in cron's grammar."""
    name, low, high, names = _FIELDS[index]
    found: set[int] = set()
    for term in word.split(","):
        match = re.fullmatch(_TERM, term)
        if match is None:
            raise ScheduleError(f"{name}: {term!r} in {word!r} is invalid", hint=_term_hint(term, name))
        ends = [_number(match[end], index) for end in ("first", "last") if match[end] is not None]
        first, last = (ends[0], ends[-1]) if ends else (low, high)
        if first > last:
            wrapped = f"{match['first']}-{names[-1] if names else high},{names[0] if names else low}-{match['last']}"
            hint = "write SUN as 7: 5-7" if index == 4 and last == 0 else f"write {wrapped}"
            raise ScheduleError(f"{name}: the range {term!r} ends before it begins, so it never matches", hint=hint)
        if match["stepped"] and int(match["step"]) == 0:
            raise ScheduleError(f"{name}: {term!r} has a step of 0", hint="write a step of 1 or more: */5")
        if match["stepped"] and len(ends) == 1:
            # Debian's cron refuses it, cronie takes it for 5-59/10, older crons for 5 alone.
            raise ScheduleError(
                f"{name}: {term!r} has a step but no range", hint=f"write {match['first']}-{high}{match['stepped']}"
            )
        found.update(range(first, last + 1, int(match["step"] or 1)))
    return frozenset(found)


def _number(text: str, index: int) -> int:
    name, low, high, names = _FIELDS[index]
    if text.lower() in names:
        return low + names.index(text.lower())
    if not text.isdigit():
        hint = f"write {names[0].upper()} to {names[-1].upper()}" if names else f"write {low} to {high}"
        raise ScheduleError(f"{name}: {text!r} is not a {name}", hint=hint)
    if not low <= int(text) <= high:
        raise ScheduleError(f"{name}: {text} is not between {low} and {high}", hint=f"write {low} to {high}")
    return int(text)


def _term_hint(term: str, name: str) -> str:
    if not term:
        return "remove the comma at the end, or one of two"
    if re.search(r"[LW#?]", term.upper()):
        return f"cron does not support L, W, # and ?; check the {name} in the script"
    return "write for instance *, 5, 1-5, */10 or 1,15"
