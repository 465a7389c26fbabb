"""Requests, the rounds that decide them, and the pauses between rounds."""

from __future__ import annotations

import itertools
import random

import pytest

from resilience.guard.agreement.rounds import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    MOST_ANSWERED,
    MOST_REQUESTS,
    OpenRound,
    RequestQueue,
    RetryTimer,
    RevokedRound,
    effect,
    select,
)
from resilience.guard.decision import EXIT_ERROR, FAILED, OBEYED, SAVED, Request, merge
from tests.guard.agreement.sample_messages import SAVE, STOP


def hear(requests: RequestQueue, *names: str) -> list[str]:
    """Rank 1 sends requests of these names. Return the names of those that are open."""
    for name in names:
        requests.add(1, name, SAVE.as_dict())
    return list(requests.open)


def test_a_request_is_heard_once_and_is_open_again_when_the_verdict_that_answered_it_is_void() -> None:
    requests = RequestQueue()
    assert hear(requests, "w1", "w1") == ["w1"] and requests.open == {"w1": (1, SAVE)}
    decided = dict(requests.open)
    requests.answer(requests.open)
    assert hear(requests, "w1") == [], "answered"
    requests.reopen(decided)
    assert requests.open == decided, "void"
    requests.answer(decided)
    assert hear(requests, "w1") == [], "answered again"


def test_a_request_answered_before_it_was_heard_here_is_not_heard_at_all() -> None:
    """By a coordinator before this one."""
    requests = RequestQueue()
    requests.answer(["w1"])
    assert hear(requests, "w1") == []


def test_of_the_answers_of_a_long_run_the_oldest_are_forgotten() -> None:
    requests = RequestQueue()
    requests.answer(f"w{number}" for number in range(MOST_ANSWERED + 1))
    assert hear(requests, "w0", "w1") == ["w0"]


def test_a_message_that_is_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="not a request"):
        RequestQueue().add(1, "w1", {"save": True})


def test_few_requests_make_the_decision_that_all_would_have_made() -> None:
    chance = random.Random(5)
    for _ in range(300):
        requests = [
            Request(
                chance.choice("abc"),
                f"why {number}",
                save=chance.random() < 0.5,
                stop=chance.random() < 0.1,
                label=chance.choice(["", "", "", "", "x", "y"]),
                discard=chance.random() < 0.3,
                exit_code=chance.choice([75, 75, EXIT_ERROR, 0]),
                rank=chance.randrange(8),
            )
            for number in range(chance.randrange(1, 80))
        ]
        chosen = select(requests)
        assert len(chosen) <= MOST_REQUESTS
        few, all_ = merge(chosen, 1), merge(requests, 1)
        assert (few.save, few.stop, few.label) == (all_.save, all_.stop, all_.label)
        assert not few.stop or few.exit_code == all_.exit_code


def test_the_signal_of_4096_ranks_is_one_request() -> None:
    requests = [Request("signal", "SIGUSR1 received", rank=rank) for rank in reversed(range(4096))]
    (chosen,) = select(requests)
    assert chosen.rank == 0


def test_few_different_requests_all_travel_and_the_lowest_rank_speaks_for_the_others() -> None:
    requests = [Request("signal", f"reason {number % 3}", rank=9 - number) for number in range(9)]
    chosen = sorted((request.why, request.rank) for request in select(requests))
    assert chosen == [("reason 0", 3), ("reason 1", 2), ("reason 2", 1)]


def test_a_single_refusal_to_save_is_among_the_few_that_travel() -> None:
    many = [Request("a", f"why {number}", rank=number) for number in range(500)]
    chosen = select([*many, Request("superseded", "another attempt", discard=True, rank=4000)])
    assert len(chosen) == MOST_REQUESTS and not merge(chosen, 1).save


def test_the_effect_of_a_request_is_what_all_ranks_do_and_not_which_rank_requests_it_or_why() -> None:
    assert effect(Request("signal", "one reason", rank=1)) == effect(Request("signal", "another", rank=2))
    assert effect(Request("signal", "why")) != effect(Request("signal", "why", stop=False))
    assert effect(Request("signal", "why")) != effect(Request("signal", "why", label="best"))


def test_each_failure_doubles_the_pause_up_to_the_longest_and_a_success_ends_that() -> None:
    timer = RetryTimer(60.0)
    assert timer.next_check() <= 0.0, "the first round begins at once"
    pauses = []
    for _ in range(6):
        timer.failed(100.0)
        pauses.append(timer.next_check() - 100.0)
    assert pauses == [FIRST_RETRY_S, 2.0, 4.0, 8.0, LAST_RETRY_S, LAST_RETRY_S]
    timer.succeeded()
    assert timer.retry_at < 0.0 and timer.retry_s == FIRST_RETRY_S


def test_ranks_are_missing_for_long_only_if_they_were_all_the_time() -> None:
    timer = RetryTimer(60.0)
    assert not timer.is_missing_long(100.0)
    assert timer.is_anybody_missing() and timer.next_check() == 160.0
    assert not timer.is_missing_long(159.9) and timer.is_missing_long(160.0)
    timer.all_are_there()
    assert not timer.is_anybody_missing()
    assert not timer.is_missing_long(161.0), "it is counted anew"


def test_ranks_that_count_differently_while_checkpoints_load_are_not_complained_about() -> None:
    timer = RetryTimer(60.0)
    assert not timer.is_skewed_long(5.0) and not timer.is_skewed_long(5.0 + LAST_RETRY_S - 0.1)
    timer.reset()
    assert timer.is_skewed_long(5.0 + LAST_RETRY_S), "a rank that resumes has not made them count alike"
    timer.succeeded()
    assert not timer.is_skewed_long(5.0 + LAST_RETRY_S)


# What happens to a revoked round of ranks 0, 1 and 2, and which ranks are released then.
REVOKED: dict[str, list[tuple[str, int, list[int]]]] = {
    "until all others have given up the round": [("wait", 1, []), ("acknowledge", 0, []), ("acknowledge", 2, [1])],
    "for the others, and not for one that waits, too": [("wait", 1, []), ("wait", 0, []), ("acknowledge", 2, [0, 1])],
    "for no rank that left or was restarted": [("wait", 1, []), ("acknowledge", 0, []), ("forget", 2, [1])],
}


@pytest.mark.parametrize("story", REVOKED)
def test_a_rank_that_goes_on_from_another_step_waits(story: str) -> None:
    revoked = RevokedRound()
    assert not RevokedRound().is_open and revoked.release() == [], "nothing is void at first"
    revoked.begin(4, [0, 1, 2])
    for happens, rank, released in REVOKED[story]:
        getattr(revoked, happens)(rank)
        assert revoked.is_open and revoked.release() == released, (happens, rank)
    assert not revoked.is_open and revoked.release() == [], "each is released once"


def promised(*steps: int) -> OpenRound:
    """A round in which rank 0 has promised the first, rank 1 the second ..."""
    opened = OpenRound(10.0)
    for rank, count in enumerate(steps):
        opened.promise(rank, count, 0)
    return opened


def committed(*requests: Request, world: int = 3) -> OpenRound:
    queue, opened = RequestQueue(), promised(*[10] * world)
    for number, request in enumerate(requests or (SAVE,)):
        queue.add(number % world, f"w{number}", request.as_dict())
    opened.commit((10, 0), queue)
    assert not queue.open
    return opened


def test_a_verdict_carries_all_requests_and_names_to_each_rank_which_of_its_own_it_answers() -> None:
    queue, opened = RequestQueue(), promised(10, 11, 12)
    queue.add(1, "w1", SAVE.as_dict())
    queue.add(2, "w2", STOP.as_dict())
    news = opened.commit((12, 3), queue)
    assert (news.kind, news.decision) == ("committed", merge([SAVE, STOP], 13))
    verdicts = [opened.verdict_for(rank) for rank in range(3)]
    assert [verdict["answers"] for verdict in verdicts] == [[], ["w1"], ["w2"]]
    assert {(verdict["steps"], verdict["polls"]) for verdict in verdicts} == {(12, 3)}
    assert set(opened.decided) == {"w1", "w2"}


def test_the_round_is_over_when_all_have_obeyed_or_all_that_are_not_lost() -> None:
    opened = committed()
    for rank in (0, 1):
        opened.obeyed(rank, SAVED, 1.0)
        assert not opened.is_obeyed()
    assert opened.is_obeyed(apart_from={2, 5}) and not opened.is_obeyed(apart_from={1})
    opened.obeyed(2, SAVED, 1.0)
    assert opened.is_obeyed()
    assert not OpenRound(10.0).is_obeyed(), "it has not been decided"


@pytest.mark.parametrize("words", list(itertools.permutations([SAVED, FAILED, OBEYED])))
def test_the_worst_outcome_and_the_longest_save_are_those_of_all(words: tuple[str, ...]) -> None:
    opened = committed()
    for rank, word in enumerate(words):
        opened.obeyed(rank, word, 5.0 - rank)
        opened.obeyed(rank, FAILED, 99.0)  # said again: it does not count
    news = opened.end()
    assert (news.kind, news.outcome, news.seconds) == ("outcome", FAILED, 5.0)
    assert news.requests == (SAVE,)


def test_a_rank_that_saved_nothing_does_not_hide_that_others_have_saved() -> None:
    opened = committed(world=2)
    opened.obeyed(0, SAVED, 1.0)
    opened.obeyed(1, OBEYED, 0.0)
    assert opened.end().outcome == SAVED


STOP_WITHOUT_SAVE = Request("a trigger", "no save", save=False, stop=True)


@pytest.mark.parametrize(("request_", "outcome"), [(SAVE, FAILED), (STOP_WITHOUT_SAVE, OBEYED)])
def test_a_save_that_a_rank_left_before_is_not_reported_as_made(request_: Request, outcome: str) -> None:
    opened = committed(request_, world=2)
    opened.obeyed(0, OBEYED, 0.0)
    opened.forget(1)
    opened.forget(1)
    assert opened.is_obeyed() and opened.end().outcome == outcome


def test_the_promise_of_a_rank_that_went_does_not_count() -> None:
    opened = promised(10)
    opened.forget(0)
    assert opened.promises == {}


def test_ranks_that_count_differently_are_named() -> None:
    opened = promised(1000, 3, 1000, 3)
    assert opened.skew(997) == ""
    assert opened.skew(996) == "ranks 1, 3 count 3 steps where others count 1,000"
