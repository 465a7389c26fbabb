"""The jobs of a run are told in rows: an array in one, what runs first, reasons in words."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.job import ExitCode, JobState
from resilience.runs.status import fold
from tests.fakes import NOW, a_job


def test_an_array_is_one_row_led_by_what_runs() -> None:
    (row,) = fold(
        [
            a_job(7, JobState.COMPLETED, task=1, exit_code=ExitCode(0)),
            a_job(7, JobState.FAILED, task=2, exit_code=ExitCode(1), start_time=9.0),
            a_job(7, JobState.RUNNING, task=3, nodes="n[1-4]", end_time=NOW + 90),
            a_job(7, JobState.PENDING, tasks="4-10%1", task_count=7, reason="JobArrayTaskLimit"),
        ],
        NOW,
    )
    assert (row.job, row.state, row.nodes, row.time_left_s, row.is_alive) == (
        "7",
        JobState.RUNNING,
        "n[1-4]",
        90.0,
        True,
    )
    assert row.counts == {"COMPLETED": 1, "FAILED": 1, "RUNNING": 1, "PENDING": 7}


def test_an_array_that_only_waits_says_why() -> None:
    (row,) = fold([a_job(7, JobState.PENDING, tasks="1-10%1", task_count=10, reason="Resources")], NOW)
    assert (row.job, row.state, row.words, row.counts) == (
        "7",
        JobState.PENDING,
        "waits for free nodes",
        {"PENDING": 10},
    )


def test_an_array_that_is_over_shows_what_ended_last() -> None:
    (row,) = fold(
        [
            a_job(7, JobState.COMPLETED, task=1, start_time=1.0, exit_code=ExitCode(0)),
            a_job(7, JobState.TIMEOUT, task=2, start_time=2.0, exit_code=ExitCode(0, 15)),
        ],
        NOW,
    )
    assert (row.state, row.words, row.is_alive, row.time_left_s) == (
        JobState.TIMEOUT,
        "ended by signal 15",
        False,
        None,
    )


def test_a_single_task_keeps_its_own_name_and_rows_are_sorted_by_what_matters() -> None:
    rows = fold(
        [
            a_job(5, JobState.COMPLETED),
            a_job(30, JobState.PENDING),
            a_job(8, JobState.COMPLETING),
            a_job(20, JobState.PENDING),
            a_job(9, JobState.RUNNING, task=4),
        ],
        NOW,
    )
    assert [row.job for row in rows] == ["9_4", "8", "20", "30", "5"]


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"state": JobState.PENDING, "reason": "Priority"}, "others are before it in the queue"),
    ({"state": JobState.PENDING, "reason": "SiteReason2031"}, "SiteReason2031"),
    ({"state": JobState.PENDING}, ""),
    ({"state": JobState.COMPLETING}, "its processes are ending"),
    ({"state": JobState.FAILED, "exit_code": ExitCode(1)}, "exit code 1"),
    ({"state": JobState.FAILED, "exit_code": ExitCode(0, 9)}, "ended by signal 9"),
    ({"state": JobState.COMPLETED, "exit_code": ExitCode(0)}, ""),
    ({"state": JobState.RUNNING}, ""),
]


@pytest.mark.parametrize(("fields", "words"), WORDS)
def test_each_state_is_explained_in_words(fields: dict[str, Any], words: str) -> None:
    assert fold([a_job(7, **fields)], NOW)[0].words == words


def test_time_that_is_over_is_no_time_and_unlimited_is_not_said() -> None:
    assert fold([a_job(7, end_time=NOW - 5)], NOW)[0].time_left_s == 0.0
    assert fold([a_job(7)], NOW)[0].time_left_s is None
    assert fold([a_job(7, JobState.FAILED, end_time=NOW + 5)], NOW)[0].time_left_s is None
