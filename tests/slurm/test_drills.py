"""`resil drill --all` on a real cluster, with two ranks on two nodes, typed by a user who is not root."""

from __future__ import annotations

import json
import os

import pytest

from tests.drills.drilled import TRAIN, settings
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes ten minutes: set RESIL_SOAK=1"),
    pytest.mark.timeout(1800),
]
NEEDS_RIGHTS = {"lose-node"}
"""What a user without rights cannot do on SLURM is UNKNOWN, with the reason."""
TWO_NODES = """\
[act]
enabled = true
[watch.log]
on_hang = "restart_step"
[sbatch]
time = "60"
nodes = 2
ntasks-per-node = 1
"""


def test_every_drill_that_a_user_can_make_passes_and_leaves_nothing(cluster: Cluster) -> None:
    run = ClusterRun(cluster, "tiny")
    text = settings(str(cluster.python)).replace("[submit]", 'template = "srun"\n[submit]')
    run.write("resil.toml", text + TWO_NODES)
    run.write("train.py", TRAIN)
    before = sorted(path.name for path in run.project.iterdir())
    done = cluster.run(["resil", "drill", "--all", "--json"], run.user, cwd=run.project, timeout=1700)
    print(done.stderr)
    found = {one["drill"]: one for one in json.loads(done.stdout)["drills"]}
    wrong = {
        name: one["reason"] for name, one in found.items() if one["outcome"] != "PASS" and name not in NEEDS_RIGHTS
    }
    assert wrong == {}
    for name in NEEDS_RIGHTS:
        assert found[name]["outcome"] != "FAIL", found[name]
    assert found["stop-rank"]["measured"]["resumed_at"] == found["stop-rank"]["measured"]["durable"]
    assert found["walltime"]["measured"]["redone"] == 0
    assert done.returncode in (0, 75)
    assert sorted(path.name for path in run.project.iterdir()) == before
    queue = cluster.run(["squeue", "--noheader"], run.user, cwd=run.project, timeout=60)
    assert queue.stdout.strip() == ""
