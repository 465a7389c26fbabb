"""A node on which everything fails: excluded after two attempts, the run finishes elsewhere, and other runs know it."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="one of several stories; RESIL_SOAK=1 runs all")
SETTINGS = """\
[run]
name = "{name}"
command = "sh train.sh"
[act]
enabled = true
[attempt]
beat_s = 1
[submit]
array = "{array}"
[nodes]
evidence = "{evidence}"
[sbatch]
time = "10"
"""
FAILS_ON_N1 = """\
echo begun
[ $SLURMD_NODENAME = n1 ] || exit 0
until [ -e go.$RESIL_ATTEMPT ]; do sleep 0.1; done
echo 'OSError: [Errno 5] Input/output error'
exit 1
"""


def begin(cluster: Cluster, name: str, array: str, *words: str) -> ClusterRun:
    run = ClusterRun(cluster, name)
    text = SETTINGS.format(name=name, array=array, evidence=cluster.shared / "evidence-of-all")
    run.write("resil.toml", text)
    run.write("train.sh", FAILS_ON_N1)
    run.submit(*words)
    return run


def excluded(run: ClusterRun) -> set[str]:
    shown = run.cluster.run(["scontrol", "-o", "show", "job", run.job], run.user, check=True).stdout
    return {line.split("ExcNodeList=")[1].split()[0] for line in shown.splitlines() if "JobState=PENDING" in line}


def nodes(run: ClusterRun) -> list[str]:
    return [one["nodes"] for one in json.loads(run.ask("attempts", "--json"))["attempts"]]


def test_a_node_that_fails_everything_is_excluded_after_two_attempts_and_the_run_finishes(cluster: Cluster) -> None:
    run = begin(cluster, "badnode", "6", "--exclude", "n[2-4]")  # so that SLURM takes n1

    def steer(*words: str) -> None:
        cluster.run(["scontrol", *words], run.user)  # an error for the tasks that have ended

    run.until(lambda: run.log.count("begun") == 1, "the first attempt")
    run.write("go.1", "")
    run.until(lambda: run.log.count("begun") == 2, "the second attempt on n1")
    steer("hold", run.job)
    run.write("go.2", "")
    run.until(lambda: run.end(2), "its end")
    steer("update", f"jobid={run.job}", "ExcNodeList=")
    said = run.resil("watch", "job").stderr
    assert "excluded n1 from job" in said, said
    assert excluded(run) == {"n1"}

    other = begin(cluster, "another", "1")
    assert "--exclude=n1" in (other.directory / "submissions.jsonl").read_text()
    other.until(lambda: (other.directory / "finished").exists(), "a run that never saw n1 to finish")
    assert nodes(other)[0] != "n1", "although that is idle, and the first of all"

    steer("release", run.job)
    run.until(lambda: (run.directory / "finished").exists(), "the run to finish elsewhere")
    first, second, third, *_ = nodes(run)
    assert first == second == "n1" != third
    run.resil("watch", "job")
    said = run.ask("nodes", "report", "n1")
    assert "Input/output error" in said and f"attempt 3 (job {run.job}_3) began on {third}, without it" in said


@soak
def test_a_node_of_the_running_job_that_is_drained_is_told_with_the_reason(cluster: Cluster) -> None:
    run = begin(cluster, "drained", "2")
    run.write("train.sh", "sleep 600\n")
    run.until(lambda: cluster.squeue("%N", "-j", run.job, "-t", "RUNNING"), "the job to run")
    done = run.resil("watch", "nodes", "--no-alert")
    assert done.returncode == 0 and "3 nodes to spare: 4 of 4 nodes of partition main usable, 3 idle" in done.stdout
    (node,) = cluster.squeue("%N", "-j", run.job, "-t", "RUNNING")
    cluster.drain(node, "fan is dead")
    done = run.resil("watch", "nodes", "--no-alert")
    assert "drain (fan is dead" in done.stdout
    assert done.returncode == 1 and f"its running job loses {node}: " in done.stdout, done.stdout


def test_watchdogs_look_on_every_node_of_a_running_job(cluster: Cluster) -> None:
    """On n2 alone, /dev/shm of the node is full."""
    run = ClusterRun(cluster, "looked")
    local = '[watch.nodes]\nlook = ["local"]\n[watch.local]\nkind = "fs"\npaths = ["/dev/shm"]\n'
    text = SETTINGS.format(name="looked", array="1", evidence=cluster.shared / "none")
    run.write("resil.toml", text.replace("[sbatch]\n", "[sbatch]\nnodes = 4\n") + local)
    run.write("train.sh", "sleep 600\n")
    if cluster.proctrack != "cgroup":
        pytest.skip("the nodes share their mounts here")
    inside = ["nsenter", "--mount", "--target", str(cluster.daemon("n2").pid)]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=1M,mode=1777", "tmpfs", "/dev/shm"], check=True)
    subprocess.run([*inside, "dd", "if=/dev/zero", "of=/dev/shm/left", "bs=1M"], stderr=subprocess.DEVNULL)
    try:
        run.submit()
        run.until(lambda: cluster.squeue("%N", "-j", run.job, "-t", "RUNNING"), "the job to run")
        done = run.resil("watch", "nodes", "--no-alert", "--json")
        findings = json.loads(done.stdout)["reports"][0]["findings"]
    finally:
        subprocess.run([*inside, "umount", "-l", "/dev/shm"], check=True)
    found = {one["subject"]: one["verdict"] for one in findings}
    assert found["n2:/dev/shm"] == "CRITICAL" and {found[f"n{number}:/dev/shm"] for number in (1, 3, 4)} == {"OK"}
    assert next(one["run"] for one in findings if one["subject"] == "n2:/dev/shm") == "looked"
