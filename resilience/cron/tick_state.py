"""State that a tick finds: the last heartbeat, and the newest slots. Handles damaged files, a clock that was set, and
new entries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from resilience.cron.book import machine
from resilience.cron.records import Entry, Heartbeat, Table
from resilience.cron.slots import AHEAD_S
from resilience.cron.state_directory import Damaged, Seen
from resilience.errors import StateDirectoryError
from resilience.quantities import format_duration

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

EARLIEST = 1_700_000_000
"""November 2023. A clock before this was never set (a machine without a battery starts in 1970)."""

FORGOTTEN_S = 30 * 86400.0
"""Slots of removed entries are kept this long."""

_MACHINES = 32
"""For this many boots, the start of the scheduler is remembered."""

_T = TypeVar("_T")


class TickState:
    """State that one tick finds.

    Attributes:
        lines: warnings, one sentence each.
        scheduler_start: when the scheduler started on this boot of this machine, if an entry needs it (`@reboot`).
        failure: why new entries could not be remembered.
    """

    def __init__(self, cron: CronProject, now: float, period_s: float) -> None:
        self._cron, self._now, self._period_s = cron, now, period_s
        self._clock = cron.project.system.clock
        self.scheduler_start: float | None = None
        self.failure: StateDirectoryError | None = None
        self._before: Heartbeat | None = None
        self.lines: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise StateDirectoryError if nothing may run: foreign state directory, or a clock that was never set."""
        if self._now < EARLIEST:
            raise StateDirectoryError(
                f"the clock of this machine was never set: it shows {int(self._now)} seconds since 1970; "
                "no entries run",
                hint="date; timedatectl",
                transient=True,
            )
        self._cron.state.check()

    def heartbeat(self) -> Heartbeat | None:
        """Return the last heartbeat; None if there is no plausible one."""
        before = self._before = self._read_or_reset("heartbeat", self._cron.state.heartbeat, None)
        now = self._clock.now()  # read after the heartbeat: this process may have been suspended for a day
        if before is not None and before.time > now + AHEAD_S:
            self._warn(
                f"the last tick was {format_duration(before.time - now)} in the future: the clock was set back, or "
                f"that of {before.host or 'another host'} is ahead; using the current time"
            )
            return None
        return before

    def last(self, table: Table, before: Heartbeat | None) -> dict[str, int]:
        """Return the newest slot of each entry in the table, or since when the entry is known; remember new entries.

        A new entry is known since the previous tick: no scheduler could have run it earlier.
        """
        state = self._cron.state
        seen = self._read_or_reset("seen", state.seen, dict[str, Seen]())
        taken = state.book.slots.taken()
        since = int(self._now)
        if before is not None:
            since = int(max(min(before.time, self._now), self._now - 2 * self._period_s))
        new = {entry.key: _schedule(entry) for entry in table.entries}
        kept = {key: value for key, value in seen.items() if key[:1] == "@" or new.get(key) == value.schedule}
        ahead = self._clock.now() + AHEAD_S
        if any(slots[-1] > ahead for slots in taken.values()):
            self._forget_ahead(taken, kept)
        for key, slots in taken.items():
            if key not in new and slots and slots[-1] < self._now - FORGOTTEN_S:
                state.book.slots.forget(key)
        self.scheduler_start = self._scheduler_start(table, kept)
        is_born = self.scheduler_start == int(self._now)
        for key, schedule in new.items():
            # `seen` is damaged or lost: taken slots show that the entry is not new.
            is_lost = not seen and bool(taken.get(key))
            known = taken[key][-1] if is_lost else since - 1 if is_born and _is_reboot(schedule) else since
            kept.setdefault(key, Seen(known, schedule))
        if kept != seen:
            try:
                state.write_seen(kept)
            except StateDirectoryError as error:  # what is known already runs
                self.failure = error
        return {key: max([kept[key].since, *taken.get(key, [])[-1:]]) for key in new}

    def _scheduler_start(self, table: Table, seen: dict[str, Seen]) -> float | None:
        """Return when the scheduler started on this boot of this machine, if an entry needs it (`@reboot`)."""
        if not any(_is_reboot(_schedule(entry)) for entry in table.entries):
            return None
        key = f"@{machine()}"
        if key not in seen:
            boots = sorted((k for k in seen if k[:1] == "@"), key=lambda k: seen[k].since)
            for old in boots[: -_MACHINES + 1]:
                del seen[old]
            seen[key] = Seen(int(self._alive_since_boot() or self._now))
        return float(seen[key].since)

    def _alive_since_boot(self) -> float | None:
        """Return since when ticks came on this boot of this machine before an `@reboot` entry was added; None: none."""
        before, host = self._before, self._cron.project.system.host.name
        booted = self._now - time.clock_gettime(time.CLOCK_BOOTTIME)
        if before is None or before.host != host or before.time < booted:
            return None
        return max(before.alive_since, booted)

    def _forget_ahead(self, taken: dict[str, list[int]], seen: dict[str, Seen]) -> None:
        """Delete slots of a wrong clock: they must not silence an entry until that day."""
        for key, newest in self._cron.state.book.slots.forget_ahead(self._clock.now).items():
            now = self._clock.now()
            taken[key] = [slot for slot in taken.get(key, []) if slot <= now + AHEAD_S]
            if not taken[key]:
                seen[key] = Seen(int(self._now), seen[key].schedule if key in seen else "")
            self._warn(
                f"{key.replace('+', '/')} ran {format_duration(newest - now)} in the future: the clock was set back, "
                "or that of another host is ahead; using the current time"
            )

    def _read_or_reset(self, name: str, read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except Damaged as error:
            self._cron.state.quarantine(name)
            self._warn(f"{error.message}; moved to {name}.damaged and recreated")
            return otherwise

    def _warn(self, line: str) -> None:
        self.lines = (*self.lines, line)


def _schedule(entry: Entry) -> str:
    return f"{entry.zone} {entry.schedule}".strip()


def _is_reboot(schedule: str) -> bool:
    return schedule.lower().endswith("@reboot")
