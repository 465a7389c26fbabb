"""A kill switch ends trainings that hang, on a real SLURM: on all nodes, with what was done in `resil status`.

All jobs begin at once, on a cluster of their own, and the switches are thrown one after another; each test waits for
its own. Nobody but the batch shell can end the ranks: most have no guard, and those of one story hang after a step.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import environ, until

RECORDED = Path(__file__).parents[1] / "recorded" / "stacks"
BOUND_S, KILL_WAIT_S = 3, 4
# Rank and node are told once; then it hangs, for ten minutes at most. With `deaf` it does not hear SIGTERM, and its
# own environment is empty, so that nobody finds it but SLURM, as on another machine.
TRAINING = """\
import os, signal, sys, time
root, rank, node = os.environ["RESIL_RUN_DIR"], os.environ.get("RANK", "0"), os.environ["SLURMD_NODENAME"]
if sys.argv[1:] == ["deaf"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(f"{root}/ranks.{rank}", "a") as file:
    file.write(f"{os.getpid()} {node} {os.environ.get('RESIL_STOP_AT', '')}\\n")
if sys.argv[1:] == ["deaf"]:
    os.execve("/bin/sleep", ["sleep", "600.25"], {})


def collective_that_hangs():
    time.sleep(600)


if sys.argv[1:] == ["guarded"]:
    from resilience.guard import TrainingGuard

    with TrainingGuard.from_env(poll_s=0.3, beat_s=1) as guard:
        for _ in range(50):
            time.sleep(0.02)
            guard.step()
        collective_that_hangs()
time.sleep(600)
"""
SETTINGS = """\
[run]
name = "{name}"
command = "{command}"
template = "{template}"
group = "resil-lab"
[attempt]
beat_s = 1
[submit]
signal_lead_s = 2
[guard]
{guard}
[sbatch]
time = "20"
{sbatch}
"""


@dataclass
class Run(ClusterRun):
    ranks: int = 1

    def started(self) -> list[list[str]]:
        """The ranks: process id, node, RESIL_STOP_AT."""
        return [path.read_text().split(" ") for path in sorted(self.directory.glob("ranks.*"))]

    def stages(self) -> list[str]:
        return [event["event"] for event in self.events() if event["event"].startswith(("kill", "stop", "sibl"))]

    def left(self) -> list[int]:
        """Processes of its ranks that still live."""
        return [int(pid) for pid, *_ in self.started() if Path(f"/proc/{pid}/cwd").exists()]

    def shows(self, pattern: str) -> bool:
        """Whether the line about the switch in `resil status` reads so."""
        return re.search(pattern, self.resil("status").stdout) is not None


@dataclass
class Stage:
    cluster: Cluster
    runs: dict[str, Run] = field(default_factory=dict)

    def begin(self, name: str, how: str = "", *, ranks: int = 1, template: str = "srun", array: int = 1,
              guard: str = f"kill_timeout_s = {BOUND_S}", sbatch: str = "") -> Run:  # fmt: skip
        cluster, run = self.cluster, Run(self.cluster, name, ranks=ranks)
        command = f"{cluster.python} {cluster.shared}/train.py {how}".strip()
        text = SETTINGS.format(name=name, command=command, template=template, guard=guard, sbatch=sbatch)
        run.write("resil.toml", text)
        run.submit("--array", str(array))
        self.runs[name] = run
        return run


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    for argv in (["groupadd", "-f", "resil-lab"], *(["usermod", "-aG", "resil-lab", user] for user in Cluster.users)):
        subprocess.run(argv, check=True, capture_output=True)
    with Cluster(nodes=4, kill_wait=KILL_WAIT_S) as cluster:
        stage = Stage(cluster)
        (cluster.shared / "train.py").write_text(TRAINING)
        two_nodes = "nodes = 2\nntasks-per-node = 2"
        stage.begin("deaf", "deaf", ranks=4, array=4, sbatch=two_nodes)
        stage.begin("hangs", ranks=2, array=3, sbatch="ntasks = 2")
        stage.begin("alone", "deaf", template="python")
        stage.begin("stop-after", ranks=2, guard='stop_after = "25s"', sbatch="ntasks = 2")
        stage.begin("guarded", "guarded", ranks=2, sbatch="nodes = 2\nntasks-per-node = 1")
        for run in stage.runs.values():
            run.until(lambda run=run: len(run.started()) == run.ranks, "it to train")  # type: ignore[misc]
        yield stage


def test_a_colleague_ends_ranks_on_two_nodes_that_hear_nothing_and_their_queued_jobs(stage: Stage) -> None:
    run, colleague = stage.runs["deaf"], stage.cluster.users[1]
    assert len({node for _, node, _ in run.started()}) == 2 and len(run.left()) == 4
    refused = stage.cluster.run(["scancel", run.job], colleague)
    assert "ccess/permission denied" in refused.stderr

    thrown = run.resil("kill", str(run.directory), "--why", "loss is NaN", "--scope", "all", user=colleague)
    assert thrown.returncode == 0, thrown.stderr
    attempt = rf"attempt 1 \(job {run.job}_1\)"  # on a busy machine the batch shell may be faster than the command
    expected = rf"no guard was ever seen in this run: .* ends {attempt} at|{attempt} is already being ended: "
    assert re.search(expected, thrown.stdout)
    assert "queued jobs (3) are cancelled then" in thrown.stdout
    assert f"its owner {stage.cluster.users[0]} can end it at once, without a save: resil cancel" in thrown.stdout

    said: list[str] = []

    def over() -> bool:
        said.extend(re.findall(rf"kill switch of {colleague}: loss is NaN; (.*)", run.resil("status").stdout))
        return bool(run.end())

    run.until(over, "its end")
    known = (r"noticed .*, SIGTERM at [\d: -]+ unless the training stops at a step",
             r"SIGTERM sent .*, SIGKILL at [\d: -]+",
             r"SIGKILL sent .*")  # fmt: skip
    assert said and all(any(re.fullmatch(sentence, one) for sentence in known) for one in said), said

    assert run.stages()[:3] == ["kill_noticed", "kill_term", "kill_kill"]
    run.until(lambda: not run.left(), "its ranks to be gone from both nodes")
    end = run.end()
    assert (end["end"], end["exit_code"]) == ("terminated", 137), run.log
    sentence = f"the kill switch was set by {colleague} at "
    assert sentence in end["why"]
    assert end["why"].endswith(f": loss is NaN, no step within {BOUND_S} s: ended with SIGKILL")
    (term,) = [event for event in run.events() if event["event"] == "kill_term"]
    assert term["kill_wait_s"] == KILL_WAIT_S, "as scontrol says"

    stage.cluster.wait_for(run.job, {"FAILED", "CANCELLED"})
    states = stage.cluster.job_state(run.job).split(",")
    assert sorted(states)[0] == "CANCELLED" and "RUNNING" not in states and "PENDING" not in states
    assert len(list((run.directory / "attempts").glob("????"))) == 1, "no queued job has begun an attempt"


def test_ranks_of_srun_that_hear_sigterm_get_it_and_scope_job_leaves_the_queue_to_itself(stage: Stage) -> None:
    run = stage.runs["hangs"]
    assert run.resil("kill").returncode == 0
    run.until_end()
    assert run.stages() == ["kill_noticed", "kill_term"]
    assert run.end()["end"] == "terminated" and run.end()["exit_code"] == 143, run.log
    assert run.end()["why"].endswith("ended with SIGTERM")
    run.until(lambda: not run.left(), "its ranks to be gone")
    stage.cluster.wait_for(run.job, {"FAILED"})
    assert "siblings_cancelled" not in run.stages(), "each saw the switch as it started"


def test_where_the_guards_are_their_stacks_are_written_first(stage: Stage) -> None:
    run = stage.runs["guarded"]
    run.until(lambda: any((run.directory / "beats").iterdir()), "a heartbeat")
    run.until(lambda: "all 2 ranks: in the user's code" in run.resil("stacks").stdout, "both to hang, on two nodes")
    pid = int(run.lines("ranks", 1)[0].split()[0])
    run.write("py-spy", f"#!/bin/sh\n[ $5 = {pid} ] && exec cat {run.project}/recorded\n")
    run.write("recorded", (RECORDED / "py_spy.txt").read_text())
    run.cluster.run(["chmod", "755", str(run.project / "py-spy")], run.user, check=True)
    os.kill(pid, signal.SIGSTOP)
    asked = ["sh", "-c", f"PATH={run.project}:$PATH exec resil stacks --json"]
    said = run.cluster.run(asked, user=run.user, cwd=run.project, timeout=120)
    os.kill(pid, signal.SIGCONT)
    assert said.returncode == 0, said.stderr
    (job,) = json.loads(said.stdout)["jobs"]
    assert [one["source"] for one in job["ranks"]] == ["guard", "py-spy"], (
        "a task beside the training has read the other"
    )
    assert "(state T)" in job["ranks"][1]["why"] and not job["notes"]
    thrown = run.resil("kill", "--why", "it hangs")
    assert thrown.returncode == 0 and "no guard" not in thrown.stdout, thrown.stdout
    run.until_end()
    assert run.stages()[:3] == ["kill_noticed", "kill_stacks", "kill_term"]
    assert run.end()["end"] == "terminated" and "it hangs" in run.end()["why"], run.log
    for rank in (0, 1):
        (path,) = (run.directory / "journal").glob(f"*.{rank}.stacks")
        assert "in collective_that_hangs\n" in path.read_text()
    run.until(lambda: not run.left(), "its ranks to be gone")


def test_a_training_that_the_batch_shell_has_started_itself_is_ended_as_well(stage: Stage) -> None:
    run = stage.runs["alone"]
    assert run.resil("kill").returncode == 0
    run.until_end()
    assert run.stages() == ["kill_noticed", "kill_term", "kill_kill"]
    assert (run.end()["end"], run.end()["exit_code"], run.end()["gone"]) == ("terminated", 137, True)
    run.until(lambda: not run.left(), "it to be gone")


def test_stop_after_ends_an_attempt_that_does_not_follow_long_before_its_time_limit(stage: Stage) -> None:
    run = stage.runs["stop-after"]
    run.until_end()
    assert run.stages() == ["stop_requested", "kill_term"]
    assert run.end()["why"] == "stop_after = 25 s is over: ended with SIGTERM"
    assert (run.end()["end"], run.end()["exit_code"]) == ("terminated", 143)
    job = run.events()[0]["job_id"]
    stop = tomllib.loads((run.directory / "switches" / f"stop.{job}").read_text())
    assert stop["why"].startswith("stop_after = 25 s: ")
    term = next(event["time"] for event in run.events() if event["event"] == "kill_term")
    assert {int(told) for *_, told in run.started()} <= set(range(term - 10, term + 2))


def test_no_process_of_any_of_them_is_left_on_any_node(stage: Stage) -> None:
    """Those with an empty environment are found by their command line."""
    for run in stage.runs.values():
        run.until_end()

    def found() -> list[int]:
        return [pid for pid in stage.cluster.processes() if "RESIL_RUN" in environ(pid) or is_sleeper(pid)]

    until(lambda: not found(), "all to be gone")
    (status,) = json.loads(stage.runs["deaf"].resil("status", "deaf", "--json").stdout)["runs"]
    assert status["kill"] is None


def is_sleeper(pid: int) -> bool:
    try:
        return b"600.25" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
