"""SLURM's JSON in both shapes, and what an empty or damaged document is worth."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import SchedulerUnavailable
from resilience.job import ExitCode, JobId, JobState
from resilience.schedulers._slurm.records import parse_document, parse_exit_code, parse_states
from tests.schedulers.answers import recorded

DOWN_22_05 = """{"meta": {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}}}, "jobs": [], "errors": [
    {"description": "Failed while looking for jobs", "error_number": -1, "error": "Unspecified error",
     "source": "slurm_load_jobs"}]}"""


@pytest.mark.parametrize(
    ("release", "document"),
    [("22.05", "squeue_all.json"), ("24.11", "scontrol_jobs.json"), ("26.05", "scontrol_jobs.json")],
)
def test_a_recorded_document_of_either_shape_is_read(release: str, document: str) -> None:
    jobs = {job.name: job for job in parse_document(recorded(release, document))}
    assert jobs["failed255"].exit_code == ExitCode(255)
    assert jobs["oom"].exit_code == ExitCode(0, 125)
    assert jobs["completing"].state is JobState.COMPLETING
    assert jobs['na|me with "q" é'].time_limit_s == 217860
    assert jobs["array"].id.array and jobs["begin"].start_time
    waiting = [job for job in parse_document(recorded(release, document)) if job.is_array_record]
    assert {(job.id.task, job.task_count) for job in waiting} >= {(None, 9), (None, 3)}


def test_an_error_inside_a_document_is_not_an_empty_queue() -> None:
    """22.05 ends with 0 and `"jobs": []` when the controller is down."""
    with pytest.raises(SchedulerUnavailable, match="Failed while looking for jobs"):
        parse_document(DOWN_22_05)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ("RUNNING", JobState.RUNNING),
        (["RUNNING"], JobState.RUNNING),
        (["CANCELLED", "COMPLETING"], JobState.COMPLETING),
        (["TIMEOUT", "COMPLETING"], JobState.COMPLETING),
        (["PENDING", "SPECIAL_EXIT"], JobState.SPECIAL_EXIT),
        (["PENDING", "REQUEUED"], JobState.REQUEUED),
        (["DREAMING"], JobState.UNKNOWN),
    ],
)
def test_states_are_shown_as_squeue_shows_them(states: str | list[str], shown: JobState) -> None:
    assert parse_states(states) is shown


def test_exit_codes_of_both_shapes() -> None:
    assert parse_exit_code(768) == ExitCode(3)
    assert parse_exit_code(253) == ExitCode(0, 125)
    unset = {"set": False, "infinite": False, "number": 0}
    three = {"set": True, "infinite": False, "number": 3}
    assert parse_exit_code({"status": ["ERROR"], "return_code": three, "signal": {"id": unset}}) == ExitCode(3)
    assert parse_exit_code({"status": ["SIGNALED"], "return_code": unset, "signal": {"id": three}}) == ExitCode(0, 3)
    assert parse_exit_code(None) is None


@given(st.data())
def test_a_document_cut_anywhere_is_a_typed_error(data: st.DataObject) -> None:
    text = recorded("24.11", "scontrol_jobs.json")
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    with pytest.raises(SchedulerUnavailable):
        parse_document(text[:cut])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"jobs": null}', '{"jobs": [1]}', '{"jobs": [{}]}', "Welcome\n{}", "\x00", "[" * 20000],
)
def test_a_document_of_another_shape_is_a_typed_error(text: str) -> None:
    with pytest.raises(SchedulerUnavailable):
        parse_document(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(["job_id", "job_state", "name", "time_limit", "exit_code", "node_count", "array_task_string"]),
)
def test_a_field_of_any_type_is_read_or_a_typed_error(value: object, name: str) -> None:
    document = json.loads(recorded("26.05", "scontrol_jobs.json"))
    document["jobs"] = [document["jobs"][0] | {name: value}]
    try:
        (job,) = parse_document(json.dumps(document))
        assert isinstance(job.id, JobId)
    except SchedulerUnavailable:
        pass
