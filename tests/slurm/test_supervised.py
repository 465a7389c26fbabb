"""`resil run` under srun on two nodes of a real cluster: one attempt for all tasks, and each is asked by its own."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until
from tests.slurm.test_commands import Desk

SCRIPT = """\
#!/bin/bash
#SBATCH --time=10
#SBATCH --nodes=2
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


LOOP = """\
#!/bin/bash
#SBATCH --time=10
#SBATCH --array=1-10%1
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH -o logs/%A_%a.txt
srun --kill-on-bad-exit=1 resil run -- bash -c '
  if [ -e mended ]; then exit 0; fi
  if [ $SLURM_PROCID = 1 ]; then python3 -S -c "raise KeyError(\\"boom\\")"; exit 1; fi
  sleep 100'
"""


@pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="a story of minutes: RESIL_SOAK=1")
def test_a_crash_loop_of_rank_1_in_an_own_script_burns_three_of_ten_tasks(cluster: Cluster) -> None:
    loop = ClusterRun(cluster, "own-loop")
    loop.write("resil.toml", '[run]\nname = "own-loop"\n[act]\nenabled = true\n')
    loop.write("my.sh", LOOP)
    loop.write("logs/here", "")
    loop.submit("my.sh")

    def queued() -> set[str]:
        rows = cluster.squeue("%T %r", "-j", loop.job)
        return {row for row in rows if row.split()[0] in ("PENDING", "RUNNING", "COMPLETING")}

    until(lambda: queued() == {"PENDING JobHeldUser"}, "the rest of the array to be held")
    ends = [loop.end(number) for number in range(1, 5)]
    assert [one.get("burnt") for one in ends] == [1, 2, 3, None]
    assert "rank 1 on " in ends[2]["why"] and ends[2]["end"] == "exited"
    assert "KeyError: 'boom'" in loop.ask("why")
    assert "own-loop  open" in loop.ask("breaker")
    loop.write("mended", "")
    assert f"released: {loop.job}" in loop.ask("breaker", "close")
    until(lambda: not queued(), "the rest of the array to end")
    assert {loop.end(number)["exit_code"] for number in range(4, 11)} == {0}
