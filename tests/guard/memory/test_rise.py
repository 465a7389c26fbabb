"""When a rise of the last seconds is one that lasts, and when it leaves too little time."""

from __future__ import annotations

import pytest

from resilience.guard.memory.rise import MOST_LOOKS, Look, RecentUse, rush


def looks(*used: int, every_s: float = 1.0) -> list[Look]:
    return [Look(index * every_s, bytes_) for index, bytes_ in enumerate(used)]


STEADY = looks(0, 30, 60, 90, 120)
FAST = looks(0, 10, 20, 30, 40, 50, every_s=0.1)


@pytest.mark.parametrize(
    ("seen", "room_bytes", "need_s", "left_s"),
    [
        (STEADY, 60, 2.0, 2.0),
        (STEADY, 61, 2.0, None),  # it just fits in
        (STEADY, 0, 2.0, 0.0),
        (looks(0, 0, 0, 0, 120), 60, 2.0, None),  # data that was loaded at once
        (looks(0, 0, 60, 120, 120), 60, 2.0, None),  # in two parts
        (looks(0, 40, 80, 120, 120, 120, 120), 60, 2.0, None),  # a burst that has ended
        (looks(0, 30, 60, 90, 60), 60, 2.0, None),  # most of it was given back
        (looks(120, 120, 120, 120, 120), 1, 2.0, None),  # full, and it does not rise
        (looks(150, 120, 90, 60, 30), 1, 2.0, None),
        (looks(0, 0, 0, 50, 50, 50, 100, 100, 100, 150), 60, 4.0, 2.8),  # a lump of 50 in each step of 3 s
        (looks(0, 0, 0, 50, 50, 50, 100), 60, 4.0, None),  # two lumps are no leak yet
        (FAST, 100, 10.0, 10.0),  # half of what is left, as if it had taken 5 s
        (FAST, 101, 10.0, None),
        (FAST, 25, 1.0, 0.25),
        ([Look(0.0, 7)], 1, 2.0, None),
    ],
)
def test_what_a_rise_leaves(seen: list[Look], room_bytes: int, need_s: float, left_s: float | None) -> None:
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
        recent.add(Look(float(second), used, is_exact=used != 90), keep_s=2.0)
    assert [look.at for look in recent.looks] == [4.0, 5.0, 6.0]
    assert recent.known_bytes == 50, "90 may have been file cache"


def test_many_looks_are_thinned_where_they_are_old() -> None:
    recent = RecentUse()
    for index in range(1000):
        recent.add(Look(index / 50, index), keep_s=100.0)
    times = [look.at for look in recent.looks]
    assert len(times) <= MOST_LOOKS
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] - times[-8] == pytest.approx(7 / 50)


def test_the_next_look_goes_by_the_steepest_rise() -> None:
    recent = RecentUse()
    for look in looks(0, 0, 10, 40):
        recent.add(look, keep_s=10.0)
    assert recent.fills_in_s(60) == pytest.approx(2.0)
    assert recent.fills_in_s(-5) == 0.0
    recent.add(Look(3.0, 0), keep_s=10.0)
    assert recent.fills_in_s(60) == float("inf")


def test_looks_with_a_saves_memory_in_them_are_dropped_when_that_is_given_back() -> None:
    """The rise from before the save goes on after it."""
    recent = RecentUse()
    for second, (used, is_exact) in enumerate([(0, True), (30, True), (160, False), (190, False)]):
        recent.add(Look(float(second), used, is_exact), keep_s=10.0)
    recent.forget_inexact()
    recent.add(Look(4.0, 120), keep_s=10.0)
    recent.add(Look(5.0, 150), keep_s=10.0)
    assert rush(recent.looks, room_bytes=60, need_s=2.0) == pytest.approx(2.0)
    assert recent.known_bytes == 0
