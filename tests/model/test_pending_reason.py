"""A reason code is said in words, with what to do; one nobody knows is passed on as it is."""

from __future__ import annotations

import pytest

from resilience.model.pending_reason import _EXACT, explain_reason

SAID = [
    ("Priority", "others are before it in the queue", "", False),
    ("Resources", "waits for free nodes", "", False),
    ("JobArrayTaskLimit", "waits for its turn in the array", "", False),
    ("JobHeldUser", "held by its owner", "release it: scontrol release 12_3", True),
    ("DependencyNeverSatisfied", "what it waits for can never happen", "submit again", True),
    ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", "a node it needs is not available", "sinfo -R", False),
    ("ReqNodeNotAvail(Unavailable:n1)", "a node it needs is not available", "sinfo -R", False),
    ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
     "all nodes it could use are down or drained", "sinfo -R", False),
    ("launch failed requeued held", "its start failed", "scontrol release 12_3", True),
    ("QOSMaxGRESPerUser", "QOSMaxGRESPerUser", "wait", False),
    ("AssocGrpGRESMinutes", "AssocGrpGRESMinutes", "", False),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "words", "advice", "stuck"), SAID)
def test_a_reason_is_said_in_words_with_what_to_do(reason: str, words: str, advice: str, stuck: bool) -> None:
    found = explain_reason(reason, "12_3")
    assert words in found.words and advice in found.advice
    assert found.blocks_for_ever is stuck


@pytest.mark.parametrize("reason", ["", "SomethingOf2031", "{job} {reason}", "a sentence, of the site's"])
def test_a_reason_that_is_not_known_is_passed_on_as_it_is(reason: str) -> None:
    assert explain_reason(reason, "12").words == reason


def test_what_never_starts_by_itself_always_comes_with_advice() -> None:
    assert not [reason for reason, found in _EXACT.items() if found.blocks_for_ever and not found.advice]
