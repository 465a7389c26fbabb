"""Rank 0's side: when a round begins and ends, which ranks it waits for, what it answers, and what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.rounds import FIRST_RETRY_S, LAST_RETRY_S
from resilience.guard.decision import DONE, FAILED, IN_FLIGHT, OBEYED, SAVED, Decision, Request, merge
from tests.guard.agreement import sample_messages as say
from tests.guard.agreement.sample_messages import SAVE, STOP, sent

Message = dict[str, Any]
PROMISED_7: Message = {"round": 7, "state": "promised", "steps": 9, "requests": {"w2": SAVE.as_dict()}}
"""With a request of its own, which no verdict has answered as far as the rank knows."""
VERDICT = say.verdict(10, SAVE, answers=("w0",))
OBEYED_7: Message = {"round": 7, "verdict": VERDICT}
COMMITTED_7: Message = {"round": 7, "state": "committed", "verdict": VERDICT}


def play(coordinator: Coordinator, *rows: tuple[int, Message] | tuple[int, Message, str], now: float = 0.0) -> None:
    """Rows of a rank, its message, and all that is `sent` then: nothing where the row ends before."""
    for rank, message, *expected in rows:
        assert sent(coordinator.receive(rank, message, now)) == "".join(expected), (rank, message)


def tell(coordinator: Coordinator, *messages: Message, now: float = 0.0) -> list[tuple[int, Message]]:
    """Rank 0 says the first message, rank 1 the second ...; return what is sent after the last."""
    for rank, message in enumerate(messages):
        said = coordinator.receive(rank, message, now)
    return said


def joined(world: int = 3, **settings: Any) -> Coordinator:
    coordinator = Coordinator(world, **settings)
    tell(coordinator, *map(say.join, range(world)))
    return coordinator


def requesting(world: int = 3, request: Request = SAVE, **settings: Any) -> Coordinator:
    """All have joined, rank 1 has sent a request, and the round waits for promises."""
    coordinator = joined(world, **settings)
    coordinator.receive(1, say.requested(request), 0.0)
    return coordinator


def committed(world: int = 3, request: Request = SAVE) -> Coordinator:
    coordinator = requesting(world, request)
    tell(coordinator, *(say.promise(10 + rank) for rank in range(world)))
    return coordinator


def kinds(coordinator: Coordinator) -> list[str]:
    return [event.kind for event in coordinator.events]


def steps_of(said: list[tuple[int, Message]]) -> dict[int, int]:
    """By rank, where the verdict lies that the rank hears."""
    return {rank: message["verdict"]["steps"] for rank, message in said if message["say"] == "commit"}


def test_a_round_asks_all_and_commits_to_the_largest_promise() -> None:
    coordinator = joined()
    play(coordinator, (1, say.requested(SAVE), "prepare 0 1 2"), (0, say.promise(12)), (2, say.promise(10)))
    said = coordinator.receive(1, say.promise(11), 0.0)
    assert sent(said) == "commit 0 1 2" and steps_of(said) == dict.fromkeys(range(3), 12)
    assert {rank: message["verdict"]["answers"] for rank, message in said} == {0: [], 1: ["w1"], 2: []}
    for rank in range(3):
        assert not coordinator.is_over()
        coordinator.receive(rank, say.done(seconds=rank), 1.0)
    assert coordinator.is_over() and kinds(coordinator) == ["committed", "outcome"]
    assert (coordinator.events[1].outcome, coordinator.events[1].seconds) == (SAVED, 2.0)


def test_two_requests_at_once_are_one_decision() -> None:
    coordinator = requesting()
    coordinator.receive(2, say.requested(STOP, "w2"), 0.0)
    said = tell(coordinator, *[say.promise(10)] * 3)
    assert len(said[0][1]["verdict"]["requests"]) == 2
    assert coordinator.events[0].decision == merge([SAVE, STOP], 11)


def test_a_request_during_a_round_is_the_next_round() -> None:
    play(
        committed(), (2, say.requested(STOP, "w2")), (0, say.done()), (1, say.done()), (2, say.done(), "prepare 0 1 2")
    )


def test_a_request_that_is_sent_again_is_answered_once() -> None:
    coordinator = committed()
    again = say.join(1, round=1, state="promised", steps=11, requests={"w1": SAVE.as_dict()})
    play(
        coordinator,
        (1, say.requested(SAVE)),
        (1, again, "welcome 1, commit 1"),
        *((rank, say.done()) for rank in range(3)),
    )


def test_nothing_begins_before_all_have_joined_and_the_absent_are_named_once() -> None:
    coordinator = Coordinator(3, absent_s=60.0)
    play(coordinator, (0, say.join(0), "welcome 0"), (0, say.requested(STOP)), now=100.0)
    assert coordinator.next_deadline() == 160.0
    coordinator.proceed(160.0)
    coordinator.proceed(200.0)
    assert kinds(coordinator) == ["absent"] and "ranks 1, 2 of 3" in coordinator.events[0].text
    assert coordinator.next_deadline() is None, "a join will wake it"
    play(coordinator, (1, say.join(1), "welcome 1"), (2, say.join(2), "welcome 2, prepare 0 1 2"), now=300.0)


def test_a_silent_rank_ends_the_round_and_rank_0_tries_again() -> None:
    coordinator = requesting(request=STOP, round_s=10.0)
    tell(coordinator, say.promise(5), say.promise(5))
    assert coordinator.proceed(9.9) == [] and coordinator.next_deadline() == 10.0
    assert sent(coordinator.proceed(10.0)) == "abort 0 1 2"
    assert "rank 2 did not respond" in coordinator.events[0].text
    assert coordinator.receive(2, say.promise(5), 10.1) == [], "too late"
    assert coordinator.next_deadline() == 10.0 + FIRST_RETRY_S
    assert sent(coordinator.proceed(11.0)) == "prepare 0 1 2" and coordinator.round == 2
    for _ in range(10):  # rank 0 never gives up, and never waits longer than that
        coordinator.proceed(coordinator.next_deadline() or 0.0)
        assert coordinator.proceed(coordinator.next_deadline() or 0.0)
    assert coordinator._retry.retry_s == LAST_RETRY_S


def test_ranks_that_count_differently_decide_nothing_and_are_named_once_if_it_lasts() -> None:
    coordinator = requesting(2, STOP, skew_steps=16)
    now = 0.0
    for number in range(1, 8):
        assert sent(tell(coordinator, say.promise(6_000, number), say.promise(120, number), now=now)) == "abort 0 1"
        assert ("skew" in kinds(coordinator)) == (now >= LAST_RETRY_S)
        now = coordinator.next_deadline() or 0.0
        coordinator.proceed(now)
    (skew,) = (event.text for event in coordinator.events if event.kind == "skew")
    assert "rank 1 counts 120 steps where others count 6,000, more than skew_steps = 16" in skew
    assert "resumed" in skew and 'decide_by = "time"' in skew, "what lets them decide"


# ---- connections, lives, leaves --------------------------------------------------------------------------------------


def test_a_lost_rank_keeps_its_promise_and_hears_the_verdict_when_it_joins_again() -> None:
    coordinator = requesting()
    coordinator.receive(2, say.promise(10), 0.0)
    coordinator.lost(2, 0.0)
    tell(coordinator, say.promise(10), say.promise(10))
    play(coordinator, (2, say.join(2, round=1, state="promised", steps=10), "welcome 2, commit 2"), now=1.0)


def test_a_rank_that_lost_the_abort_hears_it_and_the_next_prepare() -> None:
    coordinator = requesting(round_s=10.0)
    coordinator.proceed(10.0)
    coordinator.proceed(11.0)
    play(coordinator, (2, say.join(2, round=1, state="promised", steps=10), "welcome 2, abort 2, prepare 2"), now=11.0)


def test_no_round_begins_while_a_rank_is_lost() -> None:
    coordinator = joined()
    coordinator.lost(2, 0.0)
    play(coordinator, (1, say.requested(SAVE)), (2, say.join(2), "welcome 2, prepare 0 1 2"))


def test_a_restarted_rank_has_promised_nothing_and_rank_0_does_not_report_that_it_has_saved() -> None:
    coordinator = requesting(2)
    play(coordinator, (1, say.promise(10)), (1, say.join(1, "again"), "welcome 0 1, prepare 1"))
    play(coordinator, (0, say.promise(10)), (1, say.promise(10), "commit 0 1"))
    play(coordinator, (1, say.join(1, "and again"), "welcome 0 1"), (0, say.done(SAVED)))
    assert kinds(coordinator) == ["restarted", "committed", "restarted", "outcome"]
    assert coordinator.events[-1].outcome == FAILED


def test_two_processes_of_one_rank_are_named() -> None:
    coordinator = joined(2)
    for life in ("other", "life1", "other", "life1"):
        coordinator.receive(1, say.join(1, life), 0.0)
    assert kinds(coordinator).count("twins") == 1


def test_the_verdict_lies_where_a_rank_has_left_if_that_is_further() -> None:
    """The trainings end together: a rank that is a step behind must not save alone."""
    coordinator = requesting()
    play(coordinator, (1, say.promise(99)), (2, say.promise(99)))
    assert steps_of(coordinator.receive(0, say.goodbye(100), 0.0)) == {1: 100, 2: 100}


@pytest.mark.parametrize(("request_", "outcome"), [(SAVE, FAILED), (Request("x", "y", save=False), OBEYED)])
def test_a_save_that_a_rank_left_without_has_failed(request_: Request, outcome: str) -> None:
    coordinator = committed(2, request_)
    tell(coordinator, say.done(OBEYED), say.goodbye(11))
    assert coordinator.events[-1].kind == "outcome" and coordinator.events[-1].outcome == outcome


def test_when_all_have_left_nothing_begins_and_rank_0_waits_for_nothing() -> None:
    coordinator = joined(2)
    play(coordinator, (0, say.goodbye(9)), (1, say.goodbye(9)), (1, say.requested(SAVE)))
    assert coordinator.next_deadline() is None and coordinator.is_over()


def test_rank_0_that_ends_releases_the_ranks_that_have_promised() -> None:
    coordinator = requesting(2)
    coordinator.receive(1, say.promise(9), 0.0)
    assert sent(coordinator.end()) == "abort 0 1, bye 1"
    assert coordinator.receive(1, say.requested(STOP, "w2"), 0.0) == [] and coordinator.is_over()


def test_a_save_in_flight_is_reported_once_it_is_durable_on_every_rank_and_holds_up_no_stop() -> None:
    coordinator = committed(2)
    tell(coordinator, *[say.done(IN_FLIGHT, seconds=0.0)] * 2)
    assert "outcome" not in kinds(coordinator) and not coordinator.is_over()
    play(coordinator, (1, say.requested(STOP, "w2"), "prepare 0 1"), (1, say.saved(seconds=40.0)))
    play(coordinator, (1, say.saved(FAILED)))  # sent again after a reconnection: the first one counts
    assert "outcome" not in kinds(coordinator)
    coordinator.receive(0, say.saved(seconds=41.5), 0.0)
    event = coordinator.events[-1]
    assert (event.kind, event.outcome, event.seconds, event.ranks) == ("outcome", SAVED, 41.5, ())


def test_a_save_that_is_durable_on_one_rank_before_another_has_obeyed_is_reported_once() -> None:
    coordinator = committed(2)
    play(coordinator, (0, say.done(IN_FLIGHT)), (0, say.saved()), (1, say.done(FAILED)))
    assert kinds(coordinator).count("outcome") == 1
    assert (coordinator.events[-1].outcome, coordinator.events[-1].ranks) == (FAILED, (1,))
    assert coordinator.is_over()


@pytest.mark.parametrize("end", ["leaves", "is restarted", "is not waited for"])
def test_a_save_has_failed_on_the_rank_that_left_it_in_flight_and(end: str) -> None:
    coordinator = committed(2)
    tell(coordinator, *[say.done(IN_FLIGHT)] * 2)
    coordinator.receive(0, say.saved(), 0.0)
    if end == "leaves":
        coordinator.receive(1, say.goodbye(11), 0.0)
    elif end == "is restarted":
        coordinator.receive(1, say.join(1, "again"), 0.0)
    else:
        coordinator.lost(1, 0.0)
        assert not coordinator.is_over() and coordinator.is_over(lost_too=False)
        coordinator.end()
    outcome = next(event for event in coordinator.events if event.kind == "outcome")
    assert (outcome.outcome, outcome.ranks) == (FAILED, (1,))


def test_a_rank_that_leaves_because_of_a_fault_is_reported_at_once_and_remembered() -> None:
    coordinator = joined(3)
    fault = say.goodbye(7, FAILED, "ValueError('shape')")
    play(coordinator, (1, fault), (1, fault), (2, say.goodbye(8, DONE)))
    assert [event.text for event in coordinator.events] == ["rank 1 left at step 7: ValueError('shape')"]
    assert coordinator.missing() == [0]
    assert coordinator.faults() == {1: "ValueError('shape')"}


def test_decided_by_time_each_rank_obeys_where_it_has_promised_to_wait() -> None:
    coordinator = requesting(3, STOP, by_time=True)
    said = tell(coordinator, *(say.promise(steps, step_s=1.0) for steps in (120, 6_000, 5_990)))
    assert steps_of(said) == {0: 120, 1: 6_000, 2: 5_990}
    assert kinds(coordinator) == ["committed"], "no rank waits for another"
    tell(coordinator, *[say.done()] * 3)
    decision = coordinator.events[-1].decision
    assert decision is not None and decision.step == 121, "rank 0 hears of its own save"


def test_a_rank_for_which_the_others_will_wait_long_is_named_in_figures_before_they_do() -> None:
    coordinator = requesting(3, STOP, skew_steps=0)
    tell(coordinator, say.promise(6_000, step_s=0.02), say.promise(120, step_s=1.0), say.promise(5_990, step_s=0.02))
    assert kinds(coordinator) == ["behind", "committed"]
    text = coordinator.events[0].text
    assert "rank 1 is 5,880 steps behind" in text and "1 h 38 min" in text and 'decide_by = "time"' in text


@pytest.mark.parametrize(("behind", "step_s"), [(99, 600.0), (90, 0.0), (90, 0.5)])
def test_ranks_that_train_together_are_not_named_however_slow_their_steps(behind: int, step_s: float) -> None:
    coordinator = requesting(2, STOP)
    tell(coordinator, say.promise(100, step_s=step_s), say.promise(behind, step_s=step_s))
    assert kinds(coordinator) == ["committed"]


def test_after_a_stop_nothing_is_decided_and_a_rank_that_starts_now_hears_of_the_stop() -> None:
    coordinator = committed(2, STOP)
    tell(coordinator, say.done(), say.done())
    play(coordinator, (1, say.requested(SAVE, "w9")))
    said = coordinator.receive(1, say.join(1, "again"), 0.0)
    assert sent(said) == "welcome 0 1, start 1"
    assert said[-1][1]["decision"]["stop"] and not said[-1][1]["decision"]["save"]


def test_the_first_decision_about_the_start_counts() -> None:
    coordinator = joined(2)
    assert sent(coordinator.decide_start(Decision())) == "start 0 1"
    assert coordinator.decide_start(Decision(stop=True)) == [] and not coordinator.start.stop  # type: ignore[union-attr]


def test_a_rank_that_was_away_when_a_verdict_became_void_hears_it_when_it_joins_again() -> None:
    coordinator = committed(2, STOP)
    coordinator.lost(1, 0.0)
    coordinator.receive(0, {"say": "resume", "round": 1}, 0.0)
    rejoin = say.join(1, round=1, state="committed", verdict=say.verdict(11, STOP, answers=("w1",)))
    play(coordinator, (1, rejoin, "welcome 1, abort 1"), now=1.0)
    # Now rank 0 goes on, and all are asked anew.
    play(coordinator, (1, {"say": "aborted", "round": 1}, "abort 0, prepare 0 1"), now=1.0)


# ---- a coordinator after another -------------------------------------------------------------------------------------


def test_a_verdict_that_one_rank_has_heard_holds_for_all() -> None:
    coordinator = Coordinator(3)
    play(coordinator, (1, say.join(1, **OBEYED_7), "welcome 1"), (2, say.join(2, **PROMISED_7), "welcome 2"))
    said = coordinator.receive(0, say.join(0), 0.0)  # the last one knows nothing
    assert sent(said) == "welcome 0, commit 2"
    assert said[-1][1]["verdict"]["answers"] == ["w2"], "it is the same request: it is not obeyed twice"
    play(coordinator, (2, say.done(number=7)))
    assert coordinator.is_over() and coordinator.round == 7 and kinds(coordinator) == ["outcome"]


def test_a_promise_for_which_no_rank_heard_a_verdict_is_released() -> None:
    coordinator = Coordinator(2)
    play(coordinator, (1, say.join(1, **PROMISED_7), "welcome 1"), (0, say.join(0), "welcome 0, abort 1, prepare 1 0"))
    assert coordinator.round == 8


def test_a_stop_that_all_have_obeyed_is_not_forgotten() -> None:
    coordinator = Coordinator(2)
    coordinator.receive(1, say.join(1, round=7, verdict=say.verdict(10, STOP, answers=("w0",))), 0.0)
    coordinator.receive(0, say.join(0), 0.0)
    assert coordinator.start is not None and coordinator.start.stop
    play(coordinator, (0, say.requested(SAVE)))


def test_a_save_in_flight_is_known_to_the_next_coordinator_too() -> None:
    coordinator = Coordinator(2)
    coordinator.receive(1, say.join(1, **OBEYED_7), 0.0)
    coordinator.receive(1, say.done(IN_FLIGHT, number=7), 0.0)  # sent again
    coordinator.receive(0, say.join(0), 0.0)
    assert not coordinator.is_over() and kinds(coordinator) == []
    coordinator.receive(1, say.saved(number=7, seconds=9.0), 0.0)
    assert coordinator.is_over() and coordinator.events[-1].seconds == 9.0


def test_decided_by_time_a_verdict_of_the_coordinator_before_is_obeyed_where_each_has_promised() -> None:
    coordinator = Coordinator(3, by_time=True)
    coordinator.receive(1, say.join(1, **COMMITTED_7), 0.0)
    coordinator.receive(2, say.join(2, round=7, state="promised", steps=9_000), 0.0)
    assert steps_of(coordinator.receive(0, say.join(0), 0.0)) == {2: 9_000}


def test_an_outcome_sent_before_all_have_joined_is_not_waited_for_again() -> None:
    coordinator = Coordinator(3)
    play(coordinator, (1, say.join(1, **COMMITTED_7), "welcome 1"), (1, say.done(FAILED, number=7)))
    play(
        coordinator,
        (2, say.join(2, **COMMITTED_7), "welcome 2"),
        (0, say.join(0), "welcome 0"),
        (2, say.done(number=7)),
    )
    assert coordinator.is_over() and coordinator.events[-1].outcome == FAILED


# ---- a wanted step -------------------------------------------------------------------------------------------------

AT_20 = Request("cadence", "every 20 steps", stop=False, at=20)


@pytest.mark.parametrize(
    ("promised", "others", "settings", "expected"),
    [
        (10, [], {}, 19),
        (25, [], {}, 25),  # a rank has passed it
        (10, [SAVE], {}, 19),  # one save for both
        (10, [STOP], {}, 10),  # a stop does not wait
        (10, [], {"by_time": True}, 10),
    ],
)
def test_a_verdict_lies_at_the_wanted_step_unless_a_rank_has_passed_it_or_a_stop_comes_with_it(
    promised: int, others: list[Request], settings: dict[str, Any], expected: int
) -> None:
    coordinator = requesting(2, AT_20, **settings)
    for number, request in enumerate(others):
        coordinator.receive(0, say.requested(request, f"other{number}"), 0.0)
    said = tell(coordinator, say.promise(promised), say.promise(promised - 1))
    assert set(steps_of(said).values()) == ({promised, promised - 1} if settings else {expected})


def test_a_wanted_step_of_before_a_resume_is_not_waited_for() -> None:
    coordinator = committed(2, AT_20)
    said = coordinator.receive(1, {"say": "resume", "round": 1}, 0.0)
    said += coordinator.receive(0, {"say": "aborted", "round": 1}, 0.0)
    assert "prepare 0 1" in sent(said)
    assert set(steps_of(tell(coordinator, say.promise(3, 2), say.promise(3, 2))).values()) == {3}
