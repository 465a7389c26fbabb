"""When rank 0 tries again, and when it says what keeps a decision from being made."""

from __future__ import annotations

from resilience.guard.agreement.patience import FIRST_RETRY_S, LAST_RETRY_S, Patience


def test_each_failure_doubles_the_pause_up_to_the_longest_and_a_success_ends_that() -> None:
    patience = Patience(60.0)
    assert patience.next_look() <= 0.0, "the first round begins at once"
    pauses = []
    for _ in range(6):
        patience.failed(100.0)
        pauses.append(patience.next_look() - 100.0)
    assert pauses == [FIRST_RETRY_S, 2.0, 4.0, 8.0, LAST_RETRY_S, LAST_RETRY_S]
    patience.succeeded()
    assert patience.retry_at < 0.0 and patience.retry_s == FIRST_RETRY_S


def test_ranks_are_missing_for_long_only_if_they_were_all_the_time() -> None:
    patience = Patience(60.0)
    assert not patience.is_missing_long(100.0)
    assert patience.is_anybody_missing() and patience.next_look() == 160.0
    assert not patience.is_missing_long(159.9) and patience.is_missing_long(160.0)
    patience.none_is_missing()
    assert not patience.is_anybody_missing()
    assert not patience.is_missing_long(161.0), "it is counted anew"


def test_ranks_that_count_differently_while_checkpoints_load_are_not_complained_about() -> None:
    patience = Patience(60.0)
    assert not patience.is_skewed_long(5.0) and not patience.is_skewed_long(5.0 + LAST_RETRY_S - 0.1)
    patience.start_afresh()
    assert patience.is_skewed_long(5.0 + LAST_RETRY_S), "a rank that resumes has not made them count alike"
    patience.succeeded()
    assert not patience.is_skewed_long(5.0 + LAST_RETRY_S)
