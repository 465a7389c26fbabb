"""`resil status` is short, safe for a terminal, and stable for programs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.verified import write_verified
from resilience.checkpoints.verify import verify
from resilience.cli.show_status import show_status
from resilience.errors import SchedulerUnavailable
from resilience.job import ExitCode, JobId, JobState
from resilience.system import files
from tests.checkpoints.trees import RECORDED, commit_tree
from tests.lab.fakes import DOWN, FakeClock
from tests.lab.shell import Shell

HOSTILE = "x\x1b[2J\x9b\r\u202e"


def test_without_a_run_the_first_steps_are_told(shell: Shell) -> None:
    said = shell.resil("status")
    assert said.code == 0
    assert "no run has been submitted here yet" in said.out and "resil submit --array 10" in said.out


def test_a_running_array_is_a_headline_a_row_and_what_is_next(shell: Shell) -> None:
    shell.resil("submit", "--array", "4")
    (waiting,) = shell.fake.records
    shell.fake.records = [
        replace(waiting, id=JobId(101, 1), state=JobState.RUNNING, tasks="", task_count=1, nodes="n[1-2]", reason=""),
        replace(waiting, tasks="2-4%1", task_count=3, reason="JobArrayTaskLimit"),
    ]
    (shell.run_dir / "beats" / "101.n1").write_text("step = 120\n")
    said = shell.resil("status", "--fresh")
    assert said.out.splitlines() == [
        "gpt  running, step 120",
        "  JOB  STATE    TASKS                NODES",
        "  101  RUNNING  3 PENDING 1 RUNNING  n[1-2]",
        "  next: 101_[2-4%1] (3 jobs waiting)",
    ]


def write_attempt(shell: Shell, number: int, *, end: str = "") -> None:
    directory = shell.run_dir / "attempts"
    (directory / f"{number:04d}").write_text(
        f'number = {number}\njob_id = {99 + number}\nlabel = "101_{number}"\nhost = "n1"\npid = 4\nstart = 1000\n'
    )
    if end:
        (directory / f"{number:04d}.end").write_text(end)


def test_the_newest_durable_save_and_what_came_of_the_one_after_it(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.records = [replace(job, state=JobState.RUNNING) for job in shell.fake.records]
    now = time.time()
    journal = shell.run_dir / "journal"
    journal.mkdir(exist_ok=True)
    write_attempt(shell, 1, end=f'end = "exited"\nexit_code = 1\ntime = {now - 600}\nwhy = "no space\\u001b[2J left"\n')
    events = [("start", 900, 0), ("save", 700, 40), ("save_begin", 610, 50), ("save_failed", 605, 50)]
    lines = [json.dumps({"event": name, "time": now - ago, "step": step}) for name, ago, step in events]
    (journal / "100.0.jsonl").write_text("\n".join(lines) + "\n")
    said = shell.resil("status").out.splitlines()
    assert "  saved: step 40, 11 min ago; save of step 50 failed" in said
    assert "  attempt 1 exited with code 1, 10 min ago: no space [2J left" in said

    write_attempt(shell, 2)
    (journal / "101.0.jsonl").write_text(json.dumps({"event": "save_begin", "time": now - 200, "step": 60}) + "\n{")
    said = shell.resil("status").out.splitlines()
    assert "  saved: step 40, 11 min ago; save of step 50 failed; save of step 60 has begun, 3 min ago" in said
    assert not any("exited" in line for line in said), "another attempt runs"
    (told,) = json.loads(shell.resil("status", "--json").out)["runs"]
    assert (told["save"]["step"], told["save"]["pending_step"], told["attempts"][0]["why"]) == (
        40,
        60,
        "no space [2J left",
    )
    (shell.run_dir / "beats" / "101.n1").write_text("step = 45\n")
    durable = json.dumps({"event": "save", "time": now - 200, "step": 60, "attempt": 2})
    (journal / "101.0.jsonl").write_text(durable + "\n")
    said = shell.resil("status").out.splitlines()
    assert said[0].startswith("gpt  running, step 60, attempt 2") and "  saved: step 60, 3 min ago" in said


def test_a_save_is_in_flight_as_long_as_its_own_attempt_runs(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.records = [replace(job, state=JobState.RUNNING, raw_id=100) for job in shell.fake.records]
    (shell.run_dir / "journal").mkdir(exist_ok=True)
    begun = {"event": "save_begin", "time": time.time() - 200, "attempt": 1, "step": 60}
    (shell.run_dir / "journal" / "100.0.jsonl").write_text(json.dumps(begun) + "\n")
    write_attempt(shell, 1)
    gave_up = 'end = "stopped"\nexit_code = 75\ntime = 9\nwhy = "attempt 0001 is not known to be over"\n'
    write_attempt(shell, 2, end=gave_up)
    assert "  saved: nothing yet; save of step 60 has begun, 3 min ago" in shell.resil("status").out.splitlines()
    write_attempt(shell, 1, end='end = "exited"\nexit_code = 1\ntime = 9\n')
    write_attempt(shell, 3)
    assert "  saved: nothing yet; save of step 60 was interrupted" in shell.resil("status").out.splitlines()


def test_ended_jobs_are_shown_only_when_asked_for_but_never_nothing(shell: Shell) -> None:
    shell.resil("submit", "--chain", "3")
    ended = [replace(job, state=JobState.FAILED, exit_code=ExitCode(1)) for job in shell.fake.records]
    shell.fake.records = [*ended[:2], replace(ended[2], state=JobState.RUNNING)]
    assert [line.split()[0] for line in shell.resil("status", "--fresh").out.splitlines()[2:]] == ["103"]
    assert [line.split()[0] for line in shell.resil("status", "-a").out.splitlines()[2:]] == ["103", "101", "102"]
    shell.fake.records = ended
    assert "103  FAILED  exit code 1" in shell.resil("status", "--fresh").out


def test_every_attempt_is_shown_when_asked_for(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "attempts" / "0001").write_text('job_id = 101\nlabel = "101"\nhost = "n1"\nstart = 100.0\n')
    (shell.run_dir / "attempts" / "0001.end").write_text('end = "exited"\ntime = 160.0\nexit_code = 137\n')
    assert "attempt 1" in shell.resil("status", "--fresh").out
    assert "1        101  n1    1 min   exited  137" in shell.resil("status", "-a").out


def test_a_silent_scheduler_is_unknown_exits_75_and_keeps_the_old_answer(shell: Shell) -> None:
    shell.resil("submit")
    assert shell.resil("status").code == 0
    shell.fake.trouble = DOWN
    said = shell.resil("status", "--fresh")
    assert said.code == 75
    assert said.out.startswith("gpt  unknown")
    assert "101  PENDING" in said.out
    assert "did not answer" in said.out and "unknown, not dead" in said.out


def test_nothing_from_outside_reaches_the_terminal_raw(shell: Shell) -> None:
    shell.resil("submit")
    (job,) = shell.fake.records
    shell.fake.records = [replace(job, reason=HOSTILE, nodes=HOSTILE, name=HOSTILE, partition=HOSTILE)]
    (shell.run_dir / "switches" / "kill").write_text(f'why = "{HOSTILE.encode("unicode_escape").decode()}"\n')
    (shell.run_dir / "attempts" / "0001").write_text(
        'job_id = 1\nlabel = "\\u001b[2J"\nhost = "\\u009b"\nstart = 1.0\n'
    )
    for words in (("--fresh",), ("--all",), ("--json",)):
        said = shell.resil("status", *words)
        assert said.code == 0
        assert all(character.isprintable() or character == "\n" for character in said.out), words
    shell.fake.trouble = SchedulerUnavailable(HOSTILE)
    assert all(c.isprintable() or c == "\n" for c in shell.resil("status", "--fresh").out)


def test_advice_stands_beside_the_job_it_is_for(shell: Shell) -> None:
    shell.resil("submit", "--hold")
    shell.fake.records = [replace(shell.fake.records[0], reason="JobHeldUser")]
    assert "  job 101: release it: scontrol release 101" in shell.resil("status").out


def test_switches_are_shown_with_who_and_why(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("kill", "--why", "loss is NaN")
    assert "kill switch of" in shell.resil("status").out and "loss is NaN" in shell.resil("status").out


def running(shell: Shell, number: int = 1) -> None:
    """An attempt trains, of a job that the queue shows."""
    shell.resil("submit", "--array", "4")
    (waiting,) = shell.fake.records
    trains = replace(waiting, id=JobId(101, 1), raw_id=101, state=JobState.RUNNING, tasks="", task_count=1, reason="")
    shell.fake.records = [trains, replace(waiting, tasks="2-4%1", task_count=3)]
    (shell.run_dir / "attempts" / f"{number:04d}").write_text('job_id = 101\nlabel = "101_1"\nstart = 1.0\n')


def test_a_kill_under_way_is_told_with_its_stage_beside_the_switch(shell: Shell) -> None:
    running(shell)
    (shell.run_dir / "switches" / "kill").write_text('why = "loss is NaN"\n')
    shell.journal(101, event="kill_noticed", attempt=1, time=time.time() - 12, why="bob", bound_s=95)
    said = (
        r"kill switch of \w+: loss is NaN; noticed 1\d s ago, SIGTERM at [-\d: ]+ unless the training stops at a step"
    )
    assert re.search(said, shell.resil("status").out)
    (run,) = shell.resil("status", "--json").json["runs"]
    assert set(run["kill"]) == {"stage", "since", "until", "why", "text"}
    assert (run["kill"]["stage"], run["kill"]["why"]) == ("noticed", "bob")
    assert run["kill"]["until"] == run["kill"]["since"] + 95
    shell.journal(101, event="kill_term", attempt=1, time=time.time() - 8, why="bob", kill_wait_s=30)
    assert re.search(r": loss is NaN; SIGTERM sent \d+ s ago, SIGKILL at ", shell.resil("status").out)
    shell.journal(101, event="kill_kill", attempt=1, time=time.time(), why="bob")
    assert "; SIGKILL sent" in shell.resil("status").out


def test_what_is_under_way_without_a_switch_is_told_as_well_and_what_is_over_is_not(shell: Shell) -> None:
    running(shell)
    shell.journal(101, event="kill_term", attempt=1, time=time.time(), why="stop_after = 60 s is over", kill_wait_s=30)
    (shell.run_dir / "attempts" / "0002").write_text('job_id = 102\nlabel = "101_2"\nstart = 2.0\n')  # it waits
    said = shell.resil("status", "--fresh").out
    assert re.search(r"  stop_after = 60 s is over: SIGTERM sent (just now|\d+ s ago), SIGKILL at ", said)
    (shell.run_dir / "attempts" / "0001.end").write_text('end = "terminated"\ntime = 3.0\n')
    assert "SIGTERM" not in shell.resil("status").out


def test_a_run_that_cannot_be_read_stands_beside_the_others(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("submit", "--run", "llama")
    journal = shell.directory / ".resil" / "llama" / "submissions.jsonl"
    journal.unlink()
    journal.mkdir()
    said = shell.resil("status")
    assert said.code == 0
    assert "gpt  queued" in said.out and "llama  unreadable" in said.out and "Is a directory" in said.out


def test_watching_looks_again_and_again_until_somebody_has_enough(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.resil("submit")
    looks: list[float] = []

    def enough(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    project = shell.project
    watched = replace(project, system=replace(project.system, clock=FakeClock(at_sleep=enough)))
    with pytest.raises(KeyboardInterrupt):
        show_status(watched, "gpt", watch_s=7.0)
    assert looks == [7.0] * 3
    assert capsys.readouterr().out.count("gpt  queued") == 3


def late_scheduler(shell: Shell) -> None:
    """Leave a sign of life of an hour ago."""
    moment = shell.project.system.clock.now() - 3600
    directory = shell.directory / ".resil" / ".cron"
    directory.mkdir(parents=True, exist_ok=True)
    times = {"time": moment, "expected": moment + 60, "alive_since": moment}
    (directory / "heartbeat").write_text(json.dumps({**times, "driver": "foreground"}))


def test_a_late_scheduler_of_cron_is_told_with_since_when_and_what_to_run(shell: Shell) -> None:
    shell.resil("submit")
    assert "cron" not in shell.resil("status").out and "cron" not in shell.resil("status", "--json").json
    late_scheduler(shell)
    (line,) = [line for line in shell.resil("status").out.splitlines() if "cron" in line]
    assert "1 h ago" in line and "resil cron status" in line
    assert "resil cron status" in shell.resil("status", "--json").json["cron"]


def test_a_submit_warns_of_a_late_scheduler_and_queues_all_the_same(shell: Shell) -> None:
    late_scheduler(shell)
    said = shell.resil("submit")
    assert said.code == 0 and "queued run gpt" in said.out
    assert "warning: the cron scheduler is dead" in said.err


def test_a_submit_says_of_the_scheduler_what_status_says_on_a_machine_that_takes_a_second_to_look(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_scheduler(shell)
    monkeypatch.setattr(files, "read_regular", after_a_second(files.read_regular))
    notice = "the cron scheduler is dead"
    assert notice in shell.resil("status").out
    assert f"warning: {notice}" in shell.resil("submit").err


def after_a_second(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read the scheduler's sign of life only after a second, as on a busy machine."""

    def slow(path: Path) -> Any:
        if path.name == "heartbeat":
            time.sleep(1)
        return read(path)

    return slow


def test_one_run_or_all_of_them(shell: Shell) -> None:
    for name in ("gpt", "llama"):
        shell.resil("submit", "--run", name)
    assert [run["run"] for run in shell.resil("status", "--json").json["runs"]] == ["gpt", "llama"]
    assert [run["run"] for run in shell.resil("status", "llama", "--json").json["runs"]] == ["llama"]
    assert [run["run"] for run in shell.resil("status", ".resil/gpt", "--json").json["runs"]] == ["gpt"]


def test_an_unknown_run_is_answered_with_the_nearest(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("status", "gtp")
    assert (said.code, said.out) == (2, "")
    assert "there is no run 'gtp'" in said.err and "did you mean gpt?" in said.err


def test_ten_looks_in_a_row_ask_the_scheduler_once_and_fresh_asks_again(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.calls.clear()
    for _ in range(10):
        shell.resil("status")
    assert shell.fake.calls == ["jobs"]
    shell.resil("status", "--fresh")
    assert shell.fake.calls == ["jobs", "jobs"]


def test_the_newest_verified_checkpoint_and_its_age(shell: Shell) -> None:
    shell.settings('[run]\nname = "gpt"\ncommand = "python train.py"\n[checkpoints]\npath = "ckpts"\n')
    shell.resil("submit")
    assert "checkpoints" not in shell.resil("status").out and shell.resil("status", "--json").json["runs"][0][
        "checkpoints"] is None  # fmt: skip
    store = StoreDirectory.create(shell.directory / "ckpts", "gpt")
    for step in (100, 200):
        one = commit_tree(store, step, RECORDED / "safetensors")
        os.utime(one.manifest_path, (time.time() - 600, time.time() - 600))
    write_verified(store.find(100), verify(store.find(100)), time.time())
    line = "  checkpoints: step 100 verified, saved 10 min ago (step-00000100); step 200 not verified yet"
    assert line in shell.resil("status").out.splitlines()
    found = shell.resil("status", "--json").json["runs"][0]["checkpoints"]
    assert (found["count"], found["newest"]["step"], found["verified"]["level"]) == (2, 200, "digest")
