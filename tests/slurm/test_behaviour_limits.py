"""What this product believes about time limits, signals and lost nodes, as claims that a real SLURM confirms.

slurmctld looks at time limits every 30 s and gives a silent node up only after some 15 s. So all jobs of this file are
started at once, on a cluster of its own, and each test waits for its own. A limit is brought near by its owner:
`scontrol update EndTime=` knows seconds where --time knows minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import Process, text_of, until

# Tells a file of every signal, and goes on. Another file says that from now on it hears them.
PYTHON = """\
import signal, sys, time
def tell(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(f"python {signal.Signals(number).name}\\n")
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, tell)
open(sys.argv[1] + ".ready", "w").close()
while True:
    time.sleep(0.1)
"""
TRAPS = "trap 'echo bash SIGUSR1 >> {log}' USR1; trap 'echo bash SIGTERM >> {log}' TERM\n"
RUN = f"/usr/bin/env python3 {'../' * 2}shared/tell.py {{log}}"  # from a home to the cluster's shared directory
REST = "\nwhile :; do wait; sleep 0.1; done\n"


@dataclass(frozen=True)
class Signalled:
    """A way to write a batch script, and who is told what when the limit comes near and then arrives."""

    script: str
    option: str
    told: frozenset[str]
    state: str = "TIMEOUT"


def told(*words: str) -> frozenset[str]:
    return frozenset(words)


# With proctrack/cgroup. The rows to copy into a template are `background` and, for the process itself, `step`.
WAYS = {
    "foreground": Signalled(TRAPS + RUN, "USR1@60", told()),
    "foreground-batch-no-trap": Signalled(RUN + "\ntrue", "B:USR1@60", told(), "FAILED"),
    "background": Signalled(TRAPS + RUN + " &" + REST, "B:USR1@60", told("bash SIGUSR1", "bash SIGTERM")),
    "exec": Signalled("exec " + RUN, "USR1@60", told("python SIGTERM")),
    "exec-batch": Signalled("exec " + RUN, "B:USR1@60", told("python SIGUSR1", "python SIGTERM")),
    "step": Signalled("srun " + RUN, "USR1@60", told("python SIGUSR1", "python SIGTERM")),
    "step-batch": Signalled(
        TRAPS + "srun " + RUN + " &" + REST,
        "B:USR1@60",
        told("bash SIGUSR1", "bash SIGTERM", "python SIGTERM"),
    ),
}
LOG_PID = "#!/bin/bash\ntrap '' TERM\necho $$ >> {name}.pid\nwhile :; do sleep 0.2; done\n"


@dataclass
class Story:
    """All that was started at once: job ids by name."""

    cluster: Cluster
    jobs: dict[str, str]

    @property
    def home(self) -> Path:
        return self.cluster.home(self.cluster.users[0])


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """Nodes n1 and n2 take the signalled jobs; n3 fails with its jobs, n4 loses its slurmd only; n5 is free."""
    with Cluster(nodes=5) as cluster:
        (cluster.shared / "tell.py").write_text(PYTHON)
        jobs: dict[str, str] = {}
        for name, way in WAYS.items():
            script = "#!/bin/bash\n" + way.script.format(log=f"{name}.log")
            jobs[name] = cluster.sbatch(script, f"--signal={way.option}", "-t5", "-w", f"n{1 + len(jobs) % 2}")
        for name, elsewhere, *options in (
            ("requeued", "n4,n5"), ("not-requeued", "n4,n5", "--no-requeue"), ("twin", "n3,n5"),
        ):  # fmt: skip
            jobs[name] = cluster.sbatch(LOG_PID.format(name=name), *options, "-x", f"n1,n2,{elsewhere}", "-J", name)
        for job in jobs.values():
            cluster.wait_for(job, "RUNNING")
        story = Story(cluster, jobs)
        for name in ("requeued", "not-requeued", "twin"):
            text_of(story.home / f"{name}.pid")
        cluster.fail_node("n3")
        cluster.lose_slurmd("n4")
        for name in WAYS:
            until((story.home / f"{name}.log.ready").exists, f"{name} to hear signals")
            update = ["scontrol", "update", f"jobid={jobs[name]}", "EndTime=now+35"]
            cluster.run(update, cluster.users[0], check=True)
        yield story


def test_a_failed_nodes_job_is_requeued_or_ends_as_node_fail(story: Story) -> None:
    cluster = story.cluster
    until(lambda: cluster.node_states()["n3"] == "down*", "the node to be down")
    assert cluster.wait_for(story.jobs["not-requeued"], "NODE_FAIL") == "NODE_FAIL"
    assert cluster.wait_for(story.jobs["requeued"], "PENDING") == "PENDING"
    assert "Not responding" in cluster.run(["sinfo", "-R", "-h", "-n", "n3", "-o", "%E"]).stdout


def test_a_node_that_is_cut_off_leaves_a_twin_of_its_requeued_job(story: Story) -> None:
    """SLURM starts the job again elsewhere while the first copy still runs: two attempts at one time."""
    cluster, job = story.cluster, story.jobs["twin"]
    pids = story.home / "twin.pid"
    cluster.wait_for(job, "PENDING")
    cluster.run(["scontrol", "update", f"jobid={job}", "ExcNodeList=n1,n2,n3,n4", "StartTime=now"], check=True)
    until(lambda: len(pids.read_text().split()) == 2, "the second copy")
    first, second = (Process.of(int(pid)) for pid in pids.read_text().split())
    assert first, "the first copy is alive"
    assert second, "and so is the second"
    assert cluster.job_state(job) == "RUNNING"

    cluster.start_slurmd("n4")
    until(lambda: not first.alive, "the first copy to be killed when its slurmd is back")
    assert second.alive


def test_a_node_that_comes_back_is_idle_without_help(story: Story) -> None:
    story.cluster.start_slurmd("n3")
    until(lambda: story.cluster.node_states()["n3"] in ("idle", "mixed"), "n3 to be back")


@pytest.mark.parametrize("name", WAYS)
def test_who_is_told_before_and_at_the_time_limit(story: Story, name: str) -> None:
    if story.cluster.proctrack != "cgroup":
        pytest.skip("with proctrack/linuxproc every descendant gets every signal")
    way = WAYS[name]
    assert story.cluster.wait_for(story.jobs[name], way.state) == way.state
    log = story.home / f"{name}.log"
    assert frozenset(log.read_text().splitlines() if log.exists() else ()) == way.told


def test_the_limit_is_said_in_the_output(story: Story) -> None:
    name = "step"
    story.cluster.wait_for(story.jobs[name], "TIMEOUT")
    output = story.home / f"slurm-{story.jobs[name]}.out"
    until(lambda: "DUE TO TIME LIMIT ***" in output.read_text(), "the line")


def test_a_batch_shell_without_trap_dies_of_the_warning(story: Story) -> None:
    job = story.jobs["foreground-batch-no-trap"]
    story.cluster.wait_for(job, "FAILED")
    assert "ExitCode=0:10" in story.cluster.run(["scontrol", "show", "job", job]).stdout.split()
