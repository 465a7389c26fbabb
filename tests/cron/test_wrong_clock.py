"""Slots around a clock that `resil inject clock` sets an hour forward or back, and then right again."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.cron.slots import KEPT_SLOTS
from resilience.runs.injected import set_injected, unset_injected
from tests.cron.context import TOP, CronContext


@pytest.mark.parametrize("shift_min", [60, -60])
def test_each_slot_runs_once_by_a_wrong_clock_and_from_the_first_one_on_once_it_is_right(
    tmp_path: Path, shift_min: int
) -> None:
    context = CronContext(tmp_path)
    settings = context.home / "resil.toml"
    settings.write_text(settings.read_text().replace("[run]", "[run]\nallow_inject = true"))
    context.drop("cron.minutely/a")

    def ran(minute: int) -> list[int]:
        """The minutes whose slots a tick of this minute runs."""
        context.cron, before = context.open(), len(context.ran())  # another process, which looks at the clock anew
        context.tick(TOP + 60 * minute + 0.5)
        return [(slot - int(TOP)) // 60 for slot in context.ran()[before:]]

    right = KEPT_SLOTS + 3  # by then no slot of the time before is kept
    assert [ran(minute) for minute in range(-1, 2)] == [[], [0], [1]]
    state_dir = context.cron.project.loaded.state_dir
    set_injected(state_dir, "clock", {"id": "x", "shift_s": 60.0 * shift_min, "until": TOP + 1e6})
    wrong = [ran(minute) for minute in range(2, right)]
    assert wrong[1:] == [[minute + shift_min] for minute in range(3, right)] and len(wrong[0]) <= 1
    unset_injected(state_dir, "clock", "x")
    assert [ran(minute) for minute in range(right, right + 3)] == [[right], [right + 1], [right + 2]]
