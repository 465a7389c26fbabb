"""A job that was queued without resil becomes one of a run: recorded once, and nothing about the job is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import NoSuchJob, ResilError, RunAlive, SchedulerError, SchedulerUnavailable, UsageError
from resilience.job import JobId, JobState
from resilience.runs import run_jobs
from resilience.runs.adopt import adopt, split_command
from resilience.runs.kill_outlook import read_outlook
from resilience.runs.project import Project
from resilience.runs.run_jobs import adopted_to_follow, jobs_of_run
from resilience.runs.status import run_statuses
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent
from resilience.runs.submit_plan import script_of_run
from resilience.runs.switches import write_switch
from resilience.submission import make_comment
from resilience.switch import Switch
from tests.lab.disks import fill, small_disk
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, a_job, make_project
from tests.system.people import needs_root

LOOKS = {"job", "jobs", "presence", "history"}


@pytest.fixture
def fake() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def project(tmp_path: Path, fake: FakeScheduler) -> Project:
    return make_project(tmp_path, fake, settings="")


def refused(kind: type[ResilError], project: Project, job: int = 12, run: str = "") -> ResilError:
    """Adopt in vain; return the error. Nothing is written."""
    before = sorted(project.loaded.state_dir.rglob("*"))
    with pytest.raises(kind) as caught:
        adopt(project, JobId(job), run=run)
    assert sorted(project.loaded.state_dir.rglob("*")) == before
    return caught.value


def test_an_adopted_job_is_recorded_with_its_script_log_and_owner(project: Project, fake: FakeScheduler) -> None:
    own = project.system.cwd / "my train.sh"
    own.write_text("#!/bin/bash\n")
    fake.records = [a_job(12, name="llama 7b!", user=ME, command=f"{own} --lr 0.1", stdout="/shared/slurm-12.out")]

    adoption = adopt(project, JobId(12))

    assert (adoption.run, adoption.job_id, adoption.is_new, adoption.notes) == ("llama-7b-", JobId(12), True, ())
    (intent,) = read_intents(project.directory("llama-7b-"))
    assert (intent.adopted, intent.outcome, intent.job_id, intent.by) == (True, Outcome.SUBMITTED, JobId(12), ME)
    assert (intent.output, intent.script) == ("/shared/slurm-12.out", str(own))
    assert set(fake.calls) <= LOOKS, "the job is only looked at"
    (status,) = run_statuses(project, [project.directory("llama-7b-")])
    assert (status.headline, [row.job for row in status.rows]) == ("running", ["12"])
    assert script_of_run(project.directory("llama-7b-")) == (own, ("--lr", "0.1"))


def test_a_dry_run_writes_nothing(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x")]
    assert adopt(project, JobId(12), dry_run=True).run == "x"
    assert not project.loaded.state_dir.exists()


def test_adopting_twice_says_so_and_changes_nothing(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x")]
    adopt(project, JobId(12))
    journal = (project.directory("x").path / layout.SUBMISSIONS).read_bytes()
    again = adopt(project, JobId(12), run="y")
    assert (again.run, again.is_new) == ("x", False)
    assert (project.directory("x").path / layout.SUBMISSIONS).read_bytes() == journal
    assert not project.directory("y").path.exists()


def test_a_kill_knows_that_an_adopted_job_runs_on(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x")]
    adopt(project, JobId(12))
    assert read_outlook(project, project.directory("x")).adopted == ("12",)


def test_a_job_of_resil_is_not_adopted_a_second_time(project: Project, fake: FakeScheduler) -> None:
    script = "/shared/bob/.resil/gpt/scripts/abc.sbatch"
    fake.records = [a_job(12, comment=make_comment("gpt", "abc"), command=script)]
    error = refused(UsageError, project)
    assert "already a job of the run gpt" in error.message
    assert error.hint == "resil status /shared/bob/.resil/gpt"


def test_a_job_that_resil_queued_here_belongs_to_its_run_already(project: Project, fake: FakeScheduler) -> None:
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("abc", "fake", "/s/a.sh", ("sbatch", "/s/a.sh"), NOW))
    fake.records = [a_job(12, comment=make_comment("gpt", "abc"))]
    found = adopt(project, JobId(12))
    assert (found.run, found.is_new, found.by_resil, found.is_followed) == ("gpt", False, True, False)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT])
def test_a_job_that_has_ended_is_refused_with_its_end(project: Project, fake: FakeScheduler, state: JobState) -> None:
    fake.records = [a_job(12, state, command="/shared/my train.sh")]
    error = refused(SchedulerError, project)
    assert f"job 12 has ended: {state}" in error.message


def test_an_ended_job_that_only_accounting_knows_is_refused_with_its_end(
    project: Project, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "history", lambda _: (a_job(12, JobState.TIMEOUT),))
    assert "job 12 has ended: TIMEOUT" in refused(SchedulerError, project).message


def test_an_unknown_job_is_refused(project: Project, fake: FakeScheduler) -> None:
    assert "squeue --me" in refused(NoSuchJob, project).hint
    fake.name = "local"
    assert "--scheduler slurm" in refused(NoSuchJob, project).hint


def test_without_an_answer_nothing_is_adopted(project: Project, fake: FakeScheduler) -> None:
    fake.trouble = DOWN
    refused(SchedulerUnavailable, project)


def test_a_colleagues_job_is_watched_and_only_the_colleague_can_cancel_it(
    project: Project, fake: FakeScheduler
) -> None:
    fake.records = [a_job(12, name="x", user="bob")]
    (note,) = [note for note in adopt(project, JobId(12)).notes if "bob" in note]
    assert "only bob can cancel it" in note
    with pytest.raises(SchedulerError) as caught:
        run_jobs.cancel(project, project.directory("x"))
    assert caught.value.hint == "only bob can end it: scancel 12"


def test_an_array_is_adopted_as_a_whole(project: Project, fake: FakeScheduler) -> None:
    fake.records = [
        a_job(12, JobState.PENDING, name="x", tasks="3-9%1", task_count=7),
        a_job(12, name="x", task=2, raw_id=40),
    ]
    adoption = adopt(project, JobId(12))
    assert "all tasks of the array are watched; 7 tasks still wait" in adoption.notes
    assert adoption.tasks == {"PENDING": 7, "RUNNING": 1}
    directory = project.directory("x")
    assert len(jobs_of_run(fake.records, "x", read_intents(directory))) == 2
    assert adopt(project, JobId(12)).is_new is False
    assert adopt(project, JobId(12, 2)).run == "x"
    run_jobs.cancel(project, directory)
    assert {job.state for job in fake.records} == {JobState.CANCELLED, JobState.COMPLETING}


def test_one_task_of_an_array_is_a_run_of_its_own(project: Project, fake: FakeScheduler) -> None:
    fake.records = [
        a_job(12, JobState.PENDING, name="x", tasks="3-9%2", task_count=7, stdout="/s/12_%a.out"),
        a_job(12, name="x", task=1, raw_id=40, stdout="/s/12_1.out"),
        a_job(12, name="x", task=2, raw_id=41, stdout="/s/12_2.out"),
    ]
    assert [adopt(project, JobId(12, task)).run for task in (2, 5)] == ["x-2", "x-5"]
    assert adopt(project, JobId(12, 2)).is_new is False
    two, five = (project.directory(name) for name in ("x-2", "x-5"))
    (running,), (waiting,) = (jobs_of_run(fake.records, one.run, read_intents(one)) for one in (two, five))
    assert (running.raw_id, str(waiting.id), waiting.task_count) == (41, "12_5", 1)
    assert [read_intents(one)[0].output for one in (two, five)] == ["/s/12_2.out", "/s/12_5.out"]
    assert adopted_to_follow(project, "x-2") == JobId(12, 2)
    assert adopt(project, JobId(12)).run == "x", "the whole array is another run"
    assert run_jobs.cancel(project, two).ids == (JobId(12, 2),)


def test_a_task_that_the_array_does_not_have_is_refused(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, JobState.PENDING, name="x", tasks="3-9%2", task_count=7)]
    with pytest.raises(NoSuchJob):
        adopt(project, JobId(12, 99))
    assert not project.loaded.state_dir.exists()


def test_a_job_without_output_is_named_as_such(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, stdout="/dev/null"), a_job(13, name="b", stdout="")]
    assert "/dev/null" in adopt(project, JobId(12)).notes[0]
    assert "not known" in adopt(project, JobId(13)).notes[0]


def test_another_job_of_the_same_name_is_not_taken_for_the_same_run(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x"), a_job(13, name="x")]
    adopt(project, JobId(12))
    assert "another run: resil adopt 13 --run NAME" in refused(RunAlive, project, 13).hint
    assert adopt(project, JobId(13), run="x").is_new  # the user says so
    (status,) = run_statuses(project, [project.directory("x")], fresh=True)
    assert {row.job for row in status.rows} == {"12", "13"}


def test_the_next_job_of_a_run_that_ended_joins_it(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x")]
    adopt(project, JobId(12))
    fake.records = [a_job(12, JobState.COMPLETED, name="x"), a_job(13, name="x")]
    assert adopt(project, JobId(13)).is_new
    assert len(read_intents(project.directory("x"))) == 2


def test_a_run_that_is_finished_or_killed_takes_no_job(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x")]
    adopt(project, JobId(12))
    fake.records = [a_job(13, name="x")]
    directory = project.directory("x")
    (directory.path / layout.FINISHED).touch()
    assert "resil clear x --finished" in refused(UsageError, project, 13).hint
    (directory.path / layout.FINISHED).unlink()
    write_switch(directory, Switch(kind="kill", who=ME, when=NOW, why=""))
    assert "resil clear x" in refused(UsageError, project, 13, run="x").hint


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 101, "ü", ".x"])
def test_a_name_that_is_no_run_name_is_refused(project: Project, fake: FakeScheduler, name: str) -> None:
    fake.records = [a_job(12)]
    refused(UsageError, project, run=name)


@pytest.mark.parametrize("name", ["../../etc", "x" * 10_000, "\x1b[2J", "日本", "", "-rf", "a/b"])
def test_every_job_name_becomes_a_valid_run_name(project: Project, fake: FakeScheduler, name: str) -> None:
    fake.records = [a_job(12, name=name)]
    run = adopt(project, JobId(12)).run
    assert project.directory(run).path.parent == project.loaded.state_dir and len(run) <= 100


def test_the_next_submit_of_the_run_goes_behind_the_adopted_job(project: Project, fake: FakeScheduler) -> None:
    fake.records = [a_job(12, name="x", user=ME)]
    assert adopted_to_follow(project, "x") is None
    adopt(project, JobId(12))
    assert adopted_to_follow(project, "x") == JobId(12)
    fake.records = [a_job(12, JobState.COMPLETED, name="x", user=ME)]
    assert adopted_to_follow(project, "x") is None


@needs_root
def test_a_full_disk_leaves_no_half_adopted_run(tmp_path: Path, fake: FakeScheduler) -> None:
    with small_disk(tmp_path / "disk") as disk:
        project = make_project(tmp_path, fake, settings=f'[run]\nstate_dir = "{disk}/state"\n')
        fake.records = [a_job(12, name="x")]
        fill(disk)
        with pytest.raises(ResilError):
            adopt(project, JobId(12))
        assert not project.directory("x").path.exists()


COMMANDS = [
    ("", ("", ())),
    ("/s/a.sh", ("/s/a.sh", ())),
    ("/s/a.sh --lr 0.1", ("/s/a.sh", ("--lr", "0.1"))),
    ("/s/my train.sh x", ("/s/my train.sh", ("x",))),
    ("/gone/b.sh x", ("/gone/b.sh", ("x",))),
]


@pytest.mark.parametrize(("command", "parts"), COMMANDS)
def test_a_script_is_told_from_its_arguments(command: str, parts: tuple[str, tuple[str, ...]]) -> None:
    assert split_command(command, {"/s/a.sh", "/s/my", "/s/my train.sh"}.__contains__) == parts
