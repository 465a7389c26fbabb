"""What `resil kill` says will happen: of every situation a table, and what it looks at in real run directories."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.job import JobId, JobState
from resilience.runs.attempts import Attempt, KillStage, Stage
from resilience.runs.kill_outlook import KillOutlook, describe_outlook, read_outlook
from resilience.runs.project import Project
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.runs.templates.script import ScriptSpec, render
from resilience.submission import make_comment
from resilience.switch import Scope
from tests.lab.fakes import DOWN, ME, NOW, FakeScheduler, a_job, make_project
from tests.runs.templates.batch import SHIPPED

NOON = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
THIRD = Attempt(number=3, job_id=1235, label="1233_2", restart=0, host="n1", pid=1, start_time=NOON - 1000)
GO_ON = "to continue the run: resil clear gpt; to end it at once, without a save: resil cancel gpt"
TRAINS: dict[str, Any] = {"headline": "running", "attempt": THIRD, "is_guarded": True, "ever_guarded": True}
TOLD: list[tuple[str, dict[str, Any], Scope, list[str]]] = [
    ("a guard, and what it has learned", {**TRAINS, "within_s": 49.7, "bound_s": 95, "queued": 3}, Scope.JOB,
     ["attempt 3 (job 1233_2) stops at its next step, after a save: within about 50 s",
      "if it has not by 12:01:40: stacks of all ranks, SIGTERM, and SIGKILL after KillWait",
      "queued jobs (3) end within seconds of their start", GO_ON]),
    ("a guard that has measured nothing", {**TRAINS, "queued": 3}, Scope.ALL,
     ["attempt 3 (job 1233_2) stops at its next step, after a save",
      "if it has not by 12:05:05: stacks of all ranks, SIGTERM, and SIGKILL after KillWait",
      "queued jobs (3) are cancelled then", GO_ON]),
    ("no guard, ever", {**TRAINS, "is_guarded": False, "ever_guarded": False}, Scope.JOB,
     ["no guard was ever seen in this run: nothing will be saved. The batch shell ends attempt 3 (job 1233_2) at "
      "12:05:05: SIGTERM, and SIGKILL after KillWait", GO_ON]),
    ("no guard in this attempt", {**TRAINS, "is_guarded": False, "bound_s": 10}, Scope.JOB,
     ["attempt 3 (job 1233_2) stops at its first step if it has a guard: none has been seen so far",
      "if it does not, the batch shell ends attempt 3 (job 1233_2) at 12:00:15: SIGTERM, and SIGKILL after KillWait",
      GO_ON]),
    ("nobody could look for a guard", {**TRAINS, "is_guarded": None, "ever_guarded": None}, Scope.JOB,
     ["attempt 3 (job 1233_2) stops at its next step, after a save",
      "if it has not by 12:05:05: stacks of all ranks, SIGTERM, and SIGKILL after KillWait", GO_ON]),
    ("a batch script of before", {**TRAINS, "is_old": True}, Scope.JOB,
     ["attempt 3 (job 1233_2) stops at its next step, after a save",
      "the batch script was written by an older resil, so a training that hangs is not ended by force", GO_ON]),
    ("a batch script of before without a guard", {**TRAINS, "is_guarded": False, "ever_guarded": False, "is_old": True},
     Scope.JOB,
     ["no guard was ever seen in this run: nothing will be saved. The batch script was written by an "
      "older resil, so a training that hangs is not ended by force", GO_ON]),
    ("a setup", {**TRAINS, "is_guarded": False, "is_in_setup": True}, Scope.JOB,
     ["attempt 3 (job 1233_2) is in its setup, which is not interrupted: it stops when the setup is over", GO_ON]),
    ("a setup, in a run that never had a guard",
     {**TRAINS, "is_guarded": False, "ever_guarded": False, "is_in_setup": True}, Scope.JOB,
     ["attempt 3 (job 1233_2) is in its setup, which is not interrupted: it stops when the setup is over", GO_ON]),
    ("thrown before", {**TRAINS, "stage": KillStage(Stage.TERM, NOON - 8, NOON + 22, "why")}, Scope.JOB,
     ["attempt 3 (job 1233_2) is already being ended: SIGTERM sent 8 s ago, SIGKILL at 12:00:22", GO_ON]),
    ("a silent scheduler", {**TRAINS, "headline": "unknown"}, Scope.JOB,
     ["attempt 3 (job 1233_2) stops at its next step, after a save",
      "if it has not by 12:05:05: stacks of all ranks, SIGTERM, and SIGKILL after KillWait",
      "the scheduler did not report which jobs run", GO_ON]),
    ("an adopted job", {"headline": "running", "adopted": ("9",)}, Scope.JOB,
     ["adopted job 9: queued without resil, does not see the switch, saves nothing and runs on", GO_ON]),
    ("adopted jobs beside an attempt", {**TRAINS, "adopted": ("9", "12_3"), "stage": None, "is_old": True}, Scope.JOB,
     ["adopted jobs 9, 12_3: queued without resil, does not see the switch, saves nothing and runs on",
      "attempt 3 (job 1233_2) stops at its next step, after a save",
      "the batch script was written by an older resil, so a training that hangs is not ended by force", GO_ON]),
    ("nothing is known", {"headline": "unknown"}, Scope.JOB, ["the scheduler did not report which jobs run", GO_ON]),
    ("it only begins", {"headline": "running"}, Scope.JOB,
     ["a job runs that has not launched the training, and will not", GO_ON]),
    ("it waits", {"headline": "queued", "queued": 3}, Scope.ALL,
     ["no job of the run is running", "queued jobs (3) are cancelled when the first of them starts", GO_ON]),
    ("it is over", {"headline": "not queued"}, Scope.JOB, ["no job of the run is running", GO_ON]),
    ("it is finished", {"headline": "finished", "queued": 3}, Scope.JOB,
     ["the run is finished", "queued jobs (3) end within seconds of their start",
      "to clear the switch: resil clear gpt"]),
    ("it is finished, and its last attempt is not over", {**TRAINS, "headline": "finished"}, Scope.JOB,
     ["the run is finished",
      "attempt 3 (job 1233_2) stops at its next step, after a save",
      "if it has not by 12:05:05: stacks of all ranks, SIGTERM, and SIGKILL after KillWait", GO_ON]),
    ("an own script", {"headline": "running", "script": "mine.sh", "ever_guarded": True, "queued": 3}, Scope.JOB,
     ["this run was queued with its own script, mine.sh: a training that hangs is not ended by force",
      "a training with a guard stops at its next step, after a save",
      "queued jobs (3) are not cancelled: resil cancel gpt --pending", GO_ON]),
    ("an own script of a run that is finished", {"headline": "finished", "script": "mine.sh"}, Scope.JOB,
     ["the run is finished",
      "this run was queued with its own script, mine.sh: a training that hangs is not ended by force",
      "no guard was ever seen in this run: it stops only if its training checks the switch itself", GO_ON]),
    ("an own script without a guard", {"headline": "running", "script": "mine.sh"}, Scope.JOB,
     ["this run was queued with its own script, mine.sh: a training that hangs is not ended by force",
      "no guard was ever seen in this run: it stops only if its training checks the switch itself", GO_ON]),
    ("an own script with resil run", {"headline": "running", "script": "mine.sh", "is_supervised": True, "queued": 3},
     Scope.JOB,
     ["`resil run` in its own script, mine.sh, asks the command to stop as its --stop says, else by SIGTERM; SIGKILL "
      "follows if the command does not end",
      "queued jobs (3) end within seconds of their start", GO_ON]),
    ("a colleague", {"headline": "queued", "owner": "ada"}, Scope.JOB,
     ["no job of the run is running",
      "to continue the run: resil clear gpt; its owner ada can end it at once, without a save: resil cancel gpt"]),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "scope", "said"), [case[1:] for case in TOLD], ids=[case[0] for case in TOLD])
def test_what_will_happen_is_said_with_absolute_times(facts: dict[str, Any], scope: Scope, said: list[str]) -> None:
    assert describe_outlook(KillOutlook(**facts), "gpt", scope, NOON) == said


# ---- looking ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake() -> FakeScheduler:
    ours = {"comment": make_comment("gpt", "aa"), "task": 1}
    waits = a_job(7, JobState.PENDING, tasks="2-4", task_count=3, comment=make_comment("gpt", "aa"))
    return FakeScheduler(records=[a_job(7, JobState.RUNNING, raw_id=8, **ours), waits])


@pytest.fixture
def project(tmp_path: Path, fake: FakeScheduler) -> Project:
    made = make_project(tmp_path, fake)
    directory = made.directory("gpt")
    directory.create('[run]\nname = "gpt"\n')
    script = directory.path / "scripts" / "aa.sbatch"
    script.write_text(render(SHIPPED, "python", ScriptSpec(run="gpt", run_dir=str(directory.path), command="true")))
    record_intent(directory, Intent("aa", "fake", str(script), (), NOW, by=ME))
    record_result(directory, "aa", Outcome.SUBMITTED, NOW, job_id=JobId(7))
    return made


def write(project: Project, name: str, *lines: Any) -> None:
    path = project.directory("gpt").path / name
    path.parent.mkdir(exist_ok=True)
    text = "".join(
        (line if isinstance(line, str) else json.dumps(line, separators=(",", ":"))) + "\n" for line in lines
    )
    with path.open("a") as file:
        file.write(text)


def begin(project: Project, number: int = 3, job: int = 8, *, launches: bool = True) -> None:
    write(project, f"attempts/{number:04d}", f'job_id = {job}\nlabel = "7_1"\nstart = 1.0')
    if launches:
        write(project, f"journal/{job}.batch.jsonl", {"event": "attempt_start", "time": 1, "attempt": number})


def seen(project: Project) -> KillOutlook:
    return read_outlook(project, project.directory("gpt"))


def test_the_attempt_that_trains_is_told_from_one_that_waits_for_it(project: Project) -> None:
    begin(project)
    begin(project, 4, 8, launches=False)
    outlook = seen(project)
    assert outlook.attempt is not None and outlook.attempt.number == 3
    assert (outlook.headline, outlook.queued, outlook.is_old, outlook.owner) == ("running", 3, False, "")


def test_a_run_that_is_finished_is_known(project: Project) -> None:
    write(project, "finished", "attempt = 3")
    assert seen(project).headline == "finished"


def test_an_attempt_is_in_its_setup_until_its_launch(project: Project) -> None:
    begin(project)
    write(project, "journal/8.batch.jsonl", {"event": "launch", "time": 1, "attempt": 2})  # of an earlier start
    assert seen(project).is_in_setup
    write(project, "journal/8.batch.jsonl", {"event": "launch", "time": 1, "attempt": 3})
    assert not seen(project).is_in_setup


def test_a_script_that_journals_no_launch_is_not_said_to_be_in_its_setup(project: Project) -> None:
    (project.directory("gpt").path / "scripts" / "aa.sbatch").write_text("#!/bin/bash\nresil_stages\n")
    begin(project)
    assert not seen(project).is_in_setup


def test_before_an_attempt_there_is_none(project: Project) -> None:
    assert seen(project).attempt is None


def test_an_attempt_that_is_over_is_none(project: Project) -> None:
    begin(project)
    write(project, "attempts/0003.end", 'end = "stopped"\ntime = 2.0')
    assert seen(project).attempt is None


def test_the_guard_is_looked_for_in_this_attempt_and_in_the_whole_run(project: Project) -> None:
    begin(project)
    write(project, "journal/8.batch.jsonl", {"event": "start", "attempt": 3})
    assert (seen(project).is_guarded, seen(project).ever_guarded) == (False, False)
    write(project, "journal/5.0.jsonl", {"event": "start", "attempt": 1})
    assert (seen(project).is_guarded, seen(project).ever_guarded) == (False, True)
    write(project, "journal/8.0.jsonl", {"event": "start", "time": 1.5, "attempt": 33, "rank": 0})
    assert seen(project).is_guarded is False
    write(project, "journal/8.0.jsonl", {"event": "start", "time": 1.5, "attempt": 3, "rank": 0})
    assert seen(project).is_guarded is True


def test_a_heartbeat_alone_shows_that_there_was_a_guard(project: Project) -> None:
    write(project, "beats/.8.n1.tmp", "")
    assert seen(project).ever_guarded is False
    write(project, "beats/8.n1", "step = 3")
    assert seen(project).ever_guarded is True


def test_a_journal_that_cannot_be_read_is_unknown_and_not_no_guard(project: Project) -> None:
    begin(project)
    directory = project.directory("gpt").path
    (directory / "journal" / "8.0.jsonl").mkdir()
    assert seen(project).is_guarded is None
    (directory / "beats").rmdir()
    assert seen(project).ever_guarded is None


BOUNDS = [
    ("", None, 300.0, None),
    ("", '{"kill_after_s": 95, "slowest_step_s": 30.5, "slowest_save_s": 8}', 95.0, 43.5),
    ("", '{"kill_after_s": 95, "slowest_step_s": null}', 95.0, None),
    ("[guard]\nkill_timeout_s = 20.0\n", '{"kill_after_s": 95}', 20.0, None),
    ("[guard]\nkill_timeout_s = 0.0\n", '{"kill_after_s": 95}', 95.0, None),
    ("guard = 3\n", "[1]", 300.0, None),
    ("", "{half", 300.0, None),
]


@pytest.mark.parametrize(("settings", "learned", "bound_s", "within_s"), BOUNDS)
def test_the_bound_is_counted_as_the_batch_shell_counts(
    project: Project, settings: str, learned: str | None, bound_s: float, within_s: float | None
) -> None:
    (project.directory("gpt").path / "run.toml").write_text(settings)
    if learned is not None:
        write(project, "learned/0.json", learned)
    assert (seen(project).bound_s, seen(project).within_s) == (bound_s, within_s)


def test_a_stage_that_was_reached_before_is_known(project: Project) -> None:
    begin(project)
    write(project, "journal/8.batch.jsonl", {"event": "kill_noticed", "time": NOW, "attempt": 3, "bound_s": 9})
    stage = seen(project).stage
    assert stage is not None and (stage.stage, stage.until) == (Stage.NOTICED, NOW + 9)


def test_a_script_that_an_older_resil_wrote_is_known(project: Project) -> None:
    (project.directory("gpt").path / "scripts" / "aa.sbatch").write_text("#!/bin/bash\nresil_launch python\n")
    assert seen(project).is_old


def test_who_submitted_can_cancel_and_others_hear_who(project: Project) -> None:
    directory = project.directory("gpt")
    record_intent(directory, Intent("bb", "fake", str(directory.path / "scripts" / "b"), (), NOW, by="ada"))
    assert seen(project).owner == ("" if ME == "root" else "ada")


def test_a_silent_scheduler_leaves_the_headline_unknown(project: Project, fake: FakeScheduler) -> None:
    fake.trouble = DOWN
    assert seen(project).headline == "unknown"
