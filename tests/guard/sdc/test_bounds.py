"""A tensor is compared with its own clean steps: both signs are its largest absolute value, and NaN is abnormal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from resilience.guard.sdc.bounds import LEAST_LIMIT, LEAST_STEPS, Bounds

NAMES = ("gradient", "moment")


def armed(*steps: Sequence[float], times: float = 100.0, window: int = 40) -> Bounds:
    """Bounds that have seen these clean steps, the last one as often as it takes to be armed."""
    bounds = Bounds(times=times, window=window)
    for values in (*steps[:-1], *(steps[-1],) * LEAST_STEPS):
        assert not bounds.judge(NAMES, values)
        bounds.accept(NAMES, values)
    assert bounds.is_armed
    return bounds


@pytest.mark.parametrize(
    ("value", "is_abnormal"),
    [
        (19.9, False),
        (200.0, False),
        (200.1, True),
        (1e17, True),
        (3.4e38, True),
        (math.inf, True),
        (math.nan, True),
        (0.0, False),
    ],
)
def test_a_value_is_abnormal_above_a_hundred_times_the_largest_clean_one(value: float, is_abnormal: bool) -> None:
    found = armed((2.0, 0.5)).judge(NAMES, (value, 0.5))
    assert [one.name for one in found] == ["gradient"] * is_abnormal


@pytest.mark.parametrize(("value", "found"), [(5.0, 0), (9e5, 0), (1.1e6, 1), (math.nan, 1), (math.inf, 1)])
def test_before_enough_clean_steps_only_the_ceiling_counts(value: float, found: int) -> None:
    bounds = Bounds()
    for _ in range(LEAST_STEPS - 1):
        bounds.accept(NAMES, (1e-3, 1e-3))
    assert len(bounds.judge(NAMES, (value, 1e-3))) == found


def test_of_tensors_nobody_has_seen_nan_is_abnormal() -> None:
    assert [str(one) for one in Bounds().judge(NAMES, (math.nan, 1.0))] == ["gradient is NaN, at most 1e+06 is normal"]


def test_small_values_may_grow_up_to_one() -> None:
    bounds = armed((1e-9, 1e-9))
    assert not bounds.judge(NAMES, (LEAST_LIMIT, 0.5))
    assert len(bounds.judge(NAMES, (1.01, 0.5))) == 1


def test_a_tensor_that_was_zero_has_no_history_of_its_own() -> None:
    bounds = armed((0.0, 1.0))
    assert not bounds.judge(NAMES, (1e5, 1.0))
    assert len(bounds.judge(NAMES, (1e17, 1.0))) == 1


def test_the_ceiling_holds_for_tensors_with_large_values_too() -> None:
    assert len(armed((9e4, 1.0)).judge(NAMES, (1.1e6, 1.0))) == 1


def test_what_is_judged_abnormal_is_not_learned() -> None:
    bounds = armed((1.0, 1.0))
    for _ in range(100):
        assert len(bounds.judge(NAMES, (1e3, 1.0))) == 1


def test_old_values_are_forgotten_after_a_window() -> None:
    bounds = armed((50.0, 1.0), (0.1, 1.0), window=40)
    assert not bounds.judge(NAMES, (4000.0, 1.0)), "a value of the last half window counts"
    for _ in range(40):
        bounds.accept(NAMES, (0.1, 1.0))
    assert len(bounds.judge(NAMES, (4000.0, 1.0))) == 1


def test_the_window_is_never_shorter_than_its_half() -> None:
    for start in range(40):
        bounds = armed((1.0, 1.0), window=40)
        for _ in range(start):
            bounds.accept(NAMES, (1.0, 1.0))
        bounds.accept(NAMES, (90.0, 1.0))
        for _ in range(19):
            bounds.accept(NAMES, (1.0, 1.0))
            assert not bounds.judge(NAMES, (8000.0, 1.0)), start


def test_a_new_list_of_tensors_is_armed_anew_and_keeps_what_is_known() -> None:
    bounds = armed((3.0, 1.0))
    more = (*NAMES, "frozen before")
    bounds.accept(more, (3.0, 1.0, 5.0))
    assert not bounds.is_armed and not bounds.judge(more, (1e5, 1.0, 5.0))
    for _ in range(LEAST_STEPS):
        bounds.accept(more, (0.01, 1.0, 5.0))
    assert not bounds.judge(more, (290.0, 1.0, 5.0)), "the maximum from before counts"
    assert len(bounds.judge(more, (301.0, 1.0, 501.0))) == 2
