"""What an abnormal step was, by its replay."""

from __future__ import annotations

import math

import pytest

from resilience.guard.sdc.bounds import Abnormal
from resilience.guard.sdc.replay import (
    WRONG_COMPUTATIONS,
    Finding,
    Sighting,
    Verdict,
    decide,
    describe,
    parse_finding,
    words_of,
)

FOUND = Finding(2, "n17", "abc", "exp_avg of w is 1e+17, at most 3 is normal", 1e17)
FIRST = Sighting(400, (FOUND,))


@pytest.mark.parametrize(
    ("again", "verdict"),
    [
        (None, Verdict.TRANSIENT),
        (FIRST, Verdict.REPEATED),
        (Sighting(400, (FOUND._replace(what="in other words"),)), Verdict.REPEATED),
        (Sighting(400, (FOUND._replace(digest="abd", worst=3e22),)), Verdict.UNSTABLE),
        (Sighting(400, (FOUND._replace(digest="abd", worst=math.inf),)), Verdict.UNSTABLE),
        (Sighting(400, (FOUND._replace(digest="abd", worst=1.01e17),)), Verdict.REPEATED),
        (Sighting(399, (FOUND,)), Verdict.UNSTABLE),
        (Sighting(400, (FOUND._replace(rank=3),)), Verdict.UNSTABLE),
        (Sighting(400, (FOUND, FOUND._replace(rank=3))), Verdict.REPEATED),
    ],
)
def test_only_other_bits_from_the_same_inputs_prove_a_fault_of_the_hardware(
    again: Sighting | None, verdict: Verdict
) -> None:
    assert decide(FIRST, again) is verdict


def test_the_same_bits_twice_are_never_evidence_against_a_node() -> None:
    assert WRONG_COMPUTATIONS == {Verdict.TRANSIENT: 1, Verdict.UNSTABLE: 2, Verdict.REPEATED: 0}


@pytest.mark.parametrize("verdict", list(Verdict))
def test_each_verdict_names_the_rank_the_node_the_tensor_and_the_step(verdict: Verdict) -> None:
    told = describe(verdict, FIRST, world=4, replayed=2)
    assert told.startswith("rank 2 on n17: exp_avg of w is 1e+17, at most 3 is normal, at step 400")
    assert "rank" not in describe(verdict, FIRST, world=1, replayed=2).partition(",")[0]


def test_a_finding_survives_its_way_to_the_other_ranks() -> None:
    assert parse_finding(f"rank 2: {FOUND.text()}") == FOUND
    spelled_out = FOUND._replace(digest="[1e+30, -0.5, inf]", worst=float("inf"))
    assert parse_finding(f"rank 2: {spelled_out.text()}") == spelled_out


@pytest.mark.parametrize(
    "fault", ["rank 2: left", "not every rank has reported", "rank x: sdc on a b 1: c", "rank 1: sdc on a b: c", ""]
)
def test_a_broken_connection_is_no_finding(fault: str) -> None:
    assert parse_finding(fault) is None


def test_the_first_abnormal_tensor_is_named_and_the_others_are_counted() -> None:
    found = [Abnormal("exp_avg of w", math.inf, 3.0), Abnormal("the parameter w", 2e20, 1.0)]
    assert words_of(found) == "exp_avg of w is infinite, at most 3 is normal, and 1 others"
