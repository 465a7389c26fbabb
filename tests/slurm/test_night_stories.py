"""Failures that repeat, on a real cluster: what is told, what is done, how many jobs are burnt, and how it goes on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from resilience.demo.receivers import Inbox, receivers
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.training_run import LAST_AT_60, TrainingRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
]
ALL_HELD = {"PENDING JobHeldUser"}


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with receivers() as opened:
        yield opened


@pytest.fixture
def run(cluster: Cluster, inbox: Inbox, request: pytest.FixtureRequest) -> TrainingRun:
    return TrainingRun(cluster, request.node.originalname.removeprefix("test_")[:24], inbox=inbox)


def held(run: TrainingRun) -> None:
    """Wait for the breaker, and check that one incident tells of it, and that the rest is held, not cancelled."""
    with run.watched():
        run.until(lambda: run.is_open and run.queued == ALL_HELD, "the rest of the array to be held")
        run.until(lambda: faults(run)["breaker-open"], "the incident")
    assert faults(run)["breaker-open"] == 1


def faults(run: TrainingRun) -> Counter[str]:
    """How many incidents of each fault there have been."""
    return Counter(one["fault"] for one in run.incidents())


def classes(run: TrainingRun) -> list[str]:
    """The classes of the attempts that have ended."""
    return [row["failure"]["failure"] for row in run.attempts() if row["failure"] is not None]


def goes_on(run: TrainingRun) -> None:
    """Mend the fault, close the breaker, and wait for the end."""
    run.write("fault.py", MENDED)
    run.ask("breaker", "close")
    run.until(lambda: run.is_finished, "the mended training to finish")


def meet(body: str) -> str:
    """Return a fault.py. `ask` waits until the test has answered."""
    return f"""\
import os, time
from pathlib import Path


def ask(name):
    Path(f"asked.{{name}}").touch()
    while not Path(f"done.{{name}}").exists():
        time.sleep(0.05)


def meet(step, resumed):
    {body}


{LAST_AT_60}"""


MENDED = meet("pass")
SLEEPS = meet("Path(f'sleeps.{os.environ[\"RESIL_ATTEMPT\"]}').touch(); time.sleep(600)")


def test_crash_at_the_same_step(run: TrainingRun) -> None:
    run.begin(meet("if step == 25: {}[7]"))
    held(run)
    found = classes(run)
    assert set(found) == {"exception"} and 2 <= len(found) <= 4, "the first of them made progress"
    assert {row["last_step"] for row in run.attempts()} == {24}
    goes_on(run)


def test_crash_at_another_step_each_time(run: TrainingRun) -> None:
    run.begin(meet("if step == 4 + int(os.environ['RESIL_ATTEMPT']): {}[step]"))
    held(run)
    assert classes(run) == ["exception"] * 3 and run.end(3)["burnt"] == 3
    goes_on(run)


def test_crash_after_progress_each_time(run: TrainingRun) -> None:
    run.begin(meet("if step == resumed + 15: {}[step]"))
    with run.watched():
        run.until(lambda: run.is_finished, "it to finish")
    assert classes(run) == [*["exception"] * 5, "finished"] and not faults(run)["breaker-open"]


def test_nan_at_the_same_step(run: TrainingRun) -> None:
    run.begin(meet("return float('nan') if step == 25 else None"))
    held(run)
    found = classes(run)
    assert set(found) == {"nan_loss"} and 2 <= len(found) <= 4
    told = (run.project / "told").read_text().splitlines()
    assert told == [f"25 {times}" for times in range(1, len(found))], "each later attempt is told of those before"
    goes_on(run)


def test_a_node_where_everything_fails(run: TrainingRun) -> None:
    run.cluster.drain("n1")
    run.begin(meet("if step == resumed + 25 or os.environ['SLURMD_NODENAME'] == 'n1': {}[step]"))
    run.until(lambda: run.end(1), "progress on another node")
    run.cluster.resume("n1")
    held(run)
    found = run.attempts()
    assert [row["host"] for row in found[-3:]] == ["n1"] * 3 and "n1" not in {row["host"] for row in found[:-3]}
    assert "n1 seems to be the cause; to go on elsewhere: resil submit --exclude n1" in run.ask("attempts")
    run.cluster.run(["scancel", run.job], run.user, check=True)
    run.ask("breaker", "close")
    run.submit("--exclude", "n1")
    run.until(lambda: run.is_finished, "it to finish on the other nodes")


def test_out_of_memory_each_time(run: TrainingRun) -> None:
    if run.cluster.proctrack != "cgroup":
        pytest.skip("the cluster has no memory cgroup here")
    run.begin(meet("if step == 25: [b'x' * 2**28 for _ in range(8)]"))
    held(run)
    found = classes(run)
    assert set(found) == {"host_oom"} and 2 <= len(found) <= 4
    goes_on(run)


def test_checkpoint_unreadable(run: TrainingRun) -> None:
    """There is no other one left, so that no restart heals it."""
    run.cluster.run(["mkdir", "-p", str(run.project / "checkpoints")], run.user, check=True)
    run.write("checkpoints/000010.pickle", "this is no pickle")
    run.begin(meet("pass"))
    held(run)
    found = classes(run)
    assert set(found) == {"checkpoint"} and 2 <= len(found) <= 3
    (run.project / "checkpoints" / "000010.pickle").unlink()
    goes_on(run)


def test_ten_time_limits_open_nothing(run: TrainingRun) -> None:
    """Although each comes before a checkpoint: the training does not return to the guard in time."""
    run.begin(SLEEPS, array="12")
    for number in range(1, 11):
        run.until(lambda number=number: (run.project / f"sleeps.{number}").exists(), "it to train")  # type: ignore[misc]
        job, _ = run.running()
        run.cluster.run(["scontrol", "update", f"jobid={job}", "EndTime=now+1"], run.user, check=True)
    run.until(lambda: (run.project / "sleeps.11").exists(), "the eleventh")
    assert run.resil("watch", "--all").returncode in (0, 1), run.resil("watch", "--all").stdout
    assert classes(run) == ["walltime"] * 10 and not run.is_open and not faults(run)["breaker-open"]
    run.write("fault.py", MENDED)
    job, _ = run.running()
    run.cluster.run(["scancel", job], run.user, check=True)
    run.until(lambda: run.is_finished, "the twelfth to finish")


def test_slurmctld_hangs_during_each_action(run: TrainingRun) -> None:
    """The hold of a batch shell, that of a watchdog, the release, and the submission."""
    run.begin(meet("if os.environ['RESIL_ATTEMPT'] == '3': ask('third')\n    {}[step]"), array="6", keep_queued=2)
    run.until(lambda: (run.project / "asked.third").exists(), "the third attempt")
    run.cluster.stop_controller()
    (run.project / "done.third").touch()
    run.until(
        lambda: "the queued jobs are not held, each ends at its start instead" in run.log, "the batch shell to give up"
    )
    said = run.resil("watch", "job", "--alert")
    assert said.returncode == 3 and "the next tick tries again" in said.stderr, said
    assert run.end(3)["burnt"] == 3 and run.is_open
    run.cluster.continue_controller()
    run.until(lambda: run.queued == ALL_HELD, "the next job to end at its start and to hold the others")
    assert not (run.end(4) or {}).get("launched", False), "nothing was launched"

    run.write("fault.py", MENDED.replace("pass", "time.sleep(600)"))
    run.cluster.stop_controller()
    closed = run.resil("breaker", "close")
    assert closed.returncode == 75, closed
    run.cluster.continue_controller()
    run.cluster.wait_served()
    run.ask("breaker", "close")
    run.until(lambda: "RUNNING None" in run.queued, "the released jobs to go on")

    waiting = run.cluster.squeue("%A", "-n", run.name, "-t", "PD", "-r")
    run.cluster.run(["scancel", *waiting], run.user, check=True)
    run.cluster.stop_controller()
    run.resil("watch", "job", "--alert")
    run.cluster.continue_controller()
    run.cluster.wait_served()
    run.resil("watch", "job", "--alert")
    run.resil("watch", "job", "--alert")
    assert len(run.cluster.squeue("%A", "-n", run.name, "-t", "PD", "-r")) == 2, "queued once"


def test_ticks_and_a_batch_shell_decide_at_once(run: TrainingRun) -> None:
    run.begin(meet("if os.environ['RESIL_ATTEMPT'] == '3': ask('third')\n    {}[step]"))
    run.until(lambda: (run.project / "asked.third").exists(), "the third attempt")
    (run.project / "done.third").touch()
    with ThreadPoolExecutor(4) as pool:
        said = [done.stderr for _ in range(2) for done in pool.map(lambda _: run.resil("watch", "--all"), range(4))]
    run.until(lambda: run.queued == ALL_HELD, "the rest of the array to be held")
    run.resil("watch", "--all")
    opened = [*said, run.log]
    assert sum(text.count(f"the breaker of {who}{run.name} opens") for text in opened for who in ("", "run ")) == 1
    assert faults(run)["breaker-open"] == 1 and len(run.attempts()) == 3
    assert sum("breaker" in text for text in run.inbox.texts) == 1, run.inbox.texts
