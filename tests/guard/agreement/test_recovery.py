"""What a new coordinator concludes from what ranks have heard of the one before."""

from __future__ import annotations

from typing import Any

from resilience.guard.agreement.messages import COMMITTED, FREE, OBEYING, PROMISED
from resilience.guard.agreement.recovery import EarlierRounds, recover
from resilience.guard.decision import FAILED, SAVED, merge
from tests.guard.agreement import sample_messages as say
from tests.guard.agreement.sample_messages import SAVE, STOP


def verdict(*answers: str) -> dict[str, Any]:
    return say.verdict(10, SAVE, answers=answers)


def join(state: str = FREE, number: int = 7, **more: Any) -> dict[str, Any]:
    return say.join(0, state=state, round=number, **more)


def test_a_verdict_that_one_rank_has_heard_holds_for_all_and_a_rank_that_has_only_promised_hears_it() -> None:
    found = recover({0: join(COMMITTED, verdict=verdict("w0")), 1: join(PROMISED), 2: join(OBEYING, verdict=verdict())})
    assert found.number == 7 and found.is_held
    assert found.decided is not None and found.decided.verdict == verdict() and found.decided.pending == {0, 1, 2}
    assert found.waiting == [(1, 7)]
    assert found.answered == ["w0"]


def test_where_no_rank_has_heard_a_verdict_all_promises_are_released() -> None:
    found = recover({0: join(PROMISED), 1: join(FREE), 2: join(PROMISED)})
    assert found.decided is None and not found.is_held
    assert found.waiting == [(0, 7), (2, 7)]


def test_only_the_last_round_counts_and_a_promise_of_one_before_is_released() -> None:
    found = recover({0: join(COMMITTED, 6, verdict=verdict("old")), 1: join(PROMISED, 6), 2: join(PROMISED, 7)})
    assert found.number == 7
    assert found.decided is None, "round 7 was begun, so all have obeyed round 6"
    assert found.waiting == [(1, 6), (2, 7)]
    assert found.answered == []


def test_a_request_whose_answer_was_lost_is_known_by_its_effect() -> None:
    """The commit names the requests that it answers, and went down with the coordinator."""
    own = {"same": SAVE.as_dict(), "other": STOP.as_dict()}
    found = recover({0: join(COMMITTED, verdict=verdict("w0")), 1: join(PROMISED, requests=own)})
    assert found.decided is not None and found.decided.answers == {1: ["same"]}
    assert found.answered == ["w0", "same"]


def test_how_a_rank_has_obeyed_is_not_forgotten_while_others_are_still_to_join() -> None:
    earlier = EarlierRounds()
    earlier.joined(0, join(COMMITTED, verdict=verdict()))
    earlier.joined(1, join(COMMITTED, verdict=verdict()))
    earlier.obeyed(0, 7, FAILED, 3.0)
    earlier.obeyed(1, 6, SAVED, 1.0)  # of a round before
    earlier.obeyed(5, 7, SAVED, 1.0)  # knows of no earlier round
    found = recover(earlier.joins)
    assert found.decided is not None and found.decided.pending == {1}
    assert (found.decided.failed_on, found.decided.seconds) == ([0], 3.0)


def test_a_recovered_round_waits_for_those_that_still_hold_its_verdict_and_have_not_left() -> None:
    holding = {rank: join(COMMITTED, verdict=verdict()) for rank in (1, 2)}
    found = recover({0: join(FREE, verdict=verdict(), done=(SAVED, 4.0)), **holding}, left=[1])
    opened = found.decided
    assert opened is not None and opened.pending == {2} and opened.decision == merge([SAVE], 11)
    opened.obeyed(2, SAVED, 1.0)
    assert (opened.end().outcome, opened.end().seconds) == (FAILED, 4.0), "rank 1 left before it saved"


def test_a_process_that_was_started_again_need_not_obey_what_the_one_before_has_heard() -> None:
    earlier = EarlierRounds()
    earlier.joined(0, join(COMMITTED, verdict=verdict("w0"), requests={"w1": SAVE.as_dict()}))
    earlier.restarted(0)
    found = recover(earlier.joins)
    assert found.decided is not None, "others may have obeyed it"
    assert not found.is_held
    assert earlier.joins[0]["requests"] == {}


def test_a_verdict_that_a_rank_has_given_up_holds_for_no_rank() -> None:
    earlier = EarlierRounds()
    earlier.joined(0, join(COMMITTED, verdict=verdict("w0")))
    earlier.resumed(0)
    found = recover(earlier.joins)
    assert found.decided is None and not found.is_held
    assert found.answered == []
