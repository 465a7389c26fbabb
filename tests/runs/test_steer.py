"""Switches are files with who, when and why; a cancel looks afterwards; and nobody ends what is another's."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import (
    NoSuchJob,
    SchedulerError,
    SchedulerUnavailable,
    StateDirectoryError,
    SubmissionUncertain,
    UsageError,
)
from resilience.job import JobId, JobState
from resilience.runs import queue_cache, run_jobs, switches
from resilience.runs.project import Project
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.submission import make_comment
from resilience.switch import Scope
from resilience.system.ports import iso_time
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, a_job, make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

OURS = make_comment("gpt", "aa")


@pytest.fixture
def fake() -> FakeScheduler:
    return FakeScheduler(
        records=[
            a_job(7, JobState.RUNNING, task=1, comment=OURS),
            a_job(7, JobState.PENDING, tasks="2-9", task_count=8, comment=OURS),
            a_job(8, JobState.PENDING, comment=OURS),
            a_job(9, JobState.RUNNING, comment=make_comment("gpt", "another-project")),
            a_job(10, JobState.RUNNING, comment=make_comment("gpt", "a-colleagues"), user="bob"),
        ]
    )


@pytest.fixture
def project(tmp_path: Path, fake: FakeScheduler) -> Project:
    made = make_project(tmp_path, fake)
    directory = made.directory("gpt")
    directory.create('[run]\nname = "gpt"\n')
    record_intent(directory, Intent("aa", "fake", "", (), NOW, by="alice"))
    record_result(directory, "aa", Outcome.SUBMITTED, NOW, job_id=JobId(7))
    return made


def states(fake: FakeScheduler) -> list[str]:
    return [job.state.value for job in fake.records]


# ---- switches -----------------------------------------------------------------------------------------------------


def test_a_kill_switch_says_who_when_why_and_how_far(project: Project) -> None:
    directory = project.directory("gpt")
    switch = switches.set_switch(project, directory, "kill", why='loss is "NaN"\nsince noon', scope=Scope.ALL)
    assert switch.path == directory.path / "switches" / "kill" and switch.warning == ""
    assert tomllib.loads(switch.path.read_text()) == {
        "who": ME, "when": iso_time(NOW), "why": 'loss is "NaN"\nsince noon', "scope": "all"
    }  # fmt: skip


def test_a_save_switch_carries_its_label(project: Project) -> None:
    switch = switches.set_switch(
        project, project.directory("gpt"), "save", why="", scope=Scope.JOB, label="before-lr-drop"
    )
    assert tomllib.loads(switch.path.read_text())["label"] == "before-lr-drop"


@pytest.mark.parametrize("label", ["a/b", "../x", "a b", ".hidden", "a\nb", "x" * 101, "é"])
def test_a_label_that_the_training_would_pass_over_is_refused(project: Project, label: str) -> None:
    with pytest.raises(UsageError, match="cannot be a checkpoint's label"):
        switches.set_switch(project, project.directory("gpt"), "save", why="", scope=Scope.JOB, label=label)
    assert not list((project.directory("gpt").path / "switches").iterdir())


@needs_root
def test_a_switch_that_the_run_will_not_accept_is_set_with_a_warning(project: Project, tmp_path: Path) -> None:
    directory = project.directory("gpt")
    open_the_way(directory.path / "x")
    for path in (directory.path, directory.path / "switches"):
        path.chmod(0o777)
    (directory.path / layout.RUN_FILE).chmod(0o644)
    for path in (project.loaded.state_dir, project.loaded.project):
        path.chmod(0o755)
    with acting_as(NOBODY):
        switch = switches.set_switch(project, directory, "kill", why="", scope=Scope.JOB)
    assert "the run will not accept it: it belongs to nobody" in switch.warning


@needs_root
def test_a_switch_of_a_person_who_may_not_write_there_is_an_error(project: Project) -> None:
    open_the_way(project.directory("gpt").path / "x")
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied"):
        switches.set_switch(project, project.directory("gpt"), "kill", why="", scope=Scope.JOB)


def test_clear_takes_back_what_people_set_and_leaves_the_signal_of_a_job_whose_time_is_over(
    project: Project,
) -> None:
    directory = project.directory("gpt")
    for name in ("kill", "save", "stop.7"):
        (directory.path / "switches" / name).touch()
    (directory.path / layout.FINISHED).touch()
    assert switches.clear(project, directory) == ("kill", "save")
    assert [path.name for path in (directory.path / "switches").iterdir()] == ["stop.7"]
    assert directory.is_finished()
    assert switches.clear(project, directory, finished=True) == ("finished",)
    assert switches.clear(project, directory, finished=True) == ()


def test_what_cannot_be_cleared_is_an_error(project: Project) -> None:
    directory = project.directory("gpt")
    (directory.path / layout.FINISHED).mkdir()
    with pytest.raises(StateDirectoryError, match="cannot remove"):
        switches.clear(project, directory, finished=True)


# ---- cancel -------------------------------------------------------------------------------------------------------


def test_cancel_ends_the_jobs_of_this_run_and_of_no_other_of_that_name(project: Project, fake: FakeScheduler) -> None:
    done = run_jobs.cancel(project, project.directory("gpt"))
    assert (done.ids, done.still_ending) == ((JobId(7), JobId(8)), (JobId(7),))
    assert states(fake) == ["COMPLETING", "CANCELLED", "CANCELLED", "RUNNING", "RUNNING"]
    assert fake.calls == ["jobs", "cancel", "jobs"], "one question, one order, one look afterwards"


def test_only_what_waits_can_be_cancelled(project: Project, fake: FakeScheduler) -> None:
    done = run_jobs.cancel(project, project.directory("gpt"), pending_only=True)
    assert (done.ids, done.still_ending) == ((JobId(7), JobId(8)), ())
    assert states(fake)[:3] == ["RUNNING", "CANCELLED", "CANCELLED"]


def test_a_run_without_jobs_has_nothing_to_cancel(project: Project, fake: FakeScheduler) -> None:
    del fake.records[:3]
    with pytest.raises(NoSuchJob, match="run gpt has no job in the queue"):
        run_jobs.cancel(project, project.directory("gpt"))
    assert "cancel" not in fake.calls


def test_a_cancel_that_changed_nothing_is_no_success(project: Project, fake: FakeScheduler) -> None:
    fake.ignores_cancel = True
    with pytest.raises(SchedulerError, match="still in the queue") as caught:
        run_jobs.cancel(project, project.directory("gpt"))
    assert "resil kill gpt" in caught.value.hint


def test_jobs_of_a_colleague_in_a_common_run_are_named_with_what_one_can_do(
    project: Project, fake: FakeScheduler
) -> None:
    fake.records.append(a_job(11, JobState.PENDING, comment=OURS, user="bob"))
    with pytest.raises(SchedulerError, match="denied") as caught:
        run_jobs.cancel(project, project.directory("gpt"))
    assert "belong to bob" in caught.value.hint and "resil kill gpt" in caught.value.hint
    assert states(fake)[-1] == "PENDING"


def test_a_silent_scheduler_cancels_nothing_and_says_so(project: Project, fake: FakeScheduler) -> None:
    fake.trouble = DOWN
    with pytest.raises(SchedulerUnavailable) as caught:
        run_jobs.cancel(project, project.directory("gpt"))
    assert caught.value.exit_code == 75 and fake.calls == ["jobs"]


def test_a_scheduler_that_falls_silent_after_the_order_leaves_no_doubt_that_it_was_given(
    project: Project, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled = fake.cancel

    def cancel_and_die(ids: list[JobId], *, pending_only: bool = False) -> None:
        cancelled(ids, pending_only=pending_only)
        fake.trouble = DOWN

    monkeypatch.setattr(fake, "cancel", cancel_and_die)
    with pytest.raises(SchedulerUnavailable, match="job 7, 8 was cancelled; its end could not be confirmed") as caught:
        run_jobs.cancel(project, project.directory("gpt"))
    assert not isinstance(caught.value, SubmissionUncertain)
    assert "--fresh" in caught.value.hint


def test_a_cancel_makes_the_next_status_ask_anew(project: Project, fake: FakeScheduler) -> None:
    queue_cache.save(project.system, "fake", tuple(fake.records))
    run_jobs.cancel(project, project.directory("gpt"))
    assert not list((project.system.host.home / ".cache" / "resil").iterdir())
