"""Drawn trainings: the stop is asked for in time where a leak leaves any, and never where memory comes and goes."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resilience.guard.memory.forecast import RISE_REACH
from resilience.guard.settings import GuardSettings
from resilience.guard.watch import POLL_S
from tests.guard.memory.memory_cgroups import Machine
from tests.guard.simulated_training import SimulatedTraining

IS_SOAK = os.environ.get("RESIL_SOAK") == "1"
EXAMPLES = [6, pytest.param(2000, marks=[pytest.mark.soak, pytest.mark.timeout(7200), pytest.mark.skipif(
    not IS_SOAK, reason="2,000 simulated trainings: set RESIL_SOAK=1")])]  # fmt: skip
BASE_MIB = 40.0
SAVE_EVERY_S = 20.0


def spread(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of all sizes between two: as many from 1 to 10 as from 10 to 100."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def train(seconds: float, limit_mib: float, use_mib: Callable[[float], float], **options: Any) -> SimulatedTraining:
    """A training of so many seconds, or until it ends. `options` are those of `SimulatedTraining`."""
    with tempfile.TemporaryDirectory() as directory:
        training = SimulatedTraining(Machine(Path(directory)), limit_mib, use_mib, **options)
        training.run(seconds)
    return training


LEAKS = {
    "mib_per_s": spread(1, 500),
    "limit_mib": spread(200, 4096),
    "step_s": spread(0.05, 2),
    "save_s": spread(0.1, 5),
    "save_mib": st.sampled_from([0.0, 10.0, 30.0, 100.0]),
    "held_s": st.sampled_from([0.0, 0.0, 10.0]),
    "begins_s": st.floats(0, SAVE_EVERY_S),
    "in_lumps": st.booleans(),
    "cache_mib_per_s": st.sampled_from([0.0, 10.0, 1000.0]),
}


def leak(
    mib_per_s: float,
    limit_mib: float,
    step_s: float,
    save_s: float,
    save_mib: float,
    held_s: float,
    begins_s: float,
    in_lumps: bool,
    cache_mib_per_s: float,
) -> None:
    full_after_s = (limit_mib - BASE_MIB - save_mib) / mib_per_s
    durable_s = save_s + held_s
    assume(full_after_s >= 1.5 * (POLL_S + step_s + durable_s) + durable_s)
    assume(not in_lumps or full_after_s >= 8 * step_s + durable_s)
    begins_s += SAVE_EVERY_S + durable_s + 2 * step_s  # a save was measured before

    def use_mib(now: float) -> float:
        leaking_s = max(0.0, now - begins_s)
        return BASE_MIB + mib_per_s * (leaking_s // step_s * step_s if in_lumps else leaking_s)

    training = train(
        begins_s + 2 * full_after_s + 60, limit_mib, use_mib, step_s=step_s, save_s=save_s, save_mib=save_mib,
        held_s=held_s, save_every_s=SAVE_EVERY_S, cache_mib=lambda now: now * cache_mib_per_s,
    )  # fmt: skip
    assert training.wanted is not None
    assert training.wanted.stop
    assert training.wanted_at > begins_s, "nothing leaked yet"
    assert not training.was_killed
    assert max(later - look for look, later in zip(training.looks, training.looks[1:], strict=False)) <= POLL_S + 1e-6


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_leak_that_leaves_time_for_a_save_is_stopped_before_the_limit(examples: int) -> None:
    """Time means: one and a half times the usual pause between two looks, a step and a save; and, because a regular
    save may be under way meanwhile, that save. A leak in lumps, one per step, is none before it has shown some. Some
    saves are durable 10 s after the training went on."""
    settings(max_examples=examples)(given(**LEAKS)(leak))()


BURSTS = {
    "limit_mib": spread(200, 512_000),
    "base": st.floats(0.1, 0.7),
    "burst": st.floats(0.0, 1 / (1 + RISE_REACH) - 0.01),
    "mib_per_s": spread(10, 5000),
    "parts": st.sampled_from([1, 3, 1000]),
    "hold_s": st.floats(0, 20),
    "every_s": st.sampled_from([math.inf, 25.0, 70.0]),
    "step_s": spread(0.05, 2),
    "save_s": spread(0.1, 30),
    "save": st.sampled_from([0.0, 0.05]),
    "held_s": st.sampled_from([0.0, 3.0, 18.0]),
    "cache": st.sampled_from([0.0, 0.001, 0.1]),
}


def come_and_go(
    limit_mib: float,
    base: float,
    burst: float,
    mib_per_s: float,
    parts: int,
    hold_s: float,
    every_s: float,
    step_s: float,
    save_s: float,
    save: float,
    held_s: float,
    cache: float,
) -> None:
    base_mib, save_mib = base * limit_mib, save * limit_mib
    burst_mib = burst * (limit_mib - base_mib - save_mib)
    rises_s = burst_mib / mib_per_s
    assume(rises_s + hold_s < 200)

    def training_mib(trained_s: float) -> float:
        at = trained_s % every_s
        risen = 0.0 if at > rises_s + hold_s else min(1.0, at / rises_s) if rises_s else 1.0
        return burst_mib * math.ceil(risen * parts) / parts

    training = train(
        rises_s + hold_s + 150, limit_mib, lambda now: base_mib * (1 + 0.005 * math.sin(5 * now)),
        training_mib=training_mib, step_s=step_s, save_s=save_s, save_mib=save_mib, held_s=held_s,
        save_every_s=SAVE_EVERY_S, cache_mib=lambda now: now * cache * limit_mib,
    )  # fmt: skip
    assert training.wanted is None


@pytest.mark.parametrize("examples", EXAMPLES)
def test_bursts_that_take_less_than_a_third_of_the_free_memory_stop_nobody(examples: int) -> None:
    """However fast they come, at once or bit by bit, from the first step on, once or again and again. Files that are
    read fill the rest of the cgroup meanwhile, and saves hold their memory a while."""
    settings(max_examples=examples)(given(**BURSTS)(come_and_go))()


def test_with_the_forecast_switched_off_the_level_stops_and_leaves_room_for_a_save() -> None:
    """Saves take 200 MiB more: of 1000 they must be free, although the level alone is at 950."""
    settings = GuardSettings(host_memory_forecast=False)
    training = train(2000, 1000, lambda now: 100 + now, save_mib=200.0, settings=settings)
    assert training.wanted is not None
    assert training.wanted.why.endswith("less than the 204 MiB that a save needs")
    assert 690 < training.wanted_at < 720
    assert not training.was_killed


def test_before_a_save_was_measured_nothing_is_assumed_of_it() -> None:
    """80 % of 1000 MiB must be in use then, and the level is where it always was."""
    fast = train(100, 1000, lambda now: 100 + 100 * max(0.0, now - 50), save_every_s=1e9)
    assert fast.wanted_at == pytest.approx(57.0, abs=0.3)
    assert fast.wanted is not None
    assert fast.wanted.why.endswith("barely enough for a save")
    slow = train(
        2000, 1000, lambda now: 100 + now, save_every_s=1e9, settings=GuardSettings(host_memory_forecast=False)
    )
    assert slow.wanted_at == pytest.approx(850.0, abs=1.0)


def test_what_a_save_holds_in_the_background_is_not_counted_twice() -> None:
    """450 of 1000 MiB, and each save holds 300 more until half a minute after its end: never more than 750."""
    training = train(600, 1000, lambda now: 450, save_every_s=50.0, save_s=1.0, save_mib=300.0, held_s=30.0)
    assert training.wanted is None


@pytest.mark.parametrize("mib_per_s", [0.0, 0.1])
@pytest.mark.parametrize("cache_mib_per_s", [0.0, 2.0])
def test_a_flat_or_slow_use_is_probed_once_a_second(mib_per_s: float, cache_mib_per_s: float) -> None:
    training = train(
        600, 1000, lambda now: 500 + mib_per_s * now, save_every_s=1e9, cache_mib=lambda now: now * cache_mib_per_s
    )
    assert training.wanted is None
    assert len(training.looks) == 601


def test_a_data_set_that_is_loaded_before_the_first_save_stops_nobody_below_80_percent() -> None:
    """Half of 64 GiB in ten seconds, right after the first step: stopped there, the next job would be as well."""
    assert train(300, 65_536, lambda now: min(50_000, 5000 * now), save_every_s=1e9).wanted is None


def test_an_evaluation_that_takes_as_much_as_the_last_one_stops_nobody() -> None:
    """Three quarters of what is free, in two seconds. It was seen once before the first save, and then every minute."""

    def use_mib(now: float) -> float:
        return 1000 + (1500 * min(1.0, now % 60 / 2) if now % 60 < 20 else 0)

    training = train(600, 3000, use_mib, save_every_s=50.0, save_s=3.0)
    assert training.wanted is None


def test_a_save_that_is_due_when_time_gets_short_is_the_last_one() -> None:
    """There is room for one more save of 5 s, and the training makes that by itself: the stop asks for no other."""
    training = train(200, 820, lambda now: 100 + 40 * max(0.0, now - 117), save_every_s=60.0, save_s=5.0)
    assert training.wanted is not None
    assert not training.wanted.save
    assert training.wanted.why.endswith("barely enough for a save; the last save has just completed")
    assert not training.was_killed


def test_a_save_in_flight_when_time_gets_short_is_the_last_one() -> None:
    """Another would have to wait until it is durable, 20 s after it began, and the memory lasts for 30 s."""
    training = train(200, 1300, lambda now: 100 + 40 * max(0.0, now - 118), save_every_s=60.0, save_s=1.0, held_s=20.0)
    assert training.wanted is not None
    assert not training.wanted.save
    assert training.wanted.why.endswith("barely enough for a save; the save in flight is the last one")
    assert not training.was_killed
