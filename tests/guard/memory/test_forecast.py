"""When something that grows will be full: leaks are told, everything else is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from resilience.guard.memory.forecast import (
    MOST_READINGS,
    MOST_SAMPLES,
    History,
    RecentUse,
    Sample,
    SaveMemory,
    Trend,
    fit,
    rush,
)
from resilience.guard.step_timer import SAVES


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


def test_a_leak_under_noise_is_reported_within_the_hour() -> None:
    draw = random.Random(3)
    trend = remember(lambda number: number + draw.gauss(0, 5)).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.1)


def test_a_leak_under_a_sawtooth_is_reported() -> None:
    trend = remember(lambda number: number + 3 * (number % 30), hours=3).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.2)


def test_a_leak_by_epoch_is_reported() -> None:
    trend = remember(lambda number: 20.0 * (number // 20), hours=2).trend()
    assert trend is not None
    assert trend.per_s == pytest.approx(0.1, rel=0.2)


def test_a_leak_that_begins_after_hours_is_reported_within_a_quarter_of_an_hour() -> None:
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


def samples(*used: int, every_s: float = 1.0) -> list[Sample]:
    return [Sample(index * every_s, bytes_) for index, bytes_ in enumerate(used)]


STEADY = samples(0, 30, 60, 90, 120)
FAST = samples(0, 10, 20, 30, 40, 50, every_s=0.1)


@pytest.mark.parametrize(
    ("seen", "room_bytes", "need_s", "left_s"),
    [
        (STEADY, 60, 2.0, 2.0),
        (STEADY, 61, 2.0, None),  # it just fits in
        (STEADY, 0, 2.0, 0.0),
        (samples(0, 0, 0, 0, 120), 60, 2.0, None),  # data that was loaded at once
        (samples(0, 0, 60, 120, 120), 60, 2.0, None),  # in two parts
        (samples(0, 40, 80, 120, 120, 120, 120), 60, 2.0, None),  # a burst that has ended
        (samples(0, 30, 60, 90, 60), 60, 2.0, None),  # most of it was given back
        (samples(120, 120, 120, 120, 120), 1, 2.0, None),  # full, and it does not rise
        (samples(150, 120, 90, 60, 30), 1, 2.0, None),
        (samples(0, 0, 0, 50, 50, 50, 100, 100, 100, 150), 60, 4.0, 2.8),  # a lump of 50 in each step of 3 s
        (samples(0, 0, 0, 50, 50, 50, 100), 60, 4.0, None),  # two lumps are no leak yet
        (FAST, 100, 10.0, 10.0),  # half of what is left, as if it had taken 5 s
        (FAST, 101, 10.0, None),
        (FAST, 25, 1.0, 0.25),
        ([Sample(0.0, 7)], 1, 2.0, None),
    ],
)
def test_what_a_rise_leaves(seen: list[Sample], room_bytes: int, need_s: float, left_s: float | None) -> None:
    found = rush(seen, room_bytes=room_bytes, need_s=need_s)
    assert found == (None if left_s is None else pytest.approx(left_s))


def test_what_comes_back_to_where_it_was_before_is_no_leak() -> None:
    """An evaluation after each epoch takes the same memory as the one before."""
    assert rush(STEADY, room_bytes=60, need_s=2.0, known_bytes=120) is None
    assert rush(STEADY, room_bytes=60, need_s=2.0, known_bytes=0) == 2.0
    assert rush(STEADY, room_bytes=15, need_s=2.0, known_bytes=60) == pytest.approx(0.75)  # beyond it, it counts


def test_old_looks_are_forgotten_and_the_highest_of_them_is_known() -> None:
    recent = RecentUse()
    for second, used in enumerate([10, 50, 20, 90, 20, 20, 20]):
        recent.add(Sample(float(second), used, is_exact=used != 90), keep_s=2.0)
    assert [sample.at for sample in recent.samples] == [4.0, 5.0, 6.0]
    assert recent.known_bytes == 50, "90 may have been file cache"


def test_many_looks_are_thinned_where_they_are_old() -> None:
    recent = RecentUse()
    for index in range(1000):
        recent.add(Sample(index / 50, index), keep_s=100.0)
    times = [sample.at for sample in recent.samples]
    assert len(times) <= MOST_SAMPLES
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] - times[-8] == pytest.approx(7 / 50)


def test_the_next_look_goes_by_the_steepest_rise() -> None:
    recent = RecentUse()
    for look in samples(0, 0, 10, 40):
        recent.add(look, keep_s=10.0)
    assert recent.fills_in_s(60) == pytest.approx(2.0)
    assert recent.fills_in_s(-5) == 0.0
    recent.add(Sample(3.0, 0), keep_s=10.0)
    assert recent.fills_in_s(60) == float("inf")


def test_looks_with_a_saves_memory_in_them_are_dropped_when_that_is_given_back() -> None:
    """The rise from before the save goes on after it."""
    recent = RecentUse()
    for second, (used, is_exact) in enumerate([(0, True), (30, True), (160, False), (190, False)]):
        recent.add(Sample(float(second), used, is_exact), keep_s=10.0)
    recent.drop_inexact()
    recent.add(Sample(4.0, 120), keep_s=10.0)
    recent.add(Sample(5.0, 150), keep_s=10.0)
    assert rush(recent.samples, room_bytes=60, need_s=2.0) == pytest.approx(2.0)
    assert recent.known_bytes == 0


TRAINS, WAITS, IN_FLIGHT, WAITS_FOR_IT = (False, False), (True, False), (False, True), (True, True)
"""What the training does: whether it waits for a save, and whether one goes on in the background."""


def look(save: SaveMemory, *seen: tuple[int, tuple[bool, bool]]) -> int:
    """Show it what is in use and what the training does, and return what a save needs: the rise and 1/50 more."""
    for second, (used, (is_saving, is_in_flight)) in enumerate(seen):
        save.sample(float(second), used, is_saving=is_saving, is_in_flight=is_in_flight)
    return save.bytes


def test_until_a_save_was_seen_it_needs_nothing() -> None:
    assert look(SaveMemory(), (500, TRAINS), (900, TRAINS), (950, WAITS)) == 0


def test_the_rise_from_before_the_save_to_the_highest_use_in_it_counts() -> None:
    assert look(SaveMemory(), (500, TRAINS), (520, WAITS), (600, WAITS), (560, WAITS), (500, TRAINS)) == 102


def test_the_largest_of_the_recent_saves_counts() -> None:
    save = SaveMemory()
    needs = [look(save, (500, TRAINS), (500 + rise, WAITS), (500, TRAINS)) for rise in [300, *[100] * SAVES]]
    assert needs == [306] * SAVES + [102]


@pytest.mark.parametrize("after", [600, 700])
def test_memory_that_stays_in_use_is_no_need_of_the_next_save(after: int) -> None:
    """An allocator keeps what it has got, and gives it to the next save."""
    assert look(SaveMemory(), (500, TRAINS), (600, WAITS), (after, TRAINS)) == 0


def test_what_a_save_in_the_background_holds_is_counted_once() -> None:
    """While its memory is in use nothing more is needed; when it is durable, the next save needs it again."""
    save = SaveMemory()
    assert look(save, (500, TRAINS), (600, WAITS), (600, IN_FLIGHT), (500, TRAINS)) == 102
    assert look(save, (500, TRAINS), (600, WAITS), (600, IN_FLIGHT)) == 0
    assert look(save, (540, IN_FLIGHT)) == 61
    assert look(save, (500, TRAINS)) == 102


def test_what_comes_and_goes_while_a_save_is_in_flight_is_not_the_saves() -> None:
    """An evaluation of 300 right after the save."""
    assert look(SaveMemory(), (500, TRAINS), (600, WAITS), (900, IN_FLIGHT), (600, IN_FLIGHT), (500, TRAINS)) == 102


def test_a_copy_that_is_made_in_the_background_counts() -> None:
    assert look(SaveMemory(), (500, TRAINS), (510, WAITS), (600, IN_FLIGHT), (500, TRAINS)) == 102


def test_a_leak_that_goes_on_is_not_the_saves() -> None:
    """30 a second, and the save needs 100 more."""
    assert look(SaveMemory(), (500, TRAINS), (530, WAITS), (660, WAITS), (590, TRAINS), (620, TRAINS)) == 71
    in_flight = look(SaveMemory(), (500, TRAINS), (630, WAITS), (660, IN_FLIGHT), (690, IN_FLIGHT), (620, TRAINS))
    assert in_flight == 71, "what was leaked between the last look in it and the next is missing"


def test_saves_that_wait_for_each_other_are_one() -> None:
    save = SaveMemory()
    look(save, (500, TRAINS), (600, WAITS), (600, IN_FLIGHT), (600, WAITS_FOR_IT), (610, WAITS), (600, IN_FLIGHT))
    assert look(save, (500, TRAINS)) == 112


def test_a_save_that_nobody_saw_changes_nothing() -> None:
    save = SaveMemory()
    look(save, (500, TRAINS), (600, WAITS), (500, TRAINS), (500, TRAINS))
    assert save.bytes == 102


def test_a_save_that_is_the_first_thing_seen_does_not_need_everything() -> None:
    assert look(SaveMemory(), (500, WAITS), (520, WAITS), (500, TRAINS)) == 20


def test_a_save_counts_from_when_the_one_in_flight_is_over() -> None:
    save = SaveMemory()
    sinces = []
    for now, (is_saving, is_in_flight) in enumerate([TRAINS, WAITS_FOR_IT, WAITS, WAITS, IN_FLIGHT]):
        save.sample(float(now), 500, is_saving=is_saving, is_in_flight=is_in_flight)
        sinces.append(save.since)
    assert sinces == [None, None, 2.0, 2.0, None]
