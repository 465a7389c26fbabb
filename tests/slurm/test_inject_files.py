"""Faults of files on the nodes of a real job: mounted by a task beside the training, or by the preloaded library."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from resilience.inject.files import mounting
from tests.inject.files.faulty import needs_mount
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.slurm.test_nodes_check import inside

SETTINGS = """\
[run]
name = "{name}"
command = "{before}python writes.py"
template = "srun"
allow_inject = true
[checkpoints]
path = "checkpoints"
[sbatch]
time = "10"
nodes = 2
"""
WRITES = """\
import errno, os, time
own = os.environ["SLURM_PROCID"]
said, last = open(f"said.{own}", "a", buffering=1), ""
while True:
    try:
        with open(f"checkpoints/rank-{own}", "wb", buffering=0) as file:
            file.write(bytes(1000))
        now = "ok"
    except OSError as error:
        now = errno.errorcode[error.errno]
    if now != last:
        print(last := now, file=said)
    time.sleep(0.1)
"""


class FaultyRun(ClusterRun):
    """A run of two tasks on two nodes; each says what becomes of its writes to the checkpoints, when that changes."""

    who = ""

    @property
    def user(self) -> str:
        return self.who or super().user

    def said(self, rank: int) -> list[str]:
        path = self.project / f"said.{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def begin(self, before: str = "") -> None:
        self.write("resil.toml", SETTINGS.format(name=self.name, before=before))
        self.write("writes.py", WRITES)
        self.write("checkpoints/.keep", "")
        self.submit()
        self.until(lambda: self.said(0) == self.said(1) == ["ok"], "both ranks to write")

    def inject(self, *words: str) -> subprocess.Popen[str]:
        return self.cluster.popen(
            ["resil", "inject", *words], self.user, self.project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )


def mounted_on(cluster: Cluster) -> dict[str, bool]:
    """Which nodes have a fault mounted."""
    look = {node: [*inside(cluster, node), "cat", "/proc/self/mountinfo"] for node in cluster.nodes}
    return {node: mounting.TYPE in subprocess.check_output(argv, text=True) for node, argv in look.items()}


@pytest.fixture
def run(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[FaultyRun]:
    made = FaultyRun(cluster, request.node.name.removeprefix("test_")[:20])
    yield made
    made.resil("inject", "undo", "--all")


@needs_mount
def test_a_mounted_fault_is_on_every_node_of_the_job_and_on_no_other(cluster: Cluster, run: FaultyRun) -> None:
    run.who = "root"  # who may mount here
    cluster.home(run.who).mkdir(exist_ok=True)
    run.begin()
    injector = run.inject("stale", "--for", "1h")
    run.until(lambda: run.said(0)[1:] == run.said(1)[1:] == ["ESTALE"], "both ranks to meet the fault")
    mounted = mounted_on(cluster)
    assert sum(mounted.values()) == (2 if cluster.proctrack == "cgroup" else 4)
    os.kill(injector.pid, signal.SIGKILL)
    injector.communicate()
    run.until(lambda: run.said(0)[2:] == run.said(1)[2:] == ["ok"], "both ranks to write again")
    run.until(lambda: not any(mounted_on(cluster).values()), "the nodes to be as before")


@needs_mount
def test_a_job_that_is_cancelled_leaves_no_fault_on_its_nodes(cluster: Cluster, run: FaultyRun) -> None:
    run.who = "root"
    cluster.home(run.who).mkdir(exist_ok=True)
    run.begin()
    injector = run.inject("eio", "--for", "1h")
    run.until(lambda: run.said(0)[1:] == run.said(1)[1:] == ["EIO"], "both ranks to meet the fault")
    run.ask("cancel")
    run.until(lambda: not any(mounted_on(cluster).values()), "the nodes to be as before")
    injector.send_signal(signal.SIGINT)
    assert "undone" in injector.communicate(timeout=120)[0]


def test_an_ordinary_user_has_the_calls_of_a_training_fail_on_all_nodes(run: FaultyRun) -> None:
    run.begin("resil inject preload -- ")
    said = run.ask("inject", "disk-full", "--by", "preload", "--dry-run")
    assert "Only the training meets it, on all its nodes" in said
    injector = run.inject("disk-full", "--by", "preload", "--for", "1h")
    run.until(lambda: run.said(0)[1:] == run.said(1)[1:] == ["ENOSPC"], "both ranks to meet the fault")
    injector.send_signal(signal.SIGTERM)
    injector.communicate(timeout=60)
    run.until(lambda: run.said(0)[2:] == run.said(1)[2:] == ["ok"], "both ranks to write again")
