"""A slope that outliers do not move."""

from __future__ import annotations

import random

import pytest

from resilience.watch.checks._filesystem.trend import median, slope_per_s


def test_the_median_is_the_middle_or_between_the_two_in_the_middle() -> None:
    assert median([3.0, 1.0, 2.0]) == 2
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_a_quarter_of_the_readings_may_be_anything() -> None:
    chance = random.Random(1)
    points = [(float(n), 3.0 * n if n % 4 else chance.uniform(-1000, 1000)) for n in range(60)]
    assert slope_per_s(points) == pytest.approx(3.0, rel=0.02)


def test_readings_of_one_moment_have_no_slope() -> None:
    assert slope_per_s([(0.0, 1.0), (0.0, 5.0)]) == 0.0
    assert slope_per_s([]) == 0.0


def test_pairs_far_apart_see_through_stairs() -> None:
    stairs = [(float(n), 10.0 * (n // 10)) for n in range(60)]
    assert slope_per_s(stairs, least_gap_s=15.0) == pytest.approx(1.0, rel=0.05)
