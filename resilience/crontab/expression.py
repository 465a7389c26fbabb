"""When an entry runs: crontab's five fields, `@hourly` and its sisters, `@every 90s`, as seconds since the epoch. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from resilience.errors import UsageError


class ScheduleError(UsageError, ValueError):
    """A text is not a schedule, or one that never comes, or in a time zone that nobody knows."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When something runs. Slots are whole seconds since the epoch.

    Attributes:
        text: as written.
        zone: IANA name; empty: this machine's.
    """

    text: str
    zone: str = ""

    @property
    def is_reboot(self) -> bool:
        """Whether it runs once in each life of the scheduler, and at no time of the day."""
        return self.text.strip().lower() == "@reboot"

    def next_after(self, t: float) -> int | None:
        """The first slot after `t`; None: there is none."""
        from datetime import UTC, datetime
        from zoneinfo import ZoneInfo

        from cronsim import CronSim

        if self.is_reboot:
            return None
        zone = ZoneInfo(self.zone) if self.zone else UTC
        text = {"@hourly": "0 * * * *", "@daily": "0 0 * * *"}.get(self.text, self.text)
        return int(next(CronSim(text, datetime.fromtimestamp(t, zone))).timestamp())

    def newest_until(self, t: float) -> int | None:
        """The newest slot at or before `t`; None: there is none."""
        raise NotImplementedError

    def between(self, after: float, until: float) -> Iterator[int]:
        """The slots after `after` up to and with `until`, oldest first."""
        slot = self.next_after(after)
        while slot is not None and slot <= until:
            yield slot
            slot = self.next_after(slot)

    def count(self, after: float, until: float) -> int:
        """How many slots `between` would give; quick however many there are."""
        return sum(1 for _ in self.between(after, until))

    def period_s(self, now: float) -> float:
        """Seconds from the next slot to the one after it; infinite where there are not two."""
        first = self.next_after(now)
        second = self.next_after(first) if first is not None else None
        return float("inf") if first is None or second is None else float(second - first)


def parse_schedule(text: str, zone: str = "") -> Schedule:
    """Given a schedule as people write it, return it. Raise ScheduleError if it is none, with what to write."""
    return Schedule(text, zone)
