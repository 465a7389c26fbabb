"""Which ranks are together, and which one is odd."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.ranks.grouping import group, numbers
from resilience.ranks.stacks import Stacks, parse_stacks

RECORDED = Path(__file__).parents[1] / "recorded" / "stacks"
REDUCE, LOADER, CODE = (
    parse_stacks((RECORDED / f"{name}.txt").read_text()) for name in ("all_reduce", "data_loader", "preprocess")
)
OTHER = parse_stacks('Thread 0x1 (most recent call first):\n  File "/home/ada/train.py", line 30 in evaluate\n')
WAITS = "in a collective (all_reduce) at train.py:10 in step"
CASES: list[tuple[str, dict[int, Stacks], dict[int, str], list[tuple[int, ...]], list[int], str]] = [
    ("all wait", {0: REDUCE, 1: REDUCE}, {}, [(0, 1)], [], f"all 2 ranks: {WAITS}"),
    ("one alone", {0: CODE}, {}, [(0,)], [], "the only rank: in the user's code at train.py:11 in preprocess"),
    ("one is elsewhere", {0: REDUCE, 1: CODE, 2: REDUCE}, {}, [(0, 2), (1,)], [1],
     f"rank 1 on n1: in the user's code at train.py:11 in preprocess; the other 2 ranks: {WAITS}"),
    ("a collective waits for most", {0: CODE, 1: CODE, 2: REDUCE}, {}, [(0, 1), (2,)], [0, 1],
     "rank 0 on n0: in the user's code at train.py:11 in preprocess; "
     f"rank 1 on n1: in the user's code at train.py:11 in preprocess; the other: {WAITS}"),
    ("the smallest group first", {0: REDUCE, 1: CODE, 2: CODE, 3: LOADER}, {}, [(1, 2), (0,), (3,)], [3, 1, 2],
     "3 of 4 ranks differ, rank 3 on n3: in the data loader at train.py:8 in load_batch; "
     f"the other: {WAITS}"),
    ("most are together", {0: CODE, 1: CODE, 2: OTHER}, {}, [(0, 1), (2,)], [2],
     "rank 2 on n2: in the user's code at train.py:30 in evaluate; "
     "the other 2 ranks: in the user's code at train.py:11 in preprocess"),
    ("no majority", {0: CODE, 1: OTHER}, {}, [(0,), (1,)], [],
     "2 ranks are at 2 places, and no group is larger than half of them"),
    ("one is stopped", {0: REDUCE, 1: REDUCE}, {2: "stopped"}, [(0, 1)], [2],
     f"rank 2 on n2: stopped; the other 2 ranks: {WAITS}"),
    ("one is stopped, and was read from outside", {0: REDUCE, 1: REDUCE, 2: CODE}, {2: "stopped"}, [(0, 1), (2,)], [2],
     f"rank 2 on n2: stopped; the other 2 ranks: {WAITS}"),
    ("the stopped one before the one that is elsewhere", {0: CODE, 1: REDUCE}, {2: "stopped"}, [(0,), (1,)], [2, 0],
     "rank 2 on n2: stopped; rank 0 on n0: in the user's code at train.py:11 in preprocess; the other: "
     f"{WAITS}"),
    ("one has not answered", {}, {0: "stopped"}, [], [0], "rank 0 on n0: stopped"),
    ("none has answered", {}, dict.fromkeys(range(4), "no answer"), [], [0, 1, 2, 3], "none of 4 ranks has answered"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stacks", "silent", "together", "odd", "sentence"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_groups_and_odd_ranks(
    stacks: dict[int, Stacks], silent: dict[int, str], together: list[tuple[int, ...]], odd: list[int], sentence: str
) -> None:
    found = group(stacks, silent, {rank: f"n{rank}" for rank in range(4)})
    assert [one.ranks for one in found.groups] == together
    assert [one.rank for one in found.odd] == odd
    assert found.sentence == sentence


def test_of_many_ranks_the_one_that_differs_is_named() -> None:
    found = group(dict.fromkeys(range(1023), REDUCE) | {1023: CODE})
    assert [one.rank for one in found.odd] == [1023] and found.sentence.endswith(f"the other 1023 ranks: {WAITS}")


@pytest.mark.parametrize(("ranks", "text"), [((0,), "0"), ((0, 1, 2, 5, 7, 8), "0-2, 5, 7-8"), ((), "")])
def test_numbers_are_ranges(ranks: tuple[int, ...], text: str) -> None:
    assert numbers(ranks) == text


def test_a_collective_without_a_python_frame_is_known_from_the_flight_recorder() -> None:
    """Ranks wait in the backward pass of DistributedDataParallel, which is written in C++."""
    backward = parse_stacks('Thread 0x1 (most recent call first):\n  File "/home/ada/train.py", line 20 in step\n')
    found = group({0: backward, 1: CODE}, inside={0})
    assert [(one.rank, one.why) for one in found.odd] == [(1, "in the user's code at train.py:11 in preprocess")]
    assert found.sentence.endswith("the other: in a collective (step) at train.py:20 in step")
    same = group({0: backward, 1: backward, 2: backward}, inside={0, 2})
    assert [one.rank for one in same.odd] == [1], "the same line, but it has not got to the collective"
