"""What a save needs besides what the training uses, as far as looks can tell."""

from __future__ import annotations

import pytest

from resilience.guard.memory.save_memory import SaveMemory
from resilience.guard.pace import SAVES

TRAINS, WAITS, IN_FLIGHT, WAITS_FOR_IT = (False, False), (True, False), (False, True), (True, True)
"""What the training does: whether it waits for a save, and whether one goes on in the background."""


def look(save: SaveMemory, *seen: tuple[int, tuple[bool, bool]]) -> int:
    """Show it what is in use and what the training does, and return what a save needs: the rise and 1/50 more."""
    for second, (used, (is_saving, is_in_flight)) in enumerate(seen):
        save.look(float(second), used, is_saving=is_saving, is_in_flight=is_in_flight)
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
        save.look(float(now), 500, is_saving=is_saving, is_in_flight=is_in_flight)
        sinces.append(save.since)
    assert sinces == [None, None, 2.0, 2.0, None]
