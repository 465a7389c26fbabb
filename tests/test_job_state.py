"""A state knows whether it is alive; what we do not know is never dead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.job import Fault, JobState


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("running", JobState.RUNNING),
        (" PENDING ", JobState.PENDING),
        ("CANCELLED by 1001", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("", JobState.UNKNOWN),
        ("A_STATE_OF_SLURM_30", JobState.UNKNOWN),
        ("OUT_OF_ME+", JobState.UNKNOWN),
    ],
)
def test_a_state_is_read_as_slurm_prints_it(text: str, state: JobState) -> None:
    assert JobState.parse(text) is state


@pytest.mark.parametrize("state", JobState)
def test_every_state_reads_back(state: JobState) -> None:
    assert JobState.parse(state.value) is state


@given(st.text().filter(lambda text: JobState.parse(text) is JobState.UNKNOWN))
def test_a_word_we_do_not_know_is_never_dead(text: str) -> None:
    state = JobState.parse(text)
    assert state.is_alive and state.may_have_processes and not state.is_final
    assert state.fault is Fault.NOBODY


@pytest.mark.parametrize("state", JobState)
def test_a_state_is_either_final_or_waiting_or_may_have_processes(state: JobState) -> None:
    assert [state.is_final, state.is_waiting, state.may_have_processes].count(True) == 1
    assert state.is_alive is not state.is_final


@pytest.mark.parametrize(
    "state",
    [JobState.RUNNING, JobState.COMPLETING, JobState.CONFIGURING, JobState.SUSPENDED, JobState.STOPPED,
     JobState.STAGE_OUT, JobState.SIGNALING],
)  # fmt: skip
def test_a_twin_may_not_start_while_processes_may_live(state: JobState) -> None:
    assert state.may_have_processes


@pytest.mark.parametrize("state", [JobState.REQUEUED, JobState.REQUEUE_HOLD, JobState.SPECIAL_EXIT])
def test_a_requeued_job_will_run_again(state: JobState) -> None:
    assert state.is_alive and state.is_waiting


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (JobState.FAILED, Fault.TRAINING),
        (JobState.OUT_OF_MEMORY, Fault.TRAINING),
        (JobState.NODE_FAIL, Fault.CLUSTER),
        (JobState.BOOT_FAIL, Fault.CLUSTER),
        (JobState.TIMEOUT, Fault.POLICY),
        (JobState.PREEMPTED, Fault.POLICY),
        (JobState.CANCELLED, Fault.POLICY),
        (JobState.COMPLETED, Fault.NOBODY),
        (JobState.RUNNING, Fault.NOBODY),
    ],
)
def test_the_end_tells_whose_doing_it_was(state: JobState, fault: Fault) -> None:
    assert state.fault is fault


def test_nobody_is_blamed_for_a_job_that_sits_in_the_queue() -> None:
    assert {state.fault for state in JobState if state.is_waiting} == {Fault.NOBODY}
