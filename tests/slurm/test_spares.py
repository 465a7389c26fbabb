"""Jobs with spares on a real cluster: a lost or bad node is replaced within the job, or else by the next job."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="waits for SlurmdTimeout; RESIL_SOAK=1 runs it")

SETTINGS = """\
[run]
name = "{name}"
command = "python train.py"
template = "srun"
[act]
enabled = true
[attempt]
beat_s = 1
[guard]
poll_s = 0.3
beat_s = 1
[submit]
signal_lead_s = 2
requeue = false
[nodes]
spares = {spares}
preflight = {preflight}
mounts = ["{mounts}"]
rules = {{"compute.compute_s" = "> 1000%", "mounts.*" = "< -95%"}} # the nodes share two busy cores and a disk
[template]
gpus_per_node = 1
[sbatch]
time = "10"
nodes = 2
mem = "400M"
"""
TRAIN = """\
import os, socket, sys, time
from pathlib import Path
from resilience.guard import TrainingGuard

LAST = 40
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"]) + 1
assert os.environ["WORLD_SIZE"] == "2"
with TrainingGuard.from_env() as guard:
    # Both wait for each other at each step, as in a collective: the loss of one is an error of the other.
    if rank == 0:
        server = socket.create_server(("", port))
        peer, _ = server.accept()
    else:
        while True:
            try:
                peer = socket.create_connection(("127.0.0.1", port), 20)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
    saved = Path("saved")
    step = int(saved.read_text()) if saved.exists() else 0
    guard.resumed(step)
    with open(f"began.{rank}", "a") as file:
        file.write(f"{os.environ['SLURMD_NODENAME']} {step} {os.environ['RESIL_ATTEMPT']}\\n")
    while True:
        time.sleep(0.05)
        if rank == 0:  # it decides for both when the training is over
            peer.sendall(b"e" if step >= LAST and Path("may_end").exists() else b"x")
        word = peer.recv(1)
        if not word:
            sys.exit("the other rank is gone")
        if rank == 1:
            peer.sendall(word)
        step += 1
        if guard.step().stop:
            break
        if step % 5 == 0 and rank == 0:
            with guard.saving():
                Path("part").write_text(str(step))
                Path("part").rename("saved")
        if word == b"e":
            guard.finished()
            break
sys.exit(guard.exit_code)
"""

TORCHRUN = """\
[environment]
GLOO_SOCKET_IFNAME = "lo"
OMP_NUM_THREADS = 1
[template]
torchrun_args = '--rdzv_endpoint="127.0.0.1:$MASTER_PORT" --local_addr=127.0.0.1'
"""  # the nodes are all on this host, and nobody knows them by name
TRAIN_GLOO = """\
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from resilience.guard import TrainingGuard

dist.init_process_group("gloo")
rank = dist.get_rank()
assert dist.get_world_size() == 2
with TrainingGuard.from_env() as guard:
    saved = Path("saved")
    step = int(saved.read_text()) if saved.exists() else 0
    guard.resumed(step)
    with open(f"began.{rank}", "a") as file:
        file.write(f"{os.environ['SLURMD_NODENAME']} {step} {os.environ['RESIL_ATTEMPT']}\\n")
    while True:
        time.sleep(0.05)
        may_end = torch.tensor([float(Path("may_end").exists())])
        dist.all_reduce(may_end)
        step += 1
        if guard.step().stop:
            break
        if step % 5 == 0 and rank == 0:
            with guard.saving():
                Path("part").write_text(str(step))
                Path("part").rename("saved")
        if may_end == 2:
            guard.finished()
            break
sys.exit(guard.exit_code)
"""


def begin(
    cluster: Cluster, name: str, *, spares: int = 1, preflight: bool = False, mounts: Path | str = ""
) -> ClusterRun:
    run = ClusterRun(cluster, name)
    text = SETTINGS.format(name=name, spares=spares, preflight=str(preflight).lower(), mounts=mounts or "/tmp")
    run.write("resil.toml", text)
    run.write("train.py", TRAIN)
    run.submit("--chain", "2")
    return run


def began(run: ClusterRun, rank: int = 0) -> list[list[str]]:
    """Node, first step and attempt of each start of a rank."""
    path = run.project / f"began.{rank}"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def saved(run: ClusterRun, step: int) -> Callable[[], bool]:
    path = run.project / "saved"
    return lambda: path.exists() and int(path.read_text()) >= step


def finish(run: ClusterRun) -> None:
    run.write("may_end", "")
    run.until(lambda: (run.directory / "finished").exists(), "the run to finish")


def job_ids(run: ClusterRun, *attempts: int) -> set[int]:
    return {event["job_id"] for number in attempts for event in run.events(attempt=number)}


def test_a_lost_node_is_replaced_within_the_job(cluster: Cluster) -> None:
    run = begin(cluster, "replaced")
    run.until(saved(run, 10), "a checkpoint")
    cluster.fail_node("n2")
    cluster.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"], check=True)  # before SlurmdTimeout
    run.until(lambda: len(began(run)) == 2, "the launch on the spare")
    finish(run)
    assert [words[0] for words in began(run)] == ["n1", "n1"] and [words[0] for words in began(run, 1)] == ["n2", "n3"]
    (_, _, first), (_, step, second) = began(run)
    assert int(step) >= 10 and (first, second) == ("1", "2")
    assert (run.end(1)["end"], run.end(1)["why"]) == ("lost", "SLURM has given up node n2")
    assert run.until_end(2)["end"] == "finished" and len(job_ids(run, 1, 2)) == 1
    rows = json.loads(run.ask("attempts", "--json"))["attempts"]
    assert [(row["job"], row["nodes"]) for row in rows] == [(rows[0]["job"], "n1,n2"), (rows[0]["job"], "n1,n3")]


@soak
def test_a_lost_slurmd_is_a_lost_node_although_its_rank_lives_on(cluster: Cluster) -> None:
    run = begin(cluster, "twin")
    run.until(saved(run, 10), "a checkpoint")
    cluster.lose_slurmd("n2")
    run.until(lambda: len(began(run)) == 2, "the launch on the spare")
    finish(run)
    assert run.until_end(2)["end"] == "finished" and [words[0] for words in began(run, 1)] == ["n2", "n3"]
    assert (run.end(1)["end"], run.end(1)["gone"]) == ("lost", False) and len(job_ids(run, 1, 2)) == 1


@soak
def test_a_node_of_which_slurm_does_not_know_yet_is_replaced() -> None:
    """srun gives up a minute after the first error (--wait=60), long before SlurmdTimeout where that is 300 s."""
    with Cluster(nodes=3, slurmd_timeout=300) as patient:
        run = begin(patient, "silent")
        run.until(saved(run, 10), "a checkpoint")
        patient.fail_node("n2")
        run.until(lambda: len(began(run)) == 2, "the launch on the spare")
        finish(run)
        assert "srun cannot reach n2" in run.end(1)["why"] or "n2 is NOT_RESPONDING" in run.end(1)["why"]
        assert run.end(1)["end"] == "lost" and [words[0] for words in began(run, 1)] == ["n2", "n3"]
        assert run.until_end(2)["end"] == "finished" and len(job_ids(run, 1, 2)) == 1


@soak
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)")
def test_a_real_torchrun_with_real_all_reduces_goes_on_with_the_spare(cluster: Cluster) -> None:
    (cluster.shared / "bin").mkdir(exist_ok=True)
    (cluster.shared / "bin" / "torchrun").write_text('#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
    (cluster.shared / "bin" / "torchrun").chmod(0o755)
    run = ClusterRun(cluster, "torchrun")
    text = SETTINGS.format(name="torchrun", spares=1, preflight="false", mounts="/tmp").replace("400M", "4G")
    text = text.replace(
        'template = "srun"', f'template = "torchrun"\nsetup = ["export PATH={cluster.shared}/bin:$PATH"]'
    )
    run.write("resil.toml", text.replace("[template]\n", TORCHRUN))
    run.write("train.py", TRAIN_GLOO)
    run.submit("--chain", "2")
    run.until(saved(run, 10), "a checkpoint")
    cluster.fail_node("n2")
    run.until(lambda: len(began(run, 1)) == 2 and len(began(run)) == 2, "the launch on the spare")
    finish(run)
    assert {words[0] for words in began(run) + began(run, 1)} == {"n1", "n2", "n3"}
    assert int(began(run)[1][1]) >= 10 and run.until_end(2)["end"] == "finished"
    assert run.end(1)["end"] == "lost" and len(job_ids(run, 1, 2)) == 1


@soak
def test_without_another_spare_the_job_ends_and_the_next_one_goes_on(cluster: Cluster) -> None:
    run = begin(cluster, "exhausted")
    for count, node in ((1, "n2"), (2, "n3")):
        run.until(lambda count=count: len(began(run, 1)) == count, "the launch")  # type: ignore[misc]
        run.until(saved(run, 10 * count), "a checkpoint")
        cluster.fail_node(node)
    assert run.until_end(2)["end"] == "lost"
    cluster.start_slurmd("n2")
    run.until(lambda: len(began(run)) == 3, "the launch of the next job")
    finish(run)
    assert int(began(run)[2][1]) >= 20 and run.until_end(3)["end"] == "finished"
    assert len(job_ids(run, 1, 2)) == 1 and len(job_ids(run, 1, 2, 3)) == 2


@soak
def test_a_bad_node_of_the_preflight_is_replaced_without_another_job(cluster: Cluster) -> None:
    scratch = cluster.shared / "scratch"
    scratch.mkdir(exist_ok=True)
    scratch.chmod(0o1777)
    if cluster.proctrack != "cgroup":
        pytest.skip("the nodes share their mounts here")
    inside = ["nsenter", "--mount", "--target", str(cluster.daemon("n1").pid)]
    full = ["mount", "-t", "tmpfs", "-o", "size=1M,mode=1777", "tmpfs", str(scratch)]
    subprocess.run([*inside, *full], check=True)
    try:
        subprocess.run([*inside, "dd", "if=/dev/zero", f"of={scratch}/left", "bs=1M"], stderr=subprocess.DEVNULL)
        run = begin(cluster, "checked", preflight=True, mounts=scratch)
        run.until(lambda: began(run), "the launch")
        finish(run)
        assert [words[0] for words in began(run)] == ["n2"] and [words[0] for words in began(run, 1)] == ["n3"]
        assert run.until_end(1)["end"] == "finished"
        (checked,) = [event for event in run.events() if event["event"] == "nodes_checked"]
        assert checked["code"] == 11 and "n1: mounts" in checked["said"] and checked["host"] == "n1"
    finally:
        subprocess.run([*inside, "umount", "-l", str(scratch)], stderr=subprocess.DEVNULL)
