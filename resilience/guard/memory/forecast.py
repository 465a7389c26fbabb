"""How the use of memory will go on: the trend of hours, the rise of seconds, and the need of a save. Pure.

The slope is the median of the slopes of all pairs of readings (Theil 1950; Sen, P. K., "Estimates of the regression
coefficient based on Kendall's tau", JASA 63 (1968) 1379-1389): up to 29 % of the readings may be anything. Whether
there is a slope at all is judged by the Mann-Kendall test (Mann, Econometrica 13 (1945) 245-259), and, because
memory readings follow each other and are no independent draws, by two more conditions: each third of the time must
rise about as fast as the whole, and the rise must stand out of the scatter. A cache that fills and stops, a sawtooth,
noise and a step thus give no forecast; a random walk, the worst that can look like a leak, gives one in 2 % of the
looks (60 walks of one hour).

The trend needs a minute of readings. A leak of 120 MB/s fills 400 MB in three seconds: `rush` judges whether a rise of
the last seconds lasts, and whether it uses up too soon what a save needs (`SaveMemory`).
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


RISE_REACH = 2.0
"""A rise is believed for so many times as long as it has lasted. So it must have taken half of what is left: loading
and buffers that take less than a third of the free memory ask for nothing, however fast they are."""
KEPT = 4.0
"""Looks are kept for so many times the time that a step and a save need: a leak of one lump per step shows three lumps
in it, also where the save takes no time."""
MOST_LOOKS = 32
"""Looks kept for each limit: the newer half as they came, the older half ever further apart."""
JUMPS = 2
BESIDES_JUMPS = 1 / 8
"""The largest two rises between looks are data that was loaded at once: so much of the rise must come on top."""
OF_LATE = 1 / 6
"""A steady rise has a third of itself in the last third of the time. At half of that it is still going on."""


@dataclass(frozen=True, slots=True)
class Look:
    """The use of a limit at one moment.

    Attributes:
        at: monotonic seconds.
        is_exact: whether nothing else is in it that a save in flight holds.
    """

    at: float
    used_bytes: int
    is_exact: bool = True


class RecentUse:
    """The last looks at one limit.

    Attributes:
        looks: in order, the newest last.
        known_bytes: the highest exact use before these: what comes back up to there is no leak but, say, an evaluation.
    """

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self.known_bytes = 0

    def add(self, look: Look, keep_s: float) -> None:
        """Remember a look, and those of the last `keep_s` seconds."""
        self.looks.append(look)
        if len(self.looks) > MOST_LOOKS:
            del self.looks[1 : MOST_LOOKS // 2 : 2]
        while self.looks[0].at < look.at - keep_s:
            gone = self.looks.pop(0)
            if gone.is_exact:
                self.known_bytes = max(self.known_bytes, gone.used_bytes)

    def forget_inexact(self) -> None:
        """Drop the looks that had something else in them: the use seems to have fallen since."""
        self.looks = [look for look in self.looks if look.is_exact]

    def fills_in_s(self, room_bytes: int) -> float:
        """In how many seconds `room_bytes` are used up at the steepest rise up to now; infinity if nothing rises."""
        last = self.looks[-1]
        rises = [(last.used_bytes - one.used_bytes) / (last.at - one.at) for one in self.looks if one.at < last.at]
        per_s = max(rises, default=0.0)
        return max(0, room_bytes) / per_s if per_s > 0 else float("inf")


def rush(looks: list[Look], *, room_bytes: int, need_s: float, known_bytes: int = 0) -> float | None:
    """Given the last looks, return in how many seconds `room_bytes` are used up; None where `need_s` is left or more.

    None also where nothing is certain: the rise must be still going on, be no jump, have taken at least 1/`RISE_REACH`
    of what it has yet to take, and go where the use never was before (`known_bytes`). Of all the times that it may have
    begun at, the one counts that tells the earliest end. For instance, after 0, 30, 60, 90 and 120 bytes at seconds 0
    to 4, with 60 bytes of room and 2 s needed: 2.0.
    """
    last, left_s = looks[-1], float("inf")
    for index, first in enumerate(looks[:-1]):
        # What came faster than half of the needed time counts as if it had taken so long.
        span_s = max(last.at - first.at, need_s / RISE_REACH)
        rise = last.used_bytes - max(first.used_bytes, known_bytes)
        if rise > 0 and room_bytes * span_s <= rise * need_s and _lasts(looks[index:]):
            left_s = min(left_s, max(0.0, room_bytes * span_s / rise))
    return left_s if left_s <= need_s else None


def _lasts(looks: list[Look]) -> bool:
    """Whether looks show a rise that is no jump and goes on."""
    last = looks[-1]
    rises = sorted(later.used_bytes - one.used_bytes for one, later in pairwise(looks))
    rise = sum(rises)
    of_late = last.at - (last.at - looks[0].at) / 3
    before = next(one for one in reversed(looks) if one.at <= of_late)
    return sum(rises[:-JUMPS]) >= BESIDES_JUMPS * rise and last.used_bytes - before.used_bytes >= OF_LATE * rise


SAVE_LOOKS = 50
"""The next look at a save comes after 1/50 of the time that it has taken: ten minutes of save cost 370 looks. Of a use
that rises until the save's end 2 % may be missed so, and are added; a peak shorter than 20 ms may be missed at all."""


class SaveMemory:
    """The largest of the recent rises during a save, in bytes; 0 until one was measured.

    A rise is what is given back when the save ends, or is durable if it went on in the background: from the highest use
    while the training waited for it, or the last one in flight, down to where it was before. What stays in use is no
    need of the next save, and what a leak takes meanwhile is none of this one.

    Attributes:
        since: when the training was first seen to wait for the present save (monotonic seconds); None while it trains.
        is_in_flight: whether a save was in flight at the last look.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.is_in_flight = False
        self._rises: collections.deque[int] = collections.deque(maxlen=SAVES)
        self._used = self._peak = 0
        self._before: int | None = None

    def look(self, now: float, used_bytes: int, *, is_saving: bool, is_in_flight: bool) -> None:
        """Take a sample at `now` (monotonic seconds). With both, a save waits for the one in flight."""
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
        """The recent rises, for `restore` in another process."""
        return list(self._rises)

    def restore(self, rises: list[int]) -> None:
        """Remember what another process has measured."""
        self._rises.extendleft(reversed(rises[max(0, len(rises) + len(self._rises) - SAVES) :]))

    @property
    def is_measuring(self) -> bool:
        """Whether a save was under way at the last look."""
        return self._before is not None

    @property
    def bytes(self) -> int:
        """What a save would need now, without what the last one still holds: that is in use already."""
        still_held = 0 if self._before is None else max(0, self._used - self._before)
        rise = max(0, max(self._rises, default=0) - still_held)
        return rise + rise // SAVE_LOOKS
