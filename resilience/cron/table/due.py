"""Determines which slots are due, and when the next one is. Pure.

`last` maps the key of each entry to its newest taken slot, or to the time when the entry was first seen. An entry
missing there has no past: nothing of it is due, and the caller stores `int(now)` for it.

Only the newest missed slots are run late, by default one: after a suspended night, a clock jump of a year or a week
without a scheduler, no entry runs more often than its options allow, and counting missed slots costs the same for a day
and a year. Setting the clock back makes no taken slot due again.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Mapping

from resilience.cron.records import Due, Entry, Table
from resilience.cron.table.expression import Schedule, parse_schedule
from resilience.quantities import format_duration

LATE_TICKS = 2.0
"""A slot that starts within this many tick intervals is on time: the previous tick may have been busy."""

LEAST_LATE_S = 60.0
"""Cron's own resolution is one minute."""

_COUNTED_S = 100 * 366 * 86400
"""Older slots are not counted, so that a clock in another century costs no time."""


def due(
    table: Table,
    last: Mapping[str, int],
    now: float,
    *,
    tick_s: float,
    salt: str = "",
    started: float | None = None,
) -> tuple[Due, ...]:
    """Return the slots that are due, ordered by start.

    Args:
        tick_s: interval between ticks.
        salt: user and state directory (`1000:/data/me/.resil`), which determine the jitter.
        started: when this scheduler started on this boot of its host; `@reboot` entries are due once after it,
            including those first seen in its first tick.
    """
    found: list[Due] = []
    on_time_s = max(LATE_TICKS * tick_s, LEAST_LATE_S)
    for entry in table.entries:
        base = last.get(entry.key)
        schedule = schedule_of(entry)
        if schedule.is_reboot:
            found += _at_start(entry, base, now, on_time_s, started)
        elif base is not None:
            found += _due(entry, schedule, base, now, on_time_s, salt)
    return tuple(sorted(found, key=lambda one: (one.start, one.slot, one.entry.name)))


def next_due(table: Table, last: Mapping[str, int], now: float, *, salt: str = "") -> float | None:
    """Return when the next entry starts after `now`; None: never. Slots already due are not considered."""
    starts = (next_start(entry, last.get(entry.key), now, salt=salt) for entry in table.entries)
    return min((start for start in starts if start is not None), default=None)


def next_start(entry: Entry, last: int | None, now: float, *, salt: str = "") -> float | None:
    """Return when an entry starts next after `now`; None: never, or at boot."""
    schedule = schedule_of(entry)
    base = int(now) if last is None else last
    newest = schedule.newest_until(now) if entry.options.jitter_s > 0 else None
    if newest is not None and newest > base and (start := start_of(entry, newest, salt)) > now:
        return start
    following = schedule.next_after(max(now, base))
    return None if following is None else start_of(entry, following, salt)


def start_of(entry: Entry, slot: int, salt: str = "") -> float:
    """Return the start of a slot: the slot plus the entry's share of its jitter, before the next slot.

    The share is derived from user, project and entry and is constant, so hourly entries run every hour, and the runs of
    a hundred users do not reach the controller in the same second.
    """
    jitter_s = entry.options.jitter_s
    if jitter_s <= 0:
        return float(slot)
    share = crc32(f"{salt}\0{entry.name}".encode("utf-8", "surrogateescape")) / 2**32
    following = schedule_of(entry).next_after(slot)
    room_s = jitter_s if following is None else min(jitter_s, following - slot)
    return slot + share * room_s


def schedule_of(entry: Entry) -> Schedule:
    """Return the entry's schedule. Raise ScheduleError or ZoneError if it is invalid, which the table's parsers
    prevent."""
    return parse_schedule(entry.schedule, entry.zone)


def _at_start(entry: Entry, base: int | None, now: float, on_time_s: float, started: float | None) -> list[Due]:
    if started is None:
        return []
    slot = int(started)
    # First seen later: added while the scheduler ran, so it waits for the next start, as in cron.
    is_due = 0 <= now - started <= on_time_s if base is None else base < slot <= now
    return [Due(entry=entry, slot=slot, start=float(slot), reason="the scheduler has started")] if is_due else []


def _due(entry: Entry, schedule: Schedule, base: int, now: float, on_time_s: float, salt: str) -> list[Due]:
    slot = schedule.newest_until(now)
    if slot is not None and start_of(entry, slot, salt) > now:
        slot = schedule.newest_until(slot - 1)
    starts: dict[int, float] = {}
    while slot is not None and slot > base and len(starts) < max(1, entry.options.catch_up):
        starts[slot] = start_of(entry, slot, salt)
        slot = schedule.newest_until(slot - 1)
    if not starts or (entry.options.catch_up == 0 and now - max(starts.values()) > on_time_s):
        return []
    oldest = min(starts)
    passed_over = schedule.count(max(base, now - _COUNTED_S), oldest - 1)
    found = []
    for slot, start in sorted(starts.items()):
        reason = "on time" if now - start <= on_time_s else f"{format_duration(now - start)} late"
        found.append(Due(entry, slot, start, passed_over if slot == oldest else 0, reason))
    return found
