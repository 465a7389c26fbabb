"""Which slots are to run now, and when the next one is. Pure.

`last` has the newest slot that was taken of each entry, by its key, or the moment at which the entry was first seen. An
entry that it does not name has no past: nothing of it is due, and the caller remembers `int(now)` for it.

What was missed is made up for by the newest slots alone, once by default: whether the machine slept for a night, the
clock jumped a year or the scheduler was dead for a week, no entry runs more often than it asks for, and counting what
is passed over costs the same for a day and a year. A clock set back makes nothing due that was taken already.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Mapping
from functools import lru_cache

from resilience.cron.records import Due, Entry, Table
from resilience.cron.table.expression import Schedule, parse_schedule
from resilience.quantities import format_duration

LATE_TICKS = 2.0
"""A slot that starts within so many pauses between ticks is on time: the tick before may have been busy."""

LEAST_LATE_S = 60.0
"""Cron itself knows no finer time than a minute."""

_COUNTED_S = 100 * 366 * 86400
"""What is older than this is not counted: a clock in another century has no right to our time."""


def due(
    table: Table,
    last: Mapping[str, int],
    now: float,
    *,
    tick_s: float,
    salt: str = "",
    started: float | None = None,
) -> tuple[Due, ...]:
    """Say which slots are to start now, in the order of their start.

    `tick_s` is the pause between ticks. `salt` names the user and the state directory (`1000:/data/me/.resil`): jitter
    is made of it. `started` is when this scheduler's life on this boot of its host began: `@reboot` entries are due
    once after it, those first seen in its first tick too.
    """
    found: list[Due] = []
    for entry in table.entries:
        base = last.get(entry.key)
        schedule = schedule_of(entry)
        if schedule.is_reboot:
            found += _at_start(entry, base, now, tick_s, started)
        elif base is not None:
            found += _due(entry, schedule, base, now, tick_s, salt)
    return tuple(sorted(found, key=lambda one: (one.start, one.slot, one.entry.name)))


def next_due(table: Table, last: Mapping[str, int], now: float, *, salt: str = "") -> float | None:
    """When something starts next, after `now`; None: nothing ever. What is due now already is not looked at."""
    starts = (next_start(entry, last.get(entry.key), now, salt=salt) for entry in table.entries)
    return min((start for start in starts if start is not None), default=None)


def next_start(entry: Entry, last: int | None, now: float, *, salt: str = "") -> float | None:
    """When an entry starts next, after `now`; None: never, or not at a time of the day."""
    schedule = schedule_of(entry)
    newest = schedule.newest_until(now)
    base = int(now) if last is None else last
    if newest is not None and newest > base:
        start = start_of(entry, newest, salt)
        if start > now:
            return start
    following = schedule.next_after(max(now, base))
    return None if following is None else start_of(entry, following, salt)


def start_of(entry: Entry, slot: int, salt: str = "") -> float:
    """When a slot is to start: after the entry's share of its jitter, and before the next slot.

    The share is made of user, project and entry: each one's is its own and always the same, so that what runs hourly
    runs every hour, and a hundred users' runs do not reach the controller in the same second.
    """
    jitter_s = entry.options.jitter_s
    if jitter_s <= 0:
        return float(slot)
    share = crc32(f"{salt}\0{entry.name}".encode("utf-8", "surrogateescape")) / 2**32
    following = schedule_of(entry).next_after(slot)
    room_s = jitter_s if following is None else min(jitter_s, following - slot)
    return slot + share * room_s


@lru_cache(maxsize=4096)
def _parse(text: str, zone: str) -> Schedule:
    return parse_schedule(text, zone)


def schedule_of(entry: Entry) -> Schedule:
    """The entry's schedule. Raise ScheduleError or ZoneError if it has none: the table's readers let none such in."""
    return _parse(entry.schedule, entry.zone)


def _at_start(entry: Entry, base: int | None, now: float, tick_s: float, started: float | None) -> list[Due]:
    if started is None:
        return []
    slot = int(started)
    # First seen later in its life: written while it ran, so it waits for the next start, as in cron.
    is_due = 0 <= now - started <= _on_time_s(tick_s) if base is None else base < slot <= now
    return [Due(entry=entry, slot=slot, start=float(slot), reason="the scheduler has started")] if is_due else []


def _due(entry: Entry, schedule: Schedule, base: int, now: float, tick_s: float, salt: str) -> list[Due]:
    newest = schedule.newest_until(now)
    if newest is None or newest <= base:
        return []
    if start_of(entry, newest, salt) > now:
        newest = schedule.newest_until(newest - 1)
        if newest is None or newest <= base:
            return []
    late_s = now - start_of(entry, newest, salt)
    is_on_time = late_s <= _on_time_s(tick_s)
    if entry.options.catch_up == 0 and not is_on_time:
        return []
    chosen = [newest]
    while len(chosen) < entry.options.catch_up:
        older = schedule.newest_until(chosen[-1] - 1)
        if older is None or older <= base:
            break
        chosen.append(older)
    chosen.reverse()
    passed_over = schedule.count(max(base, now - _COUNTED_S), chosen[0] - 1)
    return [
        Due(
            entry=entry,
            slot=slot,
            start=start_of(entry, slot, salt),
            passed_over=passed_over if slot == chosen[0] else 0,
            reason=_reason(
                now - start_of(entry, slot, salt), _on_time_s(tick_s), passed_over if slot == chosen[0] else 0
            ),
        )
        for slot in chosen
    ]


def _on_time_s(tick_s: float) -> float:
    return max(LATE_TICKS * tick_s, LEAST_LATE_S)


def _reason(late_s: float, on_time_s: float, passed_over: int) -> str:
    text = "on time" if late_s <= on_time_s else f"made up for, {format_duration(late_s)} late"
    if passed_over:
        slots = "1 older slot was" if passed_over == 1 else f"{passed_over} older slots were"
        text += f"; {slots} missed and not made up for"
    return text
