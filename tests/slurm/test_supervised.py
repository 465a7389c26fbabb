"""`resil run` under srun on a real cluster: one attempt for all tasks, and each task is asked and ended by its own."""

from __future__ import annotations

import json
from typing import Any

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import until
from tests.slurm.test_commands import Desk

SCRIPT = """\
#!/bin/bash
#SBATCH --time=10
#SBATCH --ntasks=2
#SBATCH -o logs/%j.txt
export RESIL_GUARD__POLL_S=0.5 RESIL_GUARD__BEAT_S=0.5
srun resil run --stop USR1 -- bash -c \\
  'trap "echo asked; exit 75" USR1; for step in $(seq 1 9999); do echo "step $step loss 1"; sleep 0.1; done'
"""


def test_the_tasks_of_a_step_are_one_attempt_and_each_is_asked(cluster: Cluster, alice: str) -> None:
    desk = Desk(cluster, alice, cluster.shared / "supervised")
    cluster.run(["mkdir", "-p", str(desk.directory / "logs")], user=alice, check=True)
    cluster.run(["tee", str(desk.directory / "my.sh")], user=alice, input=SCRIPT, check=True)

    def attempts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(desk.resil("attempts", "mine", "--json").stdout)["attempts"]
        return found

    job = desk.submit("my.sh", "--run", "mine")
    log = desk.directory / "logs" / f"{job}.txt"
    until(lambda: log.exists() and log.read_bytes().count(b"step 5 ") == 2, "both tasks to train")
    until(lambda: desk.status()["step"] >= 5, "the heartbeat to have a step")
    assert [(one["attempt"], one["job"], one["end"]) for one in attempts()] == [(1, job, None)]
    assert desk.resil("kill", "mine", "--why", "wrong data").returncode == 0
    until(lambda: log.read_bytes().count(b"asked") == 2, "both tasks to be asked")
    until(lambda: attempts()[0]["end"] == "stopped", "the end to be recorded")
    assert attempts()[0]["exit_code"] == 75 and attempts()[0]["why"].endswith("wrong data")

    assert desk.resil("clear", "mine").returncode == 0
    second = desk.submit("my.sh", "--run", "mine")
    log = desk.directory / "logs" / f"{second}.txt"
    until(lambda: log.exists() and log.read_bytes().count(b"step 5 ") == 2, "both tasks to train")
    cluster.run(["scancel", second], user=alice, check=True)
    until(lambda: len(attempts()) == 2 and attempts()[1]["end"] == "terminated", "the end to be recorded")
    assert (attempts()[1]["exit_code"], attempts()[1]["why"]) == (143, "SIGTERM")
