"""A training that uses the short form of the guard, steered by the commands that people type."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.end_to_end.conftest import Shell

TRAINING = """\
import json, sys, time
from pathlib import Path
from resilience.guard import TrainingGuard

checkpoint, steps = Path("checkpoint.json"), int(Path("steps").read_text())
done = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0

def save(label=""):
    for path in (checkpoint, *([Path(label + ".json")] if label else [])):
        path.with_suffix(".tmp").write_text(json.dumps({"step": step}))
        path.with_suffix(".tmp").rename(path)

with TrainingGuard.from_env() as guard:
    guard.resumed(done)
    for step in guard.steps(range(done + 1, steps + 1), save=save):
        with open("log", "a") as log:
            log.write(f"{step}\\n")
        time.sleep(0.02)
    if guard.decided is None:
        guard.finished()
sys.exit(guard.exit_code)
"""
SETTINGS = f"""\
[run]
name = "gpt"
command = "{sys.executable} train.py"
[attempt]
beat_s = 1
[guard]
poll_s = 0.1
beat_s = "200ms"
"""


def status(shell: Shell) -> Any:
    return json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"][0]


def steps(shell: Shell) -> list[int]:
    path = shell.directory / "log"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def begin(shell: Shell, *words: str) -> str:
    said = shell.resil("submit", "--array", "1", *words)
    assert said.returncode == 0, said.stderr
    return said.stdout + said.stderr


def test_a_guarded_training_saves_stops_and_goes_on_as_it_is_told(shell: Shell) -> None:
    shell.settings(SETTINGS)
    (shell.directory / "train.py").write_text(TRAINING)
    (shell.directory / "steps").write_text("100000")
    begin(shell)
    shell.until(lambda: len(steps(shell)) > 5)

    assert shell.resil("save", "--label", "nice").returncode == 0
    nice = shell.directory / "nice.json"
    shell.until(nice.exists)
    shell.until(lambda: not (shell.state_dir / "gpt" / "switches" / "save").exists())
    at = json.loads(nice.read_text())["step"]
    shell.until(lambda: steps(shell)[-1] > at + 5)

    assert shell.resil("kill", "--why", "loss is NaN").returncode == 0
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))
    (attempt,) = status(shell)["attempts"]
    assert (attempt["end"], attempt["exit_code"]) == ("stopped", 75)
    stopped = steps(shell)[-1]
    assert json.loads((shell.directory / "checkpoint.json").read_text())["step"] == stopped == status(shell)["step"]
    assert f"step {stopped}: save and stop, because the kill switch" in shell.resil("logs").stdout

    refused = shell.resil("submit", "--array", "1")
    assert refused.returncode == 2 and "has a kill switch, set by" in refused.stderr
    assert "has a kill switch, set by" in begin(shell, "--force")  # its jobs end as they start
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))
    assert steps(shell)[-1] == stopped

    assert shell.resil("clear").returncode == 0
    (shell.directory / "steps").write_text(str(stopped + 10))
    begin(shell)
    shell.until(lambda: status(shell)["headline"] == "finished")
    assert steps(shell) == list(range(1, stopped + 11)), "every step once"


FORGETFUL = """\
import time
from resilience.guard import TrainingGuard

class Enough:
    def __init__(self): self.at = time.monotonic() + 0.5
    def poll(self): return "that is enough" if time.monotonic() > self.at else None
    def done(self, outcome): pass

guard = TrainingGuard.from_env(triggers=[Enough()])
for step in guard.steps(range(100000), save=lambda: None):
    time.sleep(0.02)
guard.finished()
"""


def test_a_training_that_was_stopped_is_not_finished_even_if_it_says_so_and_exits_with_0(shell: Shell) -> None:
    """The loop of the short form ends alike when it is done and when it is stopped; the run must go on."""
    shell.settings(SETTINGS)
    (shell.directory / "train.py").write_text(FORGETFUL)
    begin(shell)
    shell.until(lambda: not any(job["is_alive"] for job in status(shell)["jobs"]))
    (attempt,) = status(shell)["attempts"]
    assert (attempt["end"], attempt["exit_code"]) == ("stopped", 75)
    assert not (shell.state_dir / "gpt" / "finished").exists()
    assert "not marked as finished: the training was stopped at step" in shell.resil("logs").stdout


def test_a_setting_that_the_guard_would_refuse_is_refused_before_anything_is_queued(shell: Shell) -> None:
    shell.settings(SETTINGS + "host_memory_percent = 0.95\n")
    for words in (["submit"], ["config", "check"], ["status"]):
        said = shell.resil(*words)
        assert said.returncode == 2 and (words[0] == "config" or not said.stdout)
        assert "host_memory_percent = 0.95 means 0.95 %" in said.stderr and "resil.toml" in said.stderr
    assert not (shell.directory / ".resil").exists()
