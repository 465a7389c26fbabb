"""A round that is taken back because ranks go on from another step."""

from __future__ import annotations

from resilience.guard.agreement.void import VoidRound


def test_who_goes_on_from_another_step_waits_until_all_have_given_up_the_round() -> None:
    void = VoidRound()
    void.begin(4, [0, 1, 2])
    void.wait(1)
    assert void.is_open and void.release() == []
    void.heard(0)
    assert void.release() == []
    void.heard(2)
    assert void.release() == [1]
    assert void.release() == []


def test_ranks_that_go_on_at_the_same_time_wait_for_the_others_and_not_for_each_other() -> None:
    void = VoidRound()
    void.begin(4, [0, 1, 2])
    void.wait(1)
    void.wait(0)
    void.heard(2)
    assert void.release() == [0, 1]


def test_nobody_waits_for_a_rank_that_left_or_was_started_again() -> None:
    void = VoidRound()
    void.begin(4, [0, 1, 2])
    void.wait(1)
    void.heard(0)
    void.forget(2)
    assert void.release() == [1]


def test_nothing_is_void_at_first() -> None:
    assert not VoidRound().is_open
    assert VoidRound().release() == []
