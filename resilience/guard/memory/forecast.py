"""When something that grows will be full: a robust slope, and the courage to say nothing. Pure.

The slope is the median of the slopes of all pairs of readings (Theil 1950; Sen, P. K., "Estimates of the regression
coefficient based on Kendall's tau", JASA 63 (1968) 1379-1389): up to 29 % of the readings may be anything. Whether
there is a slope at all is judged by the Mann-Kendall test (Mann, Econometrica 13 (1945) 245-259), and, because
memory readings follow each other and are no independent draws, by two more conditions: each third of the time must
rise about as fast as the whole, and the rise must stand out of the scatter. A cache that fills and stops, a sawtooth,
noise and a step thus give no forecast; a random walk, the worst that can look like a leak, gives one in 2 % of the
looks (60 walks of one hour).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

MOST_READINGS = 72
"""Readings kept for each of the two windows: 2,556 pairs, about 1 ms for a fit."""
LEAST_READINGS = 12
LEAST_SPAN_S = 60.0
LEAST_Z = 4.0
"""How many standard deviations Mann and Kendall's S must be from 0."""
ALIKE = 2.0
"""A third of the time may rise so many times faster or slower than the whole."""
LEAST_RISE = 8.0
"""The rise over the whole time is at least so many times the scatter around the line."""
REACH = 10.0
"""A forecast reaches no further than so many times the time that was seen."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A rise that can be trusted.

    Attributes:
        per_s: how much more it is each second; more than 0.
        level: what the line says for the last reading.
        at: when that was.
        span_s: how long it was seen.
    """

    per_s: float
    level: float
    at: float
    span_s: float

    def is_like(self, per_s: float) -> bool:
        """Whether `per_s` is about the same rise."""
        return self.per_s / ALIKE <= per_s <= self.per_s * ALIKE

    def reaches_in_s(self, limit: float, now: float) -> float | None:
        """In how many seconds `limit` is reached; 0 if it is; None if that is further off than can be told."""
        wait_s = (limit - self.level) / self.per_s
        return None if wait_s > REACH * self.span_s else max(0.0, wait_s - (now - self.at))


class History:
    """Readings of hours in bounded memory: the recent ones close together, all of them further apart.

    When the long window is full every second reading is dropped and the distance doubled.
    """

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s = every_s
        self._recent: list[tuple[float, float]] = []
        self._long: list[tuple[float, float]] = []
        self._long_every_s = every_s
        self._highest_before = float("-inf")

    def __len__(self) -> int:
        return len(self._recent) + len(self._long)

    def is_due(self, now: float) -> bool:
        """Whether another reading is wanted."""
        return not self._recent or now - self._recent[-1][0] >= self._every_s

    def add(self, now: float, value: float) -> None:
        """Remember a reading at `now` (monotonic seconds), if one is due."""
        if not self.is_due(now):
            return
        self._recent.append((now, value))
        if len(self._recent) > MOST_READINGS:
            self._highest_before = max(self._highest_before, self._recent.pop(0)[1])
        if not self._long or now - self._long[-1][0] >= self._long_every_s:
            self._long.append((now, value))
            if len(self._long) > MOST_READINGS:
                self._long = self._long[::2]
                self._long_every_s *= 2

    @property
    def slope(self) -> float | None:
        """How much more it is each second, whether that can be trusted or not; None while the readings are too few."""
        return _slope(self._long)[0] if _are_enough(self._long) else None

    def trend(self) -> Trend | None:
        """The rise over all the time; else the recent one, if it goes where the readings never were before.

        Without that condition the slow side of each tooth of a sawtooth would be a leak.
        """
        whole = fit(self._long)
        if whole is not None:
            return whole
        recent = fit(self._recent)
        return recent if recent is not None and recent.level > self._highest_before else None


def fit(readings: list[tuple[float, float]]) -> Trend | None:
    """Given readings as (seconds, value) in order, return their rise; None if there is none that can be trusted."""
    if not _are_enough(readings):
        return None
    count = len(readings)
    third = count // 3
    if _median([value for _, value in readings[:third]]) >= _median([value for _, value in readings[-third:]]):
        return None  # most of the time: spare the pairs
    slope, rises = _slope(readings)
    z = (rises - 1) / sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if slope <= 0 or z < LEAST_Z:
        return None
    for part in (readings[:third], readings[third : count - third], readings[count - third :]):
        part_slope, _ = _slope(part)
        if not slope / ALIKE <= part_slope <= slope * ALIKE:
            return None
    base = _median([value - slope * when for when, value in readings])
    scatter = 1.4826 * _median([abs(value - slope * when - base) for when, value in readings])
    start, end = readings[0][0], readings[-1][0]
    if slope * (end - start) < LEAST_RISE * scatter:
        return None
    return Trend(slope, base + slope * end, end, end - start)


def _are_enough(readings: list[tuple[float, float]]) -> bool:
    return len(readings) >= LEAST_READINGS and readings[-1][0] - readings[0][0] >= LEAST_SPAN_S


def _slope(readings: list[tuple[float, float]]) -> tuple[float, int]:
    """The median of all pairs' slopes, and how many more pairs rise than fall (Mann and Kendall's S)."""
    slopes = [
        (value - earlier) / (when - before)
        for index, (when, value) in enumerate(readings)
        for before, earlier in readings[:index]
        if when > before
    ]
    rises = sum(1 for slope in slopes if slope > 0) - sum(1 for slope in slopes if slope < 0)
    return (_median(slopes) if slopes else 0.0), rises


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
