"""What became of a run is said in one word and one line."""

from __future__ import annotations

import errno

import pytest

from resilience.cron.records import EntryOptions, Outcome
from resilience.cron.table.launch import why_not_started
from resilience.cron.table.watched_run import Cause, judge_end

OPTIONS = EntryOptions(timeout_s=5400.0, ok=(0, 1))


@pytest.mark.parametrize(
    ("status", "cause", "outcome", "code", "summary"),
    [
        (0, Cause.NONE, Outcome.DONE, 0, ""),
        (1, Cause.NONE, Outcome.DONE, 1, "exit code 1"),
        (2, Cause.NONE, Outcome.FAILED, 2, "exit code 2"),
        (-15, Cause.NONE, Outcome.FAILED, 143, "killed by SIGTERM"),
        (-9, Cause.NONE, Outcome.FAILED, 137, "killed by SIGKILL (out of memory?)"),
        (-35, Cause.NONE, Outcome.FAILED, 163, "killed by signal 35"),
        (0, Cause.TIMEOUT, Outcome.TIMEOUT, 0, "ended after its timeout of 1 h 30 min"),
        (-15, Cause.TIMEOUT, Outcome.TIMEOUT, 143, "ended after its timeout of 1 h 30 min"),
        (None, Cause.TIMEOUT, Outcome.TIMEOUT, None, "ended after its timeout of 1 h 30 min"),
        (-15, Cause.STOPPED, Outcome.CUT_SHORT, 143, "ended because its scheduler was stopped"),
        (-15, Cause.REPLACED, Outcome.CUT_SHORT, 143, "ended because its next slot was due (overlap=replace)"),
        (None, Cause.NONE, Outcome.FAILED, None, "exit status unknown"),
    ],
)
def test_an_end_is_judged(status: int | None, cause: Cause, outcome: Outcome, code: int | None, summary: str) -> None:
    assert judge_end(status, cause, OPTIONS) == (outcome, code, summary)


def test_leftover_and_unkillable_processes_are_reported() -> None:
    assert judge_end(0, Cause.NONE, OPTIONS, left=1).summary == "killed 1 leftover process"
    assert judge_end(3, Cause.NONE, OPTIONS, left=2).summary == ("exit code 3; killed 2 leftover processes")
    assert judge_end(None, Cause.TIMEOUT, OPTIONS, stuck=2).summary == (
        "ended after its timeout of 1 h 30 min; 2 processes could not be killed"
    )


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_reason_of_the_kernel_is_a_sentence(number: int) -> None:
    reason = why_not_started("/p/it", number)
    assert reason.startswith("cannot run /p/it: ") and len(reason) > len("cannot run /p/it: ")
    assert "\n" not in reason
