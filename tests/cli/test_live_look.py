"""What `resil top` gathers: from files at each look, from the scheduler once in ten seconds at most; and its keys."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from typing import NoReturn

import pytest

from resilience.cli.top.look import Looker
from resilience.errors import StateDirectoryError
from resilience.job import JobState
from tests.lab.fakes import DOWN, FakeClock
from tests.lab.shell import Office, Shell, full


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(time.time())


@pytest.fixture
def looker(shell: Shell, clock: FakeClock) -> Looker:
    shell.resil("submit", "--run", "gpt")
    shell.resil("submit", "--run", "bert")
    shell.fake.records = [
        replace(job, state=JobState.RUNNING, end_time=clock.time + 3600) for job in shell.fake.records
    ]
    shell.fake.calls.clear()
    project = shell.project
    return Looker(replace(project, system=replace(project.system, clock=clock)))


def write_attempt(shell: Shell, clock: FakeClock, step: int) -> None:
    job = shell.fake.records[0].raw_id
    (shell.run_dir / "attempts" / "0001").write_text(
        f'number = 1\njob_id = {job}\nlabel = "{job}"\nhost = "n1"\npid = 4\nstart = {clock.time - 900}\n'
    )
    (shell.run_dir / "beats" / f"{job}.n1").write_text(
        f'attempt = 1\nhost = "n1"\ntime = {clock.time}\nstep = {step}\n'
        f'[rank.0]\npid = 7\nstep = {step}\nadvanced = {clock.time}\nphase = "train"\n'
        f'[rank.1]\npid = 8\nstep = {step}\nadvanced = {clock.time - 50}\nphase = "train"\n'
    )
    (shell.run_dir / "logs" / f"gpt-{job}.out").write_text("".join(f"step {n}\n" for n in range(200)) + "\r 9%\r 10%")
    (shell.run_dir / "learned").mkdir(exist_ok=True)
    learned = {"attempt": 1, "cadence": {"interval_s": 600}, "host_memory": {"trend": [2048.0, 900.0]}}
    (shell.run_dir / "learned" / "0.json").write_text(json.dumps(learned))
    (shell.run_dir / "journal").mkdir(exist_ok=True)
    events = [{"event": "progress", "time": clock.time - ago, "attempt": 1, "step": 600 - ago} for ago in (240, 120)]
    (shell.run_dir / "journal" / f"{job}.progress.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    begun = {"event": "save_begin", "time": clock.time - 100, "attempt": 1, "step": 500}
    (shell.run_dir / "journal" / f"{job}.0.jsonl").write_text(json.dumps(begun) + "\n")


def test_the_controller_gets_one_question_in_ten_seconds(shell: Shell, looker: Looker, clock: FakeClock) -> None:
    for _ in range(301):
        looker.look()
        clock.sleep(1.0)
    assert 25 <= len(shell.fake.calls) <= 31 and set(shell.fake.calls) == {"jobs"}


def test_runs_of_two_submitters_are_two_questions_in_twenty_seconds(
    shell: Shell, looker: Looker, clock: FakeClock
) -> None:
    journal = shell.run_dir / "submissions.jsonl"
    intent = json.loads(journal.read_text().splitlines()[0]) | {"token": "ab" * 8, "by": "daemon"}
    journal.write_text(json.dumps(intent) + "\n" + journal.read_text())
    for _ in range(300):
        looker.look()
        clock.sleep(1.0)
    assert 24 <= len(shell.fake.calls) <= 30


def test_a_controller_that_is_down_is_not_asked_more_often(shell: Shell, looker: Looker, clock: FakeClock) -> None:
    looker.look()
    shell.fake.trouble = DOWN
    shell.fake.calls.clear()
    for _ in range(300):
        clock.sleep(1.0)
        frame = looker.look()
    assert len(shell.fake.calls) <= 30
    assert {run.state for run in frame.runs} == {"unknown"} and frame.queue_age_s > 280
    assert any("unknown, not dead" in fact for fact in frame.runs[0].facts)


def test_a_run_is_seen_with_rate_ranks_memory_next_save_and_log(shell: Shell, looker: Looker, clock: FakeClock) -> None:
    write_attempt(shell, clock, step=600)
    frame = looker.look("gpt")
    run = next(run for run in frame.runs if run.run == "gpt")
    assert (run.state, run.step, run.step_s) == ("running", 600, 1.0)
    assert len(run.rates) == 24 and run.rates[-1] == pytest.approx(1.0)
    assert run.ends == pytest.approx(clock.time + 3600) and run.next_save == pytest.approx(clock.time + 500)
    assert run.memory_per_s == 2048.0
    assert [(one.rank, one.level) for one in run.ranks] == [(0, 0), (1, 4)]
    assert run.log[-2:] == ("step 199", " 10%") and run.log_path.endswith(".out")
    assert next(run for run in frame.runs if run.run == "bert").log == ()
    clock.sleep(4.0)
    write_attempt(shell, clock, step=620)
    assert next(run for run in looker.look("gpt").runs if run.run == "gpt").step == 620, "without the controller"
    clock.sleep(100.0)
    run = next(run for run in looker.look("gpt").runs if run.run == "gpt")
    assert run.ranks[0].level == 4 or run.ranks[0].is_silent or run.ranks[0].level == 0


def test_keys_save_and_kill_by_the_switches_and_say_what_they_did(shell: Shell, looker: Looker) -> None:
    looker.look()
    assert looker.act("save", "gpt") == "save switch set; to clear it: resil clear gpt"
    assert (shell.run_dir / "switches" / "save").exists() and not (shell.run_dir / "switches" / "kill").exists()
    assert looker.act("kill", "gpt") == "kill switch set; to clear it: resil clear gpt"
    assert 'why = "by resil top"' in (shell.run_dir / "switches" / "kill").read_text()
    shell.run_dir.rename(shell.run_dir.with_name("moved"))
    assert "kill gpt: " in looker.act("kill", "gpt")


def test_a_switch_for_a_run_without_a_job_says_that_nothing_trains(shell: Shell, looker: Looker) -> None:
    shell.fake.records = []
    (state,) = [run.state for run in looker.look("gpt").runs if run.run == "gpt"]
    assert looker.act("kill", "gpt") == f"kill switch set, the run is {state}; to clear it: resil clear gpt"


def test_a_run_that_was_removed_meanwhile_is_told_and_the_others_stay(
    shell: Shell, looker: Looker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_attempt(shell, clock, 620)
    looker.look()
    shutil.rmtree(shell.run_dir)
    assert [run.run for run in looker.look("gpt").runs] == ["bert", "gpt"], "until the next question"
    clock.sleep(30.0)
    with monkeypatch.context() as patch:
        patch.setattr("resilience.cli.top.look.run_statuses", _cannot_be_read)
        assert "Input/output error" in looker.look("gpt").trouble
    clock.sleep(30.0)
    assert [run.run for run in looker.look("gpt").runs] == ["bert"]
    assert looker.act("kill", "gpt") == "kill gpt: this run is no longer there"


def _cannot_be_read(*_: object) -> NoReturn:
    raise StateDirectoryError("Input/output error")


def test_open_incidents_are_shown_and_acknowledged(shell: Shell, clock: FakeClock) -> None:
    office = Office(shell)
    office.tick(full(), full("/home"))
    looker = Looker(shell.project)
    frame = looker.look()
    assert frame.runs == () and "no run has been submitted" in frame.empty
    assert {one.subject for one in frame.incidents} == {"/scratch", "/home"} and not any(i.by for i in frame.incidents)
    said = looker.act("ack", frame.incidents[0].id)
    assert said.startswith("acknowledged fs ") and frame.incidents[0].id in said
    assert [bool(one.by) for one in looker.look().incidents] == [True, False]
    assert "there is no incident" in looker.act("ack", "zzzz")


def test_a_run_that_cannot_be_read_is_told_and_the_last_state_stays(
    shell: Shell, looker: Looker, clock: FakeClock
) -> None:
    assert len(looker.look().runs) == 2
    state = shell.directory / ".resil"
    state.rename(state.with_name("away"))
    state.write_text("")
    clock.sleep(11.0)
    frame = looker.look()
    assert frame.trouble and len(frame.runs) == 2
