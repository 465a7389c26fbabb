"""When to look again: at whole multiples of the interval, so that the ticks of all nodes fall together.

And in between, when what was seen makes something due: a log that may be silent for ten minutes is looked at when they
are over (follow_logs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from resilience.system.world import Clock
from resilience.watch.follow_logs import FollowedLog
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import Watchdog

NAP_S = 30.0
"""No sleep is longer: a suspended laptop or a clock that was set is noticed after this."""


def ticks(clock: Clock, every_s: float, count: int = 0) -> Iterator[float]:
    """Yield the time at once, and then at each multiple of `every_s`, `count` times in all (0: for ever).

    A tick that came while the last one was still under way is left out, not made up for.
    """
    done = 0
    while True:
        yield clock.now()
        done += 1
        if done == count:
            return
        wait_until(clock, next_tick(clock.now(), every_s))


def next_tick(now: float, every_s: float) -> float:
    """Given the time, return the next multiple of the interval. For instance, 60 s at 12:00:31 give 12:01. Pure."""
    return (now // every_s + 1) * every_s


def wait_until(clock: Clock, moment: float) -> None:
    """Sleep until then by the wall clock, which may be set meanwhile: never longer than it was to be at first."""
    longest = clock.monotonic() + max(0.0, moment - clock.now())
    while (left := min(moment - clock.now(), longest - clock.monotonic())) > 0:
        clock.sleep(min(left, NAP_S))


class Awaited:
    """What the last looks make due: the logs of every watchdog that says by when they must go on (`deadline`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Watchdog, Mapping[str, Timed[Any]]]] = {}
        self._owners: dict[str, str] = {}

    def saw(self, dog: Watchdog, readings: Mapping[str, Timed[Any]]) -> None:
        """Take note of what a watchdog has seen."""
        if hasattr(dog.check, "deadline"):
            self._seen[dog.name] = dog, readings

    def logs(self) -> Sequence[FollowedLog]:
        """What to follow now."""
        now, found = self._clock.now(), []
        self._owners = {}
        for dog, readings in self._seen.values():
            for subject, timed in readings.items():
                try:
                    due = dog.check.deadline(timed.reading, dog.settings, now)  # type: ignore[attr-defined]
                except Exception:  # a bug of one watchdog: the ticks look anyway
                    continue
                if due is not None:
                    paths, since, timeout_s = due
                    name = f"{dog.name} {subject}"
                    self._owners[name] = dog.name
                    found.append(FollowedLog(name, paths, since, timeout_s))
        return found

    def owners(self, subjects: Iterable[str]) -> set[str]:
        """The watchdogs whose logs these are, by name."""
        return {self._owners[subject] for subject in subjects if subject in self._owners}
