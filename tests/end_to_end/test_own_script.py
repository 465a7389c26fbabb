"""A user's own sbatch script under `resil`: every command finds its log, wherever sbatch is told to write it."""

from __future__ import annotations

import json
import shlex
import subprocess
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
    ("", (), "slurm-{id}.out"),
    ("#SBATCH -o sub/%x.%j.log", (), "sub/mine.{id}.log"),
    ("#SBATCH -o ignored.log", ("--", "--output=%u-%j.txt"), "*-{id}.txt"),
    ("#SBATCH --chdir=sub", ("--array", "2"), "sub/slurm-{id}_1.out"),
    ("", ("--", "-o", "train.log"), "train.log"),
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
