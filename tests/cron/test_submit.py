"""A slot's job is queued once, whoever asks and however often; and what became of it is heard."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.cron.submit import submission_of, token_of
from resilience.errors import SchedulerError, SubmissionUncertain
from tests.cron.scene import TOP, CronScene
from tests.fakes import DOWN

B = "cron.hourly+b.slurm"


@pytest.fixture
def scene(tmp_path: Path) -> CronScene:
    scene = CronScene(tmp_path)
    scene.drop("cron.hourly/b.slurm")
    scene.tick(TOP - 30)
    return scene


def test_a_batch_script_in_the_folder_is_submitted_at_its_slot(scene: CronScene) -> None:
    done = scene.tick(TOP)
    (record,) = done.submitted
    assert (record.slot, record.job_id) == (TOP, "101")
    assert scene.queued() == [token_of(scene.cron, B, int(TOP))]
    assert scene.tick(TOP + 60).submitted == ()
    assert len(scene.queued()) == 1


def test_the_token_is_the_same_from_everywhere_and_another_for_each_slot(scene: CronScene) -> None:
    tokens = {token_of(scene.open(), key, slot) for key in (B, "x") for slot in (1, 2)}
    assert len(tokens) == 4 and all(len(token) == 16 for token in tokens)
    assert token_of(scene.open(), B, 1) == token_of(scene.cron, B, 1)


def test_what_the_script_says_counts_more_than_our_names(scene: CronScene) -> None:
    (entry,) = scene.cron.read_table().entries
    ours = submission_of(scene.cron, entry, int(TOP))
    assert ours.options["job-name"] == "b"
    assert ours.options["output"] == str(scene.cron.state.path / "output" / B / "%j.out")
    assert ours.comment == f"resil:.cron:{ours.token}"
    assert ours.environment["RESIL_CRON_SLOT"] == str(int(TOP))
    assert ours.environment["RESIL_CONFIG"] == str(scene.home / "resil.toml")
    scene.drop("cron.hourly/b.slurm", "#!/bin/bash\n#SBATCH -J mine -o %x.log\n")
    assert submission_of(scene.cron, entry, int(TOP)).options == {}


def test_a_refusal_is_recorded_with_the_schedulers_words_and_the_next_slot_tries_again(scene: CronScene) -> None:
    scene.queue.refusal = SchedulerError("sbatch: error: QOSMaxSubmitJobPerUserLimit", hint="cancel some jobs")
    (refused,) = scene.tick(TOP).refused
    assert "QOSMaxSubmitJobPerUserLimit; try: cancel some jobs" in refused.summary
    assert scene.tick(TOP + 60).refused == () and scene.queued() == []
    scene.queue.refusal = None
    scene.tick(TOP + 3600)
    assert scene.outcomes(B) == {TOP: "refused", TOP + 3600: "submitted"}


@pytest.mark.parametrize("trouble", [DOWN, SubmissionUncertain("sbatch did not answer, and neither does squeue")])
def test_a_scheduler_that_does_not_answer_is_asked_again_by_the_next_tick(
    scene: CronScene, trouble: SchedulerError
) -> None:
    scene.queue.trouble = trouble
    done = scene.tick(TOP)
    assert any(trouble.message in line for line in done.lines)
    assert scene.outcomes(B) == {} and len(scene.names("open")) == 1
    scene.queue.trouble = None
    scene.tick(TOP + 60)
    assert scene.outcomes(B) == {TOP: "submitted"} and len(scene.queued()) == 1 and scene.names("open") == []


def test_a_job_that_was_queued_without_an_answer_is_found_by_its_token(scene: CronScene) -> None:
    (entry,) = scene.cron.read_table().entries
    scene.queue.submit(submission_of(scene.cron, entry, int(TOP)))
    (record,) = scene.tick(TOP).submitted
    assert record.job_id == "101" and "found by its token" in record.summary and len(scene.queued()) == 1


def test_an_outage_of_hours_queues_one_job_and_not_one_for_each_hour(scene: CronScene) -> None:
    scene.queue.trouble = DOWN
    for hour in range(3):
        scene.tick(TOP + 3600 * hour)
    scene.queue.trouble = None
    scene.tick(TOP + 3 * 3600)
    assert len(scene.queued()) == 1
    assert scene.outcomes(B) == {
        TOP: "missed", TOP + 3600: "missed", TOP + 7200: "missed", TOP + 10800: "submitted",
    }  # fmt: skip


def test_an_earlier_job_that_is_not_over_has_the_slot_skipped(scene: CronScene) -> None:
    scene.tick(TOP)
    (skipped,) = scene.tick(TOP + 3600).skipped
    assert "101" in skipped.summary
    scene.queue.set(101, "COMPLETED")
    scene.tick(TOP + 7200)
    assert scene.outcomes(B) == {TOP: "done", TOP + 3600: "skipped", TOP + 7200: "submitted"}


def test_a_job_that_may_overlap_or_take_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    for overlap, states in (("allow", {"PENDING"}), ("replace", {"PENDING", "CANCELLED"})):
        folder = tmp_path / overlap
        folder.mkdir()
        scene = CronScene(folder)
        scene.drop("cron.hourly/b.slurm", options=f"overlap={overlap}")
        scene.tick(TOP - 30)
        scene.tick(TOP)
        scene.tick(TOP + 3600)
        assert len(scene.queued()) == 2 and {str(job.state) for job in scene.queue.all()} == states


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
def test_what_became_of_a_job_is_heard_by_a_later_tick(
    scene: CronScene, state: str, code: int, options: str, outcome: str
) -> None:
    scene.drop("cron.hourly/b.slurm", options=options)
    scene.tick(TOP)
    scene.queue.set(101, state, code)
    done = scene.tick(TOP + 60)
    assert scene.outcomes(B) == {TOP: outcome}
    assert [str(record.outcome) for record in done.ended] == ([outcome] if outcome != "submitted" else [])
    assert scene.names("jobs") == ([] if outcome != "submitted" else scene.names("jobs"))


def test_all_jobs_are_asked_about_by_one_query(tmp_path: Path) -> None:
    scene = CronScene(tmp_path)
    for number in range(5):
        scene.drop(f"cron.hourly/b{number}.slurm")
    scene.tick(TOP - 30)
    scene.tick(TOP)
    (tmp_path / "calls").unlink()
    for number in range(5):
        scene.queue.set(101 + number, "COMPLETED")
    assert len(scene.tick(TOP + 60).ended) == 5
    assert (tmp_path / "calls").read_text().split() == ["jobs"]
    scene.tick(TOP + 120)
    assert (tmp_path / "calls").read_text().split() == ["jobs"], "and nobody is asked where nothing is under way"


def test_a_scheduler_that_forgot_a_job_is_not_taken_for_a_failure(scene: CronScene) -> None:
    scene.tick(TOP)
    (scene.folder / "queue" / "101").unlink()
    scene.tick(TOP + 60)
    (record,) = scene.history(B)
    assert str(record.outcome) == "submitted" and "not known" in record.summary and scene.names("jobs") == []


def test_a_script_that_is_gone_by_then_is_no_surprise(scene: CronScene) -> None:
    scene.queue.trouble = DOWN
    scene.tick(TOP)
    scene.queue.trouble = None
    (scene.home / "cron" / "cron.hourly" / "b.slurm").unlink()
    scene.tick(TOP + 60)
    assert scene.outcomes(B) == {TOP: "missed"} and scene.queued() == []


def test_a_scheduler_that_hangs_keeps_nothing_waiting_that_runs_here(scene: CronScene) -> None:
    scene.drop("cron.hourly/a")
    scene.tick(TOP - 20)
    scene.queue.trouble = DOWN
    scene.tick(TOP)
    assert scene.ran() == [TOP]


def test_outputs_of_jobs_are_bounded_in_number(tmp_path: Path) -> None:
    scene = CronScene(tmp_path, settings="keep_runs = 3")
    scene.drop("cron.hourly/b.slurm", options="overlap=allow")
    scene.tick(TOP - 30)
    for hour in range(8):
        scene.tick(TOP + 3600 * hour)
        (scene.cron.state.path / "output" / B / f"{101 + hour}.out").write_text("hello")
        scene.queue.set(101 + hour, "COMPLETED" if hour else "RUNNING")
    scene.tick(TOP + 3600 * 8)
    assert scene.names(f"output/{B}") == ["101.out", "106.out", "107.out", "108.out"], "101 is not over"
    assert scene.history(B)[-2].summary == "job 108 ended: COMPLETED"
