"""A job that fails at once in an array of ten burns three tasks on a real SLURM; the others are held, not cancelled."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun

soak = pytest.mark.skipif("RESIL_SOAK" not in os.environ, reason="one of several stories; RESIL_SOAK=1 runs all")
SETTINGS = """\
[run]
name = "{name}"
command = "sh train.sh"
template = "{template}"
[act]
{act}
[attempt]
beat_s = 1
[submit]
array = "{array}"
signal_lead_s = 20
[sbatch]
time = "10"
"""
NETWORK = (
    "n7:4711:4800 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with status=12"
)
FAILS_ON_N1 = """\
[ $SLURMD_NODENAME != n1 ] || exit 1
until [ -e go ]; do sleep 0.1; done
printf '{"event":"save","time":1,"attempt":%d,"step":%d}\\n' $RESIL_ATTEMPT $RESIL_ATTEMPT \\
  >>$RESIL_RUN_DIR/journal/$SLURM_JOB_ID.0.jsonl
[ $RESIL_ATTEMPT -le 5 ] || sleep 600
exit 1
"""
FAULTY = """\
import os, sys, time
from resilience.guard import TrainingGuard
with TrainingGuard.from_env() as guard:
    guard.resumed(100 * (int(os.environ["RESIL_ATTEMPT"]) - 1))
    while not (decision := guard.step()).stop:
        if guard.count % 100 == 5:
            print("NVRM: Xid (PCI:0000:3b:00): 64, pid=4711, name=python3, row remapping failed", flush=True)
        time.sleep(0.02)
    with guard.saving():
        pass
sys.exit(guard.exit_code)
"""
ALL_HELD = {"PENDING JobHeldUser"}


class Loop(ClusterRun):
    """A run whose training is a shell script that can be mended."""

    def begin(
        self,
        training: str,
        *,
        template: str = "python",
        enabled: bool = True,
        keep_queued: int = 0,
        array: str = "10",
        words: Sequence[str] = (),
    ) -> None:
        act = f"enabled = {str(enabled).lower()}\nkeep_queued = {keep_queued}"
        text = SETTINGS.format(name=self.name, template=template, act=act, array=array)
        self.write("resil.toml", text)
        self.write("train.sh", training)
        self.submit(*words)

    @property
    def burnt(self) -> int:
        """The attempts that launched the training."""
        return sum(bool(self.end(number).get("launched")) for number in range(1, 30))

    @property
    def queued(self) -> set[str]:
        """State and reason of the tasks that have not ended."""
        rows = self.cluster.squeue("%T %r", "-j", self.job)
        return {row for row in rows if row.split()[0] in ("PENDING", "RUNNING", "COMPLETING")}


@pytest.mark.parametrize("template", ["python", pytest.param("srun", marks=soak)])
def test_a_crash_loop_burns_three_of_ten_tasks_and_continues_when_it_is_mended(cluster: Cluster, template: str) -> None:
    loop = Loop(cluster, f"loop-{template}")
    loop.begin("exit 1", template=template)
    loop.until(lambda: loop.queued == ALL_HELD, "the rest of the array to be held")
    assert loop.burnt == 3 and "nothing was cancelled" in loop.log
    first = loop.job
    loop.submit("--force")  # another job id
    loop.until(lambda: loop.queued == ALL_HELD, "the new array to be held by its first job, which ends at its start")
    assert loop.burnt == 3

    report = json.loads(loop.resil("watch", "job", "--json").stdout)
    findings = [finding for one in report["reports"] for finding in one["findings"] if finding["subject"] == loop.name]
    assert [(finding["verdict"], finding["fault"]) for finding in findings] == [("CRITICAL", "breaker-open")]
    assert "breaker open" in loop.resil("status").stdout

    loop.write("train.sh", "exit 0")
    assert f"released: {first}, {loop.job}" in loop.ask("breaker", "close")
    loop.until(lambda: (loop.directory / "finished").exists(), "the mended training to finish")
    loop.until(lambda: not loop.queued, "the rest of the array to end")
    assert loop.burnt == 4


@soak
def test_where_the_cause_may_heal_one_task_at_a_time_may_try_and_progress_releases_all(cluster: Cluster) -> None:
    loop = Loop(cluster, "healing")
    loop.begin(f"echo '{NETWORK}'; exit 1")
    loop.until(lambda: loop.queued == ALL_HELD, "the rest of the array to be held")
    loop.resil("watch", "job")
    assert "one more may try in" in loop.ask("breaker")
    for burnt in (4, 5):
        loop.until(lambda: "half open" in loop.ask("breaker"), "the back-off to be over")
        loop.resil("watch", "job")
        loop.until(lambda burnt=burnt: loop.burnt == burnt and loop.queued == ALL_HELD, "one to try, and fail")  # type: ignore[misc]
        loop.resil("watch", "job")
    loop.write("train.sh", "exit 0")
    loop.until(lambda: "half open" in loop.ask("breaker"), "the back-off to be over")
    loop.resil("watch", "job")
    loop.until(lambda: not loop.queued, "all to end, because the run is finished")
    assert loop.burnt == 6 and not (loop.directory / "attempts" / "breaker").exists()


@soak
def test_without_leave_all_ten_burn_and_the_log_says_what_would_have_been_done(cluster: Cluster) -> None:
    loop = Loop(cluster, "told")
    loop.begin("exit 1", enabled=False)
    loop.until(lambda: not loop.queued, "the array to burn")
    assert loop.burnt == 10 and "it would hold the queued jobs" in loop.log


@soak
def test_preemption_and_requeue_open_nothing(cluster: Cluster) -> None:
    loop = Loop(cluster, "requeued")
    loop.begin("echo training $RESIL_ATTEMPT; sleep 600")
    for number in range(1, 6):
        loop.until(lambda number=number: f"training {number}\n" in loop.log, "it to train")  # type: ignore[misc]
        running = next(row.split()[0] for row in cluster.squeue("%A %T", "-j", loop.job) if row.endswith("RUNNING"))
        cluster.run(["scontrol", "requeue", running], loop.user, check=True)
    loop.until(lambda: loop.end(5), "the fifth to end")
    assert loop.end(5)["burnt"] == 0 and not (loop.directory / "attempts" / "breaker").exists()


@soak
def test_a_job_that_is_requeued_after_each_failure_burns_three_starts(cluster: Cluster) -> None:
    loop = Loop(cluster, "restarted")
    loop.begin("exit 1", array="1")
    task = next(row for row in cluster.squeue("%A", "-t", "all", "-j", loop.job))
    for number in (1, 2, 3):
        loop.until(lambda number=number: loop.end(number), f"attempt {number} to fail")  # type: ignore[misc]
        loop.until(lambda: cluster.squeue("%T", "-t", "all", "-j", task) == ["FAILED"], "SLURM to note it")
        cluster.run(["scontrol", "requeue", task], loop.user, check=True)
    loop.until(lambda: "nothing was launched" in loop.log, "the fourth start to end at once")
    assert loop.burnt == 3
    attempts = json.loads(loop.ask("attempts", "--json"))["attempts"]
    assert [(one["job"], one["restart"]) for one in attempts] == [(f"{loop.job}_1", number) for number in (0, 1, 2)]


@soak
def test_where_everything_fails_on_one_node_while_others_are_fine_the_run_goes_on_elsewhere(cluster: Cluster) -> None:
    loop = Loop(cluster, "elsewhere")

    def exclude(nodes: str) -> None:
        cluster.run(["scontrol", "update", f"jobid={loop.job}", f"ExcNodeList={nodes}"], loop.user)

    def excluded() -> set[str]:
        shown = cluster.run(["scontrol", "-o", "show", "job", loop.job], loop.user, check=True).stdout
        return {line.split("ExcNodeList=")[1].split()[0] for line in shown.splitlines() if "JobState=PENDING" in line}

    loop.begin(FAILS_ON_N1, array="8", words=("--exclude", "n1"))
    loop.until(lambda: cluster.squeue("%T", "-t", "running", "-j", loop.job), "the first to train on another node")
    exclude("n[2-4]")  # so that SLURM takes n1
    loop.write("go", "")
    loop.until(lambda: loop.queued == ALL_HELD, "n1 to have burnt three")
    assert loop.burnt == 4
    exclude("n4")  # by the owner of the run
    said = loop.resil("watch", "job").stderr
    assert "excluded n1 from job" in said and "all 3 attempts there failed, while others made progress" in said
    assert excluded() == {"n[1,4]"}
    loop.until(lambda: "half open" in loop.ask("breaker"), "the back-off to be over")
    loop.resil("watch", "job")
    loop.until(lambda: loop.end(5), "one to try elsewhere")
    assert loop.end(5)["durable"] == 5 and not (loop.directory / "attempts" / "breaker").exists()
    assert "n1 seems to be bad, and is excluded from job" in loop.ask("attempts")
    assert "job" in loop.ask("breaker", "close") and excluded() == {"n4"}


@soak
def test_a_run_whose_gpu_fails_is_asked_to_save_and_stop_and_goes_on_elsewhere(cluster: Cluster) -> None:
    loop = Loop(cluster, "faulty")
    loop.write("faulty.py", FAULTY)
    loop.begin("exec python faulty.py", array="6", words=("--exclude", "n[3-4]"))
    for number in (1, 2, 3):  # of three on two nodes, two are on one
        loop.until(lambda number=number: loop.log.count("\nNVRM: Xid") == number, "the fault")  # type: ignore[misc]
        assert "to save and stop: its log says: NVRM: Xid" in loop.resil("watch", "job").stderr
        loop.until(lambda number=number: loop.end(number), "the save and the stop")  # type: ignore[misc]
        assert (loop.end(number)["end"], loop.end(number)["exit_code"]) == ("stopped", 75)
        assert loop.end(number)["durable"] > 100 * (number - 1) + 5
        if "excluded n" in loop.resil("watch", "job").stderr:
            break
    attempts = json.loads(loop.ask("attempts", "--json"))["attempts"][:number]
    assert [one["failure"]["failure"] for one in attempts] == ["gpu_fault"] * number
    assert attempts[-1]["decided"] == f"go on without {attempts[-1]['host']}"


@soak
def test_a_run_does_not_run_dry_although_two_watchdogs_look_at_once(cluster: Cluster) -> None:
    loop = Loop(cluster, "dry")
    loop.begin("test -e enough && exit 0; sleep 600", keep_queued=2, array="1")
    loop.until(lambda: loop.queued == {"RUNNING None"}, "the only job to run")
    with ThreadPoolExecutor(4) as pool:
        said = [done.stderr for done in pool.map(lambda _: loop.resil("watch", "job"), range(4))]

    def who() -> int:  # the job itself, which has just begun, looks as well
        return sum(f"queued 2 jobs behind {loop.job}" in text for text in (*said, loop.log))

    loop.until(who, "one of them to queue it")
    waiting = [row for row in cluster.squeue("%A %T %r", "--name=dry", "-r") if "PENDING" in row]
    assert len(waiting) == 2 and who() == 1, "two tasks, once"
    loop.write("enough", "")
    cluster.run(["scancel", "--full", "--signal=KILL", loop.job], loop.user, check=True)
    loop.until(lambda: (loop.directory / "finished").exists(), "a job that was queued to finish the run")
