"""A round: promises, one verdict, and how all have obeyed it."""

from __future__ import annotations

import itertools

import pytest

from resilience.guard.agreement.open_round import OpenRound
from resilience.guard.agreement.recovery import Recovered
from resilience.guard.agreement.wishes import Wishes
from resilience.guard.decision import FAILED, OBEYED, SAVED, Request, merge

SAVE = Request("save switch", "alice wants a checkpoint", stop=False)
STOP = Request("kill switch", "bob stops the run")
TOLD = Request("a trigger", "only to tell", save=False, stop=True)


def committed(*requests: Request, world: int = 3) -> OpenRound:
    wishes, opened = Wishes(), OpenRound(10.0)
    for rank in range(world):
        opened.promise(rank, 10, 0)
    for number, request in enumerate(requests or (SAVE,)):
        wishes.hear(number % world, f"w{number}", request.as_dict())
    opened.commit((10, 0), wishes)
    assert not wishes.open
    return opened


def test_a_verdict_carries_all_wishes_and_tells_each_rank_which_of_its_own_it_answers() -> None:
    wishes, opened = Wishes(), OpenRound(10.0)
    for rank in range(3):
        opened.promise(rank, 10 + rank, 0)
    wishes.hear(1, "w1", SAVE.as_dict())
    wishes.hear(2, "w2", STOP.as_dict())
    news = opened.commit((12, 3), wishes)
    assert (news.kind, news.decision) == ("committed", merge([SAVE, STOP], 13))
    verdicts = [opened.verdict_for(rank) for rank in range(3)]
    assert [verdict["wishes"] for verdict in verdicts] == [[], ["w1"], ["w2"]]
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


def test_who_only_looked_on_does_not_hide_that_others_have_saved() -> None:
    opened = committed(world=2)
    opened.obeyed(0, SAVED, 1.0)
    opened.obeyed(1, OBEYED, 0.0)
    assert opened.end().outcome == SAVED


@pytest.mark.parametrize(("request_", "outcome"), [(SAVE, FAILED), (TOLD, OBEYED)])
def test_nobody_may_say_that_all_have_saved_when_a_rank_went_before(request_: Request, outcome: str) -> None:
    opened = committed(request_, world=2)
    opened.obeyed(0, OBEYED, 0.0)
    opened.forget(1)
    opened.forget(1)
    assert opened.is_obeyed() and opened.end().outcome == outcome


def test_the_promise_of_a_rank_that_went_does_not_count() -> None:
    opened = OpenRound(10.0)
    opened.promise(1, 10, 0)
    opened.forget(1)
    assert opened.promises == {}


def test_ranks_that_count_differently_are_named() -> None:
    opened = OpenRound(10.0)
    for rank, steps in enumerate((1000, 3, 1000, 3)):
        opened.promise(rank, steps, 0)
    assert opened.skew(997) == ""
    assert opened.skew(996) == "ranks 1, 3 count 3 steps where others count 1,000"


def test_a_recovered_round_waits_for_those_that_still_hold_its_verdict() -> None:
    found = Recovered(7, {"steps": 10, "polls": 0, "requests": [SAVE.as_dict()], "wishes": []})
    found.holding, found.outcomes, found.answers = [1, 2], {0: (SAVED, 4.0)}, {2: ["w2"]}
    assert found.verdict is not None
    opened = OpenRound.of_verdict(found.verdict, found, left=[1])
    assert opened.awaited == {2} and opened.decision == merge([SAVE], 11)
    assert opened.verdict_for(2)["wishes"] == ["w2"]
    opened.obeyed(2, SAVED, 1.0)
    assert (opened.end().outcome, opened.end().seconds) == (FAILED, 4.0)
