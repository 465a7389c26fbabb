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


def test_a_rank_that_a_debugger_has_stopped_is_named_and_nothing_is_done_about_it() -> None:
    for odd in (ODD | {"state": "t"}, ODD):
        found = judge([node("n1", {0: WAITS, 1: WAITS | {"state": "t"}}), node("n2", {2: odd, 3: WAITS})])
        assert "stopped by a signal or a debugger (state T)" in found.why and not found.is_witnessed


def test_the_ranks_of_a_lost_node_are_named() -> None:
    waits = dict.fromkeys(range(2), WAITS)
    found = judge([node("n1", waits), node("n2", {2: WAITS, 3: WAITS}, LOST_S + 1)])
    assert found.why == "ranks 2, 3 on n2: no heartbeat of the node (2 of 4 ranks)" and found.is_witnessed
    assert not judge([node("n1", waits), node("n2", {2: WAITS, 3: WAITS}, LOST_S - 1)]).ranks


def test_a_node_whose_heartbeat_is_lost_while_the_other_ranks_make_steps_proves_nothing() -> None:
    """Its writer was killed, or hangs in a file system that the training does not need."""
    steps = dict.fromkeys(range(2), WAITS | {"advanced": NOW - 1, "step": 900})
    found = judge([node("n1", steps), node("n2", {2: WAITS, 3: WAITS}, LOST_S + 1)])
    assert found.ranks == (2, 3) and not found.is_witnessed


@pytest.mark.parametrize(
    ("all_of_them", "why"),
    [
        (WAITS | {"state": "T"}, "4 of 4 ranks: stopped by a signal or a debugger (state T)"),
        ({}, ""),
        ({"looks": 3}, ""),
        ({"looked": NOW - THREAD_S}, ""),
    ],
)  # fmt: skip
def test_what_all_ranks_do_is_said_and_names_none(all_of_them: dict[str, Any], why: str) -> None:
    assert judge(nodes(all_of_them, all_of_them)) == HangVerdict(why=why)


def test_a_rank_that_is_alone_or_has_left_while_the_other_works_is_no_hang() -> None:
    left = {"has_left": True, "step": 60}
    assert judge([]) == judge([node("n1", {0: ODD})]) == judge([node("n1", {0: left, 1: left})]) == HangVerdict()
    assert judge([node("n1", {0: ODD, 1: left})]) == HangVerdict()


def test_ranks_that_are_all_in_the_same_collective_wait_for_the_network_or_a_device() -> None:
    found = judge(nodes(WAITS))
    assert (found.ranks, found.entered) == ((), 4 * 61) and found.is_witnessed
    assert found.why == "all 4 ranks are inside a collective: the network, a device, or not all in the same one"
    assert not judge(nodes(WAITS | {"phase": "eval"})).is_witnessed
    never_outside = WAITS | {"inside": 90}
    assert not judge(nodes(never_outside, never_outside)).is_witnessed, "it may just not be told of their ends"


def test_a_look_from_before_the_last_step_proves_nothing() -> None:
    """A library may hold the GIL since then, which is missed only after a while."""
    before = {"looked": NOW - 5, "advanced": NOW - 4}
    assert judge(nodes(WAITS | before)) == judge(nodes(ODD | before)) == HangVerdict()


def test_a_rank_in_another_collective_than_the_others_is_told_and_not_named() -> None:
    """Ranks of a pipeline differ always, so that is no proof."""
    found = judge(nodes(WAITS | {"entered": 60}))
    assert not found.ranks and found.why.endswith("not all in the same one (rank 2 has entered 60, most others 61)")


def test_a_rank_that_ran_out_of_data_first_is_named_and_not_the_network() -> None:
    left = {"has_left": True, "step": 60}
    found = judge(nodes(left))
    assert found.why == "rank 2 on n2: left the training, while the others wait in a collective (1 of 4 ranks)"
    assert found.ranks == (2,) and not found.is_witnessed, "it may save: its guard is closed"
    assert "stopped" in judge([node("n1", {0: left, 1: WAITS, 2: WAITS, 3: WAITS | {"state": "T"}})]).why
    found = judge(nodes(WAITS, left))
    assert found.why == "rank 2 on n2: still in a collective, after the others have left the training (1 of 4 ranks)"


def test_of_many_odd_ranks_the_first_are_named_and_all_counted() -> None:
    found = judge([node("n1", {rank: ODD if rank < 20 else WAITS for rank in range(64)})])
    assert found.why.startswith("ranks 0, 1, 2, 3, 4, 5, 6, 7, ... on n1: outside") and "(20 of 64 ranks)" in found.why
    assert len(found.ranks) == 20
    found = judge([node(f"n{rank}", {rank: ODD if rank < 20 else WAITS}) for rank in range(64)])
    assert "n7, ...: outside" in found.why and len(found.hosts) == 20
