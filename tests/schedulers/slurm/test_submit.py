"""One job per intent, however sbatch fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from resilience.errors import SchedulerError, SchedulerUnavailable, SubmissionUncertain
from resilience.job import JobId
from resilience.schedulers.slurm import SCHEDULER
from resilience.submission import Submission, Submitted
from resilience.system.process import DeadlineExceeded, ProgramMissing
from tests.lab.fakes import FakeClock
from tests.schedulers.answers import Answer, FakeRunner, Say, queue, row

SUBMISSION = Submission("tok123", "gpt", "/runs/gpt/scripts/tok123.sbatch", directory="/runs/gpt")
FAILED = "sbatch: error: Batch job submission failed: "
TIMED_OUT = Answer("", FAILED + "Socket timed out on send/recv operation\n", 1, takes_s=10)
REFUSED_CONNECTION = Answer("", FAILED + "Unable to contact slurm controller (connect failure)\n", 1, takes_s=9)
SQUEUE_HANGS = Answer("", "slurm_load_jobs error: Socket timed out on send/recv operation\n", 1, takes_s=10)
KILLED = Answer(takes_s=60, error=DeadlineExceeded("sbatch did not end within 60 s", transient=True))
NOBODY = queue(row(JobArrayID="7", Comment="resil:gpt:other"))
OURS = queue(row(JobArrayID="7"), row(JobArrayID="12", Comment="resil:gpt:tok123", State="PENDING"))


def submit(
    sbatch: Say | list[Say], squeue: Say | list[Say], others: Mapping[str, Say | list[Say]] | None = None
) -> tuple[Submitted, FakeRunner]:
    runner = FakeRunner({"sbatch": sbatch, "squeue": squeue, "scancel": Answer()} | dict(others or {}))
    return client(runner).submit(SUBMISSION), runner


def client(runner: FakeRunner) -> SCHEDULER:
    return SCHEDULER(clock=runner.clock, runner=runner, environ={"PATH": "/bin"})


def test_a_plain_submission_is_one_look_and_one_sbatch() -> None:
    submitted, runner = submit(Answer("88\n"), NOBODY)
    assert submitted == Submitted(JobId(88))
    assert [call[0] for call in runner.calls] == ["squeue", "sbatch"]


@pytest.mark.parametrize(("stdout", "number"), [("88\n", 88), ("32;lab20100\n", 32), (" 9 \n", 9)])
def test_the_id_is_read_with_and_without_a_cluster(stdout: str, number: int) -> None:
    assert submit(Answer(stdout), NOBODY)[0].id == JobId(number)


def test_what_a_site_has_to_say_is_kept() -> None:
    submitted, _ = submit(Answer("88\n", "sbatch: NOTE: please use --account\n"), NOBODY)
    assert submitted.notes == ("sbatch: NOTE: please use --account",)


def test_a_second_submission_of_the_same_token_finds_the_first() -> None:
    submitted, runner = submit(Answer("13\n"), OURS)
    assert submitted == Submitted(JobId(12), recovered=True)
    assert not runner.asked("sbatch")


def test_a_refusal_is_told_once_and_not_retried() -> None:
    refusal = Answer("", FAILED + "Invalid partition name specified\n", 1)
    with pytest.raises(SchedulerError, match="no such partition") as caught:
        submit(refusal, NOBODY)
    assert not isinstance(caught.value, SchedulerUnavailable) and "sinfo" in caught.value.hint


@pytest.mark.parametrize(
    "ambiguous",
    [
        TIMED_OUT,
        REFUSED_CONNECTION,
        KILLED,
        Answer("", FAILED + "Unexpected message received\n", 1),
        Answer("", FAILED + "A reason nobody has seen\n", 1),
        Answer("", "", 1),
        Answer("", "", -9),
        Answer("Welcome to the cluster\n12\n"),
        Answer("Submitted batch job 12\n"),
        Answer(""),
    ],
)
def test_a_job_that_came_of_an_ambiguous_failure_is_found(ambiguous: Answer) -> None:
    submitted, runner = submit(ambiguous, [NOBODY, SQUEUE_HANGS, NOBODY, OURS])
    assert submitted.id == JobId(12) and submitted.recovered
    assert len(runner.asked("sbatch")) == 1


def test_sbatch_is_repeated_only_after_two_looks_some_seconds_apart() -> None:
    clock = FakeClock()
    looked: list[float] = []

    def look(_: Sequence[str]) -> Answer:
        looked.append(clock.time)
        return NOBODY

    runner = FakeRunner({"sbatch": [TIMED_OUT, Answer("13\n")], "squeue": look}, clock)
    assert client(runner).submit(SUBMISSION).id == JobId(13)
    assert [call[0] for call in runner.calls] == ["squeue", "sbatch", "squeue", "squeue", "sbatch", "squeue"]
    assert looked[2] - looked[1] >= 2
    assert len(set(runner.asked("sbatch"))) == 1  # the same token


def test_a_look_that_fails_between_two_others_starts_the_counting_anew() -> None:
    _, runner = submit([TIMED_OUT, Answer("13\n")], [NOBODY, NOBODY, SQUEUE_HANGS, NOBODY, NOBODY])
    assert [call[0] for call in runner.calls].count("squeue") >= 5


def test_at_most_two_retries_then_the_plain_truth() -> None:
    runner = FakeRunner({"sbatch": REFUSED_CONNECTION, "squeue": NOBODY})
    with pytest.raises(SchedulerUnavailable, match="no job was created") as caught:
        client(runner).submit(SUBMISSION)
    assert not isinstance(caught.value, SubmissionUncertain) and caught.value.transient
    assert len(runner.asked("sbatch")) == 3


def test_without_a_successful_search_the_outcome_is_uncertain_and_the_error_has_the_token() -> None:
    runner = FakeRunner({"sbatch": TIMED_OUT, "squeue": [NOBODY, SQUEUE_HANGS]})
    began = runner.clock.time
    with pytest.raises(SubmissionUncertain, match="tok123") as caught:
        client(runner).submit(SUBMISSION)
    assert "searches for token tok123" in caught.value.hint and caught.value.transient
    assert len(runner.asked("sbatch")) == 1
    assert runner.clock.time - began <= 95


def test_a_controller_that_hangs_from_the_start_is_sent_nothing() -> None:
    runner = FakeRunner({"sbatch": Answer("13\n"), "squeue": SQUEUE_HANGS})
    with pytest.raises(SubmissionUncertain, match="nothing was sent"):
        client(runner).submit(SUBMISSION)
    assert not runner.asked("sbatch")


def test_duplicates_of_a_retry_are_reduced_to_the_oldest() -> None:
    duplicates = queue(
        row(JobArrayID="12", Comment="resil:gpt:tok123", SubmitTime="1795168400"),
        row(JobArrayID="13", Comment="resil:gpt:tok123", SubmitTime="1795168420", State="PENDING"),
    )
    submitted, runner = submit([TIMED_OUT, Answer("13\n")], [NOBODY, NOBODY, NOBODY, duplicates])
    assert submitted.id == JobId(12) and submitted.recovered
    assert runner.asked("scancel") == [("scancel", "13")]
    assert "13" in submitted.notes[0]


def test_a_running_twin_of_another_day_is_named_not_killed() -> None:
    duplicates = queue(
        row(JobArrayID="12", Comment="resil:gpt:tok123"), row(JobArrayID="13", Comment="resil:gpt:tok123")
    )
    submitted, runner = submit(Answer("14\n"), duplicates)
    assert submitted.id == JobId(12) and not runner.asked("scancel")
    assert submitted.notes == ("job 13 has the same token and is running: `scancel 13`",)


def test_the_tasks_of_one_array_are_no_twins() -> None:
    array = queue(
        row(JobArrayID="12_1", JobID="15", Comment="resil:gpt:tok123"),
        row(JobArrayID="12_[2-9%1]", JobID="12", Comment="resil:gpt:tok123", State="PENDING", ArrayTaskID="2-9%1"),
    )
    submitted, runner = submit(Answer("14\n"), array)
    assert submitted == Submitted(JobId(12), recovered=True) and not runner.asked("scancel")


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"Comment": "resil:gpt:tok123"}, True),
        ({"Comment": "resil:gpt:tok123 my own words"}, True),
        ({"Comment": "resil:gpt:tok1234"}, False),
        ({"Comment": "project=x resil:gpt:tok123 node=y"}, True),
        ({"Comment": "site policy", "Command": "/runs/gpt/scripts/tok123.sbatch"}, True),
        ({"Comment": "(null)", "Command": "/runs/gpt/scripts/tok123.sbatch --resume x"}, True),
        ({"Comment": "(null)", "Command": "/runs/gpt/scripts/tok1234.sbatch"}, False),
        ({"Comment": "(null)", "Command": "/runs/tok123/scripts/other.sbatch"}, False),
        ({"Name": "tok123"}, False),
        ({"Comment": "resil:gpt:other", "Command": "/runs/gpt/scripts/tok123.sbatch"}, False),
    ],
)
def test_a_token_is_found_by_comment_or_script_and_by_nothing_else(columns: dict[str, str], found: bool) -> None:
    runner = FakeRunner({"squeue": queue(row(JobArrayID="12", **columns))})
    assert bool(client(runner).find("tok123")) is found


def test_ended_jobs_are_found_as_long_as_they_are_remembered() -> None:
    runner = FakeRunner({"squeue": queue(row(JobArrayID="12", Comment="resil:gpt:tok123", State="FAILED"))})
    (job,) = client(runner).find("tok123")
    assert job.state.is_final and "--states=all" in runner.calls[0]


def test_a_machine_without_sbatch_says_what_to_do() -> None:
    missing = Answer(error=ProgramMissing("cannot run sbatch: No such file or directory"))
    with pytest.raises(SchedulerUnavailable, match="not installed") as caught:
        submit(missing, missing, {"scontrol": missing})
    assert "--scheduler local" in caught.value.hint and not caught.value.transient


def test_a_directory_that_does_not_exist_is_not_taken_for_a_missing_sbatch() -> None:
    missing = Answer(error=ProgramMissing("cannot run sbatch: No such file or directory"))
    with pytest.raises(SchedulerError, match="/runs/gpt"):
        submit(missing, NOBODY, {"scontrol --version": Answer("slurm 22.05.8\n")})


def test_several_clusters_at_once_are_refused() -> None:
    runner = FakeRunner({})
    scheduler = SCHEDULER(clock=runner.clock, runner=runner, environ={"SLURM_CLUSTERS": "a,b"})
    with pytest.raises(SchedulerError, match="SLURM_CLUSTERS"):
        scheduler.submit(SUBMISSION)


def test_only_the_person_and_the_submission_speak_to_sbatch_by_the_environment() -> None:
    runner = FakeRunner({"sbatch": Answer("88\n"), "squeue": NOBODY})
    environ = {"PATH": "/bin", "SLURM_JOB_ID": "5", "SBATCH_QOS": "high", "LANG": "de_DE.UTF-8"}
    scheduler = SCHEDULER(clock=runner.clock, runner=runner, environ=environ)
    scheduler.submit(Submission("t", "r", "/s", environment={"SLURM_HINT": "nomultithread"}))
    assert runner.environments[-1] == {
        "PATH": "/bin", "SBATCH_QOS": "high", "LANG": "de_DE.UTF-8", "SLURM_HINT": "nomultithread",
    }  # fmt: skip


def test_a_test_gives_slurms_sentence() -> None:
    said = "sbatch: Job 18 to start at 2026-11-20T08:02:54 using 8 processors on nodes n[1-2] in partition main\n"
    runner = FakeRunner({"sbatch": Answer("", said)})
    assert client(runner).test(SUBMISSION).startswith("Job 18 to start at 2026-11-20T08:02:54")
    runner = FakeRunner({"sbatch": Answer("", "allocation failure: Invalid partition name specified\n", 1)})
    with pytest.raises(SchedulerError, match="no such partition"):
        client(runner).test(SUBMISSION)
    assert client(runner).command_line(SUBMISSION)[:2] == ("sbatch", "--parsable")
