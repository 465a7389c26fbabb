"""A slope that outliers do not move: Theil and Sen's. Pure.

The median of the slopes of all pairs of readings (Theil 1950; Sen, P. K., "Estimates of the regression coefficient
based on Kendall's tau", JASA 63 (1968) 1379-1389): up to 29 % of the readings may be anything.

The guard's memory forecast has these few lines as well (guard/memory/forecast.py): a module more would cost the start
of every rank of every training, and its fit asks for more than that of a file system can.
"""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
"""When, in seconds, and how much."""


def median(values: Sequence[float]) -> float:
    """The middle of the values. Raise ValueError if there are none."""
    if not values:
        raise ValueError("no values have no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope_per_s(points: Sequence[Point], least_gap_s: float = 0.0) -> float:
    """The median slope of all pairs that lie more than `least_gap_s` apart; 0.0 where there is none.

    Pairs far apart say more where readings rise in steps: two on one stair have no slope at all.
    """
    slopes = [
        (value - earlier) / (when - before)
        for index, (when, value) in enumerate(points)
        for before, earlier in points[:index]
        if when - before > least_gap_s
    ]
    return median(slopes) if slopes else 0.0
