"""Deeds of people are no faults: cancel, kill, clear, hold, scancel by hand, a requeue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilience.errors import SchedulerError
from resilience.job import ExitCode, JobId, JobState
from resilience.runs import run_jobs, switches
from resilience.switch import Scope
from tests.lab.fakes import ME, NOW, FakeScheduler, a_job
from tests.watch.checks.job.stage import CRITICAL, HOUR, OK, WARNING, Stage, running

TURNED_AWAY = ExitCode(75)


def test_a_cancelled_run_is_over_with_user_and_time(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, **running())
    run_jobs.cancel(stage.project, directory)
    stage.wait(300)
    stage.expect("OK", f"cancelled on purpose by {ME} 5 min ago", "1 job still in the queue")
    stage.queue.records[:] = []
    stage.expect("OK", f"cancelled on purpose by {ME} 5 min ago")
    stage.wait(25 * HOUR)
    assert "gpt" not in stage.verdicts()


def test_a_cancel_counts_until_the_next_submit(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, **running())
    run_jobs.cancel(stage.project, directory)
    stage.run("gpt", 8)
    stage.queue.records[:] = []
    stage.job(8, JobState.FAILED, end_time=NOW - 5, exit_code=ExitCode(1))
    stage.expect("CRITICAL not-queued", "job 8 ended: FAILED")


def test_a_cancel_that_the_scheduler_refused_excuses_nothing(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    job = stage.job(7, **running())
    stage.queue.trouble = None

    class Refusing(FakeScheduler):
        def cancel(self, *_: object, **__: object) -> None:
            raise SchedulerError("Access/permission denied")

    stage.project._clients["fake"] = Refusing(records=[job])
    with pytest.raises(SchedulerError):
        run_jobs.cancel(stage.project, directory)
    stage.project._clients["fake"] = stage.queue
    stage.queue.records[:] = []
    stage.job(7, JobState.TIMEOUT, end_time=NOW + 60)
    stage.wait(120)
    stage.expect("CRITICAL not-queued", "TIMEOUT")


def test_a_job_that_failed_after_its_cancel_was_not_ended_by_it(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, **running())
    run_jobs.cancel(stage.project, directory)
    stage.queue.records[:] = []
    stage.job(7, JobState.NODE_FAIL, end_time=NOW + 600)
    stage.wait(1200)
    assert stage.finding().verdict is not OK


def test_a_run_whose_queued_jobs_were_cancelled_may_end(stage: Stage) -> None:
    directory = stage.run("gpt", 7, 8)
    stage.job(7, **running(end_time=NOW + 300))
    stage.job(8, JobState.PENDING, reason="Dependency", dependency="afterany:7(unfulfilled)")
    run_jobs.cancel(stage.project, directory, pending_only=True)
    stage.queue.records[:] = []
    stage.job(7, **running(end_time=NOW + 300))
    stage.expect("OK", "running for")
    stage.queue.records[:] = []
    stage.job(7, JobState.TIMEOUT, end_time=NOW + 300)
    stage.wait(400)
    stage.expect("OK", f"ended on purpose: {ME} cancelled its queued jobs")


def test_after_kill_clear_and_submit_the_tasks_that_were_turned_away_are_no_failures(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    switches.set_switch(stage.project, directory, "kill", why="", scope=Scope.JOB)
    for task in range(1, 11):
        stage.job(7, JobState.FAILED, task=task, raw_id=7 + task, end_time=NOW - task, exit_code=TURNED_AWAY)
    stage.expect("OK", "set the kill switch")
    switches.clear(stage.project, directory)
    stage.expect("OK", f"{ME} cleared its switch just now, and nothing was submitted since")
    stage.run("gpt", 30)
    stage.job(30, **running())
    stage.expect("OK", "running for")


def test_a_run_that_nobody_submits_after_a_clear_is_reported_in_the_end(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, JobState.FAILED, end_time=NOW - 5, exit_code=TURNED_AWAY)
    switches.set_switch(stage.project, directory, "kill", why="", scope=Scope.JOB)
    switches.clear(stage.project, directory)
    stage.wait(2 * HOUR)
    assert stage.finding().verdict is CRITICAL


def test_attempts_that_people_ended_are_no_churn(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, **running())
    run_jobs.cancel(stage.project, directory)
    stage.run("gpt", 8)
    stage.queue.records[:] = []
    stage.job(8, **running())
    for number in range(1, 11):
        stage.attempt(directory, number, NOW - 600 + number * 50, "terminated" if number % 2 else "stopped", 75)
        if number % 2 == 0:
            end = directory.path / "attempts" / f"{number:04d}.end"
            end.write_text(end.read_text() + 'why = "the kill switch was set by ada at noon"\n')
    stage.expect("OK")
    for number in range(11, 15):
        stage.attempt(directory, number, NOW - 100 + number, "exited")
    assert stage.finding().fault == "requeue-churn"


def test_a_run_held_by_its_owner_is_as_was_asked_for(stage: Stage) -> None:
    stage.run("gpt", 7, 8)
    stage.job(7, JobState.PENDING, reason="JobHeldUser")
    stage.job(8, JobState.PENDING, reason="Dependency", dependency="afterany:7(unfulfilled)")
    stage.expect("OK", "held by its owner")
    stage.queue.records[:] = []
    stage.job(7, JobState.PENDING, reason="JobHeldAdmin")
    stage.expect("CRITICAL will-never-start", "held by an administrator")


def test_a_held_successor_is_one(stage: Stage) -> None:
    stage.run("gpt", 7, 8)
    stage.job(7, **running(end_time=NOW + 60))
    stage.job(8, JobState.PENDING, reason="JobHeldUser")
    stage.expect("OK", "1 more queued")


@pytest.mark.parametrize(
    ("by", "verdict"), [("1001", OK), ("0", CRITICAL), ("", CRITICAL)], ids=["its owner", "root", "unknown"]
)
def test_scancel_by_hand_is_told_from_that_of_an_administrator(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, by: str, verdict: object
) -> None:
    monkeypatch.setattr("resilience.watch.checks._job.probe.user_name", {1001: ME, 0: "admin"}.__getitem__)
    stage.run("gpt", 7)
    stage.job(7, JobState.CANCELLED, end_time=NOW - 60, user=ME)
    past = a_job(7, JobState.CANCELLED, end_time=NOW - 60, user=ME, cancelled_by=by)
    monkeypatch.setattr(FakeScheduler, "history", lambda *_: (past,))
    finding = stage.finding()
    assert finding.verdict is verdict, finding
    if verdict is OK:
        assert f"{ME} cancelled job 7 1 min ago" in finding.summary


def test_during_a_requeue_nothing_is_said_to_be_missing(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.job(7, JobState.COMPLETING, **running(end_time=NOW - 3))
    stage.expect("OK", "completing")
    stage.queue.records[:] = []
    stage.job(7, JobState.PENDING, reason="BeginTime", start_time=NOW + 120, restarts=1)
    stage.expect("OK", "begin time")
    stage.queue.records[:] = []
    stage.job(7, JobState.COMPLETING, **running(end_time=NOW - 500))
    assert stage.faults() == {"ends-soon": WARNING}


def test_jobs_that_were_no_attempts_are_no_churn_and_a_forced_end_is_none(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    for task in range(1, 11):
        stage.job(7, JobState.FAILED, task=task, raw_id=7 + task, end_time=NOW - task, exit_code=ExitCode(143))
    stage.job(7, task=11, raw_id=18, **running())
    stage.job(7, JobState.PENDING, tasks="12-20%1", task_count=9, reason="JobArrayTaskLimit")
    assert stage.finding().fault == "requeue-churn", "without any attempt the jobs count"
    stage.attempt(directory, 1, NOW - 60)
    stage.expect("OK", "running for")


def test_the_name_of_a_run_means_its_jobs_whatever_their_own_name_is(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.job(7, **running(name="train.sbatch"))
    stage.expect("OK", "as job 7", names=("gpt",))
    stage.queue.records[:] = []
    stage.job(7, JobState.FAILED, name="train.sbatch", end_time=NOW - 5, exit_code=ExitCode(1))
    finding = stage.expect("CRITICAL not-queued", "job 7 ended: FAILED", names=("gpt",))
    assert "resil submit --run gpt" in finding.advice


def test_an_own_script_that_ended_with_exit_code_0_is_complete(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.job(7, JobState.COMPLETED, end_time=NOW - 5, exit_code=ExitCode(0))
    stage.expect("OK", "complete: job 7 ended with exit code 0")
    stage.queue.records[:] = []
    stage.wait(600)
    stage.expect("OK", "complete: job 7 ended with exit code 0")
    stage.run("gpt", 8)
    stage.job(8, JobState.FAILED, end_time=NOW + 600, exit_code=ExitCode(1))
    stage.wait(60)
    stage.expect("CRITICAL not-queued", "job 8 ended: FAILED")


def test_an_array_of_an_own_script_is_complete_when_all_its_tasks_are(stage: Stage) -> None:
    stage.run("gpt", 7)
    for task, state in ((1, JobState.FAILED), (2, JobState.COMPLETED)):
        job = stage.job(7, state, end_time=NOW - 5)
        stage.queue.records[-1] = replace(job, id=JobId(7, task), raw_id=70 + task)
    assert stage.finding().verdict is CRITICAL


def test_a_deed_excuses_a_run_that_is_watched_by_its_name(stage: Stage) -> None:
    directory = stage.run("gpt", 7)
    stage.job(7, JobState.COMPLETED, name="train.sbatch", end_time=NOW - 5, exit_code=ExitCode(75))
    stage.kill(directory)
    stage.expect("OK", f"stopped on purpose: {ME} set the kill switch", names=("gpt",))
    stage.wait(48 * HOUR)
    stage.expect("OK", "stopped on purpose", names=("gpt",))


def test_a_live_job_of_that_name_that_is_not_the_runs_is_watched_by_name(stage: Stage) -> None:
    stage.kill(stage.run("gpt", 7))
    stage.add(a_job(9, JobState.RUNNING, name="gpt", **running()))
    stage.expect("OK", "as job 9", names=("gpt",))


def test_a_job_of_another_run_does_not_count_by_its_name(stage: Stage) -> None:
    stage.run("gpt", 7)
    stage.run("gpt-1", 9)
    stage.job(9, run="gpt-1", **running(name="gpt"))
    stage.job(7, JobState.FAILED, name="gpt", end_time=NOW - 5, exit_code=ExitCode(1))
    stage.expect("CRITICAL not-queued", "job 7 ended: FAILED", names=("gpt",))
