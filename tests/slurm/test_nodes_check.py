"""`resil nodes check` on a real cluster: planted bad nodes are named, beside a job and before a launch."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

SETTINGS = """\
[run]
name = "{name}"
command = "sleep 600"
template = "srun"
[act]
enabled = true
[attempt]
beat_s = 1
[submit]
array = "{array}"
[nodes]
preflight = {preflight}
mounts = ["{scratch}", "{scratch}-data"]
rules = {{"compute.compute_s" = "> 1000%", "mounts.*" = "< -95%"}} # the nodes share two busy cores and a disk
[sbatch]
time = "10"
nodes = {nodes}
"""
PLANT = """\
import os, time
if os.environ.get("SLURMD_NODENAME") == "n2":
    true = time.time
    time.time = lambda: true() + 60
if os.environ.get("SLURMD_NODENAME") == "n4" :
    os.environ["NCCL_DEBUG"] = "INFO"
    sync = os.fsync
    os.fsync = lambda fd: (time.sleep(2), sync(fd))[1]
"""
"""sitecustomize.py: a clock that is a minute ahead on n2, another environment and a throttled disk on n4."""


@pytest.fixture
def scratch(cluster: Cluster) -> Iterator[Path]:
    """Two directories, scratch and scratch-data, that can be file systems of their own on single nodes."""
    paths = (cluster.shared / "scratch", cluster.shared / "scratch-data")
    for path in paths:
        path.mkdir(exist_ok=True)
        path.chmod(0o1777)
    yield paths[0]
    for node in cluster.nodes:
        subprocess.run([*inside(cluster, node), "umount", "-l", *paths], stderr=subprocess.DEVNULL)


def inside(cluster: Cluster, node: str) -> list[str]:
    return ["nsenter", "--mount", "--target", str(cluster.daemon(node).pid)]


def mount(cluster: Cluster, node: str, path: Path, size: str) -> None:
    """Mount a file system there on one node."""
    if cluster.proctrack != "cgroup":
        pytest.skip("the nodes share their mounts here")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", str(path)]
    subprocess.run([*inside(cluster, node), *command], check=True)


def fill(cluster: Cluster, node: str, path: Path) -> None:
    """Mount a small file system of one node there, and fill it."""
    mount(cluster, node, path, "1M")
    subprocess.run(
        [*inside(cluster, node), "dd", "if=/dev/zero", f"of={path}/left", "bs=1M"], stderr=subprocess.DEVNULL
    )


def begin(
    cluster: Cluster, name: str, scratch: Path, *, nodes: int, preflight: bool = False, array: str = ""
) -> ClusterRun:
    run = ClusterRun(cluster, name)
    text = SETTINGS.format(name=name, scratch=scratch, nodes=nodes, preflight=str(preflight).lower(), array=array)
    run.write("resil.toml", text)
    run.submit()
    return run


def found(run: ClusterRun, *words: str, **environment: str) -> dict[str, dict[str, Any]]:
    done = run.cluster.run(["resil", "nodes", "check", run.name, "--json", *words], user=run.user, cwd=run.project,
                           env=environment, timeout=120)  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {one["host"]: one for one in json.loads(done.stdout)["nodes"]}


def why(one: dict[str, Any]) -> str:
    return "; ".join(fault["why"] for faults in one["faults"].values() for fault in faults)


def test_each_planted_fault_is_named_with_its_node(cluster: Cluster, scratch: Path) -> None:
    run = begin(cluster, "checked", scratch, nodes=4, array="2")
    run.until(lambda: (run.directory / "attempts" / "0001").exists(), "the job to begin")
    nodes = found(run)
    assert {one["outcome"] for one in nodes.values()} == {"PASS"}, {host: why(one) for host, one in nodes.items()}

    fill(cluster, "n3", scratch)
    data = scratch.with_name("scratch-data")
    for node in ("n1", "n3", "n4"):
        mount(cluster, node, data, "16M")
    run.write("plant/sitecustomize.py", PLANT)
    nodes = found(run, PYTHONPATH=str(run.project / "plant"))
    said = {host: why(one) for host, one in nodes.items()}
    assert nodes["n1"]["outcome"] == "PASS", said
    assert "ahead is" in said["n2"] and "ahead of server is" in said["n2"], said
    assert f"{data} is on " in said["n2"] and f"on 3 nodes: tmpfs, mounted at {data}" in said["n2"], said
    assert f"{scratch}: No space left on device" in said["n3"], said
    assert "$NCCL_DEBUG is set here only" in said["n4"], said
    assert "MB/s is normal" in said["n4"], said
    lines = [json.loads(line) for line in next((run.directory / "checks").iterdir()).read_text().splitlines()]
    assert [line["host"] for line in lines] == ["n1", "n2", "n3", "n4"] * 2


def test_a_job_with_a_bad_node_goes_on_without_it(cluster: Cluster, scratch: Path) -> None:
    fill(cluster, "n1", scratch)
    run = begin(cluster, "elsewhere", scratch, nodes=2, preflight=True, array="3")
    run.until(lambda: (run.directory / "attempts" / "0002").exists(), "the next job to begin")
    end = run.end()
    assert (end["end"], end["exit_code"], end["launched"]) == ("exited", 75, False)
    assert "will run without n1" in end["why"] and "No space left on device" in end["why"]
    run.until(lambda: "launch" in {event["event"] for event in run.events(attempt=2)}, "the training to be launched")
    (checked,) = [event for event in run.events(attempt=2) if event["event"] == "nodes_checked"]
    assert checked["code"] == 0 and "no node fails" in checked["said"]
    assert "n1" not in cluster.squeue("%N", "-j", run.job, "-t", "RUNNING")[0]
    run.resil("watch", "job")
    assert not (run.directory / "attempts" / "breaker").exists(), "its full disk holds no job that runs elsewhere"
