"""How far the clocks of a time zone are from UTC, and when that changes. Reads the zone's file once, nothing else.

All arithmetic on time is done in whole seconds: adding a timedelta to a datetime with a zone drops its `fold`, and a
loop that does so repeats the hour at the end of summer time for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from resilience.errors import UsageError

Offset = Callable[[int], int]
"""Given seconds since the epoch, seconds to add to them to read the zone's clocks."""

DAY_S = 86400
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/UCT"})


class ZoneError(UsageError, ValueError):
    """A text is no time zone that this machine knows."""


def machine_offset(t: int) -> int:
    """The offset of this machine's own clocks: $TZ as libc reads it (also `CET-1CEST`), else /etc/localtime."""
    import time

    return time.localtime(t).tm_gmtoff


@lru_cache(maxsize=64)
def offset_of(zone: str) -> Offset:
    """Given an IANA name (empty: this machine's zone), return its offset. Raise ZoneError if nobody knows it."""
    if not zone:
        return machine_offset
    if zone in _UTC:
        return lambda _: 0
    from datetime import UTC, datetime, timedelta
    from zoneinfo import ZoneInfo

    try:
        info = ZoneInfo(zone)
    except (OSError, ValueError, LookupError, UnicodeError) as error:
        # LookupError: no such file. OSError: a directory (`America`). ValueError: `../etc`, or a file that is no zone.
        raise ZoneError(f"there is no time zone {zone!r}", hint=_hint(zone)) from error
    epoch, second = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)

    def offset(t: int) -> int:
        local = (epoch + t * second).astimezone(info)
        return (local.utcoffset() or timedelta()) // second

    return offset


def _hint(zone: str) -> str:
    from difflib import get_close_matches
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        return "this machine has no time zones at all: install the package tzdata, or write CRON_TZ=UTC"
    by_lower = {name.lower(): name for name in known}
    # `paris` for Europe/Paris: people leave the continent out.
    by_city = {name.lower().rpartition("/")[2]: name for name in sorted(known) if not name.startswith("posix/")}
    wanted = zone.strip().lower().replace(" ", "_")
    for names, cutoff in ((by_lower, 0.99), (by_city, 0.99), (by_lower, 0.75), (by_city, 0.75)):
        if close := get_close_matches(wanted, names, n=1, cutoff=cutoff):
            return f"did you mean {names[close[0]]}?"
    return "write an IANA name, for instance Europe/Paris; `timedatectl list-timezones` shows them"


def first_change(offset: Offset, after: int, until: int) -> int | None:
    """The first second in (after, until] whose offset is not that of the second before; None: there is none.

    Two changes that undo each other within a day would be missed: no zone has had any since 1970.
    """
    old = offset(after)
    while after < until:
        end = min(after + DAY_S, until)
        if offset(end) != old:
            while end - after > 1:
                middle = (after + end) // 2
                if offset(middle) == old:
                    after = middle
                else:
                    end = middle
            return end
        after = end
    return None


def spans(offset: Offset, after: int, until: int) -> Iterator[tuple[int, int, int]]:
    """The seconds of (after, until] as stretches of one offset each: first second, one after the last, offset."""
    start = after + 1
    while start <= until:
        change = first_change(offset, start, until)
        end = until + 1 if change is None else change
        yield start, end, offset(start)
        start = end
