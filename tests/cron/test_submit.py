"""A slot's job is queued once, whoever asks and however often; and what became of it is heard."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.cron.book import SKEW_S, machine
from resilience.cron.records import Outcome
from resilience.cron.run import tick
from resilience.cron.submit import submission_of, token_of
from resilience.errors import SchedulerError, SubmissionUncertain
from resilience.submission import Submission
from tests.cron.context import TOP, CronContext, wait_until
from tests.cron.records import DEAD, FAR, put_run
from tests.lab.fakes import DOWN

A, B = "cron.hourly+a", "cron.hourly+b.slurm"


@pytest.fixture
def context(tmp_path: Path) -> CronContext:
    context = CronContext(tmp_path)
    context.drop("cron.hourly/b.slurm")
    context.tick(TOP - 30)
    return context


def test_a_batch_script_in_the_directory_is_submitted_at_its_slot(context: CronContext) -> None:
    done = context.tick(TOP)
    (record,) = done.submitted
    assert (record.slot, record.job_id) == (TOP, "101")
    assert context.queued() == [token_of(context.cron, B, int(TOP))]
    assert context.tick(TOP + 60).submitted == ()
    assert len(context.queued()) == 1


def test_the_token_is_the_same_from_everywhere_and_another_for_each_slot(context: CronContext) -> None:
    tokens = {token_of(context.open(), key, slot) for key in (B, "x") for slot in (1, 2)}
    assert len(tokens) == 4 and all(len(token) == 16 for token in tokens)
    assert token_of(context.open(), B, 1) == token_of(context.cron, B, 1)


def test_options_in_the_script_override_our_names(context: CronContext) -> None:
    (entry,) = context.cron.read_table().entries
    ours = submission_of(context.cron, entry, int(TOP))
    assert ours.options["job-name"] == "b"
    assert ours.options["output"] == str(context.cron.state.path / "output" / B / "%j.out")
    assert ours.comment == f"resil:.cron:{ours.token}"
    assert ours.environment["RESIL_CRON_SLOT"] == str(int(TOP))
    assert ours.environment["RESIL_CONFIG"] == str(context.home / "resil.toml")
    context.drop("cron.hourly/b.slurm", "#!/bin/bash\n#SBATCH -J mine -o %x.log\n")
    assert submission_of(context.cron, entry, int(TOP)).options == {}


def test_a_refusal_is_recorded_with_the_schedulers_words_and_the_next_slot_tries_again(context: CronContext) -> None:
    context.queue.refusal = SchedulerError("sbatch: error: QOSMaxSubmitJobPerUserLimit", hint="cancel some jobs")
    (refused,) = context.tick(TOP).refused
    assert "QOSMaxSubmitJobPerUserLimit; try: cancel some jobs" in refused.summary
    assert context.tick(TOP + 60).refused == () and context.queued() == []
    context.queue.refusal = None
    context.tick(TOP + 3600)
    assert context.outcomes(B) == {TOP: "refused", TOP + 3600: "submitted"}


@pytest.mark.parametrize("trouble", [DOWN, SubmissionUncertain("sbatch did not answer, and neither does squeue")])
def test_a_scheduler_that_does_not_answer_is_asked_again_by_the_next_tick(
    context: CronContext, trouble: SchedulerError
) -> None:
    context.queue.trouble = trouble
    done = context.tick(TOP)
    assert any(trouble.message in line for line in done.lines)
    assert context.outcomes(B) == {} and len(context.names("runs")) == 1
    context.queue.trouble = None
    context.tick(TOP + 60)
    assert context.outcomes(B) == {TOP: "submitted"} and len(context.queued()) == 1
    assert ["queued" in name for name in context.names("runs")] == [True]


def test_a_job_that_was_queued_without_an_answer_is_found_by_its_token(context: CronContext) -> None:
    (entry,) = context.cron.read_table().entries
    context.queue.submit(submission_of(context.cron, entry, int(TOP)))
    (record,) = context.tick(TOP).submitted
    assert record.job_id == "101" and "found by its token" in record.summary and len(context.queued()) == 1


def test_an_outage_of_hours_queues_one_job_and_not_one_for_each_hour(context: CronContext) -> None:
    context.queue.trouble = DOWN
    for hour in range(3):
        context.tick(TOP + 3600 * hour)
    context.queue.trouble = None
    context.tick(TOP + 3 * 3600)
    assert len(context.queued()) == 1
    assert context.outcomes(B) == {
        TOP: "missed", TOP + 3600: "missed", TOP + 7200: "missed", TOP + 10800: "submitted",
    }  # fmt: skip


def test_an_earlier_job_that_is_not_over_has_the_slot_skipped(context: CronContext) -> None:
    context.tick(TOP)
    (skipped,) = context.tick(TOP + 3600).skipped
    assert "101" in skipped.summary
    context.queue.set(101, "COMPLETED")
    context.tick(TOP + 7200)
    assert context.outcomes(B) == {TOP: "done", TOP + 3600: "skipped", TOP + 7200: "submitted"}


def test_a_job_that_may_overlap_or_take_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    for overlap, states in (("allow", {"PENDING"}), ("replace", {"PENDING", "CANCELLED"})):
        directory = tmp_path / overlap
        directory.mkdir()
        context = CronContext(directory)
        context.drop("cron.hourly/b.slurm", options=f"overlap={overlap}")
        context.tick(TOP - 30)
        context.tick(TOP)
        context.tick(TOP + 3600)
        assert len(context.queued()) == 2 and {str(job.state) for job in context.queue.all()} == states


@pytest.mark.parametrize(
    ("state", "code", "options", "outcome"),
    [
        ("COMPLETED", 0, "", "done"),
        ("FAILED", 3, "", "failed"),
        ("FAILED", 3, "ok=0-3", "done"),
        ("TIMEOUT", 0, "", "timeout"),
        ("NODE_FAIL", 0, "", "failed"),
        ("CANCELLED", 0, "", "failed"),
        ("REQUEUED", 0, "", "submitted"),
    ],
)
def test_the_result_of_a_job_reaches_a_later_tick(
    context: CronContext, state: str, code: int, options: str, outcome: str
) -> None:
    context.drop("cron.hourly/b.slurm", options=options)
    context.tick(TOP)
    context.queue.set(101, state, code)
    done = context.tick(TOP + 60)
    assert context.outcomes(B) == {TOP: outcome}
    assert [str(record.outcome) for record in done.ended] == ([outcome] if outcome != "submitted" else [])
    assert len(context.names("runs")) == (outcome == "submitted")


def test_all_jobs_are_asked_about_by_one_query(tmp_path: Path) -> None:
    context = CronContext(tmp_path)
    for number in range(5):
        context.drop(f"cron.hourly/b{number}.slurm")
    context.tick(TOP - 30)
    context.tick(TOP)
    (tmp_path / "calls").unlink()
    for number in range(5):
        context.queue.set(101 + number, "COMPLETED")
    assert len(context.tick(TOP + 60).ended) == 5
    assert (tmp_path / "calls").read_text().split() == ["jobs"]
    context.tick(TOP + 120)
    assert (tmp_path / "calls").read_text().split() == ["jobs"], "and nobody is asked where nothing is under way"


def test_a_scheduler_that_forgot_a_job_is_not_taken_for_a_failure(context: CronContext) -> None:
    context.tick(TOP)
    (context.directory / "queue" / "101").unlink()
    context.tick(TOP + 60)
    (record,) = context.history(B)
    assert str(record.outcome) == "submitted" and "no longer knows" in record.summary and context.names("runs") == []


def test_a_script_that_is_gone_by_then_is_no_surprise(context: CronContext) -> None:
    context.queue.trouble = DOWN
    context.tick(TOP)
    context.queue.trouble = None
    (context.home / "cron" / "cron.hourly" / "b.slurm").unlink()
    context.tick(TOP + 60)
    assert context.outcomes(B) == {TOP: "missed"} and context.queued() == []


def test_a_scheduler_that_hangs_keeps_nothing_waiting_that_runs_here(context: CronContext) -> None:
    context.drop("cron.hourly/a")
    context.tick(TOP - 20)
    context.queue.trouble = DOWN
    context.tick(TOP)
    assert context.ran() == [TOP]


@pytest.mark.parametrize("end", ["COMPLETED", "NODE_FAIL", "forgotten", "PENDING", "begun again"])
def test_a_run_on_another_node_is_cut_short_as_soon_as_its_scheduler_s_job_has_ended(
    context: CronContext, end: str
) -> None:
    """Its node died, for instance. PENDING: all jobs of a scrontab have one id."""
    context.drop("cron.hourly/a", options="timeout=50m")
    context.queue.submit(Submission(token="x", run=".cron", script="scheduler"))
    context.queue.set(101, "RUNNING")
    put_run(context.cron.state, A, int(TOP), machine_id=FAR, host="n2", at=TOP, job="101")
    context.tick(TOP + 1800)
    context.tick(TOP + 3599)
    assert context.outcomes(A) == {}, "the job runs, so the run may"
    if end == "forgotten":
        (context.directory / "queue" / "101").unlink()
    elif end == "begun again":
        context.queue.began = TOP + 3000
    else:
        context.queue.set(101, end)
    (cut,) = context.tick(TOP + 3599).ended
    assert (cut.slot, cut.outcome, cut.summary) == (TOP, Outcome.CUT_SHORT, "its scheduler ended: job 101")
    context.tick(TOP + 3600)
    assert context.outcomes(A) == {TOP: "cut short", TOP + 3600: "done"} and context.ran() == [TOP + 3600]


@pytest.mark.parametrize(("driver", "job"), [("slurm", "77"), ("scrontab", "77"), ("foreground", "")])
def test_a_record_names_the_job_of_its_scheduler_where_that_is_one(tmp_path: Path, driver: str, job: str) -> None:
    """A loop in the foreground may outlive the job around it: salloc(1) runs a shell on the login node."""
    context = CronContext(tmp_path)
    context.cron = context.open({"SLURM_JOB_ID": "77"})
    context.drop("cron.hourly/a", body="until [ -e go ]; do sleep 0.01; done")
    tick(context.cron, driver=driver)
    context.clock.time = TOP
    tick(context.cron, driver=driver, wait=False)
    (run,) = context.cron.state.book.active()
    assert context.cron.state.book.about(run)["job"] == job
    (context.home / "go").touch()
    wait_until(lambda: not context.cron.state.book.active())


def test_a_queue_that_does_not_answer_ends_no_run_on_another_node(context: CronContext) -> None:
    context.drop("cron.hourly/a", options="timeout=50m")
    put_run(context.cron.state, A, int(TOP), machine_id=FAR, host="n2", at=TOP, job="101")
    context.queue.is_deaf = True
    context.tick(TOP + 1800)
    assert context.outcomes(A) == {}
    context.tick(TOP + 3600 + SKEW_S + 1)
    assert context.outcomes(A)[int(TOP)] == "cut short"


def test_outputs_of_jobs_are_bounded_in_number(tmp_path: Path) -> None:
    context = CronContext(tmp_path, settings="keep_runs = 3")
    context.drop("cron.hourly/b.slurm", options="overlap=allow")
    context.tick(TOP - 30)
    for hour in range(8):
        context.tick(TOP + 3600 * hour)
        (context.cron.state.path / "output" / B / f"{101 + hour}.out").write_text("hello")
        context.queue.set(101 + hour, "COMPLETED" if hour else "RUNNING")
    context.tick(TOP + 3600 * 8)
    assert context.names(f"output/{B}") == ["101.out", "106.out", "107.out", "108.out"], "101 is not over"
    assert context.history(B)[-2].summary == "job 108 ended: COMPLETED"


def test_jobs_and_claims_of_an_earlier_release_are_followed_and_submitted_once(context: CronContext) -> None:
    state, token = context.cron.state.path, token_of(context.cron, B, int(TOP) - 7200)
    context.queue.submit(Submission(token=token, run=".cron", script="b.slurm"))
    for name in ("open", "jobs", "slots"):
        (state / name).mkdir(exist_ok=True)
    (state / "jobs" / f"{B}@{int(TOP) - 7200}@101@fake").touch()
    claim = state / "open" / f"{B}@{int(TOP) - 3600}@0123456789ab@{machine()}-{DEAD}-5-{int(TOP) - 3600}"
    claim.write_text('{"id": "0123456789ab"}')
    os.link(claim, state / "slots" / f"{B}@{int(TOP) - 3600}")
    context.queue.set(101, "COMPLETED")
    context.tick(TOP - 20)
    assert context.outcomes(B) == {TOP - 7200: "done", TOP - 3600: "submitted"} and len(context.queued()) == 2
    assert not (state / "open").exists() and not (state / "jobs").exists()
