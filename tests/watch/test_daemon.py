"""When to look again."""

from __future__ import annotations

import itertools

import pytest

from resilience.watch.daemon import NAP_S, Awaited, FollowedLog, next_tick, ticks, wait_until
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import Watchdog
from tests.fakes import FakeClock
from tests.runs.a_check import ACheck, AReading, ASettings, a_dog


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


class DueCheck(ACheck):
    """Its readings say by when a log must go on."""

    def deadline(
        self, reading: AReading, settings: ASettings, now: float
    ) -> tuple[tuple[str, ...], float, float] | None:
        if reading.used == 13:
            raise ZeroDivisionError
        return (reading.words, now - 5, float(reading.used)) if reading.words else None


def test_what_a_look_makes_due_is_awaited_and_known_by_its_watchdog() -> None:
    awaited = Awaited(FakeClock(time=100.0))
    mine, other = (Watchdog(name, "log", DueCheck(), ASettings()) for name in ("log", "mine"))
    awaited.saw(mine, {"/a": Timed(99.0, AReading(60, ("/a.1", "/a.2"))), "/b": Timed(99.0, AReading(60))})
    awaited.saw(other, {"/a": Timed(99.0, AReading(7, ("/a.1",))), "/bug": Timed(99.0, AReading(13, ("/x",)))})
    awaited.saw(a_dog(), {"/a": Timed(99.0, AReading(1, ("/a.1",)))})  # one that awaits nothing
    assert awaited.logs() == [
        FollowedLog("log /a", ("/a.1", "/a.2"), 95.0, 60.0), FollowedLog("mine /a", ("/a.1",), 95.0, 7.0),
    ]  # fmt: skip
    assert awaited.owners(["mine /a", "unknown"]) == {"mine"}
    awaited.saw(other, {})
    assert [log.subject for log in awaited.logs()] == ["log /a"]
