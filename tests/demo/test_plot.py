"""What happens to which attempt of the demo, and when."""

from __future__ import annotations

import pytest

from resilience.demo import plot as demo_plot
from resilience.demo.plot import AMID_STEPS, Deed, due
from resilience.demo.story import DemoAttempt


def attempt(number: int, steps: int, *, runs: bool = True) -> DemoAttempt:
    return DemoAttempt(
        number, 7, f"7_{number}", "n1", 40, 40 + steps, 0, (), "" if runs else "ended", (), None if runs else 1.5, None
    )


@pytest.mark.parametrize(
    ("newest", "deed"),
    [
        (attempt(1, 50), None),
        (attempt(3, 0), Deed.SHORTEN),
        (attempt(3, 0, runs=False), None),
        (attempt(4, 0), Deed.ANNOUNCE_LEAK),
        (attempt(5, AMID_STEPS - 1), None),
        (attempt(5, AMID_STEPS), Deed.KILL),
        (attempt(5, AMID_STEPS, runs=False), Deed.CLEAR),
        (attempt(6, AMID_STEPS - 1), None),
        (attempt(6, AMID_STEPS), Deed.SAVE),
        (attempt(6, 200, runs=False), None),
        (attempt(7, 200), None),
    ],
)
def test_each_attempt_has_its_own_fate(newest: DemoAttempt, deed: Deed | None) -> None:
    assert due(newest) is deed


def test_no_attempt_is_hurt_in_two_ways() -> None:
    fates = [
        *map(int, demo_plot.FAULTS),
        demo_plot.SHORTENED_ATTEMPT,
        demo_plot.STOPPED_ATTEMPT,
        demo_plot.SAVED_ATTEMPT,
    ]
    assert sorted(fates) == [1, 2, 3, 4, 5, 6]
