"""An attempt that wrote no end is not over."""

from __future__ import annotations

from resilience.runs.attempts import Attempt, AttemptEnd


def test_an_attempt_without_an_end_is_not_known_to_be_over() -> None:
    attempt = Attempt(1, 17, "17_1", 0, "n1", 4711, 1000.0)
    assert (attempt.end, attempt.end_time, attempt.exit_code) == (None, None, None)


def test_the_batch_shells_words_for_an_end_stay_as_they_are() -> None:
    assert {end.value for end in AttemptEnd} == {
        "finished",
        "exited",
        "stopped",
        "superseded",
        "terminated",
        "lost",
    }
