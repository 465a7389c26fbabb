"""One of four ranks on four nodes of a real cluster hangs, or is slow: the watchdogs name it with its node, and
`resil stacks` or `resil ranks` as well.

The training is that of tests/ranks/test_hangs.py, where each way to hang is tried on its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)"),
]
TRAINING = Path(__file__).parents[1] / "ranks" / "hanging_training.py"
SETTINGS = """\
[run]
name = "{name}"
command = "python train.py {kind} {odd} 40"
template = "srun"
[attempt]
beat_s = 1
[sbatch]
time = "10"
nodes = 4
ntasks-per-node = 1
"""
ROUNDS = int(os.environ.get("RESIL_HANGS", "1"))
SAID = {
    "sleep": "outside the collective that the others wait in",
    "loop": "outside the collective that the others wait in",
    "stop": "stopped by a signal",
    "gil": "",  # its guard's last look may be from just before: then it is outside the collective
}


@pytest.fixture(scope="module")
def four_nodes() -> Iterator[Cluster]:
    with Cluster(nodes=4, kill_wait=4) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_watchdog_and_stacks_name_the_rank_and_its_node(four_nodes: Cluster, kind: str, number: int) -> None:
    odd = (len(kind) + number) % 4
    run = ClusterRun(four_nodes, f"{kind}-{number}")
    run.write("resil.toml", SETTINGS.format(name=run.name, kind=kind, odd=odd))
    run.write("train.py", TRAINING.read_text())
    run.submit()
    run.until(lambda: verdict(run), "the watchdog to name a rank with its reason")
    finding = verdict(run)
    job = json.loads(run.ask("stacks", "--json"))["jobs"][0]
    run.ask("cancel")
    four_nodes.wait_for(run.job, {"CANCELLED", "FAILED", "COMPLETED"})
    named = f"rank {odd} on n{odd + 1}: "
    assert named in finding and SAID[kind] in finding and "(1 of 4 ranks)" in finding, finding
    assert [(one["rank"], one["host"]) for one in job["odd"]] == [(odd, f"n{odd + 1}")], job


def test_a_rank_that_makes_the_others_wait_is_named_and_its_node_is_evidence(four_nodes: Cluster) -> None:
    run = ClusterRun(four_nodes, "slow")
    run.write("resil.toml", SETTINGS.format(name=run.name, kind="slow", odd=2))
    run.write("train.py", TRAINING.read_text())
    run.submit()
    run.until(lambda: run.resil("watch", "ranks", run.name).returncode == 1, "the watchdog to name a rank")
    (finding,) = json.loads(run.resil("watch", "ranks", run.name, "--json").stdout)["reports"][0]["findings"]
    (straggler,) = json.loads(run.ask("ranks", "--json"))["stragglers"]
    nodes = json.loads(run.ask("nodes", "--json"))["nodes"]
    run.ask("cancel")
    four_nodes.wait_for(run.job, {"CANCELLED", "FAILED", "COMPLETED"})
    assert finding["fault"] == "straggler" and finding["summary"].startswith("rank 2 on n3 takes 1."), finding
    assert (straggler["ranks"], straggler["host"]) == ([2], "n3")
    assert [(one["node"], [fact["source"] for fact in one["evidence"]]) for one in nodes] == [("n3", ["slow"])], nodes


def verdict(run: ClusterRun) -> str:
    """Look as a watchdog does; return the finding once a second witness speaks."""
    done = run.resil("watch", "log", run.name, "--timeout", "8s", "--json")
    found = json.loads(done.stdout)["reports"][0]["findings"] if done.returncode == 2 else []
    (said, *_) = [one["summary"] for one in found if one["fault"] in ("no-progress", "rank-gone")] or [""]
    return said if "of 4 ranks" in said and "behind in steps" not in said else ""
