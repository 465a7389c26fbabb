"""The chain is kept by whoever looks: what is submitted, what is cancelled, and what is told instead."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from resilience.cron.drivers._slurm.keeper import Keeper, script_path, token_in
from resilience.cron.records import Installation
from resilience.cron.state_directory import CronDirectory
from resilience.errors import SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId, JobState
from resilience.settings.cron_settings import CronSettings
from resilience.submission import Submission, Submitted
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler

INSTALLED = Installation(
    driver="slurm", token="0123456789abcdef", time=NOW, by=ME, host="n1", project="/p", python="/bin/python",
    mode="daemon",
)  # fmt: skip
NAME = "resil-cron-01234567"


@dataclass
class Queue(FakeScheduler):
    """Names jobs as sbatch does."""

    def submit(self, submission: Submission) -> Submitted:
        try:
            return super().submit(submission)
        finally:
            name = submission.options.get("job-name") or ""
            self.records = [replace(job, name=name) if job.name == ".cron" else job for job in self.records]


@pytest.fixture
def directory(tmp_path: Path) -> CronDirectory:
    directory = CronDirectory(tmp_path / ".resil")
    directory.install(INSTALLED)
    (directory.path / "driver").mkdir()
    (directory.path / "driver" / "job.bash").write_text("#!/bin/bash\n")
    return directory


def keeper(directory: CronDirectory, queue: FakeScheduler, mode: str = "daemon", own: int = 0) -> Keeper:
    return Keeper(directory, replace(INSTALLED, mode=mode), CronSettings(pulse_s=900), queue, FakeClock(), own=own)


def start(queue: FakeScheduler, job_id: int, state: JobState = JobState.RUNNING) -> None:
    queue.records = [replace(job, state=state) if job.id.array == job_id else job for job in queue.records]


def test_an_empty_queue_gets_two_jobs_and_a_second_call_does_nothing(directory: CronDirectory) -> None:
    queue = Queue()
    kept = keeper(directory, queue).keep()
    assert (kept.submitted, kept.waiting, kept.problem) == ((101, 102), 2, "")
    assert keeper(directory, queue).keep().submitted == ()
    assert [job.name for job in queue.records] == [NAME, NAME]


def test_a_job_begins_after_a_number_of_seconds_and_never_at_a_date_that_needs_a_zone(directory: CronDirectory) -> None:
    queue = Queue()
    keeper(directory, queue, "pulse").keep()
    tick_started = [submission.options.get("begin") for submission in queue.submissions]
    assert tick_started == [None, "now+900"]
    assert NOW % 900 == 0


def test_only_sbatch_variables_for_the_destination_apply(directory: CronDirectory) -> None:
    """SBATCH_ARRAY_INX would make two schedulers of one job; SBATCH_WAIT would have `install` wait for its end."""
    queue = Queue()
    keeper(directory, queue).keep()
    environ = {"PATH": "/bin", "SBATCH_ACCOUNT": "lab", "SBATCH_ARRAY_INX": "0-1", "SBATCH_WAIT": "1"}
    assert queue.submissions[0].filtered_environment(environ) == {"PATH": "/bin", "SBATCH_ACCOUNT": "lab"}


def test_no_job_of_the_chain_is_requeued_has_an_output_of_slurms_or_runs_beside_another(
    directory: CronDirectory,
) -> None:
    queue = Queue()
    keeper(directory, queue).keep()
    options = queue.submissions[0].options
    assert options["no-requeue"] is None
    assert (options["dependency"], options["output"], options["time"]) == ("singleton", "/dev/null", "1440")


def test_an_sbatch_whose_answer_was_lost_is_found_again_by_its_token(directory: CronDirectory) -> None:
    queue = Queue(uncertain={1})
    first = keeper(directory, queue).keep()
    assert "did not answer" in first.problem
    second = keeper(directory, queue).keep()
    assert (second.problem, second.waiting) == ("", 2)
    assert len({job.comment for job in queue.records}) == len(queue.records) == 2


def test_a_refused_successor_is_reported_and_queued_the_next_time(directory: CronDirectory) -> None:
    queue = Queue(refusals={2: SchedulerError("sbatch: QOSMaxSubmitJobPerUserLimit", hint="wait for others to end")})
    kept = keeper(directory, queue).keep()
    assert (kept.waiting, kept.submitted, kept.hint) == (1, (101,), "wait for others to end")
    assert "QOSMaxSubmit" in kept.problem
    assert keeper(directory, queue).keep().waiting == 2


@pytest.mark.parametrize(
    "error",
    [
        SchedulerError("sbatch refused: Batch job submission failed: Access/permission denied"),
        SchedulerUnavailable("sbatch is not installed here", transient=False),
    ],
)
def test_where_jobs_may_not_submit_jobs_another_backend_is_offered(
    directory: CronDirectory, error: SchedulerError
) -> None:
    inside = keeper(directory, Queue(refusals={1: error}), own=88).keep()
    assert "jobs apparently cannot submit jobs here" in inside.problem
    assert "--backend foreground" in inside.hint
    outside = keeper(directory, Queue(refusals={1: error})).keep()
    assert outside.problem == error.message


def test_a_queue_that_does_not_answer_is_not_an_empty_one(directory: CronDirectory) -> None:
    queue = Queue(trouble=DOWN)
    kept = keeper(directory, queue).keep()
    assert (kept.waiting, kept.submitted) == (None, ())
    assert "squeue did not answer" in kept.problem
    assert "submit" not in queue.calls


def test_twins_of_a_hung_controller_are_cancelled_down_to_two(directory: CronDirectory) -> None:
    queue = Queue()
    keeper(directory, queue).keep()
    twin = replace(queue.records[0], id=JobId(150), raw_id=150)
    queue.records.append(twin)
    kept = keeper(directory, queue).keep()
    assert kept.cancelled == (150,)
    assert [job.id.array for job in queue.records if job.state.is_waiting] == [101, 102]


def test_a_stopped_or_other_installation_gets_no_successor(directory: CronDirectory) -> None:
    queue = Queue()
    directory.stop("bob", "enough", NOW)
    assert keeper(directory, queue).keep().ended == "the scheduler was stopped"
    directory.unstop()
    directory.uninstall()
    assert keeper(directory, queue).keep().ended == "the scheduler was uninstalled"
    directory.install(replace(INSTALLED, token="fedcba", by="bob", host="n2"))
    assert keeper(directory, queue).keep().ended == "the scheduler was reinstalled by bob on n2"
    assert not queue.submissions


@pytest.mark.parametrize("moment", [1, 2])
def test_a_stop_during_a_submission_wins(directory: CronDirectory, moment: int) -> None:
    numbers = itertools.count(1)

    def stop(_: Submission) -> None:
        if next(numbers) == moment:
            directory.stop("bob", "", NOW)

    queue = Queue(at_submit=stop)
    kept = keeper(directory, queue).keep()
    assert kept.ended == "the scheduler was stopped"
    assert not [job for job in queue.records if job.state.is_alive]


def test_two_concurrent_installs_leave_one_chain(directory: CronDirectory) -> None:
    """Both look before either submits; the next look of anybody cancels what is too much."""
    queue = Queue()
    one, two = keeper(directory, queue), keeper(directory, queue)
    plans = [one.plan(one.queued_jobs()), two.plan(two.queued_jobs())]
    for who, plan in zip((one, two), plans, strict=True):
        for request in plan.submit:
            queue.submit(who.submission(request))
    one.keep()
    two.keep()
    assert [job.id.array for job in queue.records if job.state.is_alive] == [101, 102]


def test_a_running_job_keeps_two_behind_it_and_does_not_count_itself(directory: CronDirectory) -> None:
    queue = Queue()
    keeper(directory, queue).keep()
    start(queue, 101)
    kept = keeper(directory, queue, own=101).keep()
    assert kept.submitted == (103,)
    assert kept.waiting == 2


def test_a_held_successor_is_reported_with_a_hint(directory: CronDirectory) -> None:
    """`singleton` has all that come after it wait for it: when the job that runs ends, so does the chain."""
    queue = Queue()
    keeper(directory, queue).keep()
    queue.records = [replace(job, reason="JobHeldUser") if job.id.array == 101 else job for job in queue.records]
    kept = keeper(directory, queue).keep()
    assert kept.is_stuck
    assert "job 101 is pending and will never start by itself: held by its owner" in kept.problem
    assert "101" in kept.hint


def test_cancelling_takes_what_waits_first_and_leaves_nothing(directory: CronDirectory) -> None:
    queue = Queue()
    keeper(directory, queue).keep()
    start(queue, 101)
    assert keeper(directory, queue).cancel_all(running=False) == (102,)
    assert [job.id.array for job in queue.records if job.state.is_alive] == [101]
    assert keeper(directory, queue).cancel_all(running=True) == (101,)
    assert {job.state for job in queue.records} == {JobState.CANCELLED, JobState.COMPLETING}


def test_jobs_that_will_not_go_away_are_an_error_and_no_endless_wait(directory: CronDirectory) -> None:
    queue = Queue(ignores_cancel=True)
    keeper(directory, queue).keep()
    with pytest.raises(SchedulerUnavailable, match="were not cancelled in time"):
        keeper(directory, queue).cancel_all(running=True)


@pytest.mark.parametrize(
    "comment", ["resil:.cron:abc-d0.1", "resil:sbatch:77f0 resil:.cron:abc-d0.1", "resil:.cron:abc-d0.1 project x"]
)
def test_the_token_is_found_among_the_words_of_others(comment: str) -> None:
    job = Job(id=JobId(1), raw_id=1, name="x", state=JobState.PENDING, comment=comment)
    assert str(token_in(job)) == "abc-d0.1"


def test_jobs_of_trainings_are_none_of_the_chain() -> None:
    job = Job(id=JobId(1), raw_id=1, name="x", state=JobState.PENDING, comment="resil:gpt:abc-d0.1")
    assert token_in(job) is None


def test_without_the_state_directory_slurms_own_copy_of_the_script_is_submitted(tmp_path: Path) -> None:
    copy = tmp_path / "slurm_script"
    copy.write_text("#!/bin/bash\n")
    gone = CronDirectory(tmp_path / "unmounted")
    assert script_path(gone, str(copy)) == str(copy)
    assert script_path(gone, "") == str(gone.path / "driver/job.bash")
