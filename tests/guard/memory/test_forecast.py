"""When something that grows will be full: leaks are told, everything else is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from resilience.guard.memory.forecast import MOST_READINGS, History, Trend, fit


def remember(value: Callable[[int], float], *, hours: float = 1.0, every_s: float = 10.0) -> History:
    """Readings every ten seconds of what `value` gives for their number."""
    history = History(every_s)
    for number in range(int(hours * 3600 / every_s)):
        history.add(number * every_s, value(number))
    return history


def test_a_clean_leak_is_measured_exactly() -> None:
    trend = fit([(10.0 * number, 5.0 + 3.0 * number) for number in range(30)])
    assert trend is not None
    assert trend.per_s == pytest.approx(0.3)
    assert trend.level == pytest.approx(5.0 + 3.0 * 29)
    assert (trend.at, trend.span_s) == (290.0, 290.0)


def test_the_slope_survives_a_quarter_of_wild_readings() -> None:
    readings = [(10.0 * number, 3.0 * number) for number in range(60)]
    for number in range(0, 60, 4):
        readings[number] = (readings[number][0], readings[number][1] + 100_000.0)
    trend = fit(readings)
    assert trend is not None
    assert trend.per_s == pytest.approx(0.3, rel=0.2)


def test_a_leak_under_noise_is_told_within_the_hour() -> None:
    draw = random.Random(3)
    trend = remember(lambda number: number + draw.gauss(0, 5)).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.1)


def test_a_leak_under_a_sawtooth_is_told() -> None:
    trend = remember(lambda number: number + 3 * (number % 30), hours=3).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.2)


def test_a_leak_by_epoch_is_told() -> None:
    trend = remember(lambda number: 20.0 * (number // 20), hours=2).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.2)


def test_a_leak_that_begins_after_hours_is_told_within_a_quarter_of_an_hour() -> None:
    draw = random.Random(3)
    trend = remember(lambda number: draw.gauss(0, 1) + max(0, number - 720), hours=2.25).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    "value",
    [
        lambda number: 7.0,
        lambda number: -float(number),
        lambda number: float(number % 100),  # a cache that is emptied
        lambda number: 1 - math.exp(-number / 20),  # a cache that fills
        lambda number: 0.0 if number < 100 else 50.0,  # an evaluation begins
        lambda number: math.sin(number / 40),
        lambda number: 1000.0 if number == 300 else 0.0,
    ],
)
def test_what_does_not_leak_gives_no_forecast(value: Callable[[int], float]) -> None:
    draw = random.Random(5)
    assert remember(lambda number: value(number) + draw.gauss(0, 0.01)).trend() is None


def test_noise_never_gives_a_forecast_and_a_random_walk_seldom() -> None:
    draw = random.Random(7)
    noise, walks, looks = 0, 0, 0
    for _ in range(20):
        still, walking, position = History(10.0), History(10.0), 0.0
        for number in range(360):
            position += draw.gauss(0, 1)
            still.add(number * 10.0, draw.gauss(0, 1))
            walking.add(number * 10.0, position)
            if number % 12 == 0:
                looks += 1
                noise += still.trend() is not None
                walks += walking.trend() is not None
    assert noise == 0
    assert walks / looks < 0.06


@pytest.mark.parametrize("count", [0, 1, 2, 11])
def test_a_few_readings_are_no_forecast(count: int) -> None:
    assert fit([(60.0 * number, float(number)) for number in range(count)]) is None


def test_less_than_a_minute_is_no_forecast() -> None:
    assert fit([(1.0 * number, float(number)) for number in range(50)]) is None
    assert fit([(2.0 * number, float(number)) for number in range(50)]) is not None


def test_readings_of_the_same_moment_harm_nothing() -> None:
    assert fit([(5.0, float(number)) for number in range(50)]) is None


def test_days_of_readings_fit_in_little_memory_and_reach_back_to_the_start() -> None:
    history = remember(lambda number: float(number), hours=72)
    assert len(history) <= 2 * MOST_READINGS
    trend = history.trend()
    assert trend is not None
    assert trend.span_s > 0.9 * 72 * 3600


def test_when_a_limit_is_reached_is_counted_from_now() -> None:
    trend = Trend(per_s=2.0, level=100.0, at=1000.0, span_s=3600.0)
    assert trend.reaches_in_s(300.0, 1000.0) == 100.0
    assert trend.reaches_in_s(300.0, 1030.0) == 70.0
    assert trend.reaches_in_s(300.0, 5000.0) == 0.0
    assert trend.reaches_in_s(90.0, 1000.0) == 0.0


def test_a_forecast_reaches_ten_times_as_far_as_was_seen() -> None:
    trend = Trend(per_s=1.0, level=0.0, at=0.0, span_s=60.0)
    assert trend.reaches_in_s(599.0, 0.0) == 599.0
    assert trend.reaches_in_s(601.0, 0.0) is None
