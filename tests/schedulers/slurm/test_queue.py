"""squeue's rows: what is read, and that nothing damaged is ever read as a shorter queue."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import SchedulerUnavailable
from resilience.job import ExitCode, JobId, JobState
from resilience.schedulers._slurm.queue import (
    REST,
    concerns,
    only,
    parse_count,
    parse_limit,
    parse_tasks,
    parse_wait_status,
    scan_jobs,
)
from tests.schedulers.answers import RELEASES, recorded, recorded_rows, row

free_text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x1e"), max_size=60)


@pytest.mark.parametrize("release", RELEASES)
def test_every_recorded_row_of_every_release_is_read(release: str) -> None:
    rows = recorded_rows(release)
    jobs = {job.name: job for job in scan_jobs(rows)}
    assert sum(1 for _ in scan_jobs(rows)) == len(rows) > 25
    assert jobs["failed"].exit_code == ExitCode(3)
    assert jobs["failed255"].exit_code == ExitCode(255)
    assert jobs["oom"].exit_code == ExitCode(0, 125)
    assert jobs["signalled"].exit_code == ExitCode(0, 12)
    assert jobs["down_node"].reason == "ReqNodeNotAvail, UnavailableNodes:n3"
    assert jobs['na|me with "q" é'].state is JobState.RUNNING
    assert jobs["requeued"].restarts == 1 and jobs["requeued"].state is JobState.PENDING
    assert jobs["array_partly"].is_array_record is (jobs["array_partly"].state is JobState.PENDING)
    assert not any(job.state is JobState.UNKNOWN for job in jobs.values())


def test_a_recording_in_the_clients_own_format_is_read_whole() -> None:
    jobs = tuple(scan_jobs(recorded("22.05", "squeue_client.txt").removesuffix("\n").split("\n")))
    newline = [job for job in jobs if job.id.array == 8]
    assert {job.name for job in newline} == {"new\nline"}
    assert {job.task_count for job in newline if job.is_array_record} == {398}
    odd = [job for job in jobs if job.id.array == 1]
    assert {job.name for job in odd} == {'na|me "q" é\x1fu'}
    assert {job.comment for job in odd} == {'a|b c "q" é \tx\\ny'}
    assert {job.exit_code for job in jobs if job.name == "fin a"} == {ExitCode(130)}


@pytest.mark.parametrize(
    ("shown", "raw", "task", "expected", "tasks", "count"),
    [
        ("12", "12", "N/A", JobId(12), "", 1),
        ("12_3", "15", "3", JobId(12, 3), "", 1),
        ("12_[2-10%1]", "12", "2-10%1", JobId(12), "2-10%1", 9),
        ("12_[3%1]", "12", "3%1", JobId(12), "3%1", 1),
        ("12_[5,7,9%2]", "12", "5,7,9%2", JobId(12), "5,7,9%2", 3),
        ("12_[3-199:2%1]", "12", "3-199:2%1", JobId(12), "3-199:2%1", 99),
        ("12_[1-2,5...]", "12", "1-2,5...", JobId(12), "1-2,5...", 1),
        ("12_*", "12", "1-4", JobId(12), "1-4", 4),
        ("12+0", "12", "N/A", JobId(12), "", 1),
        ("12+1", "13", "N/A", JobId(12), "", 1),
    ],
)
def test_ids_of_arrays_and_heterogeneous_jobs(
    shown: str, raw: str, task: str, expected: JobId, tasks: str, count: int
) -> None:
    (job,) = scan_jobs([row(JobArrayID=shown, JobID=raw, ArrayTaskID=task)])
    assert (job.id, job.raw_id, job.tasks, job.task_count) == (expected, int(raw), tasks, count)


@given(name=free_text, comment=free_text.filter(lambda text: "\x1f" not in text))
def test_any_name_and_comment_come_back_as_they_were(name: str, comment: str) -> None:
    lines = row(Name=name, Comment=comment).split("\n")
    (job,) = scan_jobs(lines)
    assert job.name == name
    assert job.comment == ("" if comment in {"(null)", "N/A"} else comment)


@given(st.data())
def test_a_queue_cut_anywhere_is_never_read_as_a_shorter_one(data: st.DataObject) -> None:
    rows = [row(JobArrayID=str(n), Name=f"train\n{n}") for n in range(1, 6)]
    text = "".join(f"{one}\n" for one in rows)
    cut = text[: data.draw(st.integers(1, len(text) - 2))]
    if cut.endswith(("\x1e", "\x1e\n")):
        return  # whole rows: only the program's exit code can tell, and the runner does
    with pytest.raises(SchedulerUnavailable, match="unexpected line"):
        tuple(scan_jobs(cut.removesuffix("\n").split("\n")))


@pytest.mark.parametrize("where", ["before", "after", "between"])
@pytest.mark.parametrize(
    "noise",
    [
        "Welcome to the cluster!",
        "*** maintenance on Tuesday ***",
        "\x1b[31mred\x1b[0m",
        "slurm_load_jobs error: x",
        "",
        "JOBID PARTITION",
        "13",
        "13\x1f13\x1falice\x1fRUNNING",
        "<html>",
        "\x00\x00",
    ],
)
def test_a_line_of_somebody_else_makes_the_whole_answer_unknown(where: str, noise: str) -> None:
    rows = [row(JobArrayID="12"), row(JobArrayID="13")]
    lines = {"before": [noise, *rows], "after": [*rows, noise], "between": [rows[0], noise, rows[1]]}[where]
    with pytest.raises(SchedulerUnavailable, match="unexpected line") as caught:
        tuple(scan_jobs(lines))
    assert caught.value.transient and "wrapper" in caught.value.hint


@pytest.mark.parametrize(
    "broken",
    [
        {"JobArrayID": "abc"},
        {"JobArrayID": "0"},
        {"JobArrayID": ""},
        {"JobArrayID": "12_"},
        {"JobArrayID": "١٢"},
        {"JobID": "x"},
        {"State": "running?"},
        {"State": ""},
        {"SubmitTime": "yesterday"},
        {"TimeLimit": "soon"},
        {"NumNodes": "many"},
        {"RestartCnt": "(null)"},
        {"exit_code": "bad", "State": "FAILED"},
    ],
)
def test_a_column_that_is_not_what_it_should_be_is_not_guessed_at(broken: dict[str, str]) -> None:
    good = {"JobArrayID": "12", "JobID": "12"} | broken
    with pytest.raises(SchedulerUnavailable, match="unexpected line"):
        tuple(scan_jobs([row(**good)]))


def test_a_missing_column_is_noticed_in_rows_nobody_wants_too() -> None:
    short = row().replace("n1\x1f", "", 1)
    with pytest.raises(SchedulerUnavailable, match="unexpected line"):
        tuple(scan_jobs([row(), short], accepts=lambda columns: False))


@given(
    st.lists(
        st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda b: b.decode("utf-8", "surrogateescape")))
    )
)
def test_garbage_is_a_typed_error_or_nothing(lines: list[str]) -> None:
    try:
        assert tuple(scan_jobs(lines)) == ()
        assert lines == []
    except SchedulerUnavailable:
        pass


def test_a_state_of_a_newer_slurm_is_unknown_and_alive() -> None:
    (job,) = scan_jobs([row(State="DREAMING")])
    assert job.state is JobState.UNKNOWN and job.state.is_alive


def test_the_predicate_sees_the_raw_columns_and_the_rest_of_the_row() -> None:
    rows = [row(JobArrayID="12", Comment="resil:run:abc"), row(JobArrayID="13_4", UserName="bob")]
    assert [job.id for job in scan_jobs(rows, lambda columns: columns[2] == "bob")] == [JobId(13, 4)]
    assert [job.id for job in scan_jobs(rows, lambda columns: "abc" in columns[REST])] == [JobId(12)]


@pytest.mark.parametrize(
    ("text", "code"),
    [("768", ExitCode(3)), ("12", ExitCode(0, 12)), ("253", ExitCode(0, 125)), ("65280", ExitCode(255)),
     ("3:0", ExitCode(3)), ("0:125", ExitCode(0, 125)), ("N/A", None)],
)  # fmt: skip
def test_exit_codes_of_old_and_new_releases(text: str, code: ExitCode | None) -> None:
    assert parse_wait_status(text) == code


def test_small_grammars() -> None:
    assert parse_limit("2-12:31:00") == 217860
    assert parse_limit("10:00") == 600
    assert parse_limit("UNLIMITED") is None
    assert [parse_count(text) for text in ("1", "2-4", "1K", "")] == [1, 2, 1024, 0]
    assert parse_tasks("2,5-9:2%1") == frozenset({2, 5, 7, 9})
    assert parse_tasks("0x7FC") == frozenset(range(2, 11))
    assert parse_tasks("1-2,5...%1") is None


def test_a_raw_id_a_task_and_an_array_are_told_apart() -> None:
    (task,) = scan_jobs([row(JobArrayID="12_3", JobID="15")])
    (waiting,) = scan_jobs([row(JobArrayID="12_[4-6%1]", JobID="12", ArrayTaskID="4-6%1", State="PENDING")])
    (cut,) = scan_jobs([row(JobArrayID="12_[4-6...]", JobID="12", ArrayTaskID="4-6...", State="PENDING")])
    assert concerns(task, JobId(15)) and concerns(task, JobId(12)) and concerns(task, JobId(12, 3))
    assert not concerns(task, JobId(12, 4)) and not concerns(task, JobId(3))
    assert concerns(waiting, JobId(12, 5)) and not concerns(waiting, JobId(12, 7))
    assert concerns(cut, JobId(12, 9)) is None


def test_rows_that_nobody_wants_are_not_kept() -> None:
    """Memory does not grow with the queue. How long it takes is measured by benchmarks/queue_rows.py."""

    def peak_bytes(count: int) -> int:
        one = row(JobArrayID="12_3", Comment="resil:run:0123456789abcdef", Command="/shared/runs/x/scripts/y.sbatch")
        tracemalloc.start()
        assert tuple(scan_jobs((one for _ in range(count)), mark="resil:another:")) == ()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    kept = 20_000 * 100  # bytes, were each row but a short string
    assert peak_bytes(20_000) < kept / 20


KEPT = {
    "12": row(JobArrayID="12", Name="gpt", Comment="resil:gpt:aa"),
    "13_4": row(JobArrayID="13_4", Name="a\x1fb\nc"),
    "14_[2-9%1]": row(JobArrayID="14_[2-9%1]", Name="gpt", Comment="site | text"),
    "15+1": row(JobArrayID="15+1", JobID="16", Name="het"),
}


def test_a_predicate_is_asked_with_the_id_the_name_and_the_comment_before_a_job_is_made() -> None:
    asked: list[tuple[int, str, str]] = []

    def keep(number: int, name: str, comment: str) -> bool:
        asked.append((number, name, comment))
        return number == 14

    rows = [line for text in KEPT.values() for line in text.split("\n")]
    found = list(scan_jobs(rows, only((), keep)))

    assert [job.id for job in found] == [JobId(14)]
    assert asked == [
        (12, "gpt", "resil:gpt:aa"), (13, "a\x1fb\nc", ""), (14, "gpt", "site | text"), (15, "het", ""),
    ]  # fmt: skip


def test_names_and_a_predicate_are_both_to_agree() -> None:
    assert [job.id.array for job in scan_jobs(KEPT["12"].split("\n"), only(["gpt"], None))] == [12]
    assert not list(scan_jobs(KEPT["12"].split("\n"), only(["gp"], None)))
    assert not list(scan_jobs(KEPT["12"].split("\n"), only(["gpt"], lambda *_: False)))
