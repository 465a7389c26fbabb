"""`resil status` folds arrays, says what is next and what was lost, and never takes silence for death."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.verified import write_verified
from resilience.checkpoints.verify import verify
from resilience.errors import StateDirectoryError, UsageError
from resilience.job import ExitCode, Job, JobId, JobState
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.project import Project
from resilience.runs.queue_cache import QueueAnswer
from resilience.runs.status import RunStatus, fold, mark_lost, run_statuses
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.submission import make_comment
from resilience.system.stuck import StuckMemory
from tests.checkpoints.trees import RECORDED, commit_tree
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler, a_job, make_project


def test_an_array_is_one_row_led_by_what_runs() -> None:
    (row,) = fold(
        [
            a_job(7, JobState.COMPLETED, task=1, exit_code=ExitCode(0)),
            a_job(7, JobState.FAILED, task=2, exit_code=ExitCode(1), start_time=9.0),
            a_job(7, JobState.RUNNING, task=3, nodes="n[1-4]", end_time=NOW + 90),
            a_job(7, JobState.PENDING, tasks="4-10%1", task_count=7, reason="JobArrayTaskLimit"),
        ],
        NOW,
    )
    assert (row.job, row.state, row.nodes) == ("7", JobState.RUNNING, "n[1-4]")
    assert (row.time_left_s, row.is_alive) == (90.0, True)
    assert row.counts == {"COMPLETED": 1, "FAILED": 1, "RUNNING": 1, "PENDING": 7}


def test_an_attempt_that_has_just_started_shows_the_step_of_the_last_save(tmp_path: Path) -> None:
    project = make_project(tmp_path, FakeScheduler())
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("aa", "fake", "", (), NOW, by=ME))
    for number in (1, 2):
        path = directory.path / "attempts" / f"{number:04d}"
        path.write_text(f'job_id = {number}\nlabel = "{number}"\nhost = "n{number}"\nstart = {NOW}\n')
    journal = directory.path / "journal"
    (journal / "1.0.jsonl").write_text(f'{{"event":"save","step":900,"time":{NOW},"attempt":1}}\n')
    (directory.path / "beats" / "2.n2").write_text("step = 0\n")
    (journal / "2.batch.jsonl").write_text('{"event":"waiting","attempt":2,"for":"0001"}\n')
    (status,) = run_statuses(project, (directory,))
    assert status.step == 900
    assert status.waits == "attempt 2 waits for the end of attempt 1 (job 1 on n1)"
    with open(journal / "2.batch.jsonl", "a") as file:
        file.write('{"event":"attempt_start","attempt":2}\n')
    assert run_statuses(project, (directory,))[0].waits == ""


def test_the_step_of_an_own_script_is_read_where_only_the_scheduler_knows_its_log(tmp_path: Path) -> None:
    fake = FakeScheduler(records=[a_job(7, comment=OURS, stdout=str(tmp_path / "my.log"))])
    project = make_project(tmp_path, fake)
    (tmp_path / "my.log").write_text("step 41\n")
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("aa", "fake", "/s/train.sh", (), NOW, by=ME))
    record_result(directory, "aa", Outcome.SUBMITTED, NOW, job_id=JobId(7))
    (status,) = run_statuses(project, (directory,))
    assert status.step == 41


def test_an_array_that_only_waits_says_why() -> None:
    (row,) = fold([a_job(7, JobState.PENDING, tasks="1-10%1", task_count=10, reason="Resources")], NOW)
    assert (row.job, row.state, row.words) == ("7", JobState.PENDING, "waits for free nodes")
    assert row.counts == {"PENDING": 10}


def test_an_array_that_is_over_shows_what_ended_last() -> None:
    completed = a_job(7, JobState.COMPLETED, task=1, start_time=1.0, exit_code=ExitCode(0))
    timeout = a_job(7, JobState.TIMEOUT, task=2, start_time=2.0, exit_code=ExitCode(0, 15))
    (row,) = fold([completed, timeout], NOW)
    assert (row.state, row.words) == (JobState.TIMEOUT, "ended by signal 15")
    assert (row.is_alive, row.time_left_s) == (False, None)


def test_a_single_task_keeps_its_own_name_and_rows_are_sorted_by_what_matters() -> None:
    rows = fold(
        [
            a_job(5, JobState.COMPLETED),
            a_job(30, JobState.PENDING),
            a_job(8, JobState.COMPLETING),
            a_job(20, JobState.PENDING),
            a_job(9, JobState.RUNNING, task=4),
        ],
        NOW,
    )
    assert [row.job for row in rows] == ["9_4", "8", "20", "30", "5"]


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"state": JobState.PENDING, "reason": "Priority"}, "others are before it in the queue"),
    ({"state": JobState.PENDING, "reason": "SiteReason2031"}, "SiteReason2031"),
    ({"state": JobState.PENDING}, ""),
    ({"state": JobState.COMPLETING}, "its processes are ending"),
    ({"state": JobState.FAILED, "exit_code": ExitCode(1)}, "exit code 1"),
    ({"state": JobState.FAILED, "exit_code": ExitCode(0, 9)}, "ended by signal 9"),
    ({"state": JobState.NODE_FAIL, "exit_code": ExitCode(1)}, "lost with its node"),
    ({"state": JobState.COMPLETED, "exit_code": ExitCode(0)}, ""),
    ({"state": JobState.RUNNING}, ""),
]


@pytest.mark.parametrize(("fields", "words"), WORDS)
def test_each_state_is_explained_in_words(fields: dict[str, Any], words: str) -> None:
    assert fold([a_job(7, **fields)], NOW)[0].words == words


def test_time_that_is_over_is_no_time_and_unlimited_is_not_said() -> None:
    assert fold([a_job(7, end_time=NOW - 5)], NOW)[0].time_left_s == 0.0
    assert fold([a_job(7)], NOW)[0].time_left_s is None
    assert fold([a_job(7, JobState.FAILED, end_time=NOW + 5)], NOW)[0].time_left_s is None


OURS = make_comment("gpt", "aa")


def add_run(project: Project, run: str = "gpt", token: str = "aa", scheduler: str = "fake") -> Path:
    """A run that was submitted once, as job 7."""
    directory = project.directory(run)
    directory.create("[run]\n")
    record_intent(directory, Intent(token, scheduler, "", (), NOW, by=ME))
    record_result(directory, token, Outcome.SUBMITTED, NOW, job_id=JobId(7))
    return directory.path


def probe(project: Project, **options: Any) -> RunStatus:
    (status,) = run_statuses(project, project.runs(), **options)
    return status


def submitted(tmp_path: Path, *jobs: Job) -> Project:
    """A project of one run that was submitted once, with these jobs in the queue."""
    project = make_project(tmp_path, FakeScheduler(records=list(jobs)))
    add_run(project)
    return project


def shown(*jobs: Job, tmp_path: Path) -> RunStatus:
    return probe(submitted(tmp_path, *jobs), fresh=True)


def test_ten_thousand_jobs_fold_to_their_arrays(tmp_path: Path) -> None:
    jobs = [a_job(1000 + number // 10, task=number % 10, comment=OURS) for number in range(10_000)]
    status = probe(submitted(tmp_path, *jobs))
    assert (len(status.rows), sum(row.counts["RUNNING"] for row in status.rows)) == (1000, 10_000)


# ---- one run ------------------------------------------------------------------------------------------------------

HEADLINES: list[tuple[str, list[Job]]] = [
    ("running", [a_job(7, comment=OURS), a_job(8, JobState.PENDING, comment=OURS)]),
    ("running", [a_job(7, JobState.COMPLETING, comment=OURS)]),
    ("queued", [a_job(7, JobState.PENDING, comment=OURS), a_job(6, JobState.FAILED, comment=OURS)]),
    ("not queued", [a_job(7, JobState.COMPLETED, comment=OURS)]),
    ("not queued", [a_job(9, comment=make_comment("gpt", "of-another-project"))]),
    ("not queued", []),
]


@pytest.mark.parametrize(("headline", "jobs"), HEADLINES)
def test_the_headline_says_it_in_a_word(tmp_path: Path, headline: str, jobs: list[Job]) -> None:
    assert shown(*jobs, tmp_path=tmp_path).headline == headline


def test_a_finished_run_is_finished_whatever_burns_through_the_queue(tmp_path: Path) -> None:
    project = submitted(tmp_path, a_job(7, comment=OURS))
    (project.directory("gpt").path / layout.FINISHED).touch()
    status = probe(project)
    assert (status.headline, status.finished) == ("finished", True)


def test_next_in_line_is_the_first_that_waits_and_how_many_wait(tmp_path: Path) -> None:
    array = a_job(7, JobState.PENDING, tasks="4-10%1", task_count=7, comment=OURS)
    assert shown(array, tmp_path=tmp_path).next_in_line == "7_[4-10%1] (7 jobs waiting)"
    chain = [a_job(number, JobState.PENDING, comment=OURS) for number in (9, 8)]
    assert shown(*chain, tmp_path=tmp_path).next_in_line == "8 (2 jobs waiting)"
    assert shown(chain[0], tmp_path=tmp_path).next_in_line == "9 (1 job waiting)"
    assert shown(a_job(7, comment=OURS), tmp_path=tmp_path).next_in_line == ""


def test_what_a_dead_node_took_is_said(tmp_path: Path) -> None:
    project = submitted(
        tmp_path,
        a_job(7, JobState.NODE_FAIL, task=1, nodes="n3", comment=OURS),
        a_job(8, JobState.PENDING, reason="NodeDown", comment=OURS),
    )
    attempts = project.directory("gpt").path / layout.ATTEMPTS
    for number in (1, 2, 3):
        (attempts / f"{number:04d}").write_text(f'job_id = 7\nlabel = "7_{number}"\nhost = "n{number}"\nstart = 1.0\n')
        (attempts / f"{number:04d}.end").write_text(f'end = "{"lost" if number < 3 else "exited"}"\ntime = 2.0\n')
    assert probe(project).lost == (
        "job 7_1 was lost with its node n3",
        "job 8 was lost with its node",
        "attempt 2 (job 7_2 on n2) wrote no end",
    )


def test_switches_steps_and_attempts_are_part_of_it(tmp_path: Path) -> None:
    project = submitted(tmp_path)
    path = project.directory("gpt").path
    (path / "switches" / "kill").write_text('why = "NaN"\n')
    (path / "beats" / "7.n1").write_text("step = 5\n")
    (path / "attempts" / "0001").write_text('job_id = 7\nlabel = "7_1"\nstart = 1.0\n')
    status = probe(project)
    assert ([switch.why for switch in status.switches], status.step) == (["NaN"], 5)
    assert [attempt.label for attempt in status.attempts] == ["7_1"]


# ---- not knowing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "headline", "rows"),
    [([a_job(7, comment=OURS)], "running", ["7"]), ([], "not queued", [])],
    ids=["a job that was seen is shown", "no job is no proof of death"],
)
def test_a_silent_scheduler_makes_a_run_unknown_and_the_last_answer_is_shown_with_its_age(
    tmp_path: Path, jobs: list[Job], headline: str, rows: list[str]
) -> None:
    clock, fake = FakeClock(), FakeScheduler(records=jobs)
    project = make_project(tmp_path, fake, clock=clock)
    add_run(project)
    assert probe(project).headline == headline
    fake.trouble = DOWN
    clock.time += 300
    status = probe(project)
    assert (status.headline, status.age_s, [row.job for row in status.rows]) == ("unknown", 300.0, rows)
    assert DOWN.message in status.trouble


def test_a_scheduler_that_never_answered_leaves_everything_unknown(tmp_path: Path) -> None:
    project = make_project(tmp_path, FakeScheduler(trouble=DOWN))
    add_run(project)
    status = probe(project)
    assert (status.headline, status.rows, status.next_in_line) == ("unknown", (), "")


def test_the_answer_is_remembered_for_all_runs_and_fresh_asks_again(tmp_path: Path) -> None:
    fake = FakeScheduler()
    project = make_project(tmp_path, fake)
    for name in ("gpt", "llama", "mixtral"):
        add_run(project, name, token=name)
    assert len(run_statuses(project, project.runs())) == 3
    run_statuses(project, project.runs())
    assert fake.calls == ["jobs"]
    run_statuses(project, project.runs(), fresh=True)
    assert fake.calls == ["jobs", "jobs"]


def test_without_any_run_nobody_is_asked(tmp_path: Path) -> None:
    fake = FakeScheduler(trouble=DOWN)
    project = make_project(tmp_path, fake)
    assert run_statuses(project, project.runs()) == () and fake.calls == []


# ---- one bad run hides no other -----------------------------------------------------------------------------------


def test_a_run_whose_journal_names_a_scheduler_that_is_not_here_is_unknown_beside_the_others(tmp_path: Path) -> None:
    project = submitted(tmp_path, a_job(7, comment=OURS))
    add_run(project, "llama", scheduler="pbs")
    add_run(project, "mixtral", scheduler="../../x")
    found = {status.run: status for status in run_statuses(project, project.runs())}
    assert {run: status.headline for run, status in found.items()} == {
        "gpt": "running", "llama": "unknown", "mixtral": "unknown"
    }  # fmt: skip
    assert "'pbs'" in found["llama"].trouble


def test_a_scheduler_that_the_person_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    project = make_project(tmp_path, FakeScheduler(name="gone"))
    project.directory("gpt").create("")
    project._clients.clear()
    with pytest.raises(UsageError, match="'gone'"):
        probe(project)


def test_a_run_that_cannot_be_read_is_shown_beside_the_others(tmp_path: Path) -> None:
    project = submitted(tmp_path, a_job(7, comment=OURS))
    journal = add_run(project, "llama", token="bb") / layout.SUBMISSIONS
    journal.unlink()
    journal.mkdir()
    found = {status.run: status for status in run_statuses(project, project.runs())}
    assert (found["gpt"].headline, found["llama"].headline) == ("running", "unreadable")
    assert "Is a directory" in found["llama"].unreadable
    with pytest.raises(StateDirectoryError, match="Is a directory"):
        run_statuses(project, [project.directory("llama")])


def test_odd_things_in_a_runs_directory_are_no_obstacle(tmp_path: Path) -> None:
    project = submitted(tmp_path, a_job(7, comment=OURS))
    path = project.directory("gpt").path
    for directory in ("switches/kill", "beats/x", "logs/y"):
        os.mkfifo(path / directory)
    (path / "attempts" / "0001").write_bytes(b"\xff\0 torn")
    (path / layout.SUBMISSIONS).write_bytes((path / layout.SUBMISSIONS).read_bytes() + b'\xff{"torn')
    status = probe(project)
    assert (status.headline, status.attempts) == ("running", ())
    assert [switch.honoured for switch in status.switches] in ([], [False])


# ---- lost attempts ------------------------------------------------------------------------------------------------

BEGUN = Attempt(1, job_id=7, label="7", restart=0, host="n1", pid=1, start_time=NOW - 100)


@pytest.mark.parametrize(
    ("attempt", "jobs", "answer", "end"),
    [
        pytest.param(BEGUN, [], QueueAnswer(()), AttemptEnd.LOST, id="no end, no process: lost"),
        pytest.param(BEGUN, [a_job(7)], QueueAnswer(()), None, id="its job runs"),
        pytest.param(BEGUN, [a_job(7, JobState.COMPLETING)], QueueAnswer(()), None, id="its job is still ending"),
        pytest.param(BEGUN, [a_job(7, JobState.PENDING)], QueueAnswer(()), AttemptEnd.LOST, id="its job was requeued"),
        pytest.param(BEGUN, [], QueueAnswer((), trouble="hung"), None, id="the scheduler did not answer"),
        pytest.param(BEGUN, [], QueueAnswer((), is_known=False), None, id="nobody ever answered"),
        pytest.param(replace(BEGUN, start_time=NOW - 8), [], QueueAnswer((), age_s=9), None, id="begun after the look"),
        pytest.param(replace(BEGUN, end=AttemptEnd.EXITED), [], QueueAnswer(()), AttemptEnd.EXITED, id="it said so"),
    ],
)
def test_an_attempt_is_lost_only_when_an_answer_proves_it(
    attempt: Attempt, jobs: list[Job], answer: QueueAnswer, end: AttemptEnd | None
) -> None:
    (marked,) = mark_lost([attempt], jobs, answer, NOW)
    assert marked.end is end


# ---- checkpoints --------------------------------------------------------------------------------------------------


def test_each_run_shows_its_own_checkpoints_and_those_of_another_run_are_not_shown(tmp_path: Path) -> None:
    settings = '[run]\nname = "gpt"\n[checkpoints]\npath = "ckpts"\n'
    project = make_project(tmp_path, FakeScheduler(), settings)
    add_run(project)
    add_run(project, "bert", "bb")
    assert [status.checkpoints for status in run_statuses(project, project.runs())] == [None, None]
    checkpoint = commit_tree(StoreDirectory.create(project.loaded.project / "ckpts", "gpt"), 100, RECORDED / "torch")
    write_verified(checkpoint, verify(checkpoint), NOW)
    found = {status.run: status.checkpoints for status in run_statuses(project, project.runs())}
    assert found["bert"] is None and found["gpt"] is not None and found["gpt"].verified is not None
    assert (found["gpt"].verified.name, found["gpt"].verified.verified_at) == ("step-00000100", NOW)


def test_a_disk_of_checkpoints_that_hangs_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = '[run]\nname = "gpt"\n[checkpoints]\npath = "ckpts"\n[watch]\nstate_deadline_s = 0.3\n'
    project = make_project(tmp_path, FakeScheduler(records=[a_job(7, comment=OURS)]), settings)
    add_run(project)
    monkeypatch.setattr("resilience.checkpoints.summary.read_summary", lambda _: time.sleep(100))
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "node"])))
    status = probe(project)
    assert status.headline == "running" and status.checkpoints is not None
    assert "no answer within 0.3 s" in status.checkpoints.trouble
