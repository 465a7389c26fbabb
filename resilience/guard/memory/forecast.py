"""Forecasts of memory use: the trend over hours, a rise over seconds, and the memory that a save needs. Pure.

The slope is the median of the slopes of all pairs of readings (Theil 1950; Sen, P. K., "Estimates of the regression
coefficient based on Kendall's tau", JASA 63 (1968) 1379-1389), robust against up to 29 % outliers. Its significance is
tested by Mann-Kendall (Mann, Econometrica 13 (1945) 245-259) and, because consecutive memory readings are not
independent, by two more conditions: each third of the time must rise about as fast as the whole, and the rise must
exceed the scatter clearly. A cache that fills and stops, a sawtooth, noise and a step thus give no forecast; a random
walk, which resembles a leak most, gives one in 2 % of the evaluations (60 walks of one hour).

The trend needs a minute of readings, but a leak of 120 MB/s fills 400 MB in three seconds: `rush` returns whether a
rise over the last seconds persists and would too soon use up the memory that a save needs (`SaveMemory`).
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from resilience.guard.step_timer import SAVES

MOST_READINGS = 72
"""Readings kept for each of the two windows: 2,556 pairs, about 1 ms for a fit."""
LEAST_READINGS = 12
LEAST_SPAN_S = 60.0
LEAST_Z = 4.0
"""Mann and Kendall's S must be this many standard deviations from 0."""
ALIKE = 2.0
"""Each third may rise at most this many times faster or slower than the whole."""
LEAST_RISE = 8.0
"""The rise over the whole time must be at least this multiple of the scatter around the line."""
REACH = 10.0
"""A forecast extends no further than this multiple of the observed time."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A significant rise.

    Attributes:
        per_s: rise per second; more than 0.
        level: value of the fitted line at the last reading.
        at: time of the last reading.
        span_s: how long the rise was observed.
    """

    per_s: float
    level: float
    at: float
    span_s: float

    def is_like(self, per_s: float) -> bool:
        """Return whether `per_s` is about the same rise."""
        return self.per_s / ALIKE <= per_s <= self.per_s * ALIKE

    def reaches_in_s(self, limit: float, now: float) -> float | None:
        """Return in how many seconds `limit` is reached; 0 if already; None if beyond the reach of a forecast."""
        wait_s = (limit - self.level) / self.per_s
        return None if wait_s > REACH * self.span_s else max(0.0, wait_s - (now - self.at))


class History:
    """Readings over hours in bounded memory: a dense recent window, and a sparse one over all the time.

    When the sparse window is full, every second reading is dropped and the interval doubled.
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
        """Return whether another reading is due."""
        return not self._recent or now - self._recent[-1][0] >= self._every_s

    def add(self, now: float, value: float) -> None:
        """Store a reading at `now` (monotonic seconds), if one is due."""
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
        """Return the rise per second, significant or not; None while there are too few readings."""
        return _slope(self._long)[0] if _are_enough(self._long) else None

    def trend(self) -> Trend | None:
        """Return the trend over all the time; else the recent one, if it exceeds all earlier readings.

        Without that condition the rising side of each tooth of a sawtooth would count as a leak.
        """
        whole = fit(self._long)
        if whole is not None:
            return whole
        recent = fit(self._recent)
        return recent if recent is not None and recent.level > self._highest_before else None


def fit(readings: list[tuple[float, float]]) -> Trend | None:
    """Given readings as (seconds, value) in order, return their trend; None if there is no significant one."""
    if not _are_enough(readings):
        return None
    count = len(readings)
    third = count // 3
    if _median([value for _, value in readings[:third]]) >= _median([value for _, value in readings[-third:]]):
        return None  # the usual case: skip the quadratic part
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
    """Return the median of all pairs' slopes, and how many more pairs rise than fall (Mann and Kendall's S)."""
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


RISE_REACH = 2.0
"""A rise is extrapolated to this multiple of the time it has lasted. So it must have used half of what is left: loading
and buffers that use less than a third of the free memory trigger no request, however fast they are."""
KEPT = 4.0
"""Samples are kept for this multiple of the time that a step and a save need: long enough to contain three increments
of a leak that grows once per step, even if saves take no time."""
MOST_SAMPLES = 32
"""Samples kept for each limit: all of the newer half, the older half increasingly sparse."""
JUMPS = 2
BESIDES_JUMPS = 1 / 8
"""The largest two rises between samples may be data loaded at once: the others must add this fraction of the rise."""
OF_LATE = 1 / 6
"""The last third of a steady rise has a third of it. With at least half of that, the rise still continues."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The use of a limit at one moment.

    Attributes:
        at: monotonic seconds.
        is_exact: whether the use contains no memory held by a save in flight.
    """

    at: float
    used_bytes: int
    is_exact: bool = True


class RecentUse:
    """The latest samples of one limit.

    Attributes:
        samples: in order, the newest last.
        known_bytes: the highest exact use before these samples: a return to that level is no leak, but for instance an
            evaluation.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.known_bytes = 0

    def add(self, sample: Sample, keep_s: float) -> None:
        """Store a sample, and drop those older than `keep_s` seconds."""
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[1 : MOST_SAMPLES // 2 : 2]
        while self.samples[0].at < sample.at - keep_s:
            dropped = self.samples.pop(0)
            if dropped.is_exact:
                self.known_bytes = max(self.known_bytes, dropped.used_bytes)

    def drop_inexact(self) -> None:
        """Drop samples taken during a save: the end of the save would look like a fall."""
        self.samples = [sample for sample in self.samples if sample.is_exact]

    def fills_in_s(self, room_bytes: int) -> float:
        """Return in how many seconds `room_bytes` are used up at the steepest rise up to now; infinity if none."""
        last = self.samples[-1]
        rises = [(last.used_bytes - one.used_bytes) / (last.at - one.at) for one in self.samples if one.at < last.at]
        per_s = max(rises, default=0.0)
        return max(0, room_bytes) / per_s if per_s > 0 else float("inf")


def rush(samples: list[Sample], *, room_bytes: int, need_s: float, known_bytes: int = 0) -> float | None:
    """Given recent samples, return in how many seconds `room_bytes` are used up; None if `need_s` or more is left.

    Return None also if uncertain: the rise must still continue, be more than a jump, have used at least 1/`RISE_REACH`
    of the room left, and exceed all earlier use (`known_bytes`). Of all possible starts of the rise, the one with the
    earliest end counts. For instance, after 0, 30, 60, 90 and 120 bytes at seconds 0 to 4, with 60 bytes of room and
    2 s needed: 2.0.
    """
    last, left_s = samples[-1], float("inf")
    for index, first in enumerate(samples[:-1]):
        # A rise in less than half of the needed time counts as if it had taken that long.
        span_s = max(last.at - first.at, need_s / RISE_REACH)
        rise = last.used_bytes - max(first.used_bytes, known_bytes)
        if rise > 0 and room_bytes * span_s <= rise * need_s and _persists(samples[index:]):
            left_s = min(left_s, max(0.0, room_bytes * span_s / rise))
    return left_s if left_s <= need_s else None


def _persists(samples: list[Sample]) -> bool:
    """Return whether samples show a rise that is more than a jump and still continues."""
    last = samples[-1]
    rises = sorted(later.used_bytes - one.used_bytes for one, later in pairwise(samples))
    rise = sum(rises)
    of_late = last.at - (last.at - samples[0].at) / 3
    before = next(one for one in reversed(samples) if one.at <= of_late)
    return sum(rises[:-JUMPS]) >= BESIDES_JUMPS * rise and last.used_bytes - before.used_bytes >= OF_LATE * rise


SAVE_SAMPLES = 50
"""A save is sampled again after 1/50 of the time it has taken so far: a save of ten minutes costs 370 samples. If the
use rises until the save's end, 2 % may be missed, and are added; a peak shorter than 20 ms may be missed entirely."""


class SaveMemory:
    """The largest of the recent rises during a save, in bytes; 0 until one was measured.

    A rise is the memory freed when the save ends, or is durable if it continued in the background: from the highest use
    while the training waited for it, or the last one in flight, down to the use before. Memory that stays in use is
    not needed by the next save, and memory leaked meanwhile not by this one.

    Attributes:
        since: when the training was first seen waiting for the current save (monotonic seconds); None while it trains.
        is_in_flight: whether a save was in flight at the last sample.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.is_in_flight = False
        self._rises: collections.deque[int] = collections.deque(maxlen=SAVES)
        self._used = self._peak = 0
        self._before: int | None = None

    def sample(self, now: float, used_bytes: int, *, is_saving: bool, is_in_flight: bool) -> None:
        """Store a sample at `now` (monotonic seconds). With both flags, a save waits for the one in flight."""
        if is_saving and not is_in_flight:
            self.since = now if self.since is None else self.since
        else:
            self.since = None
        if is_saving or is_in_flight:
            if self._before is None:
                self._before, self._peak = min(self._used or used_bytes, used_bytes), 0
            self._peak = max(self._peak, used_bytes) if is_saving else self._peak
        elif self._before is not None:
            self._rises.append(max(0, max(self._peak, self._used) - max(self._before, used_bytes)))
            self._before = None
        self._used, self.is_in_flight = used_bytes, is_in_flight

    def learned(self) -> list[int]:
        """Return the recent rises, for `restore` in another process."""
        return list(self._rises)

    def restore(self, rises: list[int]) -> None:
        """Add the rises measured by another process."""
        self._rises.extendleft(reversed(rises[max(0, len(rises) + len(self._rises) - SAVES) :]))

    @property
    def is_measuring(self) -> bool:
        """Return whether a save was running at the last sample."""
        return self._before is not None

    @property
    def bytes(self) -> int:
        """Return the memory that a save would need now, less that still held by the last one, already in use."""
        still_held = 0 if self._before is None else max(0, self._used - self._before)
        rise = max(0, max(self._rises, default=0) - still_held)
        return rise + rise // SAVE_SAMPLES
