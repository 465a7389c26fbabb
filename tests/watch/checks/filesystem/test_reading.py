"""Growth is detected if usage rises, not if it fluctuates, jumped once, or the clock was wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import pytest

from resilience.watch.checks._filesystem.reading import (
    BYTES,
    KEPT_S,
    Amount,
    FileSystemReading,
    Growth,
    Point,
    growth,
    median,
    missing_limits,
    remembered,
    slope_per_s,
)

NOW = 1_800_000_000.0
HOUR_S = 3600.0
Use = Callable[[float, random.Random], float]


def readings_of(
    use: Use, hours: float, *, every_s: float = 300.0, outliers: dict[int, float] | None = None, from_h: float = 0.0
) -> Iterator[tuple[float, float, tuple[Point, ...], Growth | None]]:
    """Yield a watchdog's readings of a disk of 100, of which 85 are healthy: hour, usage, history, growth."""
    chance = random.Random(7)
    points: tuple[Point, ...] = ()
    for number in range(int(hours * HOUR_S / every_s)):
        hour = number * every_s / HOUR_S
        used = (outliers or {}).get(number, use(hour, chance))
        points = remembered(points, NOW + hour * HOUR_S, used)
        if hour >= from_h and number % 12 == 11:
            yield hour, used, points, growth(points, 85.0)[0]


def runways(use: Use, hours: float, *, from_h: float = 0.0) -> list[tuple[float, float]]:
    """Return the reported and the true runway in hours, for each reading with one. `use` reaches 100."""
    chance = random.Random(0)
    full = next(hour / 10 for hour in range(10**5) if use(hour / 10, chance) >= 100)
    return [
        (left_s / HOUR_S, full - hour)
        for hour, used, _, found in readings_of(use, min(hours, full), from_h=from_h)
        if found is not None and (left_s := found.reaches_in_s(100 - used)) is not None
    ]


def test_a_steady_fill_gives_the_true_runway_within_a_tenth() -> None:
    reported = runways(lambda hour, chance: 10 + 0.9 * hour + chance.gauss(0, 0.05), 95, from_h=20)
    assert len(reported) > 20
    assert all(left == pytest.approx(true, rel=0.1, abs=0.5) for left, true in reported)


def test_checkpoints_that_only_pile_up_give_the_true_runway_within_a_tenth() -> None:
    # 2.7 % of the disk every three hours, as 2.3 TB every three hours were; the last one is half a stair off.
    reported = runways(lambda hour, chance: 10 + 2.7 * int(hour / 3) + chance.gauss(0, 0.02), 100, from_h=24)
    assert len(reported) > 20
    assert all(left == pytest.approx(true, rel=0.1, abs=3.0) for left, true in reported)


def test_a_fill_that_begins_after_a_quiet_day_is_reported_in_time() -> None:
    reported = runways(lambda hour, _: 20 if hour < 36 else 20 + 2 * (hour - 36), 100)
    assert max(true for _, true in reported) > 24
    assert all(left == pytest.approx(true, rel=0.1, abs=0.5) for left, true in reported)


@pytest.mark.parametrize("period_h", [2, 6, 24])
def test_checkpoints_that_are_pruned_are_no_growth(period_h: int) -> None:
    def use(hour: float, chance: random.Random) -> float:
        return 20 + 2.5 * int(hour % period_h * 8 / period_h) + chance.gauss(0, 0.05)

    # The first pruning cannot be predicted.
    alarms = [
        hour
        for hour, used, _, found in readings_of(use, 9 * 24, from_h=period_h)
        if found is not None and found.reaches_in_s(100 - used) is not None
    ]
    assert alarms == []


def test_growth_in_spite_of_pruning_is_reported_eventually() -> None:
    def use(hour: float, _: random.Random) -> float:
        return 20 + 0.2 * hour + 5 * (hour / 6 % 1)

    *_, (_, _, points, _) = readings_of(use, 13 * 24)
    found, _ = growth(points, 85.0)
    assert found is not None and found.per_s * HOUR_S == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("level", [0.0, 5.0, 99.0])
def test_one_outlier_is_no_growth_and_hides_none(level: float) -> None:
    flat = list(readings_of(lambda *_: 50.0, 30, outliers={100: level, 200: level, 359: level}))
    assert all(found is None for *_, found in flat)
    *_, (_, _, _, found) = readings_of(lambda hour, _: 10 + hour, 60, outliers={400: level, 715: level})
    assert found is not None and found.per_s * HOUR_S == pytest.approx(1.0, rel=0.05)


def test_a_data_set_that_was_copied_once_is_no_growth() -> None:
    assert all(found is None for *_, found in readings_of(lambda hour, _: 20.0 if hour < 11 else 60.0, 48))


def test_noise_is_no_growth() -> None:
    assert all(found is None for *_, found in readings_of(lambda _, chance: 50 + chance.gauss(0, 0.5), 100))


def test_five_readings_are_too_few() -> None:
    points = tuple((NOW + 600 * n, 10.0 * n) for n in range(5))
    assert growth(points, 85.0) == (None, "too few readings for a forecast (5)")


def test_a_disk_that_was_in_danger_at_that_height_before_gets_no_benefit_of_the_doubt() -> None:
    def use(hour: float, _: random.Random) -> float:
        return min(97.0, 50 + 2 * hour) if hour < 24 else 40 + 3 * (hour - 24)

    *_, (_, used, _, found) = readings_of(use, 36)
    assert used < 97 and found is not None


def test_no_forecast_exceeds_six_times_the_observed_span() -> None:
    assert Growth(per_s=1.0, span_s=100.0).reaches_in_s(600.0) == 600
    assert Growth(per_s=1.0, span_s=100.0).reaches_in_s(601.0) is None
    assert Growth(per_s=1.0, span_s=100.0).reaches_in_s(-5.0) == 0


def test_the_history_is_limited_and_spans_two_weeks() -> None:
    points: tuple[Point, ...] = ()
    for tick in range(20 * 24 * 12):
        points = remembered(points, NOW + 300 * tick + tick % 7, float(tick))
    assert 100 < len(points) < 300
    assert points[-1][1] == 20 * 24 * 12 - 1
    assert 0.9 * KEPT_S < points[-1][0] - points[0][0] <= KEPT_S


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 366 * 86400.0, -366 * 86400.0, -NOW + 60])
def test_a_clock_that_jumps_and_returns_causes_no_error_and_no_alert(jump_s: float) -> None:
    points: tuple[Point, ...] = ()
    for number in range(300):
        off_s = jump_s if 150 <= number < 153 else 0.0
        now = NOW + 300 * number + off_s
        points = remembered(points, now, 50.0 + (number % 5) * 0.01)
        assert growth(points, 85.0)[0] is None
        assert all(when <= now for when, _ in points)
        assert [when for when, _ in points] == sorted(when for when, _ in points)


def test_after_a_permanent_clock_correction_growth_is_detected_again() -> None:
    points: tuple[Point, ...] = ()
    for number in range(100):
        points = remembered(points, NOW + 400 * 86400 + 300 * number, 10 + number / 12)
    for number in range(100, 200):
        points = remembered(points, NOW + 300 * number, 10 + number / 12)
    found, _ = growth(points, 85.0)
    assert found is not None and found.per_s * HOUR_S == pytest.approx(1.0, rel=0.05)


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


STATVFS = Amount(kind=BYTES, source="statvfs", scope="file system", used=1.0, limit=10.0)
QUOTA = Amount(kind=BYTES, source="lfs quota", scope="group lab", used=9.7, limit=10.0)
BEFORE = FileSystemReading(path="/s", history={STATVFS.key: ((0.0, 1.0),), QUOTA.key: ((0.0, 9.7),)})
HANGS = {"lfs quota": "it did not end"}


@pytest.mark.parametrize(
    ("before", "found", "failed", "missed"),
    [
        (BEFORE, (STATVFS,), HANGS, ("the limit of group lab (lfs quota): lfs quota: it did not end",)),
        (BEFORE, (QUOTA, STATVFS), HANGS, ()),  # another source has reported it
        (BEFORE, (STATVFS,), {}, ()),  # it answered: there is no limit any more
        (None, (STATVFS,), HANGS, ()),  # nothing was ever reported
        (FileSystemReading(path="/s", history={STATVFS.key: ((0.0, 1.0),)}), (STATVFS,), HANGS, ()),
    ],
)
def test_a_known_limit_is_missing_if_its_tool_does_not_respond(
    before: FileSystemReading | None, found: tuple[Amount, ...], failed: Mapping[str, str], missed: tuple[str, ...]
) -> None:
    assert missing_limits(before, found, failed, ()) == missed


def test_a_required_source_is_missing_at_once() -> None:
    assert missing_limits(None, (STATVFS,), {"`q`": "it ended with 3"}, ("`q`",)) == ("`q`: it ended with 3",)
