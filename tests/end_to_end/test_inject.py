"""Faults injected into a guarded training of the embedded scheduler, as a user types it: hit, seen, and undone."""

from __future__ import annotations

import json
import sys
from typing import Any

from resilience.base.processes import state_of
from tests.end_to_end.conftest import Shell

TRAINING = """\
import multiprocessing, os, sys, time
from resilience.guard import TrainingGuard

def train(rank):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with TrainingGuard.from_env() as guard:
        while not guard.step().stop:
            time.sleep(0.01)
    sys.exit(guard.exit_code)

ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
sys.exit(max(abs(rank.exitcode) for rank in ranks))
"""
SETTINGS = f"""\
[run]
name = "gpt"
command = "{sys.executable} train.py"
allow_inject = true
[attempt]
beat_s = 1
[guard]
poll_s = 0.1
beat_s = "200ms"
[scheduler]
deadline_s = 5
"""


def begin(shell: Shell) -> None:
    shell.settings(SETTINGS)
    (shell.directory / "train.py").write_text(TRAINING)
    assert shell.resil("submit").returncode == 0
    shell.until(lambda: shell.resil("inject", "kill", "--rank", "1", "--dry-run").returncode == 0)


def inject(shell: Shell, *words: str) -> dict[str, Any]:
    done = shell.resil("inject", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_training_is_stopped_hangs_and_is_killed_and_reports_show_it(shell: Shell) -> None:
    begin(shell)
    plan = inject(shell, "kill", "--rank", "1", "--dry-run")
    pid = int(plan["target"].partition("process ")[2].split()[0])
    for words in (["stop", "--rank", "1"], ["hang", "--rank", "1"], ["stop", "--batch"]):
        done = inject(shell, *words, "--for", "300ms")
        assert done["how"] == "its time was over" and done["error"] == ""
    assert state_of(pid)[0] in "SRD"
    assert shell.resil("inject", "exit", "--batch").returncode == 2
    assert str(pid) in inject(shell, "kill", "--rank", "1")["does"]
    shell.until(lambda: not state_of(pid)[0] or state_of(pid)[0] in "ZX")
    goodput = json.loads(shell.resil("goodput", "--json").stdout)["goodput"]
    assert [line.split(": ")[1] for line in goodput["injected"]] == ["stop", "hang", "stop", "kill"]
    assert "injected kill: rank 1" in shell.resil("timeline").stdout
