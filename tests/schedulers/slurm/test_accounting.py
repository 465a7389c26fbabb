"""sacct's rows, of all releases."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import SchedulerUnavailable
from resilience.job import ExitCode, JobId, JobState
from resilience.schedulers._slurm.accounting import loses_exit_codes, parse_history
from tests.schedulers.answers import RELEASES, recorded


def rows(release: str) -> str:
    """`sacct.txt` without steps, its columns put where the client asks for them.

    JobID|JobIDRaw|JobName|State|ExitCode|DerivedExitCode|Submit|Start|End|ElapsedRaw|TimelimitRaw|NodeList|Reason
    """
    text = ""
    for line in recorded(release, "sacct.txt").splitlines()[1:]:
        shown, raw, rest = line.split("|", 2)
        name, state, code, _, submit, start, end, _, limit, nodes, reason = rest.rsplit("|", 10)
        if "." not in raw:
            columns = [shown, raw, state, code, submit, start, end, limit, "1", nodes, "alice", "main", "lab", "normal"]
            text += "".join(f"{column}\x1f" for column in [*columns, reason, name]) + "\n"
    return text


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_run_of_every_release_is_read(release: str) -> None:
    past = parse_history(rows(release))
    named = {job.name: job for job in past}
    assert len(past) == rows(release).count("\n") > 20
    assert named["failed"].exit_code == ExitCode(3)
    assert named["failed255"].exit_code == ExitCode(255 if release == "26.05" else 127)
    assert named["oom"].exit_code == ExitCode(0, 125)
    assert named["timeout"].state is JobState.TIMEOUT
    assert named["cancelled_running"].state is JobState.CANCELLED
    assert named["na|me with `q` é"].state is JobState.RUNNING and named["na|me with `q` é"].end_time is None
    assert named["requeued"].state is JobState.REQUEUED and named["requeued"].state.is_alive


@pytest.mark.parametrize(
    ("version", "loses"), [("20.11.4", True), ("24.11.5", True), ("25.11.0", True), ("26.05.5", False), ("", True)]
)
def test_which_releases_lose_exit_codes(version: str, loses: bool) -> None:
    assert loses_exit_codes(version) is loses


def test_a_pending_array_and_its_bit_mask() -> None:
    columns = ["15_[0x7FC]", "15", "PENDING", "0:0", "1", "Unknown", "Unknown", "10", "1", "None assigned"]
    line = "".join(f"{column}\x1f" for column in [*columns, "alice", "main", "lab", "normal", "", "name"]) + "\n"
    (job,) = parse_history(line)
    assert (job.id, job.task_count, job.nodes, job.start_time) == (JobId(15), 9, "", None)


@given(st.integers(1, 10**5))
def test_rows_cut_anywhere_are_not_a_shorter_history(cut: int) -> None:
    text = rows("22.05")
    part = text[: 1 + cut % (len(text) - 1)]
    if not part.endswith("\n"):
        with pytest.raises(SchedulerUnavailable):
            parse_history(part)


@given(st.text())
def test_garbage_is_a_typed_error(text: str) -> None:
    with contextlib.suppress(SchedulerUnavailable):
        assert parse_history(text) == () and text == ""
