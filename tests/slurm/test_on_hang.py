"""A rank that hangs on a real cluster: its launch is ended, or its job requeued, once, and the next attempt goes on."""

from __future__ import annotations

import json
import os

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes a minute: set RESIL_SOAK=1"),
]
TRAINING = """\
import os, signal, sys, time
from resilience.guard import TrainingGuard

def all_reduce(step):
    if step == 20 and os.environ["RESIL_ATTEMPT"] == "1":
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)

with TrainingGuard.from_env(poll_s=0.3, beat_s=1) as guard:
    for step in range(1, 61):
        all_reduce(step)
        if guard.step().stop:
            break
        time.sleep(0.05)
    else:
        guard.finished()
sys.exit(guard.exit_code)
"""
SETTINGS = """\
[run]
name = "{name}"
command = "{python} train.py"
template = "srun"
[act]
enabled = true
[attempt]
beat_s = 1
[sbatch]
time = "20"
nodes = 2
ntasks-per-node = 1
[watch.log]
timeout_s = "3s"
on_hang = "{on_hang}"
"""
WATCH = """\
import sys
from resilience.watch.checks._log import reading
reading.CONFIRM_S = 3.0
sys.argv = ["resil", "watch", "log"]
from resilience.cli.entry import main
main()
"""


@pytest.mark.parametrize(("on_hang", "array"), [("restart_step", "2"), ("requeue", "1")])
def test_a_hang_is_ended_once_and_the_training_finishes(cluster: Cluster, on_hang: str, array: str) -> None:
    run = ClusterRun(cluster, on_hang.replace("_", "-"))
    text = SETTINGS.format(name=run.name, python=cluster.python, on_hang=on_hang)
    run.write("resil.toml", text)
    run.write("watch.py", WATCH)
    run.write("train.py", TRAINING)
    run.submit("--array", array)
    said = []

    def acted() -> bool:
        said.append(cluster.run([str(cluster.python), "watch.py"], run.user, cwd=run.project, timeout=120).stdout)
        return any((run.directory / "hangs").glob("*.acted"))

    run.until(acted, "the watchdog to act")
    (record,) = (json.loads(path.read_text()) for path in (run.directory / "hangs").glob("*.acted"))
    assert (record["rank"], record["on_hang"]) == (1, on_hang) and record["did"] in said[-1]
    assert "failed" not in record["did"], record
    assert next((run.directory / "hangs").glob("0001-*.html")).stat().st_mtime <= record["time"], "evidence first"
    ends = {"exited"} if on_hang == "restart_step" else {"terminated", "lost"}  # SLURM may kill the batch shell first
    assert run.until_end(1)["end"] in ends, run.log
    run.until(lambda: (run.directory / "finished").exists(), "the next attempt to finish")
    assert "a watchdog ended it because it hung: rank 1 on " in run.ask("attempts", run.name, "--json")
    assert run.end(2)["end"] == "finished"
