"""Which rank keeps the others waiting: tables of signs."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.ranks.beats import NodeBeat, RankBeat
from resilience.ranks.verdict import LOST_S, THREAD_S, HangVerdict, judge

NOW = 1_800_000_000.0
WAITS: dict[str, Any] = {"state": "S", "wchan": "ep_poll", "looks": 90, "entered": 61, "is_inside": True}
ODD: dict[str, Any] = WAITS | {"entered": 60, "is_inside": False}


def node(host: str, ranks: dict[int, dict[str, Any]], age_s: float = 0.0) -> NodeBeat:
    usual: dict[str, Any] = {"step": 60, "advanced": NOW - 300, "phase": "train", "looked": NOW - 1}
    beats = tuple(RankBeat(**{"rank": rank, "pid": 40 + rank, **usual, **fields}) for rank, fields in ranks.items())
    return NodeBeat("12", host, 3, NOW, NOW - age_s, beats)


def nodes(odd: dict[str, Any], rest: dict[str, Any] = WAITS) -> list[NodeBeat]:
    """Four ranks on two nodes, of which rank 2 is odd."""
    return [node("n1", {0: rest, 1: rest}), node("n2", {2: odd, 3: rest})]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (ODD, "outside the collective that the others wait in"),
        (ODD | {"wchan": "request_wait_answer"},
         "outside the collective that the others wait in, in request_wait_answer"),
        (ODD | {"state": "T"}, "stopped by a signal or a debugger (state T)"),
        (ODD | {"state": "T", "looked": NOW - 400}, "stopped by a signal or a debugger (state T)"),
        (ODD | {"state": "D", "wchan": "nfs4_wait"},
         "waiting in the kernel for a disk, a file server or a driver (state D, in nfs4_wait)"),
        (ODD | {"looked": NOW - 90}, "a library holds the GIL (its guard's thread has not run for 1 min 30 s)"),
        (WAITS | {"looked": NOW - 90}, "a library holds the GIL (its guard's thread has not run for 1 min 30 s)"),
        (ODD | {"is_gone": True}, "ended without a final message"),
    ],
)  # fmt: skip
def test_the_odd_rank_is_named_with_the_sign_that_tells_most(odd: dict[str, Any], why: str) -> None:
    found = judge(nodes(odd))
    assert (found.ranks, found.hosts, found.is_witnessed) == ((2,), ("n2",), True)
    assert found.why == f"rank 2 on n2: {why} (1 of 4 ranks)"


def test_a_rank_that_is_only_behind_in_steps_is_named_without_a_second_witness() -> None:
    found = judge(nodes({"step": 59}, {}))
    assert found == HangVerdict((2,), ("n2",), "rank 2 on n2: behind in steps (1 of 4 ranks)")


@pytest.mark.parametrize("phase", ["save", "eval", "start", "warmup of my own"])
def test_outside_of_training_steps_nothing_has_a_witness(phase: str) -> None:
    """One rank saves while the others wait for it: that is how most frameworks save."""
    found = judge(nodes(ODD | {"phase": phase}))
    assert found.ranks == (2,) and not found.is_witnessed
    assert not judge(nodes(ODD, WAITS | {"phase": phase})).is_witnessed


def test_the_ranks_of_a_lost_node_are_named() -> None:
    waits = dict.fromkeys(range(2), WAITS)
    found = judge([node("n1", waits), node("n2", {2: WAITS, 3: WAITS}, LOST_S + 1)])
    assert found.why == "ranks 2, 3 on n2: no heartbeat of the node (2 of 4 ranks)" and found.is_witnessed
    assert not judge([node("n1", waits), node("n2", {2: WAITS, 3: WAITS}, LOST_S - 1)]).ranks


@pytest.mark.parametrize(
    ("all_of_them", "why"),
    [
        (WAITS, "all 4 ranks are inside a collective: the network, or a device"),
        (WAITS | {"state": "T"}, "4 of 4 ranks: stopped by a signal or a debugger (state T)"),
        ({}, ""),
        ({"looks": 3}, ""),
        ({"looked": NOW - THREAD_S}, ""),
    ],
)  # fmt: skip
def test_what_all_ranks_do_is_said_and_names_none(all_of_them: dict[str, Any], why: str) -> None:
    assert judge(nodes(all_of_them, all_of_them)) == HangVerdict(why=why)


def test_ranks_that_have_left_or_are_alone_are_no_hang() -> None:
    assert judge([]) == judge([node("n1", {0: ODD})]) == HangVerdict()
    assert judge([node("n1", {0: WAITS, 1: ODD | {"has_left": True}})]) == HangVerdict()


def test_of_many_odd_ranks_the_first_are_named_and_all_counted() -> None:
    found = judge([node("n1", {rank: ODD if rank < 20 else WAITS for rank in range(64)})])
    assert found.why.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7, ... on n1: outside") and "(20 of 64 ranks)" in found.why
    assert len(found.ranks) == 20
    found = judge([node(f"n{rank}", {rank: ODD if rank < 20 else WAITS}) for rank in range(64)])
    assert "n7, ...: outside" in found.why and len(found.hosts) == 20
