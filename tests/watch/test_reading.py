"""What is remembered of a subject. Pure."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.watch.reading import NO_MEMORY, Memory, Timed, remember


def at(*times: float) -> tuple[Timed[str], ...]:
    return tuple(Timed(time, f"seen at {time}") for time in times)


@pytest.mark.parametrize(
    ("before", "new", "memory", "kept"),
    [
        ((), (5,), Memory(count=3), (5,)),
        ((1, 2, 3), (4,), Memory(count=3), (2, 3, 4)),
        ((1,), (2,), Memory(count=1), (2,)),
        ((1, 2), (3,), NO_MEMORY, ()),
        ((0, 20), (40,), Memory(count=9, spacing_s=60), (0, 40)),
        ((0, 60), (80,), Memory(count=9, spacing_s=60), (0, 60, 80)),
        ((0, 60, 80), (100,), Memory(count=9, spacing_s=60), (0, 60, 100)),
        ((0, 60, 80), (130,), Memory(count=9, spacing_s=60), (0, 60, 130)),
        ((), (0, 20, 40, 60, 80), Memory(count=9, spacing_s=60), (0, 60, 80)),
        ((5, 1), (3,), Memory(count=9), (1, 3, 5)),
        ((1, 2), (2,), Memory(count=9), (1, 2)),
    ],
)
def test_what_is_remembered(
    before: tuple[float, ...], new: tuple[float, ...], memory: Memory, kept: tuple[float, ...]
) -> None:
    assert remember(at(*before), at(*new), memory) == at(*kept)


def test_of_two_at_the_same_moment_the_new_one_counts() -> None:
    assert remember([Timed(1.0, "old")], [Timed(1.0, "new")], Memory(count=3)) == (Timed(1.0, "new"),)


def test_a_tick_each_minute_does_not_push_out_what_was_seen_yesterday() -> None:
    kept: tuple[Timed[str], ...] = ()
    memory = Memory(count=25, spacing_s=3600)
    for minute in range(24 * 60 + 1):
        kept = remember(kept, at(minute * 60.0), memory)
    assert kept[0].time == 0 and kept[-1].time == 86400 and len(kept) == 25


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 10), st.floats(0, 1e5))
def test_the_newest_is_always_kept_and_the_rest_is_spaced(times: list[float], count: int, spacing_s: float) -> None:
    kept: tuple[Timed[str], ...] = ()
    for time in sorted(times):
        kept = remember(kept, at(time), Memory(count=count, spacing_s=spacing_s))
    assert kept[-1].time == max(times) and len(kept) <= count
    anchors = [one.time for one in kept[:-1]]
    assert all(b - a >= spacing_s for a, b in pairwise(anchors))
