"""Faults injected into a training on two nodes of a real cluster by its user, and into daemons by an administrator.

What is stopped is asked of the kernel, on the nodes' own host: all nodes of the test cluster are this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from resilience.base.processes import is_same, state_of
from resilience.inject.daemons import find_daemons
from resilience.inject.holding import send
from resilience.runs.injections import read_injections
from resilience.runs.run_directory import RunDirectory
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until

SETTINGS = """\
[run]
name = "{name}"
command = "python train.py"
template = "srun"
allow_inject = {allowed}
[attempt]
beat_s = 1
[guard]
poll_s = 0.2
beat_s = 0.5
[scheduler]
deadline_s = 30
[sbatch]
time = "10"
nodes = 2
ntasks-per-node = 1
requeue = true
"""
GUARDED = """\
import sys, time
from resilience.guard import TrainingGuard

with TrainingGuard.from_env() as guard:
    while True:
        time.sleep(0.02)
        if guard.step().stop:
            break
sys.exit(guard.exit_code)
"""
PLAIN = "import time\nwhile True:\n    time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with Cluster(nodes=2, kill_wait=4) as cluster:
        yield cluster


def begin(cluster: Cluster, name: str, training: str = GUARDED, *, allowed: str = "true") -> ClusterRun:
    """Submit a training, and return when both ranks run."""
    run = ClusterRun(cluster, name)
    run.write("resil.toml", SETTINGS.format(name=name, allowed=allowed))
    run.write("train.py", training)
    run.submit()
    if training == GUARDED:
        run.until(lambda: len(list((run.directory / "beats").glob("*"))) == 2, "heartbeats of both nodes")
    run.until(lambda: run.resil("inject", "kill", "--step", "--dry-run").returncode == 0 or allowed == "false", "ranks")
    return run


def pid_of(run: ClusterRun, *target: str) -> int:
    """The process that a fault would hit, and its node."""
    plan = json.loads(run.ask("inject", "kill", *target, "--dry-run", "--json"))
    return int(plan["target"].partition("process ")[2].split()[0])


def finish(run: ClusterRun) -> None:
    run.resil("cancel")
    run.cluster.wait_for(run.job, {"CANCELLED", "FAILED", "COMPLETED", "NODE_FAIL"})


def test_ranks_on_other_nodes_and_the_batch_shell_are_hit_and_go_on(nodes: Cluster) -> None:
    run = begin(nodes, "breakable")
    target = json.loads(run.ask("inject", "kill", "--rank", "1", "--dry-run", "--json"))["target"]
    assert "on n2" in target, target
    for words in (["stop", "--rank", "1"], ["stop", "--batch"]):
        pid = pid_of(run, *words[1:])
        done = run.resil("inject", *words, "--for", "1s", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert str(pid) in found["target"] and found["how"] == "its time was over"
        assert state_of(pid)[0] in "SRD", "it goes on"
    done = run.resil("inject", "hang", "--rank", "1", "--for", "1s")
    assert done.returncode == 0, done.stderr
    done = run.resil("inject", "stop", "--rank", "7")
    assert done.returncode == 2 and "there is no rank 7" in done.stderr
    pid = pid_of(run, "--rank", "1")
    assert run.resil("inject", "kill", "--rank", "1").returncode == 0
    run.until(lambda: not state_of(pid)[0] or state_of(pid)[0] in "ZX", "the end of rank 1")
    assert [one["fault"] for one in json.loads(run.ask("inject", "list", "--json"))["injections"]] == [
        "stop", "stop", "hang", "kill",
    ]  # fmt: skip
    finish(run)


def test_a_stopped_rank_goes_on_although_its_job_has_no_guard_and_a_node_is_hit_as_a_whole(nodes: Cluster) -> None:
    run = begin(nodes, "plain", PLAIN)
    done = run.resil("inject", "hang", "--rank", "1", "--for", "1s")
    assert done.returncode == 0 and "stopped from outside" in done.stdout, done.stderr
    done = run.resil("inject", "exit", "--rank", "1")
    assert done.returncode == 2 and "only the process itself can do it" in done.stderr
    pid = pid_of(run, "--rank", "1")
    assert run.resil("inject", "kill", "--node", "n2").returncode == 0
    run.until(lambda: not state_of(pid)[0] or state_of(pid)[0] in "ZX", "the end of rank 1")
    finish(run)


@contextmanager
def injected(run: ClusterRun, *words: str) -> Iterator[None]:
    """Inject a fault, and undo it at the end by an interrupt."""
    injector = run.cluster.popen(
        ["resil", "inject", *words, "--for", "5m"], run.user, run.project, stdout=subprocess.PIPE
    )
    assert injector.stdout is not None
    begun = list[str]()
    for line in injector.stdout:
        begun.append(line)
        if "Ctrl-C" in line:
            break
    assert "Ctrl-C" in begun[-1], begun
    try:
        yield
    finally:
        injector.send_signal(signal.SIGINT)
        said, _ = injector.communicate(timeout=120)
        assert injector.returncode == 130 and "undone" in said, said


def test_a_user_breaks_the_controller_for_resil_alone(nodes: Cluster) -> None:
    run = begin(nodes, "patient")
    for fault, said in (("down", "Unable to contact slurm controller"), ("garbage", "unexpected line")):
        with injected(run, "scheduler", fault):
            answer = run.resil("status", "--fresh").stdout
            assert "unknown" in answer and said in answer, answer
            assert nodes.run(["squeue"], run.user).returncode == 0, "the cluster is untouched"
            for name in ("job", "nodes"):
                verdict = run.resil("watch", name)
                assert verdict.returncode == 3, "unknown is not dead: " + verdict.stdout
            for name in ("ckpt", "ranks", "inodes") if fault == "garbage" else ():
                verdict = run.resil("watch", name)
                assert verdict.returncode == 0 and not verdict.stderr, f"{name} asks no scheduler: {verdict}"
    assert "running" in run.ask("status", "--fresh")
    finish(run)


def test_a_run_that_does_not_allow_it_is_left_alone(nodes: Cluster) -> None:
    run = begin(nodes, "sacred", allowed="false")
    done = run.resil("inject", "kill", "--rank", "0")
    assert done.returncode == 2 and "allow_inject = true" in done.stderr
    finish(run)


def is_gone(pid: int, ticks: int) -> bool:
    return not is_same(pid, ticks)


class AdministratorRun(ClusterRun):
    """A run of root, who may signal the daemons."""

    @property
    def user(self) -> str:
        return "root"


def kill_all(run: ClusterRun, pattern: str) -> None:
    """Kill the processes with such a command line: an srun has a child."""
    for pid in run.cluster.run(["pgrep", "-f", pattern], run.user).stdout.split():
        with suppress(ProcessLookupError):  # one ends with another
            os.kill(int(pid), signal.SIGKILL)


KILL_BOTH = "kill what stopped it"


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1")
@pytest.mark.parametrize("end", ["its time", "undo", "kill the injector", "kill the srun", KILL_BOTH])
def test_a_stopped_process_goes_on_although_the_controller_does_not_answer(nodes: Cluster, end: str) -> None:
    run = begin(nodes, f"frozen-{end.replace(' ', '-')}", PLAIN)
    pid = pid_of(run, "--rank", "1")
    words = ["resil", "inject", "stop", "--rank", "1", "--for", "15s" if end == "its time" else "10m"]
    injector = nodes.popen(words, run.user, run.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: state_of(pid)[0] == "T", "rank 1 to be stopped")
    until(lambda: "client" in (run.directory / "injections").glob("*.json").__next__().read_text(), "the record")
    nodes.stop_controller()
    try:
        if end == "undo":
            assert run.resil("inject", "undo", "--all").returncode == 0
        elif end == "kill the injector":
            injector.kill()
        elif end == "kill the srun":
            kill_all(run, "^srun .* resilience.inject.stopping ")
        elif end == KILL_BOTH:
            kill_all(run, "^[^ ]*python[^ ]* -m resilience.inject.stopping ")
            nodes.continue_controller()
        until(lambda: state_of(pid)[0] in "SRD", "rank 1 to go on")
        injector.communicate(timeout=120)
        until(
            lambda: not any(one.is_on for one in read_injections(RunDirectory(run.directory))), "the record of its end"
        )
    finally:
        nodes.continue_controller()
    finish(run)


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1")
def test_an_administrator_makes_the_controller_hang_ends_it_and_loses_a_node(nodes: Cluster) -> None:
    nodes.home("root").mkdir(exist_ok=True)
    run = AdministratorRun(nodes, "mighty")
    run.write("resil.toml", SETTINGS.format(name=run.name, allowed="true"))
    run.write("train.py", GUARDED)
    run.submit()
    run.until(lambda: len(list((run.directory / "beats").glob("*"))) == 2, "heartbeats of both nodes")
    pid = pid_of(run, "--rank", "1")
    with injected(run, "scheduler", "hang", "--real"):
        until(lambda: nodes.daemon("slurmctld").stopped, "slurmctld to stop")
    assert nodes.run(["squeue"], run.user).returncode == 0
    with injected(run, "scheduler", "down", "--real"):
        assert not nodes.daemon("slurmctld").alive
        assert nodes.run(["squeue"], run.user).returncode == 1
    run.until(lambda: nodes.run(["scontrol", "ping"]).returncode == 0, "slurmctld to answer again")
    with injected(run, "scheduler", "lost-node", "--real", "--node", "n2"):
        until(lambda: not nodes.daemon("n2").alive, "slurmd to end")
        run.until(lambda: not state_of(pid)[0] or state_of(pid)[0] in "ZX", "the end of rank 1")
    run.until(lambda: "n2" in nodes.run(["pgrep", "-af", "slurmd -D -N n2"]).stdout, "slurmd to be started again")
    finish(run)
    known = {nodes.daemon(name).pid for name in ("slurmctld", "n1", "n2")}
    for name in ("slurmctld", "slurmd"):  # those that the injection has started are not the cluster's to end
        again = [(one.pid, one.ticks) for one in find_daemons(name, str(nodes.layout.conf)) if one.pid not in known]
        send(signal.SIGTERM, again)
        for pid, ticks in again:
            until(partial(is_gone, pid, ticks), f"{name} to end")
    nodes.start_controller()
    nodes.start_slurmd("n2")
