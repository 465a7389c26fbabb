"""A job that was queued without resil becomes a run, on the embedded scheduler, by the commands that a user types."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.conftest import Shell

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=plain
#SBATCH --output=plain-%j.log
step=0
while [ ! -e stop ]; do step=$((step + 1)); echo "step $step loss 0.5"; sleep 0.2; done
"""


def plain_sbatch(shell: Shell, script: Path, *arguments: str) -> str:
    """Queue a script with the `sbatch` that jobs of the embedded scheduler have; return the job's id."""
    code = "from resilience.schedulers._local.shim import main; main()"
    argv = [sys.executable, "-c", code, "sbatch", "--parsable", str(script), *arguments]
    said = subprocess.run(argv, cwd=shell.directory, env=shell.environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


def test_a_plain_job_is_adopted_watched_continued_and_ended(shell: Shell) -> None:
    script = shell.directory / "train.sh"
    script.write_text(SCRIPT)
    job = plain_sbatch(shell, script)
    log = shell.directory / f"plain-{job}.log"
    shell.until(lambda: log.exists() and b"step 3" in log.read_bytes())

    adopted = shell.resil("adopt", job)
    assert adopted.returncode == 0 and f"adopted job {job} (RUNNING" in adopted.stdout, adopted.stderr
    assert f"log     {log}" in adopted.stdout

    (run,) = json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"]
    assert (run["run"], run["headline"]) == ("plain", "running") and run["step"] >= 3
    assert shell.resil("logs", "plain", "--path").stdout.strip() == str(log)
    watched = shell.resil("watch", "job", "plain")
    assert watched.returncode == 0, watched.stdout
    judged = shell.resil("watch", "log", "--json", "--no-alert")
    assert str(log) in judged.stdout and judged.returncode == 0, judged.stdout

    behind = shell.resil("submit", "--run", "plain", "--parsable")
    assert behind.returncode == 0, behind.stderr
    (run,) = json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"]
    assert {row["job"]: row["state"] for row in run["jobs"]} == {job: "RUNNING", behind.stdout.strip(): "PENDING"}

    (shell.directory / "stop").touch()
    shell.until(
        lambda: json.loads(shell.resil("status", "--json", "--fresh").stdout)["runs"][0]["headline"] == "not queued"
    )
    assert (shell.directory / f"plain-{behind.stdout.strip()}.log").exists()


def test_a_waiting_job_is_adopted_before_its_start_and_an_ended_one_is_refused(shell: Shell) -> None:
    script = shell.directory / "train.sh"
    script.write_text(SCRIPT.replace("--job-name=plain", "--job-name=plain\n#SBATCH --hold"))
    job = plain_sbatch(shell, script, "--lr", "0.1")
    adopted = shell.resil("adopt", job, "--run", "later")
    assert f"resil submit {script} --run later -- -- --lr 0.1 (queues behind it)" in adopted.stdout
    assert f"adopted job {job} (PENDING) as run later" in adopted.stdout, adopted.stderr
    assert "queued" in shell.resil("status", "later").stdout
    assert shell.resil("cancel", "later").returncode == 0

    refused = shell.resil("adopt", job, "--run", "another")
    assert not (shell.state_dir / "another").exists()
    assert refused.returncode == 1 and f"job {job} has ended: CANCELLED" in refused.stderr
