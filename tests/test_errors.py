"""Errors tell a person what to try, and the command line how to exit."""

from __future__ import annotations

import inspect

import pytest

from resilience import errors
from resilience.errors import EX_TEMPFAIL, ProbeError, ResilError, SchedulerUnavailable, SubmissionUncertain, UsageError

FAMILY = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ResilError)
]  # fmt: skip


@pytest.mark.parametrize("kind", FAMILY)
def test_every_error_can_be_raised_with_a_message_alone_and_prints_just_that(kind: type[ResilError]) -> None:
    error = kind("squeue did not answer")
    assert str(error) == "squeue did not answer"
    assert error.hint == ""


@pytest.mark.parametrize("kind", FAMILY)
def test_an_error_that_may_pass_exits_with_75_so_that_cron_and_arrays_try_again(kind: type[ResilError]) -> None:
    assert kind("x", transient=True).exit_code == EX_TEMPFAIL == 75


@pytest.mark.parametrize("kind", FAMILY)
def test_no_error_exits_with_0(kind: type[ResilError]) -> None:
    assert kind("x", transient=False).exit_code in (1, 2)


def test_one_passing_error_does_not_change_the_exit_code_of_the_next() -> None:
    ProbeError("x", transient=True)
    assert ProbeError("y").exit_code == 1


@pytest.mark.parametrize("kind", [SchedulerUnavailable, SubmissionUncertain])
def test_a_scheduler_that_does_not_answer_may_answer_later(kind: type[ResilError]) -> None:
    assert kind("x").transient


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if issubclass(kind, UsageError)])
def test_what_the_person_wrote_wrong_is_a_usage_error(kind: type[ResilError]) -> None:
    assert kind("x").exit_code == 2
