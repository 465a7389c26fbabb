"""A training that hangs is ended by the kill switch, and one without a time limit by stop_after, as people type it."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

from tests.end_to_end.conftest import Shell

HANGS = """\
import time
from resilience.guard import TrainingGuard

with TrainingGuard.from_env() as guard:
    for _ in range(3):
        guard.step()
    print("hangs", flush=True)
    time.sleep(600)
"""
STEPS = """\
import sys, time
from resilience.guard import TrainingGuard

with TrainingGuard.from_env() as guard:
    while not (decision := guard.step()).stop:
        time.sleep(0.02)
    with guard.saving():
        open("saved", "w").write(decision.why)
sys.exit(guard.exit_code)
"""
SETTINGS = f"""\
[run]
name = "gpt"
command = "{sys.executable} train.py"
template = "{{template}}"
[attempt]
beat_s = 1
[submit]
signal_lead_s = 2
[guard]
poll_s = 0.1
beat_s = "200ms"
first_save_s = 1
walltime_margin_s = 1
{{guard}}
[sbatch]
{{sbatch}}
"""


def begin(shell: Shell, training: str, guard: str, *words: str, template: str = "python", sbatch: str = "") -> None:
    shell.settings(SETTINGS.format(template=template, guard=guard, sbatch=sbatch))
    (shell.directory / "train.py").write_text(training)
    said = shell.resil("submit", *words)
    assert said.returncode == 0, said.stderr


def status(shell: Shell) -> Any:
    return json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"][0]


def journal(shell: Shell) -> list[Any]:
    paths = (shell.state_dir / "gpt" / "journal").glob("*.batch.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def stages(shell: Shell) -> list[str]:
    return [event["event"] for event in journal(shell) if event["event"].startswith(("kill", "stop", "siblings"))]


def ended(shell: Shell) -> dict[str, Any]:
    path = shell.state_dir / "gpt" / "attempts" / "0001.end"
    shell.until(path.exists)
    return tomllib.loads(path.read_text())


def test_a_guarded_training_that_hangs_is_ended_with_its_queue_and_status_tells_how_far_it_is(shell: Shell) -> None:
    begin(shell, HANGS, "kill_timeout_s = 3", "--array", "3", template="srun", sbatch="ntasks = 2")
    shell.until(lambda: shell.resil("logs").stdout.count("hangs") == 2)

    thrown = shell.resil("kill", "--why", "it hangs", "--scope", "all").stdout
    assert "queued jobs (2) are cancelled then" in thrown
    if "is already being ended" not in thrown:  # on a busy machine the batch shell was faster than the command
        assert "stops at its next step, after a save" in thrown
        assert "if it has not by " in thrown and "stacks of all ranks, SIGTERM, and SIGKILL after KillWait" in thrown
    seen = set()
    while not (shell.state_dir / "gpt" / "attempts" / "0001.end").exists():
        seen.add((status(shell)["kill"] or {"stage": ""})["stage"])

    end = ended(shell)
    assert (end["end"], end["exit_code"]) == ("terminated", 137)
    assert end["why"].endswith(": it hangs, no step within 3 s: ended with SIGKILL")
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))
    assert stages(shell) == ["kill_noticed", "kill_stacks", "kill_term", "kill_kill", "siblings_cancelled"]
    assert seen <= {"", "noticed", "stacks", "term", "kill"} and seen & {"noticed", "stacks", "term"}
    (attempt,) = status(shell)["attempts"]
    assert attempt["end"] == "terminated"


def test_stop_after_stops_a_job_without_a_time_limit_after_a_save_and_the_next_goes_on(shell: Shell) -> None:
    begin(shell, STEPS, 'stop_after = "8s"', "--array", "2", sbatch='time = "UNLIMITED"')
    end = ended(shell)
    assert (end["end"], end["exit_code"]) == ("stopped", 75)
    assert "stop_after" in (shell.directory / "saved").read_text()
    shell.until(lambda: len(status(shell)["attempts"]) == 2)
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))
    assert [attempt["end"] for attempt in status(shell)["attempts"]] == ["stopped"] * 2


def test_stop_after_holds_in_a_script_of_ones_own_where_the_guard_stands_alone(shell: Shell) -> None:
    (shell.directory / "own.sh").write_text(f"#!/bin/bash\n{sys.executable} train.py\n")
    begin(shell, STEPS, 'stop_after = "8s"', "own.sh")
    shell.until((shell.directory / "saved").exists)
    assert (shell.directory / "saved").read_text().startswith("the attempt's end by stop_after is in ")
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))


def test_stop_after_ends_what_does_not_follow(shell: Shell) -> None:
    begin(shell, HANGS, 'stop_after = "6s"\nkill_timeout_s = 600')
    end = ended(shell)
    assert (end["end"], end["exit_code"]) == ("terminated", 137)
    assert end["why"] == "stop_after = 6 s is over: ended with SIGKILL"
    assert stages(shell) == ["stop_requested", "kill_stacks", "kill_term", "kill_kill"]
