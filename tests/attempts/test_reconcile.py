"""What the scheduler says of an ended attempt is kept while it remembers; unknown stays unknown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.ledger import LedgerRow, read_ledger
from resilience.attempts.reconcile import LATE_S, reconcile
from resilience.attempts.why import why_of_run
from resilience.errors import NotSupported, SchedulerUnavailable
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from tests.lab.fakes import DOWN, ME, FakeClock, FakeScheduler, make_project

END = 1060.0


class Accounted(FakeScheduler):
    """A scheduler with accounting."""

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        self._called("history")
        return tuple(self.accounting)


@pytest.fixture
def scheduler() -> FakeScheduler:
    return Accounted()


def at(directory: Path, scheduler: FakeScheduler, now: float) -> Project:
    return make_project(directory, scheduler, clock=FakeClock(now))


@pytest.fixture
def project(tmp_path: Path, scheduler: FakeScheduler) -> Project:
    return at(tmp_path, scheduler, END + 60)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "gpt")
    for name in ("attempts", "journal", "logs"):
        (directory.path / name).mkdir(parents=True)
    path = directory.path / "attempts" / "0001"
    path.write_text('job_id = 41\nlabel = "41"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1000\n')
    path.with_suffix(".end").write_text(f'end = "terminated"\nexit_code = 143\ntime = {END}\n')
    return directory


def record(state: JobState = JobState.TIMEOUT, *, start: float | None = 990.0, raw_id: int = 41) -> Job:
    return Job(
        id=JobId(raw_id), raw_id=raw_id, name="gpt", state=state, user=ME, start_time=start, end_time=1061.0,
        nodes="n[1-2]", exit_code=ExitCode(0, 15),
    )  # fmt: skip


def only(run: RunDirectory) -> LedgerRow:
    (row,) = read_ledger(run)
    return row


def why(run: RunDirectory) -> FailureClass:
    failure = only(run).failure
    assert failure is not None
    return failure.failure


def test_the_state_of_the_accounting_decides(project: Project, scheduler: FakeScheduler, run: RunDirectory) -> None:
    assert why(run) is FailureClass.KILLED
    scheduler.accounting = [record()]
    assert reconcile(project, run) == 1
    row = only(run)
    assert row.failure is not None
    assert (row.failure.failure, row.failure.confidence) == (FailureClass.WALLTIME, Confidence.CERTAIN)
    assert (row.state, row.nodes) == (JobState.TIMEOUT, "n[1-2]")
    scheduler.calls.clear()
    assert reconcile(project, run) == 0
    assert scheduler.calls == [], "asked once"


def test_a_cancel_names_who_did_it(project: Project, scheduler: FakeScheduler, run: RunDirectory) -> None:
    scheduler.accounting = [replace(record(JobState.CANCELLED), cancelled_by="bob")]
    reconcile(project, run)
    failure = only(run).failure
    assert failure is not None and failure.reason == "the scheduler ended it: CANCELLED by bob"


def test_a_lost_attempt_has_its_end_of_the_scheduler(
    project: Project, scheduler: FakeScheduler, run: RunDirectory
) -> None:
    (run.path / "attempts" / "0001.end").unlink()
    later = run.path / "attempts" / "0002"
    later.write_text('job_id = 42\nlabel = "42"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 2000\n')
    scheduler.accounting = [record(JobState.NODE_FAIL)]
    reconcile(project, run)
    row = read_ledger(run)[0]
    assert row.failure is not None
    assert (row.failure.failure, row.end_time, row.seconds) == (FailureClass.NODE_FAILURE, 1061.0, 61.0)


def test_only_the_last_attempt_of_a_job_with_spares_ended_as_its_job(
    project: Project, scheduler: FakeScheduler, run: RunDirectory
) -> None:
    (run.path / "attempts" / "0001.end").write_text(f'end = "lost"\nexit_code = 1\ntime = {END}\n')
    later = run.path / "attempts" / "0002"
    later.write_text('job_id = 41\nlabel = "41"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1061\n')
    later.with_suffix(".end").write_text(f'end = "terminated"\nexit_code = 143\ntime = {END + 9}\n')
    scheduler.accounting = [record()]
    assert reconcile(project, run) == 1
    first, second = read_ledger(run)
    assert first.failure is not None and first.failure.failure is not FailureClass.WALLTIME
    assert (first.state, second.state) == (None, JobState.TIMEOUT)


def test_without_accounting_the_queue_remembers(project: Project, scheduler: FakeScheduler, run: RunDirectory) -> None:
    scheduler.troubles["history"] = NotSupported("no accounting")
    scheduler.records = [record()]
    reconcile(project, run)
    assert why(run) is FailureClass.WALLTIME


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(record(start=50_000.0), id="the id was used again"),
        pytest.param(record(start=10.0), id="an earlier run of a requeued job"),
        pytest.param(record(start=1011.0), id="its next run"),
        pytest.param(record(JobState.RUNNING), id="not ended yet"),
        pytest.param(record(raw_id=40), id="another job"),
    ],
)
def test_a_record_of_another_run_of_the_job_does_not_count(
    project: Project, scheduler: FakeScheduler, run: RunDirectory, job: Job
) -> None:
    scheduler.accounting = [job]
    assert reconcile(project, run) == 0
    assert why(run) is FailureClass.KILLED


def test_a_scheduler_that_does_not_answer_is_asked_again(
    project: Project, scheduler: FakeScheduler, run: RunDirectory
) -> None:
    scheduler.trouble = SchedulerUnavailable("squeue did not answer")
    with pytest.raises(SchedulerUnavailable):
        reconcile(project, run)
    scheduler.trouble = None
    scheduler.accounting = [record()]
    assert reconcile(project, run) == 1


def test_an_end_that_nobody_remembers_stays_unknown(
    tmp_path: Path, scheduler: FakeScheduler, run: RunDirectory
) -> None:
    late = at(tmp_path, scheduler, END + LATE_S + 1)
    assert reconcile(late, run) == 0
    scheduler.calls.clear()
    reconcile(late, run)
    assert scheduler.calls == []
    assert only(run).state is None


def test_the_scheduler_of_the_run_is_asked_whatever_the_project_now_uses(tmp_path: Path, run: RunDirectory) -> None:
    own, other = Accounted(), FakeScheduler()
    own.accounting, other.trouble = [record()], DOWN
    project = make_project(tmp_path, other, clock=FakeClock(END + 60))
    project = Project(project.system, project.loaded, {"fake": other, "own": own})
    record_intent(run, Intent("token", "own", "train.sh", ("sbatch",), 900.0, by=ME))
    record_result(run, "token", Outcome.SUBMITTED, 900.0, job_id=JobId(41))
    assert reconcile(project, run) == 1
    assert not [note for note in why_of_run(project, run).notes if "scheduler" in note], (
        "nor does resil why ask another"
    )


def test_an_attempt_without_a_job_is_not_looked_up(
    project: Project, scheduler: FakeScheduler, run: RunDirectory
) -> None:
    """As `resil run` writes it outside of a job."""
    attempt = run.path / "attempts" / "0001"
    attempt.write_text('label = "0_1"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1000\n')
    attempt.with_suffix(".end").write_text(f'end = "exited"\nexit_code = 3\ntime = {END}\n')
    assert reconcile(project, run) == 0
    assert why_of_run(project, run).failure.reason == "it ended with exit code 3, without a known cause"
