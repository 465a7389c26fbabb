"""The journal of submissions never forgets a job and never takes a doubt for an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import (
    Intent,
    Outcome,
    new_token,
    read_intents,
    record_intent,
    record_result,
    submitted_ids,
)


def intend(run: RunDirectory, token: str) -> Intent:
    intent = Intent(token, "slurm", "/x/job.slurm", ("sbatch", "--array=1-9%1", "/x/b\udcff.slurm"), 1000.5, by="anna")
    record_intent(run, intent)
    return intent


def test_an_intent_without_a_result_is_open(run: RunDirectory) -> None:
    intent = intend(run, "t1")
    assert read_intents(run) == (intent,)
    assert intent.outcome is Outcome.OPEN


def test_intents_come_oldest_first_each_with_what_became_of_it(run: RunDirectory) -> None:
    for token in ("t1", "t2", "t3"):
        intend(run, token)
    record_result(run, "t3", Outcome.REFUSED, 1001.0, why="bad partition")
    record_result(run, "t1", Outcome.SUBMITTED, 1002.0, job_id=JobId(17))
    read = read_intents(run)
    assert [(intent.token, intent.outcome, intent.job_id) for intent in read] == [
        ("t1", Outcome.SUBMITTED, JobId(17)),
        ("t2", Outcome.OPEN, None),
        ("t3", Outcome.REFUSED, None),
    ]
    assert submitted_ids(read) == (JobId(17),)


@pytest.mark.parametrize("later", ["refused", "intent", "submitted without an id"])
def test_a_job_that_came_of_an_intent_is_never_forgotten(run: RunDirectory, later: str) -> None:
    intend(run, "t1")
    record_result(run, "t1", Outcome.SUBMITTED, 1001.0, job_id=JobId(17))
    if later == "refused":
        record_result(run, "t1", Outcome.REFUSED, 1002.0)
    elif later == "intent":
        intend(run, "t1")
    else:
        record_result(run, "t1", Outcome.SUBMITTED, 1002.0)
    (intent,) = read_intents(run)
    assert (intent.outcome, intent.job_id) == (Outcome.SUBMITTED, JobId(17))


def test_a_refusal_that_turned_out_wrong_is_corrected_by_the_job(run: RunDirectory) -> None:
    intend(run, "t1")
    record_result(run, "t1", Outcome.REFUSED, 1001.0)
    record_result(run, "t1", Outcome.SUBMITTED, 1002.0, job_id=JobId(17))
    assert submitted_ids(read_intents(run)) == (JobId(17),)


@pytest.mark.parametrize("job_id", ["", "many", None, [1], 0])
def test_a_job_without_a_readable_id_must_still_be_looked_up(run: RunDirectory, job_id: object) -> None:
    intend(run, "t1")
    append(run, {"event": "submitted", "token": "t1", "job_id": job_id})
    (intent,) = read_intents(run)
    assert intent.outcome is Outcome.OPEN


@pytest.mark.parametrize(
    "record",
    [
        {"event": "intent"},
        {"event": "intent", "token": ""},
        {"event": "submitted", "token": "stranger", "job_id": "9"},
        {"event": "something new", "token": "t1"},
        {},
    ],
)
def test_a_line_that_belongs_to_nothing_changes_nothing(run: RunDirectory, record: dict[str, object]) -> None:
    intent = intend(run, "t1")
    append(run, record)
    assert read_intents(run) == (intent,)


@pytest.mark.parametrize("time", ["soon", None, [], {}])
def test_a_damaged_field_costs_only_itself(run: RunDirectory, time: object) -> None:
    append(run, {"event": "intent", "token": "t1", "time": time, "argv": "sbatch"})
    record_result(run, "t1", Outcome.SUBMITTED, 1.0, job_id=JobId(17))
    (intent,) = read_intents(run)
    assert (intent.time, intent.argv, intent.job_id) == (0.0, (), JobId(17))


def test_an_intent_that_cannot_be_journalled_is_an_error_so_that_nothing_is_sent(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError):
        intend(RunDirectory(tmp_path / "missing"), "t1")


def test_the_journal_tells_people_who_and_when(run: RunDirectory) -> None:
    intend(run, "t1")
    (line,) = (run.path / layout.SUBMISSIONS).read_text().splitlines()
    record = json.loads(line)
    assert record["by"] == "anna"
    assert record["at"].startswith("1970-01-0")


def test_tokens_do_not_repeat() -> None:
    assert len({new_token() for _ in range(1000)}) == 1000


def append(run: RunDirectory, record: dict[str, object]) -> None:
    with (run.path / layout.SUBMISSIONS).open("a") as file:
        file.write(json.dumps(record) + "\n")
