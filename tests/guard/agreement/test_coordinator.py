"""Rank 0's side: when a round begins and ends, whom it waits for, what it answers, and what it tells its host."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.messages import check_coordinator_message
from resilience.guard.agreement.rounds import FIRST_RETRY_S, LAST_RETRY_S
from resilience.guard.decision import DONE, FAILED, IN_FLIGHT, OBEYED, SAVED, Decision, Request, merge

SAVE = Request("save switch", "alice wants a checkpoint", stop=False)
STOP = Request("kill switch", "bob stops the run")


def join(rank: int, incarnation: str = "", **more: Any) -> dict[str, Any]:
    joining = {"say": "join", "rank": rank, "incarnation": incarnation or f"life{rank}", "steps": 0, "polls": 0}
    return {**joining, "round": 0, "state": "free", "verdict": {}, "requests": {}, **more}


def asked(request: Request, name: str = "w1") -> dict[str, Any]:
    return {"say": "request", "id": name, "request": request.as_dict()}


def promise(steps: int, number: int = 1, polls: int = 0, step_s: float = 0.0) -> dict[str, Any]:
    return {"say": "promise", "round": number, "steps": steps, "polls": polls, "step_s": step_s}


def done(outcome: str = SAVED, number: int = 1, seconds: float = 1.0) -> dict[str, Any]:
    return {"say": "done", "round": number, "outcome": outcome, "seconds": seconds}


def saved(outcome: str = SAVED, number: int = 1, seconds: float = 1.0) -> dict[str, Any]:
    return {"say": "saved", "round": number, "outcome": outcome, "seconds": seconds}


def goodbye(steps: int, how: str = DONE, why: str = "") -> dict[str, Any]:
    return {"say": "leave", "steps": steps, "how": how, "why": why}


def joined(world: int = 3, **settings: Any) -> Coordinator:
    coordinator = Coordinator(world, **settings)
    for rank in range(world):
        coordinator.receive(rank, join(rank), 0.0)
    return coordinator


def committed(world: int = 3, request: Request = SAVE) -> Coordinator:
    coordinator = joined(world)
    coordinator.receive(1, asked(request), 0.0)
    for rank in range(world):
        coordinator.receive(rank, promise(10 + rank), 0.0)
    return coordinator


def kinds(coordinator: Coordinator) -> list[str]:
    return [heard.kind for heard in coordinator.events]


def words(said: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, str]]:
    for _, message in said:
        check_coordinator_message(message)
    return [(rank, message["say"]) for rank, message in said]


def test_a_round_asks_all_and_commits_to_the_largest_promise() -> None:
    coordinator = joined()
    assert words(coordinator.receive(1, asked(SAVE), 0.0)) == [(0, "prepare"), (1, "prepare"), (2, "prepare")]
    assert coordinator.receive(0, promise(12), 0.0) == coordinator.receive(2, promise(10), 0.0) == []
    said = coordinator.receive(1, promise(11), 0.0)
    assert sorted(words(said)) == [(0, "commit"), (1, "commit"), (2, "commit")]
    assert {message["verdict"]["steps"] for _, message in said} == {12}
    assert {rank: message["verdict"]["answers"] for rank, message in said} == {0: [], 1: ["w1"], 2: []}
    for rank in range(3):
        assert not coordinator.is_over()
        coordinator.receive(rank, done(seconds=rank), 1.0)
    assert coordinator.is_over() and kinds(coordinator) == ["committed", "outcome"]
    assert (coordinator.events[1].outcome, coordinator.events[1].seconds) == (SAVED, 2.0)


def test_two_requests_at_once_are_one_decision() -> None:
    coordinator = joined()
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(2, asked(STOP, "w2"), 0.0)
    for rank in range(3):
        said = coordinator.receive(rank, promise(10), 0.0)
    assert len(said[0][1]["verdict"]["requests"]) == 2
    assert coordinator.events[0].decision == merge([SAVE, STOP], 11)


def test_a_request_during_a_round_is_the_next_round() -> None:
    coordinator = committed()
    assert coordinator.receive(2, asked(STOP, "w2"), 0.0) == []
    coordinator.receive(0, done(), 0.0)
    coordinator.receive(1, done(), 0.0)
    assert words(coordinator.receive(2, done(), 0.0)) == [(0, "prepare"), (1, "prepare"), (2, "prepare")]


def test_a_request_that_is_said_again_is_answered_once() -> None:
    coordinator = committed()
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(1, join(1, round=1, state="promised", steps=11, requests={"w1": SAVE.as_dict()}), 0.0)
    for rank in range(3):
        assert words(coordinator.receive(rank, done(), 0.0)) == []


def test_nothing_begins_before_all_have_joined_and_that_is_named_once() -> None:
    coordinator = Coordinator(3, absent_s=60.0)
    coordinator.receive(0, join(0), 100.0)
    assert coordinator.receive(0, asked(STOP), 100.0) == []
    assert coordinator.next_deadline() == 160.0
    coordinator.proceed(160.0)
    coordinator.proceed(200.0)
    assert kinds(coordinator) == ["absent"] and "ranks 1, 2 of 3" in coordinator.events[0].text
    assert coordinator.next_deadline() is None, "a join will wake it"
    coordinator.receive(1, join(1), 300.0)
    assert ("prepare") in [message["say"] for _, message in coordinator.receive(2, join(2), 300.0)]


def test_a_silent_rank_ends_the_round_and_it_is_tried_again() -> None:
    coordinator = joined(round_s=10.0)
    coordinator.receive(0, asked(STOP), 0.0)
    coordinator.receive(0, promise(5), 0.0)
    coordinator.receive(1, promise(5), 0.0)
    assert coordinator.proceed(9.9) == [] and coordinator.next_deadline() == 10.0
    assert words(coordinator.proceed(10.0)) == [(0, "abort"), (1, "abort"), (2, "abort")]
    assert "rank 2 did not respond" in coordinator.events[0].text
    assert coordinator.receive(2, promise(5), 10.1) == [], "too late"
    assert coordinator.next_deadline() == 10.0 + FIRST_RETRY_S
    assert {word for _, word in words(coordinator.proceed(11.0))} == {"prepare"} and coordinator.round == 2
    for _ in range(10):  # it never gives up, and never waits longer than that
        coordinator.proceed(coordinator.next_deadline() or 0.0)
        aborted_s = coordinator.next_deadline() or 0.0
        assert coordinator.proceed(aborted_s)
    assert coordinator._retry.retry_s == LAST_RETRY_S


def test_ranks_that_count_differently_decide_nothing_and_are_named_if_it_lasts() -> None:
    coordinator = joined(2, skew_steps=16)
    coordinator.receive(0, asked(STOP), 0.0)
    now = 0.0
    for number in range(1, 8):
        coordinator.receive(0, promise(1000, number), now)
        said = coordinator.receive(1, promise(3, number), now)
        assert {word for _, word in words(said)} == {"abort"}
        assert ("skew" in kinds(coordinator)) == (now >= LAST_RETRY_S)
        now = coordinator.next_deadline() or 0.0
        coordinator.proceed(now)
    (skew,) = (heard for heard in coordinator.events if heard.kind == "skew")
    assert "rank 1 counts 3 steps where others count 1,000" in skew.text and "resumed" in skew.text


# ---- connections, lives, leaves --------------------------------------------------------------------------------------


def test_a_lost_rank_keeps_its_promise_and_hears_the_verdict_when_it_joins_again() -> None:
    coordinator = joined()
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(2, promise(10), 0.0)
    coordinator.lost(2, 0.0)
    coordinator.receive(0, promise(10), 0.0)
    coordinator.receive(1, promise(10), 0.0)
    said = coordinator.receive(2, join(2, round=1, state="promised", steps=10), 1.0)
    assert words(said) == [(2, "welcome"), (2, "commit")]


def test_a_rank_that_lost_the_abort_hears_it_and_the_next_prepare() -> None:
    coordinator = joined(round_s=10.0)
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.proceed(10.0)
    coordinator.proceed(11.0)
    said = coordinator.receive(2, join(2, round=1, state="promised", steps=10), 11.0)
    assert words(said) == [(2, "welcome"), (2, "abort"), (2, "prepare")]


def test_no_round_begins_while_a_rank_is_lost() -> None:
    coordinator = joined()
    coordinator.lost(2, 0.0)
    assert coordinator.receive(1, asked(SAVE), 0.0) == []
    assert (2, "prepare") in words(coordinator.receive(2, join(2), 1.0))


def test_a_restarted_rank_has_promised_nothing_and_nobody_says_that_it_has_saved() -> None:
    coordinator = joined(2)
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(1, promise(10), 0.0)
    assert words(coordinator.receive(1, join(1, "again"), 0.0)) == [(1, "welcome"), (1, "prepare")]
    assert coordinator.receive(0, promise(10), 0.0) == []
    coordinator.receive(1, promise(10), 0.0)
    coordinator.receive(1, join(1, "and again"), 0.0)
    coordinator.receive(0, done(SAVED), 0.0)
    assert kinds(coordinator) == ["restarted", "committed", "restarted", "outcome"]
    assert coordinator.events[-1].outcome == FAILED


def test_two_processes_of_one_rank_are_named() -> None:
    coordinator = joined(2)
    for life in ("other", "life1", "other", "life1"):
        coordinator.receive(1, join(1, life), 0.0)
    assert kinds(coordinator).count("twins") == 1


def test_the_verdict_lies_where_a_rank_has_left_if_that_is_further() -> None:
    """The trainings end together: whoever is a step behind must not save alone."""
    coordinator = joined()
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(1, promise(99), 0.0)
    coordinator.receive(2, promise(99), 0.0)
    said = coordinator.receive(0, goodbye(100), 0.0)
    assert sorted((rank, message["verdict"]["steps"]) for rank, message in said) == [(1, 100), (2, 100)]


@pytest.mark.parametrize(("request_", "outcome"), [(SAVE, FAILED), (Request("x", "y", save=False), OBEYED)])
def test_a_save_that_a_rank_left_without_has_failed(request_: Request, outcome: str) -> None:
    coordinator = committed(2, request_)
    coordinator.receive(0, done(OBEYED), 0.0)
    coordinator.receive(1, goodbye(11), 0.0)
    assert coordinator.events[-1].kind == "outcome" and coordinator.events[-1].outcome == outcome


def test_when_all_have_left_nothing_begins_and_nothing_is_waited_for() -> None:
    coordinator = joined(2)
    for rank in range(2):
        coordinator.receive(rank, goodbye(9), 0.0)
    assert coordinator.receive(1, asked(SAVE), 0.0) == []
    assert coordinator.next_deadline() is None and coordinator.is_over()


def test_rank_0_that_goes_away_sets_free_who_has_promised() -> None:
    coordinator = joined(2)
    coordinator.receive(1, asked(SAVE), 0.0)
    coordinator.receive(1, promise(9), 0.0)
    assert words(coordinator.end()) == [(0, "abort"), (1, "abort"), (1, "bye")]
    assert coordinator.receive(1, asked(STOP, "w2"), 0.0) == [] and coordinator.is_over()


def test_a_save_in_flight_is_told_once_it_is_durable_on_every_rank_and_holds_up_no_stop() -> None:
    coordinator = committed(2, SAVE)
    for rank in range(2):
        coordinator.receive(rank, done(IN_FLIGHT, seconds=0.0), 0.0)
    assert "outcome" not in kinds(coordinator) and not coordinator.is_over()
    assert words(coordinator.receive(1, asked(STOP, "w2"), 0.0)) == [(0, "prepare"), (1, "prepare")]
    coordinator.receive(1, saved(seconds=40.0), 0.0)
    coordinator.receive(1, saved(FAILED), 0.0)  # said again after a reconnection: the first word counts
    assert "outcome" not in kinds(coordinator)
    coordinator.receive(0, saved(seconds=41.5), 0.0)
    told = coordinator.events[-1]
    assert (told.kind, told.outcome, told.seconds, told.ranks) == ("outcome", SAVED, 41.5, ())


def test_a_save_that_is_durable_on_one_rank_before_another_has_obeyed_is_told_once() -> None:
    coordinator = committed(2, SAVE)
    coordinator.receive(0, done(IN_FLIGHT), 0.0)
    coordinator.receive(0, saved(), 0.0)
    coordinator.receive(1, done(FAILED), 0.0)
    assert kinds(coordinator).count("outcome") == 1
    assert (coordinator.events[-1].outcome, coordinator.events[-1].ranks) == (FAILED, (1,))
    assert coordinator.is_over()


@pytest.mark.parametrize("end", ["leaves", "is restarted", "is not waited for"])
def test_what_a_rank_left_in_flight_has_failed(end: str) -> None:
    coordinator = committed(2, SAVE)
    for rank in range(2):
        coordinator.receive(rank, done(IN_FLIGHT), 0.0)
    coordinator.receive(0, saved(), 0.0)
    if end == "leaves":
        coordinator.receive(1, goodbye(11), 0.0)
    elif end == "is restarted":
        coordinator.receive(1, join(1, "again"), 0.0)
    else:
        coordinator.lost(1, 0.0)
        assert not coordinator.is_over() and coordinator.is_over(lost_too=False)
        coordinator.end()
    outcome = next(heard for heard in coordinator.events if heard.kind == "outcome")
    assert (outcome.outcome, outcome.ranks) == (FAILED, (1,))


def test_a_rank_that_leaves_because_of_a_fault_is_told_at_once_and_remembered() -> None:
    coordinator = joined(3)
    coordinator.receive(1, goodbye(7, FAILED, "ValueError('shape')"), 0.0)
    coordinator.receive(1, goodbye(7, FAILED, "ValueError('shape')"), 0.0)
    coordinator.receive(2, goodbye(8), 0.0)
    assert [heard.text for heard in coordinator.events] == ["rank 1 left at step 7: ValueError('shape')"]
    assert coordinator.missing() == [0]
    assert coordinator.faults() == {1: "ValueError('shape')"}


def test_decided_by_time_each_rank_obeys_where_it_has_promised_to_wait() -> None:
    coordinator = joined(3, by_time=True)
    coordinator.receive(1, asked(STOP), 0.0)
    for rank, steps in enumerate((120, 6_000, 5_990)):
        said = coordinator.receive(rank, promise(steps, step_s=1.0), 0.0)
    assert [(rank, message["verdict"]["steps"]) for rank, message in said] == [(0, 120), (1, 6_000), (2, 5_990)]
    assert kinds(coordinator) == ["committed"], "nobody waits for anybody"
    for rank in range(3):
        coordinator.receive(rank, done("saved"), 0.0)
    decision = coordinator.events[-1].decision
    assert decision is not None and decision.step == 121, "rank 0 hears of its own save"


def test_a_rank_for_which_the_others_will_wait_long_is_named_in_figures_before_they_do() -> None:
    coordinator = joined(3, skew_steps=0)
    coordinator.receive(1, asked(STOP), 0.0)
    for rank, steps in enumerate((6_000, 120, 5_990)):
        coordinator.receive(rank, promise(steps, step_s=1.0 if rank == 1 else 0.02), 0.0)
    assert kinds(coordinator) == ["behind", "committed"]
    text = coordinator.events[0].text
    assert "rank 1 is 5,880 steps behind" in text and "1 h 38 min" in text and 'decide_by = "time"' in text


@pytest.mark.parametrize(("steps", "step_s"), [((100, 99), 600.0), ((100, 90), 0.0), ((100, 90), 0.5)])
def test_ranks_that_train_together_are_not_named_however_slow_their_steps(
    steps: tuple[int, int], step_s: float
) -> None:
    coordinator = joined(2)
    coordinator.receive(1, asked(STOP), 0.0)
    for rank in range(2):
        coordinator.receive(rank, promise(steps[rank], step_s=step_s), 0.0)
    assert kinds(coordinator) == ["committed"]


def test_ranks_that_count_too_differently_are_told_which_setting_lets_them_decide() -> None:
    coordinator = joined(2)
    coordinator.receive(1, asked(STOP), 0.0)
    now = 0.0
    for number in range(1, 6):
        for rank, steps in enumerate((6_000, 120)):
            coordinator.receive(rank, promise(steps, number), now)
        now += 20.0
        coordinator.proceed(now)
    told = [heard.text for heard in coordinator.events if heard.kind == "skew"]
    assert len(told) == 1
    assert "rank 1 counts 120 steps where others count 6,000, more than skew_steps = 16" in told[0]
    assert 'decide_by = "time"' in told[0]


def test_after_a_stop_nothing_is_decided_and_who_starts_now_hears_of_it() -> None:
    coordinator = committed(2, STOP)
    for rank in range(2):
        coordinator.receive(rank, done(), 0.0)
    assert coordinator.receive(1, asked(SAVE, "w9"), 0.0) == []
    said = coordinator.receive(1, join(1, "again"), 0.0)
    assert words(said) == [(1, "welcome"), (1, "start")]
    assert said[1][1]["decision"]["stop"] and not said[1][1]["decision"]["save"]


def test_the_first_word_about_the_start_counts() -> None:
    coordinator = joined(2)
    assert len(coordinator.decide_start(Decision())) == 2
    assert coordinator.decide_start(Decision(stop=True)) == [] and not coordinator.start.stop  # type: ignore[union-attr]


def test_a_rank_that_was_away_when_a_verdict_became_void_hears_it_when_it_joins_again() -> None:
    coordinator = committed(2, STOP)
    coordinator.lost(1, 0.0)
    coordinator.receive(0, {"say": "resume", "round": 1}, 0.0)
    verdict = {"steps": 11, "polls": 0, "requests": [STOP.as_dict()], "answers": ["w1"]}
    said = coordinator.receive(1, join(1, round=1, state="committed", verdict=verdict), 1.0)
    assert words(said) == [(1, "welcome"), (1, "abort")]
    said = coordinator.receive(1, {"say": "aborted", "round": 1}, 1.0)
    assert words(said) == [(0, "abort"), (0, "prepare"), (1, "prepare")], "now rank 0 goes on, and it is asked anew"


# ---- a coordinator after another -------------------------------------------------------------------------------------

VERDICT = {"steps": 10, "polls": 0, "requests": [SAVE.as_dict()], "answers": ["w0"]}


def test_a_verdict_that_one_rank_has_heard_holds_for_all() -> None:
    coordinator = Coordinator(3)
    coordinator.receive(1, join(1, round=7, verdict=VERDICT), 0.0)  # has obeyed
    coordinator.receive(2, join(2, round=7, state="promised", steps=9, requests={"w2": SAVE.as_dict()}), 0.0)
    said = coordinator.receive(0, join(0), 0.0)  # the last one knows nothing
    assert (2, "commit") in words(said)
    assert said[-1][1]["verdict"]["answers"] == ["w2"], "it is the same request: it is not obeyed twice"
    coordinator.receive(2, done(number=7), 0.0)
    assert coordinator.is_over() and coordinator.round == 7 and kinds(coordinator) == ["outcome"]


def test_a_promise_that_nobody_heard_a_verdict_for_is_set_free() -> None:
    coordinator = Coordinator(2)
    coordinator.receive(1, join(1, round=7, state="promised", steps=9, requests={"w2": SAVE.as_dict()}), 0.0)
    said = words(coordinator.receive(0, join(0), 0.0))
    assert said[:2] == [(0, "welcome"), (1, "abort")] and sorted(said[2:]) == [(0, "prepare"), (1, "prepare")]
    assert coordinator.round == 8


def test_a_stop_that_all_have_obeyed_is_not_forgotten() -> None:
    coordinator = Coordinator(2)
    stop = {**VERDICT, "requests": [STOP.as_dict()]}
    coordinator.receive(1, join(1, round=7, verdict=stop), 0.0)
    coordinator.receive(0, join(0), 0.0)
    assert coordinator.start is not None and coordinator.start.stop
    assert coordinator.receive(0, asked(SAVE), 0.0) == []


def test_a_save_in_flight_is_known_to_the_next_coordinator_too() -> None:
    coordinator = Coordinator(2)
    coordinator.receive(1, join(1, round=7, verdict=VERDICT), 0.0)  # has obeyed, and says so again
    coordinator.receive(1, done(IN_FLIGHT, number=7), 0.0)
    coordinator.receive(0, join(0), 0.0)
    assert not coordinator.is_over() and kinds(coordinator) == []
    coordinator.receive(1, saved(number=7, seconds=9.0), 0.0)
    assert coordinator.is_over() and coordinator.events[-1].seconds == 9.0


def test_decided_by_time_a_verdict_of_the_coordinator_before_is_obeyed_where_each_has_promised() -> None:
    coordinator = Coordinator(3, by_time=True)
    coordinator.receive(1, join(1, round=7, state="committed", verdict=VERDICT), 0.0)
    coordinator.receive(2, join(2, round=7, state="promised", steps=9_000, requests={}), 0.0)
    said = coordinator.receive(0, join(0), 0.0)
    assert [message["verdict"]["steps"] for rank, message in said if message["say"] == "commit"] == [9_000]


def test_an_outcome_told_before_all_have_joined_is_not_waited_for_again() -> None:
    coordinator = Coordinator(3)
    coordinator.receive(1, join(1, round=7, state="committed", verdict=VERDICT), 0.0)
    coordinator.receive(1, done(FAILED, number=7), 0.0)
    coordinator.receive(2, join(2, round=7, state="committed", verdict=VERDICT), 0.0)
    coordinator.receive(0, join(0), 0.0)
    coordinator.receive(2, done(SAVED, number=7), 0.0)
    assert coordinator.is_over() and coordinator.events[-1].outcome == FAILED
