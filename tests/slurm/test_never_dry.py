"""A run on a real SLURM that is kept supplied where no watchdog looks: by its starting jobs, or in one job id."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.slurm import accounting
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="one of several stories; RESIL_SOAK=1 runs all")
SETTINGS = """\
[run]
name = "{name}"
command = "sh train.sh"
[act]
enabled = true
{act}
[attempt]
beat_s = 1
[submit]
array = "{array}"
signal_lead_s = 20
[sbatch]
time = "{time}"
"""
COUNTED = "echo x >>count; n=$(grep -c x count)\n"
UNTIL_MORE_ARE_QUEUED = (
    'until [ "$(grep -c \'"event":"submitted"\' .resil/*/submissions.jsonl)" -ge %s ]; do sleep 0.1; done\n'
)


class Supplied(ClusterRun):
    """A run whose training counts its attempts: `$n`, from 1."""

    def begin(self, training: str, act: str, *, array: str = "1", time: str = "10") -> None:
        self.write("resil.toml", SETTINGS.format(name=self.name, act=act, array=array, time=time))
        self.write("train.sh", COUNTED + training)
        self.submit()

    @property
    def attempts(self) -> list[dict[str, Any]]:
        rows = json.loads(self.ask("attempts", "--json"))["attempts"]
        assert isinstance(rows, list)
        return rows

    @property
    def ends(self) -> list[tuple[str, int]]:
        return [(row["end"], row["exit_code"]) for row in self.attempts]

    def until_finished(self) -> None:
        self.until((self.directory / "finished").exists, "the run to finish")
        attempts = self.directory / "attempts"
        self.until(lambda: all(path.with_suffix(".end").exists() for path in attempts.glob("????")), "the last end")

    @property
    def lines_of_journal(self) -> list[str]:
        return (self.directory / "submissions.jsonl").read_text().splitlines()

    @property
    def queue(self) -> list[str]:
        return self.cluster.squeue("%i %T %r", f"--name={self.name}", "-t", "PENDING,RUNNING")


def test_an_array_that_would_run_dry_is_refilled_by_its_last_job_without_a_tick(cluster: Cluster) -> None:
    run = Supplied(cluster, "refilled")
    run.begin(UNTIL_MORE_ARE_QUEUED % "$((n + 1))" + "[ $n = 2 ] || exit 75", "keep_queued = 1")
    run.until_finished()
    assert run.ends == [("stopped", 75), ("finished", 0)]
    assert [row["job"] for row in run.attempts] == [f"{run.job}_1", f"{int(run.job) + 1}_1"]


@soak
def test_a_job_requeues_itself_to_the_end_in_its_id(cluster: Cluster) -> None:
    """It is asked to stop, fails, and is at its time limit: causes and exit codes are in the ledger."""
    run = Supplied(cluster, "requeues")
    run.begin("case $n in 1) exit 75 ;; 2) exit 3 ;; 3) sleep 600 ;; esac", "requeue = true", array="", time="2")
    run.until_finished()
    assert {row["job"] for row in run.attempts} == {run.job}
    assert run.ends == [("stopped", 75), ("exited", 3), ("terminated", 143), ("finished", 0)]
    assert [row["restart"] for row in run.attempts] == [0, 1, 2, 3]
    causes = [row["failure"]["failure"] for row in run.attempts]
    assert causes == ["stopped", "unknown", "walltime", "finished"], "its own requeue is no preemption"
    run.until(lambda: not run.queue, "the job to be gone")


@soak
def test_each_task_of_an_array_requeues_itself_alone(cluster: Cluster) -> None:
    run = Supplied(cluster, "tasks")
    run.begin("[ $n = 4 ] || exit 75", "requeue = true\nkeep_queued = 2", array="2")
    run.until_finished()
    assert [row["job"] for row in run.attempts] == [f"{run.job}_{task}" for task in (1, 2, 1, 2)]
    run.until(lambda: not run.queue, "the tasks to see that the run is finished")
    assert len(run.lines_of_journal) == 2, "nothing else was queued"


@soak
def test_the_breaker_holds_a_job_that_requeues_itself_until_it_is_closed(cluster: Cluster) -> None:
    run = Supplied(cluster, "looping")
    run.begin("test -e mended && exit 0; exit 1", "requeue = true", array="")
    run.until(lambda: any("held" in row for row in run.queue), "the job to be held")
    assert run.ends == [("exited", 1)] * 3 and (run.directory / "attempts" / "breaker").exists()
    run.resil("watch", "job")
    assert (run.directory / "attempts" / "breaker").exists(), "no tick takes its requeues for preemptions"
    run.write("mended", "")
    assert f"released: {run.job}" in run.ask("breaker", "close")
    run.until_finished()
    assert {row["job"] for row in run.attempts} == {run.job} and len(run.attempts) == 4


@soak
def test_a_cancelled_job_does_not_requeue_itself(cluster: Cluster) -> None:
    run = Supplied(cluster, "cancelled")
    run.begin("touch trains; sleep 600", "requeue = true", array="")
    run.until((run.project / "trains").exists, "the training to begin")
    cluster.run(["scancel", run.job], run.user, check=True)
    assert run.until_end()["end"] == "terminated"
    run.until(lambda: not run.queue, "the job to be gone")
    assert "requeue" not in " ".join(event["event"] for event in run.events())


@soak
def test_a_job_that_may_not_be_requeued_says_so(cluster: Cluster) -> None:
    run = Supplied(cluster, "forbidden")
    run.begin("touch trains; until test -e enough; do sleep 0.1; done; exit 75", "requeue = true", array="")
    run.until((run.project / "trains").exists, "the training to begin")
    cluster.run(["scontrol", "update", f"jobid={run.job}", "requeue=0"], check=True)  # as with --no-requeue
    run.write("enough", "")
    run.until(lambda: "this job cannot be requeued here" in run.log, "the refusal to be told")
    run.until(lambda: not run.queue, "the job to end")


@pytest.fixture
def limited() -> Iterator[Cluster]:
    if reasons := Cluster.requirements(dbd=True):
        pytest.skip(f"no SLURM accounting: {'; '.join(reasons)}; to get it: {accounting.HOW_TO_GET}")
    with Cluster(nodes=1, dbd=True, extra="AccountingStorageEnforce=limits") as cluster:
        yield cluster


@soak
def test_a_limit_of_the_site_is_told_once_and_the_submission_is_tried_again_later(limited: Cluster) -> None:
    def limit(most: int) -> None:
        words = ["sacctmgr", "-i", "modify", "user", limited.users[0], "set", f"MaxSubmitJobs={most}"]
        limited.run(words, check=True)

    run = Supplied(limited, "limited")
    limit(1)
    run.begin("until test -e enough; do sleep 0.1; done; exit 75", "keep_queued = 2", array="")
    run.until(lambda: "may run dry, no job could be queued" in run.log, "the limit to be told")
    for _ in range(2):
        assert "queued" not in run.resil("watch", "job").stderr, "not each minute again"
    assert run.log.count("AssocMaxSubmitJobLimit") == 1
    limit(-1)
    journal = run.directory / "submissions.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    late = [line | {"time": line["time"] - 1900} for line in lines]  # half an hour ago
    run.write(f".resil/{run.name}/submissions.jsonl", "".join(json.dumps(line) + "\n" for line in late))
    assert f"queued 2 jobs behind {run.job}" in run.resil("watch", "job").stderr
