"""What arrives from the network is exactly what is said, or a ValueError: never an exception into the training."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.guard.agreement.frames import LARGEST_FRAME, encode
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import (
    FAULT_LIMIT,
    KEY_LIMIT,
    LABEL_LIMIT,
    MOST_FAULTS,
    TEXT_LIMIT,
    TRIGGER_LIMIT,
    WHY_LIMIT,
    check_coordinator_message,
    check_member_message,
    read_decision,
)
from resilience.guard.agreement.rounds import MOST_REQUESTS
from resilience.guard.decision import Decision, Request
from resilience.guard.gate import Gate
from tests.guard.agreement import sample_messages as say
from tests.guard.agreement.sample_messages import STOP

REQUEST = STOP.as_dict()
VERDICT = say.verdict(5, STOP, answers=("life.1",))
JOIN = say.join(1, steps=5, round=3, state="committed", verdict=VERDICT, requests={"life.2": REQUEST})
MEMBER_SAYS: list[dict[str, Any]] = [
    JOIN,
    say.requested(STOP, "life.1"),
    say.promise(5),
    say.done(seconds=3),
    say.done("in_flight", seconds=0.0),
    say.saved("failed", seconds=12.5),
    say.goodbye(9),
    say.report("written 400.1", "No space left on device", "step-00000400"),
]
COORDINATOR_SAYS: list[dict[str, Any]] = [
    {"say": "welcome", "round": 1, "incarnation": "life", "restarts": 0},
    {"say": "reported", "key": "written 400.1", "faults": ["rank 1: disk full"], "text": "step-00000400"},
    {"say": "start", "decision": Decision(stop=True, reasons=["why"], triggers=["x"]).as_dict()},
    {"say": "start", "decision": Decision(earlier=[{"step": 7}]).as_dict()},
    say.prepare(),
    {**say.commit(5), "verdict": VERDICT},
    say.abort(),
    {"say": "bye"},
]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def check(message: object) -> Any:
    for known, checks in ((MEMBER_SAYS, check_member_message), (COORDINATOR_SAYS, check_coordinator_message)):
        if isinstance(message, dict) and message.get("say") in [said["say"] for said in known]:
            return checks(message)
    raise ValueError("nobody says this")


@pytest.mark.parametrize("message", MEMBER_SAYS + COORDINATOR_SAYS, ids=lambda message: message["say"])
def test_a_message_in_good_form_is_read_as_it_was_sent(message: dict[str, Any]) -> None:
    assert check(json.loads(json.dumps(message))) == message


def places(thing: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a message where something else could stand."""
    inner = thing.items() if isinstance(thing, dict) else enumerate(thing) if isinstance(thing, list) else ()
    return [path, *(place for name, value in inner for place in places(value, (*path, name)))]


@given(st.sampled_from(MEMBER_SAYS + COORDINATOR_SAYS), st.data(), JUNK)
def test_junk_in_any_place_is_a_value_error_or_still_a_message(
    message: dict[str, Any], data: st.DataObject, junk: Any
) -> None:
    place = data.draw(st.sampled_from(places(message)))
    broken: Any = copy.deepcopy(message)
    if not place:
        broken = junk
    else:
        inside = broken
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = junk
    try:
        checked = check(broken)
    except ValueError:
        return
    member = Member(Gate(), 1, "incarnation")  # what passes does no harm
    member.receive(say.prepare())
    member.receive(checked)
    member.gate.count += 20
    member.on_step()


@pytest.mark.parametrize(
    "broken",
    [
        {**JOIN, "state": "confused"},
        {**JOIN, "verdict": {}},
        {**JOIN, "verdict": {**VERDICT, "requests": [{**REQUEST, "stop": 1}]}},
        {**JOIN, "requests": {"life.2": {**REQUEST, "why": "x" * (WHY_LIMIT + 1)}}},
        {**JOIN, "rank": True},
        {**JOIN, "steps": -1},
        {**JOIN, "round": 1 << 62},
        {**JOIN, "extra": 1},
        say.done("perfect"),
        say.done(seconds=float("nan")),
        say.done(seconds=-1.0),
        {"say": "commit", "round": 1, "verdict": {}},
        {"say": "commit", "round": 1, "verdict": {**VERDICT, "answers": [1]}},
        {"say": "start", "decision": {**Decision().as_dict(), "exit_code": "75"}},
        {"say": "start", "decision": {**Decision().as_dict(), "reasons": [1]}},
        {"say": "start", "decision": {**Decision().as_dict(), "earlier": [1]}},
        {"say": "start", "decision": {**Decision().as_dict(), "earlier": {}}},
        {"say": "start", "decision": []},
        say.report("x" * (KEY_LIMIT + 1)),
        say.report("key", "x" * (FAULT_LIMIT + 1)),
        say.report("key", "", "x" * (TEXT_LIMIT + 1)),
        {"say": "reported", "key": "key", "faults": [1], "text": ""},
        {"say": "reported", "key": "key", "faults": ["fault"] * (MOST_FAULTS + 1), "text": ""},
        {"say": "start", "decision": {**Decision().as_dict(), "stop": "yes"}},
        {"say": ["join"]},
        {"say": "shutdown"},
        {},
    ],
)
def test_a_message_that_means_nothing_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        check_member_message(broken)
    with pytest.raises(ValueError):
        check_coordinator_message(broken)


def test_a_decision_survives_the_way() -> None:
    decision = Decision(save=True, stop=True, label="best", reasons=["a", "b"], step=7, exit_code=1, triggers=["t"])
    assert read_decision(json.loads(json.dumps(decision.as_dict()))) == decision


def test_the_largest_verdict_fits_into_a_frame() -> None:
    longest = Request("😀" * TRIGGER_LIMIT, "😀" * WHY_LIMIT, label="😀" * LABEL_LIMIT)
    verdict = {**VERDICT, "requests": [longest.as_dict()] * MOST_REQUESTS, "answers": ["f" * 40] * 64}
    message = {"say": "commit", "round": 1, "verdict": verdict}
    assert len(encode(check_coordinator_message(message))) < LARGEST_FRAME
