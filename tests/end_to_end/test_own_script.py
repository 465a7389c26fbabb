"""A user's own sbatch script under `resil`: every command finds its log, wherever sbatch is told to write it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Shell

TRAIN = """\
#!/bin/bash
#SBATCH --job-name=mine
{directive}
for step in $(seq 1 9999); do echo "step $step loss 1"; sleep 0.2; done
"""

PLACES = [
    ("#SBATCH -o sub/%x.%j.log", (), "sub/mine.{id}.log"),
    ("#SBATCH --chdir=sub", ("--array", "2"), "sub/slurm-{id}_1.out"),
    pytest.param("", (), "slurm-{id}.out", marks=pytest.mark.soak),
    pytest.param("#SBATCH -o ignored.log", ("--", "--output=%u-%j.txt"), "*-{id}.txt", marks=pytest.mark.soak),
    pytest.param("", ("--", "-o", "train.log"), "train.log", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("directive", "words", "place"), PLACES)
def test_logs_watch_and_status_find_the_log_of_an_own_script(
    shell: Shell, directive: str, words: tuple[str, ...], place: str
) -> None:
    (shell.directory / "sub").mkdir()
    (shell.directory / "my.sh").write_text(TRAIN.format(directive=directive))
    said = shell.resil("submit", "my.sh", "--run", "gpt", "--json", *words)
    assert said.returncode == 0, said.stderr
    (number,) = json.loads(said.stdout)["job_ids"]
    pattern = place.format(id=number)
    shell.until(lambda: any(path.stat().st_size for path in shell.directory.glob(pattern)))
    (log,) = shell.directory.glob(pattern)

    assert Path(shell.resil("logs", "gpt", "--path").stdout.strip()) == log
    (finding,) = (f for f in watch(shell) if f["subject"] == "gpt")
    assert finding["verdict"] == "OK" and finding["summary"].startswith("step "), finding
    assert any(str(log) in line for line in finding["looked"]), finding
    (run,) = json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"]
    assert run["headline"] == "running" and run["step"] >= 1

    assert shell.resil("cancel", "gpt").returncode == 0
    shell.until(lambda: "is over: CANCELLED" in next(f for f in watch(shell) if f["subject"] == "gpt")["summary"])


def watch(shell: Shell) -> list[dict[str, Any]]:
    reports = json.loads(shell.resil("watch", "log", "--json").stdout)["reports"]
    return [finding for report in reports for finding in report["findings"]]


def test_the_advice_about_a_held_job_releases_it_on_the_embedded_scheduler(shell: Shell) -> None:
    (shell.directory / "my.sh").write_text("#!/bin/bash\ntouch began\n")
    assert shell.resil("submit", "my.sh", "--run", "gpt", "--hold").returncode == 0
    said = shell.resil("status", "gpt", "--fresh").stdout
    words = shlex.split(said.partition("release it: ")[2].splitlines()[0])
    subprocess.run(words, env=shell.environment, check=True, timeout=30)
    shell.until((shell.directory / "began").exists)


LOOP = """\
#!/bin/bash
#SBATCH --array=1-5%1
#SBATCH -o out-%a.txt
{python} -m resilience run -- sh -c 'echo step 5 loss 2; [ -e mended ] || {{ echo "KeyError: boom"; exit 1; }}'
"""


def test_a_crash_loop_of_an_own_script_with_resil_run_ends_after_three_tasks(shell: Shell) -> None:
    """No batch shell of ours is there, and no tick is that fast."""
    shell.settings('[run]\nname = "mine"\n[act]\nenabled = true\n')
    (shell.directory / "my.sh").write_text(LOOP.format(python=sys.executable))
    said = shell.resil("submit", "my.sh").stdout
    assert "resil kill mine (asks the command as --stop of `resil run` says, else by SIGTERM)" in said
    shell.until((shell.state_dir / "mine" / "attempts" / "breaker.held").exists)
    assert len(list(shell.directory.glob("out-*.txt"))) == 3
    found = json.loads(shell.resil("attempts", "--json").stdout)
    assert [(one["exit_code"], one["decided"]) for one in found["attempts"]] == [
        (1, "go on"),
        (1, "go on"),
        (1, "hold"),
    ]
    assert "KeyError: boom" in shell.resil("why").stdout

    (shell.directory / "mended").touch()
    assert "released: 1" in shell.resil("breaker", "close").stdout
    shell.until(lambda: len(list(shell.directory.glob("out-*.txt"))) == 5)
