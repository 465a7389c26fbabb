"""Runs queued with a user's own script: no attempts, so the log and the queue tell where they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resilience.finding import Verdict
from resilience.job import ExitCode, JobId, JobState
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.submission import make_comment
from tests.lab.fakes import DOWN, ME, FakeClock, FakeScheduler, a_job
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher, write
from tests.watch.checks.outcome import outcome


@dataclass
class Own:
    """A run whose script is the user's, its queue, and the watchdog."""

    watchdog: LogWatcher
    queue: FakeScheduler
    directory: RunDirectory
    place: Path
    clock: FakeClock

    def submit(self, number: int, output: str = "slurm-%j.out") -> None:
        submit_to(self, number, f"{self.place}/{output}" if output else "")

    def job(self, number: int, state: JobState = JobState.RUNNING, **fields: Any) -> None:
        given = {"comment": make_comment("gpt", f"t{number}"), "start_time": self.clock.now(), **fields}
        self.queue.records = [job for job in self.queue.records if job.raw_id != fields.get("raw_id", number)]
        self.queue.records.append(a_job(number, state, **given))

    def log(self, name: str, text: str) -> None:
        write(self.place / name, text, at=self.clock.now(), append=True)

    def expect(self, expected: str, *words: str, wait_s: float = 0.0) -> None:
        self.clock.sleep(wait_s)
        finding = self.watchdog.finding()
        assert outcome(finding) == expected and all(word in finding.summary for word in words), finding


@pytest.fixture
def own(tmp_path: Path) -> Own:
    clock, queue = FakeClock(), FakeScheduler()
    watchdog = LogWatcher(tmp_path, clock=clock)
    watchdog.context = watchdog.context._replace(scheduler=lambda name="", **_: queue)
    directory = RunDirectory(tmp_path / "runs" / "gpt")
    directory.create("")
    return Own(watchdog, queue, directory, tmp_path, clock)


def test_the_log_is_watched_from_the_start_to_the_hang_and_the_end(own: Own) -> None:
    own.submit(7)
    own.job(7, JobState.PENDING, start_time=None)
    own.expect("OK", "no job of it has started")
    own.job(7)
    for step in range(30):
        own.log("slurm-7.out", f"step {step} loss 1\n")
        own.expect("OK", wait_s=20)
    own.expect("OK", "step 29")
    own.expect("CRITICAL no-progress", "no new step", wait_s=HOUR)
    own.job(7, JobState.COMPLETED, end_time=own.clock.now(), exit_code=ExitCode(0))
    own.expect("OK", "job 7 is over: COMPLETED", wait_s=20)


def test_output_that_goes_to_dev_null_is_no_fault(own: Own) -> None:
    submit_to(own, 7, "/dev/null")
    own.job(7)
    for _ in range(12):
        own.expect("OK", "goes to /dev/null", "sbatch -o", wait_s=10 * MINUTE)
    own.job(7, JobState.COMPLETED, end_time=own.clock.now(), exit_code=ExitCode(0))
    own.expect("OK", "job 7 is over: COMPLETED", wait_s=20)
    submit_to(own, 8, "")
    own.job(8, stdout="/dev/null")
    own.expect("OK", "goes to /dev/null", wait_s=HOUR)


def submit_to(own: Own, number: int, output: str) -> None:
    token, now = f"t{number}", own.clock.now()
    record_intent(own.directory, Intent(token, "fake", "/home/me/my.sh", (), now, by=ME, output=output))
    record_result(own.directory, token, Outcome.SUBMITTED, now, job_id=JobId(number))


def test_the_next_job_is_not_judged_by_what_the_one_before_left(own: Own) -> None:
    own.submit(7, "train.log")
    own.job(7)
    own.log("train.log", "step 1 loss\nstep 2 loss\n")
    own.expect("OK")
    own.job(7, JobState.COMPLETED, end_time=own.clock.now(), exit_code=ExitCode(0))
    own.expect("OK", "is over", wait_s=5 * HOUR)
    own.submit(8, "train.log")
    own.job(8)
    own.log("train.log", "loading\n")
    own.expect("OK", wait_s=20)


def test_an_array_is_watched_task_by_task(own: Own) -> None:
    own.submit(7, "slurm-%A_%a.out")
    own.job(7, JobState.COMPLETED, task=1, raw_id=8, end_time=own.clock.now(), exit_code=ExitCode(0))
    own.job(7, task=2, raw_id=9, start_time=own.clock.now() + 1)
    own.log("slurm-7_1.out", "step 100 loss\n")
    own.log("slurm-7_2.out", "step 101 loss\n")
    own.expect("OK", "step 101")


def test_a_task_that_hangs_beside_others_that_go_on_is_found(own: Own) -> None:
    own.submit(7, "slurm-%A_%a.out")
    for task in (1, 2):
        own.job(7, task=task, raw_id=7 + task)
    for step in range(30):
        for task in (1, 2):
            own.log(f"slurm-7_{task}.out", f"step {step} loss\n")
        own.clock.sleep(MINUTE)
        assert {finding.verdict for finding in own.watchdog.findings()} == {Verdict.OK}
    for step in range(30, 100):
        own.log("slurm-7_2.out", f"step {step} loss\n")
        own.clock.sleep(MINUTE)
        found = {finding.subject: outcome(finding) for finding in own.watchdog.findings()}
    assert found == {"gpt": "OK", "gpt 7_1": "CRITICAL no-progress"}
    own.job(7, JobState.COMPLETED, task=1, raw_id=8, end_time=own.clock.now(), exit_code=ExitCode(0))
    own.clock.sleep(MINUTE)
    found = {finding.subject: outcome(finding) for finding in own.watchdog.findings()}
    assert found == {"gpt": "OK", "gpt 7_1": "OK"}


def test_what_one_task_learned_is_known_to_the_others(own: Own) -> None:
    own.submit(7, "slurm-%A_%a.out")
    for task in (1, 2):
        own.job(7, task=task, raw_id=7 + task)
    found = set()
    for minute in range(100):
        own.clock.sleep(MINUTE)
        for task in (1, 2):
            if not (task == 1 and 10 <= minute < 35) and not (task == 2 and 50 <= minute < 95):
                own.log(f"slurm-7_{task}.out", f"step {minute} loss\n")
        found |= {outcome(finding) for finding in own.watchdog.findings()}
    assert found == {"OK"}, "task 2 pauses for 45 minutes, and task 1 did so for 25"


def test_a_log_with_the_words_of_the_batch_shell_alone_is_no_proof_of_a_hang(own: Own) -> None:
    own.submit(7)
    own.job(7)
    own.log("slurm-7.out", "loading modules\nlogging to /scratch/train.log\n")
    own.expect("OK", wait_s=MINUTE)
    own.expect("WARNING no-progress", "never named a step", "writes to another file", wait_s=HOUR)
    own.expect("WARNING no-progress", wait_s=9 * HOUR)
    assert "resil watch log PATH" in own.watchdog.finding().advice


def test_a_job_without_any_log_is_unknown_after_startup_s(own: Own) -> None:
    own.submit(7)
    own.job(7)
    own.expect("OK", "no log and no heartbeat yet")
    own.expect("UNKNOWN missing", "no log and no heartbeat of job 7", "goes to", "slurm-%j.out", wait_s=HOUR)


def test_a_log_that_only_the_scheduler_knows_is_found(own: Own) -> None:
    own.submit(7, output="")
    own.job(7, stdout=str(own.place / "elsewhere.txt"))
    own.log("elsewhere.txt", "step 5 loss\n")
    own.expect("OK", "step 5")


def test_without_an_answer_of_the_scheduler_a_silent_log_is_unknown_not_hung(own: Own) -> None:
    own.submit(7)
    own.job(7)
    own.log("slurm-7.out", "step 5 loss\n")
    own.expect("OK", "step 5")
    own.queue.trouble = DOWN
    own.log("slurm-7.out", "step 6 loss\n")
    own.expect("OK", "step 6", wait_s=MINUTE)
    own.expect("UNKNOWN no-progress", "whether its job still runs is unknown", wait_s=HOUR)
    own.queue.trouble = None
    own.expect("CRITICAL no-progress", wait_s=MINUTE)


def test_without_an_answer_and_without_a_log_nothing_is_known(own: Own) -> None:
    own.submit(7)
    own.queue.trouble = DOWN
    own.expect("UNKNOWN missing", "whether its job still runs is unknown")


def test_a_requeued_job_has_not_begun(own: Own) -> None:
    own.submit(7)
    own.job(7)
    own.log("slurm-7.out", "step 5 loss\n")
    own.expect("OK")
    own.job(7, JobState.PENDING, start_time=own.clock.now() + 120, restarts=1, reason="BeginTime")
    own.expect("OK", "no job of it has started", wait_s=2 * HOUR)


def test_a_run_that_the_scheduler_has_forgotten_does_not_hang(own: Own) -> None:
    own.submit(7)
    own.log("slurm-7.out", "step 5 loss\n")
    own.expect("OK", "the queue shows no job of it", wait_s=5 * HOUR)
