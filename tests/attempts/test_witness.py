"""What attempts say about nodes: who is named, what is common to failures, and which Xids count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from resilience.attempts.classify import Evidence as Seen
from resilience.attempts.classify import classify
from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.ledger import Corruption, LedgerRow, corruptions_of
from resilience.attempts.witness import evidence_of
from resilience.nodes.evidence import Source
from resilience.nodes.standing import State, judge
from resilience.runs.attempts import AttemptEnd
from resilience.settings.sections import ActSettings
from tests.attempts.test_breaker import row

C = FailureClass
Fact = tuple[str, str, float]


def facts(*rows: LedgerRow, **policy: Any) -> list[Fact]:
    found = evidence_of(rows, ActSettings(**policy), "gpt", "/runs/gpt", "ada")
    return sorted((one.node, one.source.value, one.share) for one in found)


def on(nodes: str, failure: FailureClass, number: int = 1, **more: Any) -> LedgerRow:
    return replace(row(number, failure, **more), nodes=nodes)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (on("n[1-4]", C.GPU_FAULT, host="n3"), [("n3", "named", 1.0)]),
        (on("n[1-4]", C.GPU_FAULT, host="n3.cluster.example"), [("n3", "named", 1.0)]),
        (on("n7", C.IO_ERROR), [("n7", "named", 1.0)]),
        (on("n[1-2]", C.NODE_FAILURE, host="n2"), [("n2", "named", 1.0)]),
        (on("n[1-4].hpc", C.GPU_FAULT, host="n3.hpc"), [("n3.hpc", "named", 1.0)]),
        (on("n[1-4].hpc", C.GPU_FAULT, host="n3"), [("n3.hpc", "named", 1.0)]),
        (on("a.x,a.y", C.GPU_FAULT, host="a"), []),
        (on("n[1-4]", C.GPU_FAULT), []),
        (on("n[1-4]", C.GPU_FAULT, host="login1"), []),
        (on("n7", C.GPU_FAULT, confidence=Confidence.GUESS), []),
        (on("n7", C.EXCEPTION, host="n7"), []),
        (on("n7", C.NETWORK, host="n7"), []),
        (on("n7", C.PREEMPTED, host="n7"), []),
        (on("", C.GPU_FAULT, host="n3"), []),
    ],
    ids=lambda value: "" if isinstance(value, list) else f"{value.failure.failure} {value.failure.host}",
)
def test_a_node_that_a_failure_names(attempt: LedgerRow, expected: Sequence[Fact]) -> None:
    assert facts(attempt) == expected


def xid(*numbers: int) -> LedgerRow:
    log = "".join(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711, name=python3, said so\n" for number in numbers)
    failure = classify(Seen(end=AttemptEnd.EXITED, exit_code=1, log=log))
    return replace(on("n7", C.UNKNOWN), failure=failure)


@pytest.mark.parametrize(
    ("numbers", "sources"),
    [([79], {"xid"}), ([64], {"xid"}), ([74], {"xid"}), ([94], {"soft_xid"}), ([13], set()), ([31], set()),
     ([43], set()), ([45], set()), ([63], set()), ([94, 94], {"soft_xid"})],
)  # fmt: skip
def test_which_xids_count(numbers: Sequence[int], sources: set[str]) -> None:
    found = [source for _, source, _ in facts(xid(*numbers)) if "xid" in source]
    assert set(found) == sources and len(found) == len(sources)


def fine(nodes: str, number: int) -> LedgerRow:
    return on(nodes, C.WALLTIME, number, durable=10 * number)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([fine("n[3-4]", 1), on("n[1-2]", C.UNKNOWN, 2), on("n[1,3]", C.UNKNOWN, 3)], [("n1", "common", 1.0)]),
        ([fine("n8", 1), on("n7", C.UNKNOWN, 2), on("n7", C.NETWORK, 3)], [("n7", "common", 1.0)]),
        ([fine("n[3-4]", 1), on("n[1-2]", C.UNKNOWN, 2), on("n[1-2]", C.UNKNOWN, 3)],
         [("n1", "common", 0.5), ("n2", "common", 0.5)]),
        ([fine("n99", 1), on("n[1-9]", C.UNKNOWN, 2), on("n[1-9]", C.UNKNOWN, 3)], []),
        ([fine("n8", 1), on("n7", C.UNKNOWN, 2)], []),
        ([fine("n7", 1), on("n7", C.UNKNOWN, 2), on("n7", C.UNKNOWN, 3)], []),
        ([on("n7", C.UNKNOWN, 2), on("n7", C.UNKNOWN, 3)], []),
        ([fine("n8", 1), on("n7", C.EXCEPTION, 2), on("n7", C.DISK_FULL, 3)], []),
        ([fine("n8", 1), on("n7", C.UNKNOWN, 2), on("n7", C.UNKNOWN, 90)], []),
        ([on("n7", C.UNKNOWN, 1), on("n7", C.UNKNOWN, 2), fine("n8", 3)], [("n7", "common", 1.0)]),
    ],
    ids=["of two", "alone", "which of two", "of nine", "once", "also a good", "no good", "the program", "a day apart",
         "the good one later"],
)  # fmt: skip
def test_a_node_that_is_common_to_failures_and_absent_from_progress(
    rows: Sequence[LedgerRow], expected: Sequence[Fact]
) -> None:
    assert facts(*rows) == expected


def test_a_fault_that_was_injected_is_no_evidence_against_a_node() -> None:
    """Else three evenings of `resil inject` exclude good nodes from everybody's jobs."""
    kill, eio = ("kill: rank 0 of job 2",), ("eio: the checkpoints",)
    assert facts(replace(on("n7", C.IO_ERROR), injected=eio), replace(on("n7", C.NODE_FAILURE, 2), injected=kill)) == []
    killed = [replace(on("n7", C.KILLED, number), injected=kill) for number in (2, 3)]
    assert facts(fine("n8", 1), *killed) == []
    assert facts(fine("n8", 1), *killed, on("n7", C.KILLED, 4)) == [], "one failure of its own proves nothing"


def test_the_same_attempt_is_the_same_fact_whoever_looks_and_whenever() -> None:
    attempt = on("n7", C.GPU_FAULT)
    (one,) = evidence_of([attempt], ActSettings(), "gpt", "/runs/gpt", "ada")
    (other,) = evidence_of([replace(attempt, end_time=None)], ActSettings(), "gpt", "/runs/gpt", "bob")
    assert one.key == other.key and one.source is Source.NAMED
    (elsewhere,) = evidence_of([attempt], ActSettings(), "gpt", "/home/bob/gpt", "bob")
    assert elsewhere.key != one.key


def wrong(node: str, times: int = 1, among: int = 1, step: int = 400, rank: int = 2) -> Corruption:
    return Corruption(1000.0, node, step, rank, "exp_avg of w is 1e+17, at most 3 is normal", times, among)


@pytest.mark.parametrize(
    ("corruptions", "expected"),
    [
        ([wrong("n3")], [("n3", "sdc", 1.0)]),
        ([wrong("n3", times=2)], [("n3", "sdc", 1.0)] * 2),
        ([wrong("n3"), wrong("n3", step=500)], [("n3", "sdc", 1.0)] * 2),
        ([wrong("n3", among=2), wrong("n4", among=2, rank=3)], [("n3", "sdc", 0.5), ("n4", "sdc", 0.5)]),
        ([wrong("n3", among=9)], []),
        ([wrong("no such node")], []),
    ],
)
def test_a_node_that_computed_wrong_values(corruptions: Sequence[Corruption], expected: Sequence[Fact]) -> None:
    assert facts(replace(on("n[1-4]", C.STOPPED), corruptions=tuple(corruptions))) == expected


def test_two_wrong_computations_exclude_a_node_and_one_does_not() -> None:
    def states(*corruptions: Corruption) -> list[State]:
        attempt = replace(on("n[1-4]", C.STOPPED), corruptions=corruptions)
        return [one.state for one in judge(evidence_of([attempt], ActSettings(), "gpt", "/runs/gpt", "ada"), 2000.0)]

    assert states(wrong("n3")) == [State.SUSPECT]
    assert states(wrong("n3"), wrong("n3", step=500)) == states(wrong("n3", times=2)) == [State.EXCLUDED]
    assert states(wrong("n3", among=2), wrong("n4", among=2)) == [State.SUSPECT] * 2


@pytest.mark.parametrize(
    ("field", "value"), [("times", 0), ("among", 0), ("step", "7"), ("times", -1), ("time", None), ("of_rank", True)]
)
def test_events_that_prove_nothing_are_no_corruption(field: str, value: object) -> None:
    event = {"event": "sdc", "time": 5.0, "step": 7, "of_rank": 1, "times": 1, "among": 1, "node": "n3", "why": "x"}
    assert corruptions_of([event]) == (Corruption(5.0, "n3", 7, 1, "x", 1, 1),)
    assert corruptions_of([event | {field: value}]) == ()
