"""How fast it fills, from what was read before, and the courage to say nothing. Pure.

What is asked of a growth before anybody is woken for it:
- it went on: each third of the time has its share of the rise. A data set that was copied in an hour is no growth;
- it leads somewhere: the last third reaches higher than ever before. The slow side of a sawtooth (checkpoints that
  are pruned) does not; neither does a disk that fills again after a pruning, up to the height it had in good health;
- it stands out of the scatter. One outlier moves nothing;
- it is told no further ahead than `REACH` times as long as it was seen.
The longest stretch that passes counts: the whole of what is remembered, else its last half, quarter, eighth ...
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from resilience.watch.checks._filesystem.trend import Point, median, slope_per_s

SPACING_S = 300.0
"""Readings closer together than this replace one another."""
KEPT_S = 14 * 86400.0
"""How long a reading is remembered. A clock that jumps by a year starts afresh."""
SPARSENESS = 24.0
"""A reading of age t has a neighbour within about t / SPARSENESS: about 200 readings in 14 days."""
LEAST_READINGS = 6
LEAST_SPAN_S = 1500.0
REACH = 6.0
SHARE = (1 / 3, 2.0)
"""How much of its even share of the rise each third of the time has, at least and at most."""
HIGHER = 0.05
"""The last third rises above all before by so much of the range."""
LEAST_RISE = 4.0
"""The rise is at least so many times the scatter around the line."""
MOST_FITTED = 64
"""Readings in one fit: 2,016 pairs, about 0.5 ms."""


class Growth(NamedTuple):
    """A growth that can be trusted.

    Attributes:
        per_s: how much more it is each second; more than 0.
        span_s: how long it was seen.
    """

    per_s: float
    span_s: float

    def reaches_in_s(self, free: float) -> float | None:
        """In how many seconds `free` is used up; None if that is further off than can be told."""
        wait_s = max(0.0, free) / self.per_s
        return wait_s if wait_s <= REACH * self.span_s else None


def remembered(points: Sequence[Point], now: float, used: float) -> tuple[Point, ...]:
    """Given what was remembered, oldest first, return it with a new reading; bounded, the old ones further apart.

    Time is cut into boxes that double in length with the age, and each box keeps its first reading: boxes lie in boxes,
    so that what is kept stays kept. Readings that claim to be of the future were taken while a clock was wrong.
    """
    boxes: dict[tuple[float, int], Point] = {}
    for when, value in points:
        if not 0 < now - when <= KEPT_S:
            continue
        length_s = SPACING_S
        while length_s * SPARSENESS < now - when:
            length_s *= 2
        boxes.setdefault((length_s, int(when // length_s)), (when, value))
    kept = sorted(boxes.values())
    return (*kept, (now, used))


def growth(points: Sequence[Point], healthy: float) -> tuple[Growth | None, str]:
    """Given readings, oldest first, return how fast they grow, or None; and a sentence that says why.

    `healthy`: below this height it never was a trouble: a height that was reached before and left again proves that
    something makes room in time.
    """
    if len(points) < LEAST_READINGS or points[-1][0] - points[0][0] < LEAST_SPAN_S:
        return None, f"{len(points)} readings remembered: too few to tell a growth"
    start, end = points[0][0], points[-1][0]
    reason = "it does not grow"
    span_s = end - start
    while span_s >= LEAST_SPAN_S:
        part = [point for point in points if point[0] >= end - span_s]
        if len(part) < LEAST_READINGS:
            break
        found, why = _fit(part)
        if found is not None:
            before = [value for when, value in points if when < part[0][0]]
            height = median([value for _, value in part[-3:]])
            margin = HIGHER * (max(before) - min(before)) if before else 0.0
            if before and max(before) <= healthy and height <= max(before) + margin:
                return None, "it grows, and not yet higher than it was before something made room"
            return found, why
        reason = why
        span_s /= 2
    return None, reason


def _fit(points: Sequence[Point]) -> tuple[Growth | None, str]:
    start, end = points[0][0], points[-1][0]
    span_s = end - start
    chosen = _thinned(points)
    thirds = _thirds(points)
    if any(len(third) < 2 for third in thirds):
        return None, "too few readings in a part of the time"
    slope = slope_per_s(chosen, span_s / 4)
    if slope <= 0:
        return None, "it does not grow"
    rise = slope * span_s
    levels = [median([value for _, value in near]) for near in _boundaries(points)]
    shares = [after - before for before, after in pairwise(levels)]
    if not all(SHARE[0] * rise / 3 <= share <= SHARE[1] * rise / 3 for share in shares):
        return None, "it rose, and not steadily"
    before, last = [v for third in thirds[:2] for _, v in third], [v for _, v in thirds[2]]
    values = before + last
    # The third highest of the last third: an outlier or two do not make a height.
    height = sorted(last)[-min(3, len(last))]
    if height <= sorted(before)[-1 - (len(before) > LEAST_READINGS)] + HIGHER * (max(values) - min(values)):
        return None, "it does not reach higher than before"
    base = median([value - slope * when for when, value in chosen])
    scatter = 1.4826 * median([abs(value - slope * when - base) for when, value in chosen])
    if rise < LEAST_RISE * scatter:
        return None, "it does not stand out of its ups and downs"
    return Growth(slope, span_s), "it grows"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_FITTED of them, evenly; the last one always."""
    if len(points) <= MOST_FITTED:
        return list(points)
    step = (len(points) - 1) / (MOST_FITTED - 1)
    return [points[round(index * step)] for index in range(MOST_FITTED)]


def _thirds(points: Sequence[Point]) -> tuple[list[Point], list[Point], list[Point]]:
    start, span_s = points[0][0], points[-1][0] - points[0][0]
    parts: tuple[list[Point], list[Point], list[Point]] = ([], [], [])
    for point in points:
        parts[min(2, int(3 * (point[0] - start) / span_s))].append(point)
    return parts


def _boundaries(points: Sequence[Point]) -> list[list[Point]]:
    """The three readings nearest to the start, to the thirds, and to the end of the time."""
    start, span_s = points[0][0], points[-1][0] - points[0][0]
    return [sorted(points, key=lambda p, at=start + k * span_s / 3: abs(p[0] - at))[:3] for k in range(4)]  # type: ignore[misc]
