"""UTC offsets of time zones, and their changes. Reads only the zone's file, once.

All time arithmetic uses whole seconds: adding a timedelta to a datetime with a zone drops its `fold`, and a loop that
does so repeats the last hour of summer time forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from resilience.errors import UsageError

Offset = Callable[[int], int]
"""Maps seconds since the epoch to the UTC offset in seconds."""

DAY_S = 86400
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/UCT"})


class ZoneError(UsageError, ValueError):
    """The time zone is unknown on this machine."""


def machine_offset(t: int) -> int:
    """Return this machine's own offset: $TZ as libc reads it (also `CET-1CEST`), else /etc/localtime."""
    import time

    return time.localtime(t).tm_gmtoff


@lru_cache(maxsize=64)
def offset_of(zone: str) -> Offset:
    """Return the offset of an IANA name (empty: this machine's zone). Raise ZoneError if it is unknown."""
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
        raise ZoneError(f"unknown time zone {zone!r}", hint=_hint(zone)) from error
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
        return "this machine has no time zones: install the package tzdata, or write CRON_TZ=UTC"
    by_lower = {name.lower(): name for name in known}
    # `paris` for Europe/Paris: users omit the continent.
    by_city = {name.lower().rpartition("/")[2]: name for name in sorted(known) if not name.startswith("posix/")}
    wanted = zone.strip().lower().replace(" ", "_")
    for names, cutoff in ((by_lower, 0.99), (by_city, 0.99), (by_lower, 0.75), (by_city, 0.75)):
        if close := get_close_matches(wanted, names, n=1, cutoff=cutoff):
            return f"did you mean {names[close[0]]}?"
    return "write an IANA name, for instance Europe/Paris; `timedatectl list-timezones` shows them"


def first_change(offset: Offset, after: int, until: int) -> int | None:
    """Return the first second in (after, until] with a different offset than the second before; None: none.

    Two changes within a day that cancel each other would be missed: no zone has had any since 1970.
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
    """Yield the seconds of (after, until] as intervals of constant offset: first second, one after the last, offset."""
    start = after + 1
    while start <= until:
        change = first_change(offset, start, until)
        end = until + 1 if change is None else change
        yield start, end, offset(start)
        start = end
