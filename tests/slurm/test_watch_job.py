"""The job watchdog on a real cluster: every state that SLURM can give a job, and a controller that is dead or hangs.

All jobs of this file are started at once, on a cluster of its own, and one look judges them all. KillWait is long
there, so that a job that does not hear SIGTERM stays COMPLETING.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.processes import text_of, until

SLEEP = "#!/bin/bash\nexec sleep 600\n"
DEAF = "#!/bin/bash\ntrap '' TERM\necho $$ > deaf.pid\nwhile :; do sleep 0.2; done\n"
LONG = "tr11-176B-ml-" + "x" * 70
ODD = "a b | c"
PARTITIONS = """\
PartitionName=asleep Nodes=ALL State=UP
PartitionName=shrunk Nodes=ALL MaxTime=10 State=UP
"""

NEVER = "will-never-start"
EXPECTED = {
    "running": ("OK", "", "running for"),
    "resources": ("OK", "", "waits for free nodes"),
    "priority": ("OK", "", "others are before it"),
    "begins-later": ("OK", "", "not before its begin time"),
    "array": ("OK", "", "as job ID_1 on n"),
    "het": ("OK", "", "running for"),
    LONG: ("OK", "", "running for"),
    ODD: ("OK", "", "running for"),
    "held-by-user": ("CRITICAL", NEVER, "held by its owner"),
    "held-by-admin": ("CRITICAL", NEVER, "held by an administrator"),
    "dependency-never": ("CRITICAL", NEVER, "can never be satisfied"),
    "shrunk": ("CRITICAL", NEVER, "asks for more time than the partition allows"),
    "requeue-hold": ("CRITICAL", NEVER, "was requeued and held"),
    "special-exit": ("CRITICAL", NEVER, "will not start"),
    "partition-down": ("WARNING", NEVER, "the partition is down 'closed'"),
    "partition-inactive": ("WARNING", NEVER, "the partition is closed 'asleep'"),
    "node-drained": ("WARNING", NEVER, "a node it needs is not available"),
    "suspended": ("WARNING", "suspended", "is suspended and makes no progress"),
    "ends-soon": ("WARNING", "ends-soon", "at the latest, and no job is queued behind it"),
    "completing": ("OK", "", "completing for"),  # a requeue shows such a moment
    "failed": ("CRITICAL", "not-queued", "ended: FAILED"),
    "nosuch": ("CRITICAL", "not-queued", "two queries of the queue found no job"),
}


@dataclass
class Story:
    """All jobs that were started, by name, and what one look said of them."""

    cluster: Cluster
    directory: Path
    jobs: dict[str, str] = field(default_factory=dict)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def resil(self, *words: str, user: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        user = user or self.cluster.users[0]
        return self.cluster.run(["resil", *words], user=user, cwd=self.directory, env=variables)

    def watch(self, *words: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
        said = self.resil("watch", "job", "--json", *words, **variables)
        return said.returncode, by_subject(said.stdout)


def by_subject(text: str) -> dict[str, dict[str, Any]]:
    """The findings of one look, worst first where a subject has several."""
    found: dict[str, dict[str, Any]] = {}
    for report in json.loads(text)["reports"]:
        for finding in report["findings"]:
            found.setdefault(finding["subject"], finding)
    return found


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    with Cluster(nodes=4, kill_wait=120, extra=PARTITIONS) as cluster:
        directory = cluster.shared / "project"
        cluster.run(["mkdir", str(directory)], user=cluster.users[0], check=True)
        story = Story(cluster, directory)
        story.jobs = start(cluster)
        names = [f"={name}" for name in EXPECTED]
        _, found = story.watch(*names, "--end-notice", "20m")
        cluster.run(["scancel", story.jobs["resources"], story.jobs["priority"]], check=True)  # out of the others' way
        story.found = {subject.removeprefix("="): finding for subject, finding in found.items()}
        yield story


def start(cluster: Cluster) -> dict[str, str]:
    """Start a job for each state, and return once each is in it."""
    alice, jobs = cluster.users[0], {}

    def root(*argv: str) -> None:
        cluster.run(list(argv), check=True)

    def queue(name: str, *options: str, script: str = SLEEP) -> None:
        jobs[name] = cluster.sbatch(script, "-J", name, "-o", "/dev/null", "--mem=100", *options)

    cluster.drain("n4")
    for name in ("running", LONG, ODD, "requeue-hold", "special-exit", "suspended"):
        queue(name)
    queue("ends-soon", "-t", "10")
    queue("completing", script=DEAF)
    queue("failed", script="#!/bin/bash\nexit 3\n")
    queue("array", "--array=1-5%1")
    queue("het", "-n1", ":", "-n1", "--mem=100")
    queue("held-by-user", "--hold")
    queue("held-by-admin", "--begin=now+1hour")
    queue("begins-later", "--begin=now+1hour")
    queue("partition-down", "-p", "closed")
    queue("partition-inactive", "-p", "asleep", "--begin=now+2")
    queue("node-drained", "-w", "n4")
    queue("shrunk", "-p", "shrunk", "-t", "9", "--begin=now+2")
    root("scontrol", "update", "partitionname=shrunk", "maxtime=1")
    root("scontrol", "update", "partitionname=asleep", "state=inactive")
    root("scontrol", "hold", jobs["held-by-admin"])
    cluster.wait_for(jobs["failed"], "FAILED")
    queue("dependency-never", f"--dependency=afterok:{jobs['failed']}")
    for name in ("requeue-hold", "special-exit", "suspended"):
        cluster.wait_for(jobs[name], "RUNNING")
    cluster.run(["scontrol", "requeuehold", jobs["requeue-hold"]], alice, check=True)
    cluster.run(["scontrol", "requeuehold", "State=SpecialExit", jobs["special-exit"]], alice, check=True)
    root("scontrol", "suspend", jobs["suspended"])
    text_of(cluster.home(alice) / "deaf.pid")
    for name in ("running", LONG, ODD, "ends-soon", "het"):  # before somebody waits for all nodes, and is first in line
        until(lambda n=name: set(cluster.squeue("%T", "-j", jobs[n])) == {"RUNNING"}, f"{name} to run")  # type: ignore[misc]
    queue("resources", "-N3", "--exclusive")
    queue("priority", "-N3", "--exclusive")
    reasons = {
        "resources": "Resources", "priority": "Priority", "dependency-never": "DependencyNeverSatisfied",
        "held-by-admin": "JobHeldAdmin", "partition-down": "PartitionDown", "partition-inactive": "PartitionInactive",
        "shrunk": "PartitionTimeLimit", "requeue-hold": "job requeued in held state",
    }  # fmt: skip
    for name, reason in reasons.items():
        until(lambda n=name, r=reason: cluster.squeue("%r", "-j", jobs[n]) == [r], f"{name}: {reason}", every_s=0.1)  # type: ignore[misc]
    until(lambda: "ReqNodeNotAvail" in cluster.squeue("%r", "-j", jobs["node-drained"])[0], "the node's reason")
    cluster.wait_for(jobs["special-exit"], "SPECIAL_EXIT")
    cluster.run(["scancel", jobs["completing"]], alice, check=True)  # last: KillWait later it has ended
    return jobs


@pytest.mark.parametrize("name", EXPECTED)
def test_every_state_that_slurm_can_give_a_job(story: Story, name: str) -> None:
    verdict, fault, words = EXPECTED[name]

    finding = story.found[name]

    assert (finding["verdict"], finding["fault"]) == (verdict, fault), finding
    assert words.replace("ID", story.jobs.get(name, "")) in finding["summary"]
    if fault:
        assert finding["advice"], "what to do"
    if fault == NEVER:
        assert f"job {story.jobs[name]} will not start" in finding["summary"]


def test_what_is_said_to_do_about_a_held_job_is_what_helps(story: Story) -> None:
    advice = story.found["held-by-user"]["advice"]
    command = advice.partition(": ")[2].split()
    assert command == ["scontrol", "release", story.jobs["held-by-user"]]


def test_one_query_answers_for_all_of_them(story: Story) -> None:
    assert story.found["queue of slurm"]["verdict"] == "OK"
    assert any("one query of the slurm queue" in line for line in story.found["running"]["looked"])


def test_patterns_find_jobs_by_their_whole_long_name(story: Story) -> None:
    code, found = story.watch("tr11-*", f"/^{LONG[:60]}/", "held-by-*")
    assert found["tr11-*"]["verdict"] == "OK"
    assert found[f"/^{LONG[:60]}/"]["verdict"] == "OK"
    assert (code, found["held-by-*"]["fault"]) == (2, NEVER)


def test_somebody_elses_job_is_watched_by_its_name(story: Story) -> None:
    bob = story.cluster.users[1]
    job = story.cluster.sbatch(SLEEP, "-J", "bobs", "--mem=100", user=bob)
    story.cluster.wait_for(job, "RUNNING")

    code, found = story.watch("bobs", "--users", bob)
    assert (code, found[f"bobs of {bob}"]["verdict"]) == (0, "OK")
    code, found = story.watch("bobs", "running", "--users", "*")
    assert (code, found["bobs of anyone"]["verdict"], found["running of anyone"]["verdict"]) == (0, "OK", "OK")
    code, found = story.watch("bobs")
    assert (code, found["bobs"]["fault"]) == (2, "not-queued"), "alice has none of that name"


def test_a_user_that_does_not_exist_is_no_dead_job(story: Story) -> None:
    code, found = story.watch("running", "--users", "who-left-us")
    assert code == 3
    assert {finding["verdict"] for finding in found.values()} == {"UNKNOWN"}


def test_a_watchdog_in_a_job_of_the_same_name_does_not_find_itself(story: Story) -> None:
    """The published slurm-status.slurm: its own --job-name is the name that it watches."""
    report = story.directory / "own.json"
    script = f"#!/bin/bash\ncd {story.directory}\nresil watch job tr99 --json > own.json\necho $? > own.code\n"
    job = story.cluster.sbatch(script, "-J", "tr99", "--mem=100", "-o", "/dev/null")
    story.cluster.wait_for(job, "COMPLETED")

    found = by_subject(report.read_text())
    faults = {f["fault"] for r in json.loads(report.read_text())["reports"] for f in r["findings"]}
    assert found["tr99"]["verdict"] == "CRITICAL" and {"not-queued", "own-name"} <= faults
    assert text_of(story.directory / "own.code").strip() == "2"


def test_a_run_is_watched_from_its_submit_to_its_end(story: Story) -> None:
    """Queued, running, killed on purpose, and another one finished; its queue is known by tokens."""
    directory = story.cluster.shared / "runs"
    story.cluster.run(["mkdir", str(directory)], user=story.cluster.users[0], check=True)
    runs = Story(story.cluster, directory)
    for run, command in (("gpt", "sleep 600"), ("done", "true")):
        text = f'[run]\nname = "{run}"\ncommand = "{command}"\n[sbatch]\ntime = "600"\nmem = "100"\n'
        story.cluster.run(["tee", str(directory / "resil.toml")], user=story.cluster.users[0], input=text, check=True)
        said = runs.resil("submit", "--array", "2")
        assert said.returncode == 0, said.stderr
    until(lambda: runs.watch()[1]["done"]["summary"].startswith("finished"), "done to be finished")
    until(lambda: "running for" in runs.watch()[1]["gpt"]["summary"], "gpt to run")
    code, found = runs.watch()
    assert (code, found["gpt"]["verdict"], found["done"]["verdict"]) == (0, "OK", "OK")

    assert runs.resil("cancel", "gpt").returncode == 0
    until(lambda: "running for" not in runs.watch()[1]["gpt"]["summary"], "gpt to be gone")
    code, found = runs.watch()
    assert (code, found["gpt"]["verdict"]) == (0, "OK") and "cancelled on purpose by" in found["gpt"]["summary"]

    assert runs.resil("kill", "gpt", "--why", "the loss is NaN").returncode == 0
    code, found = runs.watch()
    assert (code, found["gpt"]["verdict"]) == (0, "OK") and "the loss is NaN" in found["gpt"]["summary"]


def test_a_hung_controller_is_unknown_within_the_deadline(story: Story) -> None:
    story.cluster.stop_controller()
    try:
        code, found = story.watch("running")
    finally:
        story.cluster.continue_controller()
        story.cluster.wait_served()
    (finding,) = found.values()
    assert (code, finding["verdict"], finding["fault"]) == (3, "UNKNOWN", "unreachable")


def test_a_dead_controller_is_unknown_then_critical_and_then_all_is_well(story: Story) -> None:
    story.cluster.terminate_controller()
    try:
        code, found = story.watch("running", "--unknown-critical-after", "1h")
        assert (code, found["queue of slurm"]["fault"]) == (3, "unreachable")
        assert "not dead" in found["queue of slurm"]["summary"] and "running" not in found
        # Looking in vain takes longer than this second, from one question to the next.
        code, found = story.watch("running", "--unknown-critical-after", "1s")
        assert (code, found["queue of slurm"]["verdict"]) == (2, "CRITICAL")
    finally:
        story.cluster.start_controller()
    code, found = story.watch("running", "--unknown-critical-after", "1s")
    assert (code, found["queue of slurm"]["verdict"], found["running"]["verdict"]) == (0, "OK", "OK")
