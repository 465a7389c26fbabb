"""Requests are merged into one decision."""

from __future__ import annotations

import pytest

from resilience.guard.decision import CONTINUE, Decision, Request, merge

KILL = Request("kill", "the kill switch was set by bob")
SAVE = Request("save", "the save switch was set by ann", stop=False, label="paper")
NAN = Request("loss", "the loss is NaN", save=False, discard=True, exit_code=1, rank=3)
DONE = Request("finished", "the run is finished already", save=False, exit_code=0)


@pytest.mark.parametrize(
    ("requests", "save", "stop", "label", "exit_code"),
    [
        ([KILL], True, True, "", 75),
        ([SAVE], True, False, "paper", 75),
        ([KILL, SAVE], True, True, "paper", 75),
        ([NAN], False, True, "", 1),
        ([KILL, NAN], False, True, "", 1),
        ([SAVE, NAN], False, True, "paper", 1),
        ([DONE], False, True, "", 0),
        ([DONE, KILL], True, True, "", 75),
        ([], False, False, "", 75),
    ],
)
def test_all_requests_become_one_decision(
    requests: list[Request], save: bool, stop: bool, label: str, exit_code: int
) -> None:
    decision = merge(requests, 7)
    assert (decision.save, decision.stop, decision.label, decision.exit_code) == (save, stop, label, exit_code)
    assert decision.step == 7


def test_the_order_of_the_requests_does_not_matter() -> None:
    assert merge([KILL, SAVE, NAN], 7) == merge([NAN, SAVE, KILL], 7)


def test_the_same_reason_from_many_ranks_is_listed_once() -> None:
    requests = [Request("signal", "SIGUSR1 received", rank=rank) for rank in range(8)]
    assert merge(requests, 1).reasons == ("SIGUSR1 received",)


def test_a_decision_reads_as_a_sentence() -> None:
    assert str(merge([KILL], 120)) == "step 120: save and stop, because the kill switch was set by bob"
    assert str(CONTINUE) == "step 0: continue"
    assert merge([SAVE, KILL], 1).why == "the kill switch was set by bob; the save switch was set by ann"


def test_to_go_on_is_falsy_and_everything_else_is_not() -> None:
    assert not CONTINUE
    assert Decision(save=True) and Decision(stop=True)


def test_a_request_survives_the_network() -> None:
    assert Request.from_dict(NAN.as_dict()) == NAN


@pytest.mark.parametrize(
    "change",
    [{"save": 1}, {"why": None}, {"rank": "0"}, {"exit_code": True}, {"more": 1}],
)
def test_an_invalid_request_record_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a request"):
        Request.from_dict({**NAN.as_dict(), **change})


def test_a_request_with_a_field_missing_is_refused() -> None:
    fields = NAN.as_dict()
    del fields["why"]
    with pytest.raises(ValueError, match="not a request"):
        Request.from_dict(fields)


def test_requests_and_decisions_have_a_readable_repr() -> None:
    assert repr(KILL) == "Request(kill: save and stop, because the kill switch was set by bob)"
    assert "step=7" in repr(merge([KILL], 7))
    assert len({KILL, Request("kill", "the kill switch was set by bob")}) == 1
    assert len({merge([KILL], 7), merge([KILL], 7)}) == 1
