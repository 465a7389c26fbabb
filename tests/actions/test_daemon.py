"""When to look again."""

from __future__ import annotations

import itertools

import pytest

from resilience.actions.daemon import NAP_S, next_tick, ticks, wait_until
from tests.fakes import FakeClock


@pytest.mark.parametrize(
    ("now", "every_s", "then"), [(0, 60, 60), (59.9, 60, 60), (60, 60, 120), (100.5, 0.5, 101), (7200, 3600, 10800)]
)
def test_a_tick_is_at_a_whole_multiple_of_the_interval(now: float, every_s: float, then: float) -> None:
    assert next_tick(now, every_s) == then


def test_the_first_tick_is_at_once_and_the_others_are_aligned() -> None:
    clock = FakeClock(time=1000.0)
    assert list(ticks(clock, 60.0, 4)) == [1000.0, 1020.0, 1080.0, 1140.0]


def test_a_tick_that_took_too_long_is_left_out_and_not_made_up_for() -> None:
    clock = FakeClock(time=0.0)
    seen = []
    for now in ticks(clock, 60.0, 4):
        seen.append(now)
        clock.sleep(130 if now == 60 else 1)
    assert seen == [0, 60, 240, 300]


def test_without_a_count_it_goes_on() -> None:
    assert len(list(itertools.islice(ticks(FakeClock(), 1.0), 1000))) == 1000


def test_a_clock_that_is_set_back_does_not_stop_the_ticks() -> None:
    clock = FakeClock(time=1_000_000.0)

    def set_back(seconds: float) -> None:
        clock.at_sleep = lambda _: None
        clock.time -= 86400

    clock.at_sleep = set_back
    before = clock.monotonic()
    wait_until(clock, clock.now() + 60)
    assert clock.monotonic() - before <= 60 + NAP_S


def test_a_clock_that_is_set_forward_is_noticed_within_a_nap() -> None:
    clock = FakeClock(time=1_000_000.0)

    def set_forward(seconds: float) -> None:
        clock.at_sleep = lambda _: None
        clock.time += 86400

    clock.at_sleep = set_forward
    before = clock.monotonic()
    wait_until(clock, clock.now() + 3600)
    assert clock.monotonic() - before <= NAP_S
