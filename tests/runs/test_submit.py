"""A submit queues exactly once what was asked for, or nothing, and then it leaves nothing."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.errors import (
    ResilError,
    RunAlive,
    SchedulerError,
    SchedulerUnavailable,
    StateDirectoryError,
    SubmissionUncertain,
    UsageError,
)
from resilience.job import Job, JobId, JobState
from resilience.runs import submit
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import resolve_after
from resilience.runs.settle import IN_FLIGHT_S
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent, record_result
from resilience.runs.submit import reconcile_intents, rollback, take_snapshot
from resilience.runs.submit_plan import SubmitRequest
from resilience.runs.switches import write_switch
from resilience.submission import make_comment
from resilience.switch import Switch
from tests.lab.disks import fill, small_disk
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler, a_job, make_project
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

REFUSED = SchedulerError("Invalid partition name specified", hint="see: sinfo")


@pytest.fixture
def fake() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def project(tmp_path: Path, fake: FakeScheduler) -> Project:
    return make_project(tmp_path, fake)


def go(project: Project, said: list[str] | None = None, **asked: Any) -> submit.SubmitResult:
    request = SubmitRequest(run=asked.pop("run", "gpt"), **asked)
    prepared = submit.prepare(project, request)
    return submit.perform(project, prepared, (said if said is not None else []).append)


def refused(kind: type[ResilError], project: Project, match: str | None = None, **asked: Any) -> ResilError:
    """Submit what is refused; return the error."""
    with pytest.raises(kind, match=match) as caught:
        go(project, **asked)
    return caught.value


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below, with its content."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def outcomes(project: Project, run: str = "gpt") -> list[tuple[Outcome, JobId | None]]:
    return [(intent.outcome, intent.job_id) for intent in read_intents(project.directory(run))]


def an_intent(token: str, *, by: str = "alice", scheduler: str = "fake", time: float = NOW) -> Intent:
    return Intent(token, scheduler, "", (), time, by=by)


def scripts(project: Project) -> list[Path]:
    return list((project.directory("gpt").path / layout.SCRIPTS).iterdir())


def existing(project: Project) -> RunDirectory:
    """The run's directory, created by an earlier submit."""
    directory = project.directory("gpt")
    directory.create("# before\n")
    return directory


# ---- what is queued -----------------------------------------------------------------------------------------------


def test_one_job_is_queued_and_its_intent_was_journalled_before(project: Project, fake: FakeScheduler) -> None:
    seen: list[Outcome] = []
    fake.at_submit = lambda _: seen.extend(outcome for outcome, _ in outcomes(project))

    result = go(project, array="10")

    assert seen == [Outcome.OPEN], "the journal knew of it before the scheduler did"
    assert result.ids == (JobId(101),)
    assert outcomes(project) == [(Outcome.SUBMITTED, JobId(101))]
    (submission,) = fake.submissions
    assert submission.options == {"array": "1-10%1"}
    assert submission.comment == f"resil:gpt:{submission.token}"
    assert Path(submission.script) == project.directory("gpt").path / layout.SCRIPTS / f"{submission.token}.sbatch"
    assert "python train.py" in fake.scripts[0]
    assert read_intents(project.directory("gpt"))[0].argv[0] == "fake-sbatch"


def test_an_own_script_is_queued_unchanged_from_where_it_was_typed(project: Project, fake: FakeScheduler) -> None:
    own = project.system.cwd / "mine.sbatch"
    own.write_text("#!/bin/bash\n#SBATCH --time=60\ntrue\n")
    go(project, script=Path("mine.sbatch"), script_args=("--lr", "1"), array="2")
    (submission,) = fake.submissions
    assert (submission.script, submission.script_args, submission.directory) == (
        str(own), ("--lr", "1"), str(project.system.cwd)
    )  # fmt: skip
    assert submission.environment["RESIL_RUN_DIR"] == str(project.directory("gpt").path)
    assert not scripts(project)


def test_each_link_of_a_chain_waits_for_the_one_before(project: Project, fake: FakeScheduler) -> None:
    said: list[str] = []
    result = go(project, said, chain=3, dependency="7")
    assert [submission.options.get("dependency") for submission in fake.submissions] == [
        "afterany:7", "afterany:101", "afterany:102"
    ]  # fmt: skip
    assert result.ids == (JobId(101), JobId(102), JobId(103))
    assert len({submission.token for submission in fake.submissions}) == 3
    assert said == [f"queued {n} of 3: job {100 + n}" for n in (1, 2, 3)]


def test_a_chain_that_breaks_in_the_middle_names_what_is_queued(project: Project, fake: FakeScheduler) -> None:
    fake.refusals[3] = REFUSED
    error = refused(SchedulerError, project, chain=5)
    assert error.hint == "already queued: 101, 102; to remove them: resil cancel gpt; see: sinfo"
    assert [outcome for outcome, _ in outcomes(project)] == [Outcome.SUBMITTED, Outcome.SUBMITTED, Outcome.REFUSED]
    assert len(scripts(project)) == 2


def test_what_the_scheduler_says_besides_is_passed_on_once(project: Project, fake: FakeScheduler) -> None:
    fake.notes = ("your project is nearly out of hours",)
    assert go(project, chain=2).notes == ("your project is nearly out of hours",)


def test_the_exact_commands_can_be_seen_before(project: Project) -> None:
    prepared = submit.prepare(project, SubmitRequest(run="gpt", chain=2, time="5", signal="B:USR1@60"))
    first, second = submit.command_lines(project, prepared)
    assert first.startswith("fake-sbatch --time=5 --signal=B:USR1@60 ")
    assert "--dependency=afterany:<job before> " in second
    assert not project.loaded.state_dir.exists()


def test_the_commands_that_are_shown_can_be_pasted_into_a_shell(project: Project) -> None:
    request = SubmitRequest(run="gpt", extra_args=("--mail-user=it's; $HOME `x` two words",))
    (line,) = submit.command_lines(project, submit.prepare(project, request))
    pasted = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert "--mail-user=it's; $HOME `x` two words" in pasted.stdout.splitlines()


@pytest.mark.parametrize("own", [False, True])
def test_asking_when_it_would_start_queues_and_leaves_nothing(project: Project, fake: FakeScheduler, own: bool) -> None:
    (project.system.cwd / "mine.sbatch").write_text("#!/bin/bash\n")
    request = SubmitRequest(run="gpt", script=Path("mine.sbatch") if own else None)
    assert submit.test_only(project, submit.prepare(project, request)) == "it would start now"
    assert fake.scripts[0].startswith("#!")
    assert fake.calls == ["test"] and not project.loaded.state_dir.exists()


# ---- a refusal leaves nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [REFUSED, UsageError("sbatch has no option --arary"), DOWN], ids=repr)
def test_a_refusal_leaves_no_script_and_no_fresh_run(project: Project, fake: FakeScheduler, error: ResilError) -> None:
    fake.refusals[1] = error
    refused(type(error), project)
    assert not project.loaded.state_dir.exists(), "not even the directory above, which was not there before"


@pytest.mark.parametrize("error", [REFUSED, UsageError("sbatch has no option --arary")], ids=repr)
def test_a_refusal_leaves_an_existing_run_as_it_was(project: Project, fake: FakeScheduler, error: ResilError) -> None:
    directory = existing(project)
    before = tree(directory.path)
    fake.refusals[1] = error
    refused(type(error), project)
    after = tree(directory.path)
    assert outcomes(project) == [(Outcome.REFUSED, None)]
    assert after.pop(layout.SUBMISSIONS)
    assert after == before
    go(project)  # and the next one is not kept waiting by it


def test_a_refusal_spares_a_persons_own_files_in_a_directory_of_the_runs_name(
    tmp_path: Path, fake: FakeScheduler
) -> None:
    project = make_project(tmp_path, fake, '[run]\nname = "gpt"\ncommand = "x"\nstate_dir = "."\n')
    precious = project.directory("gpt").path / "checkpoints" / "step-1000.pt"
    precious.parent.mkdir(parents=True)
    precious.write_text("weeks of work")
    fake.refusals[1] = REFUSED
    refused(SchedulerError, project)
    assert tree(project.directory("gpt").path) == {"checkpoints/step-1000.pt": b"weeks of work"}
    assert [path.name for path in project.directory("gpt").path.iterdir()] == ["checkpoints"]


def test_a_refusal_spares_what_another_submit_began_meanwhile(project: Project, fake: FakeScheduler) -> None:
    fake.at_submit = lambda _: record_intent(project.directory("gpt"), an_intent("other", by="bob"))
    fake.refusals[1] = REFUSED
    refused(SchedulerError, project)
    assert "other" in [intent.token for intent in read_intents(project.directory("gpt"))]


def test_bad_input_is_refused_before_anything_is_written(project: Project, fake: FakeScheduler) -> None:
    for asked in ({"run": "../x"}, {"run": "a\nb"}, {"run": ""}, {"array": "0"}, {"script": Path("none.sh")},
                  {"template": "nope"}, {"time": "5", "signal": "B:USR1@600"}):  # fmt: skip
        refused(UsageError, project, **asked)
    assert not project.loaded.state_dir.exists() and fake.calls == []


def test_all_that_the_lint_refuses_is_said_at_once(project: Project) -> None:
    own = project.system.cwd / "mine.sbatch"
    own.write_text("#!/bin/bash\n#SBATCH --output=/nowhere/at/all/x.out\n#SBATCH --time=soon\n")
    with pytest.raises(UsageError) as caught:
        submit.prepare(project, SubmitRequest(run="gpt", script=own))
    assert "'soon' is not a SLURM time" in caught.value.message
    assert "also: the output directory /nowhere/at/all" in caught.value.message


# ---- the answer that did not come ---------------------------------------------------------------------------------


def test_an_uncertain_submission_is_kept_and_the_next_submit_finds_the_job(
    project: Project, fake: FakeScheduler
) -> None:
    fake.uncertain.add(1)
    assert refused(SubmissionUncertain, project).exit_code == 75
    assert outcomes(project) == [(Outcome.UNCERTAIN, None)]
    assert len(scripts(project)) == 1

    said: list[str] = []
    refused(RunAlive, project, "already live: job 101", said=said)
    assert outcomes(project) == [(Outcome.SUBMITTED, JobId(101))]
    assert said == ["an earlier submit without a recorded result did queue job 101"]
    assert len(fake.records) == 1, "exactly one job per intent"


def test_an_uncertain_link_of_a_chain_names_what_is_queued(project: Project, fake: FakeScheduler) -> None:
    fake.uncertain.add(2)
    error = refused(SubmissionUncertain, project, "did not answer", chain=3)
    assert "already queued: 101" in error.hint


def test_ctrl_c_in_the_middle_leaves_the_intent_for_the_next_submit(project: Project, fake: FakeScheduler) -> None:
    fake.refusals[1] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        go(project)
    assert outcomes(project) == [(Outcome.OPEN, None)]


# ---- the journal and the disk -------------------------------------------------------------------------------------


def test_without_a_journal_nothing_is_sent(project: Project, fake: FakeScheduler) -> None:
    directory = existing(project)
    (directory.path / layout.SUBMISSIONS).mkdir()
    refused(StateDirectoryError, project)
    assert fake.submissions == []
    (directory.path / layout.SUBMISSIONS).rmdir()
    assert tree(directory.path) == {layout.RUN_FILE: b"# before\n"}


def test_a_job_whose_result_cannot_be_journalled_is_still_reported_and_its_run_is_kept(
    project: Project, fake: FakeScheduler
) -> None:
    """The disk fills up between the intent and the result: the job is queued, and lives in this directory."""
    journal = project.directory("gpt").path / layout.SUBMISSIONS

    def fill_up(_: object) -> None:
        journal.rename(journal.with_suffix(".moved"))
        journal.mkdir()

    fake.at_submit = fill_up
    result = go(project)
    assert result.ids == (JobId(101),)
    assert "job 101 is queued, but cannot write" in result.notes[0] and "by its token" in result.notes[0]
    journal.rmdir()
    journal.with_suffix(".moved").rename(journal)
    refused(RunAlive, project, "job 101")
    assert outcomes(project) == [(Outcome.SUBMITTED, JobId(101))]


@needs_root
def test_an_unwritable_state_directory_is_named_and_nothing_is_sent(tmp_path: Path, fake: FakeScheduler) -> None:
    open_the_way(tmp_path / "x")
    project = make_project(tmp_path, fake)
    prepared = submit.prepare(
        project, SubmitRequest(run="gpt")
    )  # as root: nobody may not be able to read the templates of this clone
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied") as caught:
        submit.perform(project, prepared)
    assert "state_dir" in caught.value.hint
    assert fake.calls == [] and not project.loaded.state_dir.exists()


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.parametrize("free_kib", [0, 4, 8, 24, 48])
def test_a_full_disk_leaves_nothing_wherever_it_fills_up(
    tmp_path: Path, fake: FakeScheduler, free_kib: int, existed: bool
) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        project = make_project(tmp_path, fake, f'[run]\nname = "gpt"\ncommand = "x"\nstate_dir = "{disk}"\n')
        if existed:
            existing(project)
        ballast = fill(disk)
        os.truncate(ballast, max(0, ballast.stat().st_size - free_kib * 1024))
        before = tree(disk)
        try:
            go(project)
        except StateDirectoryError as error:
            assert error.exit_code == 75 and "free some space" in error.hint
            assert fake.submissions == []
            after = tree(disk)
            after.pop("gpt/submissions.jsonl", None)  # a part of a line; the next writer closes it off
            assert after == before
        else:
            assert free_kib >= 24 and outcomes(project) == [(Outcome.SUBMITTED, JobId(101))]


# ---- whether the run may be queued --------------------------------------------------------------------------------


def test_a_live_run_is_refused_and_force_goes_beside_it(project: Project) -> None:
    go(project)
    assert "--after auto" in refused(RunAlive, project).hint
    assert go(project, force=True).ids == (JobId(102),)


def test_another_projects_run_of_the_same_name_is_in_nobodys_way(project: Project, fake: FakeScheduler) -> None:
    directory = existing(project)
    record_intent(directory, an_intent("old", time=0.0))
    record_result(directory, "old", Outcome.SUBMITTED, 0.0, job_id=JobId(3))
    fake.records.append(a_job(9, comment=make_comment("gpt", "of-another-project")))
    assert go(project).ids == (JobId(101),)


def test_a_live_run_cannot_be_judged_while_the_scheduler_is_silent(project: Project, fake: FakeScheduler) -> None:
    go(project)
    fake.trouble = DOWN
    assert refused(SchedulerUnavailable, project).exit_code == 75


KILLED = "has a kill switch, set by .* \\(loss is NaN\\)"


@pytest.mark.parametrize(
    ("file", "content", "message", "hint"),
    [
        ("switches/kill", 'why = "loss is NaN"\n', KILLED, "resil clear gpt"),
        ("finished", "", "is finished", "--run NAME"),
    ],
)
def test_a_killed_or_finished_run_is_refused_with_the_way_back(
    project: Project, fake: FakeScheduler, file: str, content: str, message: str, hint: str
) -> None:
    (existing(project).path / file).write_text(content)
    assert hint in refused(UsageError, project, message).hint
    assert fake.submissions == []
    assert go(project, force=True).ids


def test_a_stale_kill_switch_is_named_with_its_age_even_when_forced(project: Project) -> None:
    write_switch(existing(project), Switch("kill", ME, NOW - 3 * 86400 - 60, "loss is NaN"))
    refused(UsageError, project, f"set by {ME} 3 days ago \\(loss is NaN\\)")
    said: list[str] = []
    assert go(project, said, force=True).ids
    assert any("set by" in line and "3 days ago" in line and "resil clear gpt" in line for line in said)


def test_a_link_in_place_of_a_kill_switch_is_named_and_not_obeyed(project: Project) -> None:
    (existing(project).path / "switches" / "kill").symlink_to("/nowhere")
    said: list[str] = []
    assert go(project, said).ids
    assert any("kill switch that is not accepted" in line and "symbolic link" in line for line in said)


@needs_root
def test_a_switch_that_the_run_would_not_obey_keeps_nobody_from_submitting(project: Project) -> None:
    switch = existing(project).path / "switches" / "kill"
    switch.touch()
    os.chown(switch, NOBODY, NOBODY)
    assert go(project).ids


# ---- behind which job ---------------------------------------------------------------------------------------------


def test_after_auto_is_the_newest_live_job_of_the_run(project: Project, fake: FakeScheduler) -> None:
    go(project, array="3")
    go(project, array="3", after=JobId(101))
    assert resolve_after(project, "gpt", "auto") == JobId(102)
    go(project, after=JobId(102))
    assert fake.submissions[-1].options["dependency"] == "afterany:102"


def test_after_auto_without_a_live_job_is_refused(project: Project, fake: FakeScheduler) -> None:
    fake.records.append(a_job(9, comment=make_comment("llama", "x")))
    with pytest.raises(SchedulerError, match="no job in the queue to wait for") as caught:
        resolve_after(project, "gpt", "auto")
    assert caught.value.hint == "submit without --after"


@pytest.mark.parametrize("after", ["auto", "101"])
def test_after_is_not_guessed_while_the_scheduler_is_silent(project: Project, fake: FakeScheduler, after: str) -> None:
    go(project)
    fake.trouble = DOWN
    with pytest.raises(SchedulerUnavailable) as caught:
        resolve_after(project, "gpt", after)
    assert caught.value.exit_code == 75


def test_a_task_is_widened_to_its_array_even_when_it_is_over(project: Project, fake: FakeScheduler) -> None:
    fake.records += [a_job(123, JobState.COMPLETED, task=4), a_job(123, JobState.PENDING, tasks="5-9", task_count=5)]
    fake.records.reverse()
    assert resolve_after(project, "gpt", "123_4") == JobId(123)


def test_a_job_that_is_gone_or_no_job_id_is_refused(project: Project, fake: FakeScheduler) -> None:
    fake.records.append(a_job(7, JobState.COMPLETED))
    for gone in ("7", "8"):
        with pytest.raises(SchedulerError, match=f"job {gone} is not in the queue"):
            resolve_after(project, "gpt", gone)
    with pytest.raises(UsageError, match="not a job id"):
        resolve_after(project, "gpt", "yesterday")


def test_a_chain_is_not_cut_short_by_a_submit_that_comes_in_between(project: Project, fake: FakeScheduler) -> None:
    directory = project.directory("gpt")
    fake.at_submit = lambda each: record_intent(directory, an_intent(f"after-{each.token}", by=ME))
    assert len(go(project, chain=3).ids) == 3


def test_a_submit_gives_way_to_one_that_journalled_first(project: Project, fake: FakeScheduler) -> None:
    """The other's line comes between our look and our own line."""
    prepared = submit.prepare(project, SubmitRequest(run="gpt"))
    look = fake.jobs

    def look_while_another_submits(**asked: Any) -> tuple[Job, ...]:
        seen = look(**asked)
        record_intent(project.directory("gpt"), an_intent("first", by="nobody"))
        return seen

    go(project)
    fake.records.clear()
    fake.jobs = look_while_another_submits  # type: ignore[method-assign] # one look, at one moment
    with pytest.raises(SchedulerUnavailable, match="by nobody was first"):
        submit.perform(project, prepared)
    assert len(fake.records) == 0


# ---- a submit that was cut off ------------------------------------------------------------------------------------


def the_job(state: JobState = JobState.PENDING) -> Job:
    return a_job(55, state, comment=make_comment("gpt", "feed"))


def cut_off(project: Project, age_s: float, outcome: Outcome | None = None) -> RunDirectory:
    """A submit that was killed between its intent and its answer, or gave up waiting for that."""
    directory = existing(project)
    record_intent(directory, an_intent("feed", time=NOW - age_s))
    if outcome is not None:
        record_result(directory, "feed", outcome, NOW)
    return directory


def test_an_intent_that_is_found_is_recorded_and_the_run_is_alive(project: Project, fake: FakeScheduler) -> None:
    cut_off(project, age_s=1.0)
    fake.records.append(the_job())
    said: list[str] = []
    refused(RunAlive, project, "job 55", said=said)
    assert outcomes(project) == [(Outcome.SUBMITTED, JobId(55))]
    assert said == ["an earlier submit without a recorded result did queue job 55"] and fake.submissions == []


def test_a_given_up_intent_gets_a_second_look_and_no_waiting(tmp_path: Path, fake: FakeScheduler) -> None:
    """A controller that has just come back takes the old request up a moment after it answers a new question."""
    clock = FakeClock(at_sleep=lambda _: fake.records.append(the_job()))
    project = make_project(tmp_path, fake, clock=clock)
    directory = cut_off(project, 1.0, Outcome.UNCERTAIN)
    assert list(reconcile_intents(project, directory, fake, lambda _: None)) == [JobId(55)]
    assert fake.calls == ["find", "find"]


@pytest.mark.parametrize(
    ("age_s", "outcome"),
    [(1.0, Outcome.UNCERTAIN), (IN_FLIGHT_S + 1, None)],
    ids=["given up, and two looks do not find it", "old, so that it never reached the queue"],
)
def test_an_intent_that_is_not_found_is_closed_and_the_submit_goes_on(
    project: Project, age_s: float, outcome: Outcome | None
) -> None:
    cut_off(project, age_s, outcome)
    assert go(project).ids == (JobId(101),)
    assert outcomes(project) == [(Outcome.REFUSED, None), (Outcome.SUBMITTED, JobId(101))]


def test_a_dead_accounting_neither_blocks_a_submit_nor_settles_the_one_before(
    project: Project, fake: FakeScheduler
) -> None:
    """Two queries of the queue prove that no job of it is alive; only its end stays unknown."""
    cut_off(project, 3600.0, Outcome.UNCERTAIN)
    fake.troubles["find_past"] = SchedulerUnavailable("sacct gave no answer: the accounting database does not respond")
    said: list[str] = []
    assert go(project, said=said).ids == (JobId(101),)
    assert outcomes(project) == [(Outcome.UNCERTAIN, None), (Outcome.SUBMITTED, JobId(101))]
    assert "if it queued a job, this job has ended" in said[0] and "accounting database does not respond" in said[0]


def test_an_intent_from_a_clock_that_goes_ahead_is_named_as_such(project: Project) -> None:
    cut_off(project, age_s=-7200.0)
    assert "date" in refused(SchedulerUnavailable, project, "dated 2 h in the future").hint


def test_what_went_to_another_scheduler_is_not_asked_for_here(project: Project, fake: FakeScheduler) -> None:
    directory = existing(project)
    record_intent(directory, an_intent("feed", scheduler="slurm"))
    assert list(reconcile_intents(project, directory, fake, lambda _: None)) == []
    assert fake.calls == []


@pytest.mark.parametrize("age_s", [0.0, IN_FLIGHT_S - 1, -5.0])
def test_a_young_intent_that_is_not_found_may_be_another_submit_at_work(
    project: Project, fake: FakeScheduler, age_s: float
) -> None:
    cut_off(project, age_s)
    for force in (False, True):
        error = refused(SchedulerUnavailable, project, r"another submit of run gpt began \d+ s ago", force=force)
        assert error.exit_code == 75
    assert outcomes(project) == [(Outcome.OPEN, None)] and fake.submissions == []


def test_an_intent_cannot_be_settled_while_the_scheduler_is_silent(project: Project, fake: FakeScheduler) -> None:
    cut_off(project, age_s=1e6)
    fake.records.append(the_job())
    fake.trouble = DOWN
    refused(SchedulerUnavailable, project, force=True)
    assert outcomes(project) == [(Outcome.OPEN, None)]


def test_a_cut_off_job_that_is_over_already_does_not_keep_the_run_from_going_on(
    project: Project, fake: FakeScheduler
) -> None:
    cut_off(project, age_s=1.0)
    fake.records.append(the_job(JobState.FAILED))
    said: list[str] = []
    assert go(project, said).ids == (JobId(101),)
    assert "queueing a new one" in said[-1]


# ---- snapshot and rollback ----------------------------------------------------------------------------------------


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_directories_that_were_not_there_go_again_up_to_the_first_that_was(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b" / "gpt")
    snapshot = take_snapshot(directory)
    assert snapshot.missing == (tmp_path / "a" / "b" / "gpt", tmp_path / "a" / "b", tmp_path / "a")
    directory.create("")
    record_intent(directory, an_intent("mine"))
    rollback(directory, snapshot, {"mine"})
    assert names(tmp_path) == []


def test_a_directory_that_others_began_to_use_meanwhile_stays(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "state" / "gpt")
    snapshot = take_snapshot(directory)
    directory.create("")
    RunDirectory(tmp_path / "state" / "llama").create("")
    rollback(directory, snapshot, set())
    assert not directory.path.exists() and (tmp_path / "state" / "llama" / layout.RUN_FILE).exists()


def test_a_journal_with_an_intent_of_another_submit_keeps_everything(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    snapshot = take_snapshot(directory)
    directory.create("")
    record_intent(directory, an_intent("theirs", by="bob"))
    rollback(directory, snapshot, {"mine"})
    assert [intent.token for intent in read_intents(directory)] == ["theirs"] and directory.exists()


@pytest.mark.parametrize("file", ["data.txt", "logs/old.out"])
def test_files_that_lay_in_the_directory_before_stay(tmp_path: Path, file: str) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    (directory.path / file).parent.mkdir(parents=True)
    (directory.path / file).touch()
    before = names(tmp_path)
    snapshot = take_snapshot(directory)
    directory.create("")
    rollback(directory, snapshot, set())
    assert names(tmp_path) == before


def test_an_existing_runs_settings_are_written_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    directory.create("# before\n")
    snapshot = take_snapshot(directory)
    directory.create("# after\n")
    rollback(directory, snapshot, set())
    assert (directory.path / layout.RUN_FILE).read_text() == "# before\n"


def test_a_rollback_raises_nothing_over_the_error_that_led_to_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    snapshot = take_snapshot(directory)
    rollback(directory, snapshot, set())
    directory.create("")
    (directory.path / layout.SUBMISSIONS).mkdir()
    rollback(directory, snapshot, set())


def test_a_run_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpt" / layout.RUN_FILE).mkdir(parents=True)
    with pytest.raises(StateDirectoryError, match="not a regular file"):
        take_snapshot(RunDirectory(tmp_path / "gpt"))


# ---- another user's run -------------------------------------------------------------------------------------------


@needs_root
def test_who_submits_anothers_run_is_told_whose_it_is(project: Project, fake: FakeScheduler) -> None:
    go(project)
    fake.records.clear()
    path = project.directory("gpt").path
    for inside in (path, *path.rglob("*")):
        os.chown(inside, NOBODY, -1)
    said: list[str] = []
    go(project, said)
    assert said[0] == f"run gpt belongs to nobody; its new jobs belong to {ME}, and nobody cannot cancel them"


def test_a_live_run_of_another_user_is_stopped_by_its_switch_not_by_cancel(
    project: Project, fake: FakeScheduler
) -> None:
    go(project)
    fake.records = [replace(job, user="bob") for job in fake.records]
    fake.me = "bob"
    error = refused(RunAlive, project)
    assert error.message == "run gpt is already live: job 101 of bob" and "resil kill gpt" in error.hint


@needs_root
def test_a_private_run_of_another_user_is_named_with_its_owner(project: Project) -> None:
    go(project)
    open_the_way(project.directory("gpt").path)
    project.loaded.state_dir.chmod(0o755)
    with acting_as(NOBODY):
        error = refused(StateDirectoryError, project)
    assert error.message.startswith("run gpt belongs to root and is private") and "--run NAME" in error.hint
