"""One attempt at a time, graceful ends and true exit codes, with rendered scripts on a real SLURM.

slurmctld looks at time limits every 30 s, gives a silent node up after some 15 s, and requeues 11 s later. So all slow
stories of this file begin at once, on a cluster of its own, and each test waits for its own.
"""

from __future__ import annotations

import itertools
import pwd
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from resilience.layout import FOLDERS
from resilience.runs.templates.directives import write_directive
from resilience.runs.templates.script import ScriptSpec, render
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.host import release
from tests.lab.slurm.processes import environ, until
from tests.runs.templates.batch import SHIPPED

# Steps for ever, and survives whatever can be caught. `obedient` exits with 75 when the stop switch is there.
TRAINING = """\
import os, signal, sys, time
root, attempt = os.environ["RESIL_RUN_DIR"], os.environ["RESIL_ATTEMPT"]
def caught(number, frame):
    with open(f"{root}/caught.{attempt}", "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, caught)
stop = f"{root}/switches/stop.{os.environ['SLURM_JOB_ID']}"
while not (sys.argv[1:] == ["obedient"] and os.path.exists(stop)):
    with open(f"{root}/steps", "a") as file:
        file.write(f"{attempt} {time.time()} {os.environ.get('RANK', 0)}\\n")
    time.sleep(0.1)
sys.exit(75)
"""
LOST, SPARE = "n5", "n6"
CODES = (0, 1, 75, 130, 255)


@dataclass
class Run(ClusterRun):
    """One run directory on the cluster's shared file system, without a project, and a job of it."""

    @property
    def directory(self) -> Path:
        return self.cluster.shared / self.name

    def make(self) -> None:
        entry = pwd.getpwnam(self.user)
        for path in (self.directory, *(self.directory / directory for directory in FOLDERS)):
            path.mkdir(mode=0o700)
            shutil.chown(path, entry.pw_uid, entry.pw_gid)

    def queue(self, command: str, *options: str, template: str = "python", **spec: Any) -> str:
        wish = ScriptSpec(
            run=self.name,
            run_dir=str(self.directory),
            command=command,
            **{"beat_s": 1, "signal_lead_s": 20, "previous_wait_s": 120} | spec,
        )
        script = render(SHIPPED, template, wish)
        (self.directory / "submissions.jsonl").write_text('{"event":"intent","token":"token"}\n')
        return self.cluster.sbatch(script, "-t10", f"--comment=resil:{self.name}:token", *options)

    @property
    def steps(self) -> dict[int, list[float]]:
        """When each attempt made its steps."""
        path = self.directory / "steps"
        found: dict[int, list[float]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            words = line.split()
            found.setdefault(int(words[0]), []).append(float(words[1]))
        return found

    def overlaps(self) -> list[str]:
        """Attempts that trained at one time."""
        spans = sorted((min(times), max(times), attempt) for attempt, times in self.steps.items())
        return [f"attempts {one[2]} and {two[2]}" for one, two in itertools.pairwise(spans) if two[0] <= one[1]]

    def caught(self, attempt: int) -> list[str]:
        path = self.directory / f"caught.{attempt}"
        return path.read_text().split() if path.exists() else []

    def shown(self, job: str = "") -> dict[str, str]:
        text = self.cluster.run(["scontrol", "-o", "show", "job", job or self.job], check=True).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def jobs_on(cluster: Cluster, node: str) -> list[dict[str, str]]:
    """The environments of all processes of jobs on a node."""
    found = map(environ, cluster.processes())
    return [env for env in found if env.get("SLURMD_NODENAME") == node and "SLURM_JOB_ID" in env]


@dataclass
class Story:
    cluster: Cluster
    runs: dict[str, Run] = field(default_factory=dict)

    def run(self, name: str) -> Run:
        run = Run(self.cluster, name)
        run.make()
        self.runs[name] = run
        return run

    def training(self, *words: str) -> str:
        return " ".join((str(self.cluster.python), str(self.cluster.shared / "training.py"), *words))

    def shorten(self, job: str, seconds: int) -> None:
        self.cluster.run(
            ["scontrol", "update", f"jobid={job}", f"EndTime=now+{seconds}"], self.cluster.users[0], check=True
        )


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """n1 to n4 serve everybody; n5 loses its slurmd with a job on it, and n6 takes the twin."""
    with Cluster(nodes=6) as cluster:
        story = Story(cluster)
        (cluster.shared / "training.py").write_text(TRAINING)
        healthy = ("-x", f"{LOST},{SPARE}")
        for template in ("python", "srun"):
            twin = story.run(f"twin-{template}")
            twin.job = twin.queue(story.training(), "-x", f"n[1-4],{SPARE}", template=template)
            obedient = story.run(f"limit-{template}")
            obedient.job = obedient.queue(story.training("obedient"), *healthy, template=template, signal_lead_s=5)
        for name in ("serial-cancel", "serial-limit"):
            run = story.run(name)
            run.job = run.queue(story.training(), "--array=1-2%1", *healthy, array=True)
        for run in story.runs.values():
            until(lambda run=run: run.steps, f"{run.name} to train")  # type: ignore[misc]
        cluster.lose_slurmd(LOST)
        cluster.run(["scancel", f"{story.runs['serial-cancel'].job}_1"], cluster.users[0], check=True)
        for name in ("limit-python", "limit-srun"):
            story.shorten(story.runs[name].job, 35)
        story.shorten(story.runs["serial-limit"].job + "_1", 25)
        yield story


@pytest.mark.parametrize("name", ["serial-cancel", "serial-limit"])
def test_the_next_task_of_an_array_trains_only_when_the_one_before_is_gone(story: Story, name: str) -> None:
    """SLURM starts it at once, while the one before has KillWait left and uses it."""
    run = story.runs[name]
    until(lambda: 2 in run.steps, "the second task to train")
    assert not run.overlaps()
    assert "SIGTERM" in run.caught(1), "the batch shell handed it on"
    assert run.end(1)["end"] == "lost", "SIGKILL leaves no time for an end"
    assert "terminating" in [event["event"] for event in run.events()]
    assert "waiting for attempt 0001 to end: job" in run.log
    assert "COMPLETING" in run.log
    story.cluster.run(["scancel", run.job], run.user, check=True)


def requeued(story: Story, name: str) -> Run:
    """Wait until SLURM has given the lost job back to its queue, and let it start on the spare node."""
    run = story.runs[name]
    until(lambda: run.shown()["Restarts"] == "1", "the requeue")
    story.cluster.run(["scontrol", "update", f"jobid={run.job}", f"ExcNodeList=n[1-4],{LOST}"], check=True)
    return run


def test_the_twin_of_a_lost_job_waits_and_the_old_one_ends_without_saving(story: Story) -> None:
    run = requeued(story, "twin-python")
    trained = run.steps[1][-1]
    until(lambda: run.steps[1][-1] > trained, "the first copy to train on: SLURM has given it up, it knows nothing")
    until(lambda: 2 in run.steps, "the twin to train")
    assert not run.overlaps()
    assert run.end(1)["end"] == "superseded"
    assert not run.caught(1), "no signal that could make it save"
    assert story.cluster.job_state(run.job) == "RUNNING"


def test_srun_that_ends_because_its_node_is_lost_has_neither_finished_nor_failed_the_run(story: Story) -> None:
    """srun says "Node failure", exits with 0 (24.11: with 1), and leaves its task running."""
    run = requeued(story, "twin-srun")
    until(lambda: 2 in run.steps, "the twin to train")
    assert not run.overlaps()
    assert "Node failure" in run.log
    end = run.end(1)
    assert end["end"] == "lost" and end["exit_code"] == (75 if release() < (24, 0) else 1), end
    assert not (run.directory / "finished").exists()
    assert not set(run.caught(1)) - {"SIGINT"}


def test_when_the_lost_slurmd_comes_back_the_twins_go_on_alone(story: Story) -> None:
    runs = [story.runs["twin-python"], story.runs["twin-srun"]]
    for run in runs:
        until(lambda run=run: 2 in run.steps, "the twin to train")  # type: ignore[misc]
    story.cluster.start_slurmd(LOST)
    # Idle: slurmctld has told it what to kill, and it has said that this is done.
    until(lambda: story.cluster.node_states()[LOST] == "idle", "the node to be back, and done with old jobs")
    old = {run.job for run in runs}
    until(lambda: not [env for env in jobs_on(story.cluster, LOST) if env["SLURM_JOB_ID"] in old], "no first copy")
    for run in runs:
        back = time.time()
        until(lambda run=run, back=back: run.steps[2][-1] > back + 1, f"{run.name} to train on")  # type: ignore[misc]
        assert story.cluster.job_state(run.job) == "RUNNING"
        assert set(run.steps) == {1, 2}
        assert not run.overlaps()


@pytest.mark.parametrize("template", ["python", "srun"])
def test_the_signal_before_the_time_limit_reaches_the_training_as_a_switch(story: Story, template: str) -> None:
    run = story.runs[f"limit-{template}"]
    story.cluster.wait_for(run.job, "FAILED")
    assert run.shown()["ExitCode"] == "75:0"
    assert run.end(1) | {"end": "stopped", "exit_code": 75} == run.end(1)
    assert "SIGUSR1" in (run.directory / "switches" / f"stop.{run.job}").read_text()
    assert not run.caught(1), "by file and not by signal"


def test_a_superseded_srun_ends_tasks_that_nothing_here_can_find(story: Story) -> None:
    """As on other nodes: no child of the batch shell, and nothing in the environment says whose they are."""
    run = story.run("hidden")
    tasks = "echo task; exec env -i /bin/sleep 4242"
    run.job = run.queue(tasks, "-N2", "--ntasks-per-node=1", "-x", f"{LOST},{SPARE}", template="srun")
    until(lambda: run.job != "" and run.log.count("task") == 2, "two tasks")
    twin = (run.directory / "attempts" / "0001").read_text().replace("number = 1", "number = 2")
    (run.directory / "attempts" / "0002").write_text(twin)
    until(lambda: bool(run.end(1)), "its end")
    assert run.end(1)["end"] == "superseded"
    until(lambda: not [pid for pid in story.cluster.processes() if b"4242" in cmdline(pid)], "the tasks to be gone")


def test_exit_codes_arrive_in_the_scheduler_unchanged(story: Story) -> None:
    run = story.run("codes")
    for template in ("python", "srun"):
        jobs = {code: run.queue(f"exit {code}", template=template, finish_on_success=False) for code in CODES}
        for code, job in jobs.items():
            story.cluster.wait_for(job, {"COMPLETED", "FAILED"})
            assert run.shown(job)["ExitCode"] == f"{code}:0"


def test_a_kill_switch_for_all_cancels_the_queued_jobs_of_the_run_and_no_others(story: Story) -> None:
    run, other = story.run("killed"), story.run("killed2")
    later = "--begin=now+1hour"
    queued = [run.queue("true", later), run.queue("true", later)]
    foreign = [other.queue("true", later), story.cluster.sbatch("#!/bin/sh\ntrue\n", later)]
    (run.directory / "switches" / "kill").write_text('why = "diverged"\nscope = "all"\n')
    array = run.queue("true", "--array=1-5%1")
    for job in queued:
        story.cluster.wait_for(job, "CANCELLED")
    states = story.cluster.wait_for(array, {"CANCELLED", "FAILED"}).split(",")
    assert "CANCELLED" in states
    assert [story.cluster.job_state(job) for job in foreign] == ["PENDING", "PENDING"]
    assert "set by root: diverged" in run.log
    assert not (run.directory / "finished").exists()


def test_the_queue_of_a_finished_run_burns_through_without_a_step(story: Story) -> None:
    run = story.run("done")
    (run.directory / "finished").write_text("")
    job = run.queue("true", "--array=1-10%1")
    story.cluster.wait_for(job, "COMPLETED")
    assert not run.steps


def test_the_training_knows_when_its_time_is_over(story: Story) -> None:
    run = story.run("told")
    job = run.queue("env >$RESIL_RUN_DIR/environment; exit 75", "-t", "7", template="srun")
    story.cluster.wait_for(job, "FAILED")
    told = dict(line.split("=", 1) for line in (run.directory / "environment").read_text().splitlines() if "=" in line)
    assert abs(int(told["RESIL_END_TIME"]) - time.time() - 7 * 60) < 60
    assert told["MASTER_ADDR"] in story.cluster.nodes
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"]) == ("0", "0", "1")


def test_sbatch_reads_directives_back_as_they_were_meant(story: Story) -> None:
    values = (
        "it's",
        'say "hi"',
        "$(id) `id`",
        "a\\",
        '\\"',
        "a # b",
        "#",
        "%j|%x",
        "é 漢",
        "  a ",
        "--x",
        "a,b;c&d|e>f<g",
    )
    for value in values:
        script = f"#!/bin/sh\n{write_directive('comment', value)}\n{write_directive('hold', None)}\ntrue\n"
        job = story.cluster.sbatch(script)
        assert story.cluster.squeue("%k", "-j", job) == [value]
