"""A job's id reads and writes as people write it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.job import ExitCode, Job, JobId, JobState


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("123", JobId(123)),
        (" 123 ", JobId(123)),
        ("123_4", JobId(123, 4)),
        ("123_0", JobId(123, 0)),
        ("123_[2-5%1]", JobId(123)),
        ("123_[1,3-9:2]", JobId(123)),
        ("123_*", JobId(123)),
    ],
)
def test_an_id_is_read_as_slurm_writes_it(text: str, job_id: JobId) -> None:
    assert JobId.parse(text) == job_id


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "abc", "123_", "_4", "123_-4", "123.batch", "123+1", "1 2", "\u0661", "9" * 5000, "123_[]"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        JobId.parse(text)


@given(st.integers(1, 10**9), st.none() | st.integers(0, 10**6))
def test_a_written_id_reads_back(array: int, task: int | None) -> None:
    assert JobId.parse(str(JobId(array, task))) == JobId(array, task)


def test_task_0_is_a_task_and_not_the_whole_array() -> None:
    task = JobId(12, 0)
    assert str(task) == "12_0"
    assert task != task.whole == JobId(12)


def test_ids_sort_with_an_array_before_its_tasks() -> None:
    ids = [JobId(5), JobId(12), JobId(12, 0), JobId(12, 9), JobId(12, 10), JobId(100)]
    shuffled = random.Random(1).sample(ids, len(ids))
    assert sorted(shuffled) == ids
    assert max(ids) == JobId(100)


def test_an_exit_code_is_written_as_sacct_writes_it() -> None:
    assert str(ExitCode(0, 9)) == "0:9"
    assert str(ExitCode(75)) == "75:0"


def test_only_a_record_with_tasks_stands_for_a_pending_array() -> None:
    pending = Job(JobId(7), 7, "train", JobState.PENDING, tasks="2-10%1", task_count=9)
    task = Job(JobId(7, 1), 8, "train", JobState.RUNNING)
    assert pending.is_array_record
    assert not task.is_array_record
