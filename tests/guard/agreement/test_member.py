"""One rank's side: what it sends, what it holds back, and what it gives to the training."""

from __future__ import annotations

import pytest

from resilience.guard.agreement.member import MOST_OPEN, MOST_SAVES, Member
from resilience.guard.agreement.messages import (
    COMMITTED,
    FREE,
    OBEYING,
    PROMISED,
    WHY_LIMIT,
    check_member_message,
)
from resilience.guard.decision import CONTINUE, OBEYED, SAVED, Decision, Request
from resilience.guard.gate import NEVER, Gate
from tests.guard.agreement.sample_messages import STOP, abort, commit, done, goodbye, prepare, promise, saved

SAVE = Request("save switch", "alice wants a checkpoint", stop=False, label="best")


def member_at(steps: int, polls: int = 0) -> Member:
    gate = Gate()
    gate.open()
    gate.count, gate.polls, gate.polled_step = steps, polls, steps
    return Member(gate, 1, "incarnation")


def promised(steps: int = 5, polls: int = 0) -> Member:
    """A rank that has promised in round 1 to wait after `steps`."""
    member = member_at(steps, polls)
    member.receive(prepare())
    return member


def committed(steps: int, *requests: Request, polls: int = 0) -> Member:
    """A rank that has promised, and has heard that the verdict lies at its promise."""
    member = promised(steps, polls)
    member.receive(commit(steps, *requests, polls=polls))
    return member


@pytest.fixture
def member() -> Member:
    """A rank that has done five steps."""
    return member_at(5)


def step(member: Member) -> Decision | None:
    member.gate.count += 1
    return CONTINUE if member.gate.count < member.gate.limit else member.on_step()


def poll(member: Member) -> Decision | None:
    gate = member.gate
    if gate.polled_step != gate.count:
        gate.polled_step, gate.polls = gate.count, 0
    gate.polls += 1
    return CONTINUE if gate.polls < gate.poll_limit else member.on_poll()


def test_a_promised_rank_waits_at_the_next_step_and_goes_on_when_the_verdict_lies_ahead(member: Member) -> None:
    assert member.receive(prepare()) == [promise(5)]
    assert step(member) is None
    assert member.receive(prepare()) == [promise(5)], "a prepare that comes twice gets the same promise"
    assert member.receive(commit(7)) == []
    assert member.on_step() is CONTINUE and step(member) is CONTINUE
    decision = step(member)
    assert decision is not None and (decision.step, decision.save, decision.stop) == (8, True, True)


def test_an_abort_releases_a_rank_and_it_promises_nothing_to_a_round_of_the_past() -> None:
    member = promised()
    assert step(member) is None
    member.receive(abort(2))
    assert member.on_step() is None, "of another round"
    member.receive(abort())
    assert member.on_step() is CONTINUE
    assert member.receive(prepare(0)) == member.receive(prepare(1)) == [], "rounds of the past"
    assert member.gate.limit == NEVER and member.state == FREE


def test_nothing_is_promised_while_a_verdict_is_not_obeyed_and_reported() -> None:
    member = committed(5, SAVE)
    assert member.receive(prepare(2)) == [] and member.state == COMMITTED
    assert step(member)
    assert member.receive(prepare(2)) == [] and member.state == OBEYING
    assert member.gate.limit == member.gate.count + 1, "the next step asks, too, until the outcome is reported"
    (report,) = member.finish(SAVED, 2)
    assert report == done(SAVED, seconds=2.0)
    assert member.receive(prepare(2)) != []


def test_a_commit_is_obeyed_once_however_often_it_comes() -> None:
    member = committed(5, SAVE)
    member.receive(commit(9, SAVE))
    assert step(member) == Decision(
        save=True, label="best", reasons=[SAVE.why], step=6, triggers=["save switch"], exit_code=75
    )
    member.receive(commit(5, SAVE))
    member.finish(SAVED, 1)
    member.receive(commit(5, SAVE))
    assert [step(member) for _ in range(3)] == [CONTINUE] * 3


def test_a_commit_of_a_round_that_was_not_promised_is_not_obeyed(member: Member) -> None:
    member.receive(commit(5))
    assert member.state == FREE and step(member) is CONTINUE


def test_a_stop_is_given_again_without_its_save() -> None:
    member = committed(5)
    first, second = step(member), step(member)
    assert first is not None and first.save and first.stop
    assert second is not None and second.stop and not second.save and second.step == 7
    announced = poll(member)
    assert announced is not None and announced.stop and not announced.save


def test_the_outcome_is_reported_once_and_sent_again_after_a_reconnection_or_a_resume(member: Member) -> None:
    assert member.finish(SAVED, 1) == []
    member.receive(prepare())
    member.receive(commit(5, SAVE))
    step(member)
    (report,) = member.finish(SAVED, 1)
    assert member.finish(OBEYED, 0) == []
    joining, again = member.join()
    assert again == report and joining["state"] == FREE and joining["verdict"]["steps"] == 5
    for message in (joining, again):
        check_member_message(message)
    member.resume()
    assert report in member.join(), "after a resume, too"


# ---- joining again ---------------------------------------------------------------------------------------------------


def test_a_join_carries_the_promise_and_not_the_position() -> None:
    member = promised()
    step(member)
    (joining,) = member.join()
    assert (joining["state"], joining["round"], joining["steps"]) == (PROMISED, 1, 5)


def test_requests_are_sent_again_until_a_verdict_answers_them(member: Member) -> None:
    (request,) = member.request(SAVE)
    assert member.join()[0]["requests"] == {request["id"]: request["request"]}
    member.receive(prepare())
    member.receive(commit(5, SAVE, answers=(request["id"],)))
    assert member.join()[0]["requests"] == {}


def test_a_goodbye_is_sent_again_after_a_reconnection_with_its_reason_cut_to_what_travels(member: Member) -> None:
    assert member.leave() == member.join()[1:] == [goodbye(5)]
    failed = member_at(5)
    failed.leave("failed", "x" * 10_000)
    assert failed.join()[1:] == [goodbye(5, "failed", "x" * WHY_LIMIT)]


def test_that_a_save_in_flight_is_durable_is_sent_again_after_a_reconnection(member: Member) -> None:
    (said,) = member.saved(3, "saved", 41.5)
    assert said == saved(number=3, seconds=41.5)
    assert said in member.join()
    for number in range(4, 40):
        member.saved(number, "saved", 1.0)
    assert len(member.join()) <= MOST_SAVES + 1


def test_a_rank_hears_that_rank_0_has_left(member: Member) -> None:
    assert member.receive({"say": "bye"}) == [] and member.leader_left


# ---- requests ------------------------------------------------------------------------------------------------------


def test_the_same_request_is_sent_once_while_nothing_answers_it(member: Member) -> None:
    assert len(member.request(SAVE)) == 1 and member.request(SAVE) == [] and len(member.request(STOP)) == 1


def test_a_flood_of_requests_with_ever_other_reasons_is_bounded(member: Member) -> None:
    for number in range(10_000):
        member.request(Request("loss", f"the loss is {number}", stop=False))
    assert len(member.requests) == MOST_OPEN
    assert member.request(STOP), "another kind is still sent"


@pytest.mark.parametrize(
    "careless",
    [
        Request("mine", "x" * 100_000),
        Request("mine", None, save=1, stop=0, label=None),  # type: ignore[arg-type]
        Request(7, ValueError("no"), exit_code="75"),  # type: ignore[arg-type]
        Request("mine", "why", exit_code=10**400, rank="0"),  # type: ignore[arg-type]
    ],
)
def test_a_careless_request_travels_in_good_form(careless: Request) -> None:
    (request,) = member_at(5).request(careless)
    assert check_member_message(request)["request"]["rank"] == 1


# ---- polls -----------------------------------------------------------------------------------------------------------


def test_a_stop_is_announced_at_the_same_poll_by_ranks_that_poll_alike() -> None:
    """One had done 5 polls when it promised, the other 3: both leave at the sixth."""
    members = [member_at(10, 5), member_at(10, 3)]
    for member in members:
        member.receive(prepare())
    assert poll(members[0]) is None, "beyond its promise"
    for member in members:
        member.receive(commit(10, polls=5))
    assert members[0].on_poll().stop  # type: ignore[union-attr]
    assert [bool(poll(members[1])) for _ in range(3)] == [False, False, True]
    assert members[0].gate.polls == members[1].gate.polls == 6
    for member in members:
        decision = step(member)
        assert decision is not None and decision.step == 11 and decision.save and decision.stop


def test_a_save_is_not_announced_at_a_poll() -> None:
    member = committed(10, SAVE, polls=5)
    assert poll(member) is CONTINUE
    assert step(member).save  # type: ignore[union-attr]


def test_a_rank_that_polls_less_loses_nothing() -> None:
    member = promised(10)
    member.receive(commit(10, polls=500))
    assert poll(member) is CONTINUE
    assert step(member).stop  # type: ignore[union-attr]


# ---- going on from another step --------------------------------------------------------------------------------------


def test_a_verdict_of_before_a_checkpoint_was_loaded_is_obeyed_at_the_first_step_after() -> None:
    """The kill switch came while it was loading: lost it must not be."""
    member = committed(0)
    member.gate.count_from(1000)
    member.restore()
    assert step(member) == member.stopped and member.gate.count == 1001


def test_a_promise_is_kept_by_a_training_that_goes_back() -> None:
    member = promised(1000)
    member.gate.count_from(800)
    member.restore()
    assert step(member) is None and member.gate.count == 801
    member.receive(commit(1002))
    assert member.on_step() is CONTINUE and step(member) is CONTINUE
    decision = step(member)
    assert decision is not None and decision.step == 803


def test_a_signal_while_a_promise_is_made_is_read_by_the_next_step(member: Member) -> None:
    member.look()
    member.hold()
    member.gate.urgent = True  # its handler ran here
    member.gate.limit = member.gate.poll_limit = 0
    assert member.keep(1)
    assert member.gate.limit == 0


def test_a_decision_that_comes_to_nothing_is_distinct_from_going_on() -> None:
    """Two requests that cancel each other: the guard has to report that it was obeyed, or no round would follow."""
    member = promised()
    member.receive(commit(5, Request("loss", "NaN", save=False, stop=False, discard=True), SAVE))
    decision = step(member)
    assert not decision and decision is not CONTINUE
    assert member.finish(OBEYED, 0.0)


def test_a_wanted_step_is_sent_as_the_position_that_the_ranks_agree_on_and_void_after_a_resume() -> None:
    member = member_at(100)
    member.gate.count_from(40)
    (said,) = member.request(Request("cadence", "every 50 steps", stop=False, at=50))
    assert said["request"]["at"] == 110, "60 steps are done again"
    member.receive(prepare())
    member.receive(commit(109, *member.requests.values(), answers=tuple(member.requests)))
    member.gate.count_from(40)
    _, again = member.resume()
    assert again["request"]["at"] == 0
