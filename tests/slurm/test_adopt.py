"""A job queued with plain sbatch on a real cluster: adopted, watched, continued, and finished."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until
from tests.slurm.test_commands import Desk

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=plain
#SBATCH --time=10
#SBATCH --output=plain-%j.log
step=0
while [ ! -e stop ]; do step=$((step + 1)); echo "step $step loss 0.5"; sleep 0.5; done
"""


@pytest.fixture
def desk(cluster: Cluster, alice: str) -> Desk:
    return Desk(cluster, alice, cluster.shared / "adopting")


def sbatch(desk: Desk, *words: str) -> str:
    """Queue a script as a user does without resil; return the job's id."""
    argv = ["sbatch", "--parsable", *words]
    return desk.cluster.run(argv, user=desk.user, cwd=desk.directory, check=True).stdout.strip()


def typed(desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    said = desk.resil(*words)
    assert said.returncode == 0, said.stdout + said.stderr
    return said


def scontrol(desk: Desk, job: str) -> str:
    """What SLURM knows of a job, without what changes by itself."""
    said = desk.cluster.run(["scontrol", "-o", "show", "job", job], user=desk.user, check=True).stdout
    return " ".join(word for word in said.split() if not word.startswith(("RunTime=", "LastSchedEval=")))


def test_a_plain_job_is_adopted_watched_continued_and_finished(desk: Desk, cluster: Cluster, bob: str) -> None:
    desk.cluster.run(["tee", str(desk.directory / "my train.sh")], user=desk.user, input=SCRIPT, check=True)
    job = sbatch(desk, "my train.sh", "--lr", "0.1")
    log = desk.directory / f"plain-{job}.log"
    until(lambda: log.exists() and b"step 3" in log.read_bytes(), "the plain job trains")
    before = scontrol(desk, job)

    assert f"adopted job {job} (RUNNING on n1) as run plain" in typed(desk, "adopt", job).stdout

    assert scontrol(desk, job) == before, "nothing in the job was changed"
    assert "already belongs to run plain" in typed(desk, "adopt", job).stdout
    run = desk.status()
    assert (run["run"], run["headline"]) == ("plain", "running") and run["step"] >= 3
    assert typed(desk, "logs", "plain", "--path").stdout.strip() == str(log)
    typed(desk, "watch", "job", "plain")
    assert str(log) in typed(desk, "watch", "log", "--json", "--no-alert").stdout

    behind = typed(desk, "submit", "--run", "plain", "--parsable").stdout.strip()
    assert f"Dependency=afterany:{job}" in scontrol(desk, behind)
    assert "my train.sh --lr 0.1" in scontrol(desk, behind)

    watcher = Desk(cluster, bob, cluster.shared / "adopting-bob")
    watched = typed(watcher, "adopt", job)
    assert f"the job belongs to {desk.user}" in watched.stdout and f"scancel {job}" in watched.stdout
    refused = watcher.resil("cancel", "plain")
    assert refused.returncode == 1 and f"only {desk.user} can end it" in refused.stderr
    assert job in desk.queue()

    desk.cluster.run(["touch", str(desk.directory / "stop")], user=desk.user, check=True)
    until(lambda: desk.queue() == [], "both jobs end")
    (ended,) = [row for row in desk.status()["jobs"] if row["job"] == behind]
    assert ended["state"] == "COMPLETED"
    assert "has ended: COMPLETED" in desk.resil("adopt", job, "--run", "late").stderr


def test_a_waiting_array_and_a_wrapped_job_are_adopted(desk: Desk) -> None:
    array = sbatch(desk, "--array=1-9%1", "--hold", "--job-name=sweep", "--wrap", "sleep 60")
    said = json.loads(typed(desk, "adopt", f"{array}_4", "--json").stdout)
    assert (said["run"], said["job_id"], said["state"]) == ("sweep-4", f"{array}_4", "PENDING")
    typed(desk, "cancel", "sweep-4")
    assert len(desk.queue()) == 8 and f"{array}_4" not in desk.queue(), "the other tasks stay"
    said = json.loads(typed(desk, "adopt", array, "--json").stdout)
    assert (said["run"], said["job_id"], said["state"]) == ("sweep", array, "PENDING")
    assert desk.resil("adopt", "999999").returncode == 1
    again = desk.resil("submit", "--run", "sweep")
    assert again.returncode == 2 and "resil submit SCRIPT --run sweep" in again.stderr
    typed(desk, "cancel", "sweep")
    until(lambda: desk.queue() == [], "the array is cancelled")
