"""The clock. The only place that asks what time it is."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clocks: wall time for people and files, monotonic time for deadlines."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that only go forward, whatever happens to the wall clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait. A negative duration returns at once."""
        time.sleep(max(0.0, seconds))


def iso_time(seconds: float) -> str:
    """Given seconds since the epoch, return local ISO time with its offset: `2026-11-20T10:15:00+01:00`."""
    from datetime import UTC, datetime  # 5 ms that most commands need not pay

    return datetime.fromtimestamp(seconds, tz=UTC).astimezone().isoformat(timespec="seconds")
