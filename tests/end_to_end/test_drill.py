"""`resil drill` as a user types it: real trainings are broken on the embedded scheduler, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.drilled import TRAIN, settings
from tests.end_to_end.conftest import PATIENCE_S, Shell

SOAK = pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1")


def prepare(shell: Shell, arguments: str = "", more: str = "") -> None:
    (shell.directory / "train.py").write_text(TRAIN)
    shell.settings(settings(sys.executable, arguments) + more)


def names_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if "__pycache__" not in path.parts}


def test_a_rank_is_killed_the_next_attempt_goes_on_and_nothing_is_left(shell: Shell) -> None:
    prepare(shell)
    real = shell.directory / "checkpoints" / "tiny"
    real.mkdir(parents=True)
    (real / "of-the-real-run").touch()
    before = names_in(shell.directory)
    done = shell.resil("drill", "kill-rank", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (drill,) = json.loads(done.stdout)["drills"]
    measured = drill["measured"]
    assert drill["outcome"] == "PASS" and measured["end"] == "killed by SIGKILL"
    assert 0 < measured["durable"] == measured["resumed_at"] <= measured["last_step"]
    assert measured["redone"] == measured["last_step"] - measured["resumed_at"]
    assert "should" not in drill["reason"] and "goes on at the newest checkpoint" in done.stderr, "said before"
    assert names_in(shell.directory) == before
    assert shell.resil("status").stdout.strip() == "" or "drill" not in shell.resil("status").stdout


def test_a_training_that_writes_into_the_real_checkpoints_is_refused_and_if_not_is_found_out(shell: Shell) -> None:
    prepare(shell, arguments="checkpoints/tiny")
    refused = shell.resil("drill", "--all")
    assert refused.returncode == 2 and "names the real run's directory" in refused.stderr
    assert "--yes" in refused.stderr and not (shell.directory / ".resil-drill").exists()
    (shell.directory / "hidden.py").write_text('import sys\nsys.argv.append("checkpoints/tiny")\n' + TRAIN)
    shell.settings(settings(sys.executable).replace("train.py", "hidden.py"))
    done = shell.resil("drill", "kill-rank", "walltime")
    assert done.returncode == 1, done.stdout
    assert "changed files of the real run" in done.stdout and "walltime:" not in done.stdout
    saved = sorted((shell.directory / "checkpoints" / "tiny").glob("step-*"))
    again = shell.resil("drill", "kill-rank")
    assert again.returncode == 1 and "loaded those of the real run" in again.stdout
    assert sorted((shell.directory / "checkpoints" / "tiny").glob("step-*")) == saved, "ended before a save"


@pytest.mark.soak
@SOAK
@pytest.mark.timeout(900)
def test_every_drill_passes_with_a_training_that_does_everything_right(shell: Shell) -> None:
    prepare(shell)
    before = names_in(shell.directory)
    done = shell.resil("drill", "--all", "--json")
    found = {one["drill"]: one for one in json.loads(done.stdout)["drills"]}
    wrong = [(name, one["reason"]) for name, one in found.items() if one["outcome"] == "FAIL"]
    assert wrong == [], done.stderr
    assert len(found) == 7 and not any(one["left"] for one in found.values())
    assert found["corrupt-checkpoint"]["measured"]["lost_bytes"] > 200_000
    assert found["walltime"]["measured"]["redone"] == 0
    assert names_in(shell.directory) == before


@pytest.mark.soak
@SOAK
@pytest.mark.parametrize(
    ("before", "after", "drill", "code", "says"),
    [
        ("100_000", "40", "controller", 75, "the training reached its last step before the end of the drill"),
        ("import json", "import jsn, json", "stop-rank", 75, "No module named 'jsn'"),
        (":= store.latest()", ":= None", "full-checkpoints", 1, "began at step 0, although step"),
        ("if decision.save:", "if False:", "kill-rank", 1, "was told to save at step"),
        (":= store.latest()", ":= None", "corrupt-checkpoint", 1, "without a look at the checkpoints"),
    ],
)
def test_a_training_that_does_something_wrong_gets_the_verdict_that_it_deserves(
    shell: Shell, before: str, after: str, drill: str, code: int, says: str
) -> None:
    prepare(shell)
    saving_any = TRAIN.replace("except OSError", "except ArithmeticError")  # a full disk ends the attempt
    (shell.directory / "train.py").write_text(saving_any.replace(before, after))
    done = shell.resil("drill", drill, "--json")
    (found,) = json.loads(done.stdout)["drills"]
    assert (done.returncode, says in found["reason"]) == (code, True), found
    assert found["advice"] and not found["left"]


@pytest.mark.soak
@SOAK
def test_a_loop_that_saves_below_the_directory_of_the_drill_is_drilled_except_where_a_store_is_needed(
    shell: Shell,
) -> None:
    prepare(shell)
    own = TRAIN.replace("Store.from_env()", 'Store(os.environ["RESIL_DRILL_DIR"] + "/own")')
    (shell.directory / "train.py").write_text(own)
    done = shell.resil("drill", "kill-rank", "corrupt-checkpoint", "--json")
    killed, corrupt = json.loads(done.stdout)["drills"]
    assert killed["outcome"] == "PASS" and killed["measured"]["resumed_at"] > 0, killed
    assert corrupt["outcome"] == "UNKNOWN" and "place of its own" in corrupt["reason"], corrupt


@pytest.mark.soak
@SOAK
def test_a_training_without_a_guard_is_given_up_before_the_limit(shell: Shell) -> None:
    prepare(shell)
    (shell.directory / "train.py").write_text("import time\nprint('step 1')\ntime.sleep(900)\n")
    done = shell.resil("drill", "kill-rank", "--limit", "5m", "--json")
    (found,) = json.loads(done.stdout)["drills"]
    assert done.returncode == 75 and "no guard has reported in the" in found["reason"], found
    assert found["seconds"] < 200 and "step 1" in found["reason"]


@pytest.mark.soak
@SOAK
def test_a_training_that_ends_by_a_failed_save_is_not_held_by_the_breaker_while_nobody_was_told_yet(
    shell: Shell,
) -> None:
    """On a busy machine the watchdogs take a minute: no further attempt is to fail at the same request meanwhile."""
    prepare(shell, more="[act]\nenabled = true\n")
    slow = (
        "import runpy, time\nfrom resilience.drills.training import Training\nreal = Training.see_told\n"
        "def see(self, *words):\n    time.sleep(20)\n    return real(self, *words)\n"
        "Training.see_told = see\nrunpy.run_module('resilience', run_name='__main__', alter_sys=True)\n"
    )
    (shell.directory / "train.py").write_text(TRAIN.replace("except OSError", "except ArithmeticError"))
    argv = [sys.executable, "-c", slow, "drill", "full-checkpoints", "--scheduler", "local"]
    done = subprocess.run(argv, cwd=shell.directory, env=shell.environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
@SOAK
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_drill_leaves_nothing_and_a_killed_one_is_cleaned_up_by_the_next(
    shell: Shell, number: signal.Signals
) -> None:
    prepare(shell)
    before = names_in(shell.directory)
    argv = [sys.executable, "-m", "resilience", "drill", "stop-rank"]
    drill = subprocess.Popen(argv, cwd=shell.directory, env=shell.environment, stdout=subprocess.PIPE, text=True)
    assert drill.stdout is not None
    for line in drill.stdout:
        if "fault: sends SIGSTOP" in line:
            break
    drill.send_signal(number)
    assert drill.wait(PATIENCE_S) in (128 + number, -number)
    drill.stdout.close()
    if number is signal.SIGKILL:
        assert (shell.directory / ".resil-drill" / "owner").exists()
        assert shell.resil("drill", "walltime").returncode == 0
    assert names_in(shell.directory) == before
