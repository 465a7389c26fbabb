"""A guarded training whose loss becomes NaN: people hear of it once, and of its end."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from tests.end_to_end.conftest import Shell

TRAINING = """\
import sys, time
from pathlib import Path
from resilience.guard import TrainingGuard

with TrainingGuard.from_env() as guard:
    guard.resumed(10)  # from a checkpoint
    for step in range(11, 100_000):
        decision = guard.step(loss=float("nan") if step == 30 and Path("bad").exists() else 2.0)
        if decision.stop:
            break
        time.sleep(0.02)
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
beat_s = "100ms"
[alert]
channels = ["pager"]
group_s = 0
[channel.pager]
kind = "command"
argv = ["/bin/sh", "-c", "cat >> told"]
"""


def run_on(shell: Shell) -> None:
    said = shell.resil("submit", "--array", "1")
    assert said.returncode == 0, said.stderr


def told(shell: Shell) -> list[dict[str, Any]]:
    """What the pager got."""
    path = shell.directory / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_people_hear_of_nan_once_and_of_its_end_when_an_attempt_has_passed_that_step(shell: Shell) -> None:
    shell.settings(SETTINGS.replace("cat >> told", f"cat >> {shell.directory}/told"))
    (shell.directory / "train.py").write_text(TRAINING)
    (shell.directory / "bad").touch()
    for attempt, row in enumerate(("", " for the second time in a row,"), start=1):
        run_on(shell)
        end = shell.state_dir / "gpt" / "attempts" / f"{attempt:04d}.end"
        shell.until(end.exists)
        for _ in range(2):
            watched = shell.resil("watch", "log")
            assert watched.returncode == 2
            assert f"LOG CRITICAL - gpt: the loss is NaN{row} at step 30: the guard has stopped" in watched.stdout
    (first,) = told(shell)
    assert (first["reason"], first["notices"][0]["fault"]) == ("FIRST", "loss-nonfinite")

    (shell.directory / "bad").unlink()
    run_on(shell)
    said: list[str] = []

    def is_well() -> bool:
        said.append(shell.resil("watch", "log").stdout)
        return not said[-1].startswith("LOG CRITICAL - gpt: the loss is NaN for the second time")

    shell.until(is_well)
    step = re.search(r"LOG OK - gpt: step (\d+) ", said[-1])
    assert step is not None and int(step[1]) > 30
    assert [alert["reason"] for alert in told(shell)] == ["FIRST", "RESOLVED"]
    assert shell.resil("watch", "log").returncode == 0
