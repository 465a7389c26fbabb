"""A training on two nodes whose checkpoints are written in the background, on a real SLURM, and what comes between.

torch.distributed.checkpoint writes for some seconds while the ranks train on. Then somebody throws the kill switch, the
time is over, another job takes the node, the disk fills up, the save hangs, or a rank dies in it. Journal, attempt
record, `resil status` and the directory of checkpoints have to say the same, and the next attempt goes on from there.
With a store it does so even after a bit of the newest checkpoint has flipped.

All stories but that one begin at once, on a cluster of their own (a soak). The same faults meet trainings that have no
guard: those with one may end a few seconds later than they do.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from resilience.integrations.checkpoint_files import newest_checkpoint
from tests.lab.disks import small_disk
from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.cluster_run import ClusterRun
from tests.lab.slurm.processes import until
from tests.lab.slurm.store_run import StoreRun
from tests.lab.tutorial import healthy

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)"
)
SAVE_S, SAVE_EVERY, LATER_S = 2, 40, 15
SAVES: dict[str, Any] = {"every": 20, "save_s": 0.3, "sbatch": 'exclude = "n3,n4"'}
# argv: guard or plain; a fault in the second save of the first attempt, or none; the directory of the checkpoints.
TRAINING = """\
import os, signal, sys, time
from contextlib import nullcontext
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from resilience.guard import TrainingGuard
from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, newest_checkpoint, remove_older

how, fault, checkpoints = sys.argv[1], sys.argv[2], Path(sys.argv[3])
root, rank, is_first = Path(os.environ["RESIL_RUN_DIR"]), int(os.environ["RANK"]), os.environ["RESIL_ATTEMPT"] == "1"


def tell(name, text):
    with open(root / f"{name}.{rank}", "a") as file:
        file.write(f"{text}\\n")


class Writer(FileSystemWriter):
    def __init__(self, path, step):
        super().__init__(path)
        self.step = step

    def write_data(self, plan, planner):
        time.sleep(SAVE_S)
        if is_first and self.step == 2 * SAVE_EVERY and fault != "none":
            tell("fault", time.time())
            if fault == "full":
                with open(checkpoints / f"ballast.{rank}", "wb", buffering=0) as file:
                    try:
                        while True:
                            file.write(bytes(4096))
                    except OSError:
                        pass
            elif fault == "hang" and rank == 1:
                time.sleep(600)
            elif fault == "die" and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().write_data(plan, planner)


torch.set_num_threads(1)
meeting = "store.{SLURM_JOB_ID}.{RESIL_ATTEMPT}".format_map(os.environ)
dist.init_process_group("gloo", init_method=f"file://{root}/{meeting}", rank=rank, world_size=2)
for_saves = dist.new_group(backend="gloo")  # the collectives of a save come between those of the steps
weights, step = torch.ones(1000), 0


def save(step, label=""):
    path = checkpoint_path(checkpoints, step, label)
    part = path.with_suffix(".part")
    state = {"weights": weights, "step": torch.tensor(step)}
    written = dcp.async_save(state, storage_writer=Writer(part, step), process_group=for_saves)

    def in_place():
        if rank == 0:
            move_into_place(part, path)
            remove_older(checkpoints, keep=2)
        return True

    return written, in_place


def train(guard):
    global step
    if guard and guard.should_stop_early():
        return
    if not is_first:
        (checkpoints / f"ballast.{rank}").unlink(missing_ok=True)  # somebody has cleaned up
    dist.barrier()
    if newest := newest_checkpoint(checkpoints):
        loaded = {"weights": weights, "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id=newest)
        step = int(loaded["step"])
        if guard:
            guard.resumed(step)
    tell("begins", step)
    last = step + 10 if not is_first else 2 * SAVE_EVERY if fault == "full" else 10**6
    before = None
    while step < last:
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1))
        step += 1
        tell("steps", step)
        if guard:
            decision = guard.step()
            if decision.save or step % SAVE_EVERY == 0:
                with guard.saving() as saving:
                    saving.until(*save(step, decision.label))
            if decision.stop:
                return
        elif step % SAVE_EVERY == 0:
            if before:
                before[0].result()
                before[1]()
            before = save(step)
    if guard:
        guard.finished()
    else:
        try:
            before[0].result()
        finally:
            tell("ends", time.time())


with TrainingGuard.from_env() if how == "guard" else nullcontext() as guard:
    train(guard)
dist.destroy_process_group()
sys.exit(guard.exit_code if guard else 0)
"""
SETTINGS = """\
[run]
name = "{name}"
command = "{python} {shared}/train.py {how} {fault} {checkpoints}"
template = "srun"
[submit]
signal_lead_s = 2
[attempt]
beat_s = 1
[guard]
poll_s = 0.3
beat_s = 1
first_save_s = 3
walltime_margin_s = 3
exit_timeout_s = 8
[environment]
OMP_NUM_THREADS = 1
GLOO_SOCKET_IFNAME = "lo"
[sbatch]
time = "10"
nodes = 2
ntasks-per-node = 1
{sbatch}
"""
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=n4 PriorityTier=10 PreemptMode=OFF MaxTime=10 State=UP
"""


@dataclass
class Story(ClusterRun):
    checkpoints: Path = Path()

    def trained(self) -> int:
        """The last step of rank 0."""
        return int(self.lines("steps")[-1]) if self.lines("steps") else 0

    def end_s(self, since: str = "fault") -> float:
        """How long the first attempt took to end, since the first rank told of the fault. Ends are in whole seconds."""
        return float(self.until_end()["time"]) - min(float(line) for rank in (0, 1) for line in self.lines(since, rank))

    def last_saves(self) -> dict[str, int]:
        """The event of each save in rank 0's journal of the first attempt that came last, and its step."""
        return {event["event"]: event["step"] for event in self.events("0") if event["event"].startswith("save")}

    def on_disk(self) -> int:
        """The step of the newest checkpoint."""
        newest = newest_checkpoint(self.checkpoints)
        assert newest is not None and (Path(newest) / ".metadata").exists(), sorted(self.checkpoints.iterdir())
        return int(re.findall(r"[0-9]+", Path(newest).name)[-1])

    def check(self, end: str, code: int) -> dict[str, Any]:
        """Journal, attempt record, status and disk agree about attempt 1; return what status says of the run."""
        record = self.until_end()
        assert (record["end"], record["exit_code"]) == (end, code), self.log
        saved = self.on_disk()
        assert self.last_saves()["save"] == saved, self.log
        until(lambda: "attempt_end" in (event["event"] for event in self.events("batch")), "it in the journal")
        (over,) = [event for event in self.events("batch") if event["event"] == "attempt_end"]
        assert (over["end"], over["exit_code"]) == (end, code)
        said: dict[str, Any]
        (said,) = json.loads(self.ask("status", "--json"))["runs"]
        first = said["attempts"][0]
        assert (first["end"], first["exit_code"], first["why"]) == (end, code, record["why"])
        assert said["save"]["step"] == saved, said
        assert f"saved: step {saved}," in self.ask("status")
        return said

    def check_next(self) -> None:
        """The second attempt went on from the newest checkpoint, on both ranks, and finished."""
        saved = self.last_saves()["save"]
        assert self.until_end(2)["end"] == "finished", self.log
        assert [self.lines("begins", rank)[1:] for rank in (0, 1)] == [[str(saved)]] * 2
        assert (self.directory / "finished").exists()

    def check_stopped_with_a_save(self, plain: Story) -> None:
        """It ended soon after a save of the last step was durable: as soon as `plain` from its last line on."""
        self.check("stopped", 75)
        assert self.last_saves() == dict.fromkeys(("save_begin", "save_staged", "save"), self.on_disk()), self.log
        (over,) = [event for event in self.events("0") if event["event"] == "end"]
        assert (over["exit_code"], over["stopped"], over["ranks"], over["well"]) == (75, True, 2, 2)
        first = [int(line) for line in self.lines("steps")][: self.on_disk()]
        assert first == list(range(1, self.on_disk() + 1))
        durable = max(event["time"] for event in self.events("0") if event["event"] == "save")
        assert self.end()["time"] - durable <= plain.end_s("ends") + LATER_S


@dataclass
class Stage:
    cluster: Cluster
    stories: dict[str, Story]

    def begin(self, name: str, fault: str = "none", how: str = "guard", checkpoints: Path | None = None,
              array: int = 2, sbatch: str = 'exclude = "n3,n4"') -> None:  # fmt: skip
        cluster, story = self.cluster, Story(self.cluster, name)
        story.checkpoints = checkpoints or story.project / "saves"
        cluster.run(["mkdir", "-p", str(story.project), str(story.checkpoints)], user=story.user, check=True)
        text = SETTINGS.format(name=name, python=cluster.python, shared=cluster.shared, how=how, fault=fault,
                               checkpoints=story.checkpoints, sbatch=sbatch)  # fmt: skip
        story.write("resil.toml", text)
        story.submit("--array", str(array))
        self.stories[name] = story


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Everything begins here. The disks are mounted before the nodes boot, which have mounts of their own."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resil-saves-", dir="/tmp")))
        root.chmod(0o755)
        disks = [stack.enter_context(small_disk(root / name, "2m")) for name in ("guard", "plain")]
        for disk in disks:
            disk.chmod(0o1777)
        cluster = stack.enter_context(Cluster(nodes=4, kill_wait=20, extra=PREEMPTION))
        figures = f"SAVE_S, SAVE_EVERY = {SAVE_S}, {SAVE_EVERY}\n"
        (cluster.shared / "train.py").write_text(figures + TRAINING)
        stage = Stage(cluster, {})
        stage.begin("full", "full", checkpoints=disks[0])
        stage.begin("full-plain", "full", "plain", disks[1], array=1)
        stage.begin("preempted", array=1, sbatch='nodelist = "n3,n4"')
        stage.begin("hangs", "hang")
        stage.begin("dies", "die")
        stage.begin("dies-plain", "die", "plain", array=1)
        yield stage


def until_saves(story: Story) -> None:
    """Wait until a save is in flight, and one is on the disk."""
    what = f"a save of {story.name} in flight"
    until(lambda: story.trained() > SAVE_EVERY and newest_checkpoint(story.checkpoints) is not None, what)
    until(lambda: story.trained() % SAVE_EVERY in range(1, 10), what)


@pytest.mark.soak
def test_another_job_takes_the_node_while_a_save_is_in_flight(stage: Stage) -> None:
    story = stage.stories["preempted"]
    until_saves(story)
    urgent = ("-p", "urgent", "-t1", "--exclusive", "--wrap=sleep 3", "--output=/dev/null")
    stage.cluster.run(["sbatch", *urgent], stage.cluster.users[1], check=True)
    story.check_stopped_with_a_save(stage.stories["full-plain"])
    story.check_next()


@pytest.mark.soak
def test_a_disk_that_fills_up_in_the_save(stage: Stage) -> None:
    """It is the last one of a training that has come to its own end: that has not finished the run."""
    story, plain = stage.stories["full"], stage.stories["full-plain"]
    assert story.end_s() <= plain.end_s() + LATER_S
    said = story.check("exited", 1)
    assert story.on_disk() == SAVE_EVERY
    (over,) = [event for event in story.events("0") if event["event"] == "end"]
    for why in (story.end()["why"], said["save"]["why"], over["why"]):
        assert "No space left on device" in why
    assert said["save"]["failed_step"] == 2 * SAVE_EVERY
    story.check_next()


@pytest.mark.soak
def test_a_rank_that_dies_in_the_save(stage: Stage) -> None:
    story, plain = stage.stories["dies"], stage.stories["dies-plain"]
    assert story.end_s() <= plain.end_s() + LATER_S
    story.check("exited", story.until_end()["exit_code"])
    assert story.end()["exit_code"] in (1, 137, 143), "whichever end srun hears of first"
    assert story.on_disk() == SAVE_EVERY
    story.check_next()


@pytest.mark.soak
def test_a_save_that_hangs(stage: Stage) -> None:
    """It is cut off when the time for the way out is over, and that is no stop on purpose."""
    story = stage.stories["hangs"]
    until(lambda: bool(story.lines("fault", 1)), "the save to hang")
    story.ask("kill")
    story.check("exited", 1)
    assert story.on_disk() == SAVE_EVERY


@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_store_under_the_kill_switch_a_flipped_bit_and_the_time_limit(cluster: Cluster, is_long: bool) -> None:
    """The kill switch, and then the time limit, come while a save is in flight. Each attempt begins with the newest
    checkpoint that verifies."""
    story = StoreRun(cluster, "store-long" if is_long else "store")
    story.configure(last=10**6, **SAVES)
    story.submit()
    with story.in_a_save(1):
        story.ask("kill", "--why", "enough")
    end = story.until_end()
    assert (end["end"], end["exit_code"]) == ("stopped", 75) and "enough" in end["why"], story.log
    cluster.wait_for(story.job, {"FAILED"})
    stopped = story.check_told(1)
    assert healthy(story.resil("watch", "--all").stdout) == []

    flipped, file = story.damage()
    assert flipped == f"step-{stopped:08d}"
    before = story.store.checkpoints()[-2]
    story.ask("clear")
    if not is_long:
        story.configure(last=before.step + 300, **SAVES)
    story.submit()
    story.until(lambda: story.of(2, "checkpoint"), "a checkpoint of the second attempt")
    assert story.store.bad() == [flipped]
    assert story.begins() == [0, before.step], story.log
    why = story.told("ckpt", "show", flipped)["set_aside"]
    assert why["file"] == file and why["expected"] != why["found"] and why["expected"] in story.log
    alerts = story.resil("watch", "--all")
    assert alerts.returncode == 1 and flipped in alerts.stdout and file in alerts.stdout, alerts
    if is_long:
        with story.in_a_save(2):
            cluster.run(["scontrol", "update", f"jobid={story.job}", "EndTime=now+20"], story.user, check=True)
        end = story.until_end(2)
        assert (end["end"], end["exit_code"]) == ("stopped", 75), story.log
        stopped = story.check_told(2)
        story.configure(last=stopped + 10, **SAVES)
        story.submit()
    last = 3 if is_long else 2
    assert story.until_end(last)["end"] == "finished", story.log
    assert story.begins()[2:] == ([stopped] if is_long else [])
    assert story.check_told(last) == story.trained()
    (deep,) = story.told("ckpt", "verify", "--deep")["checkpoints"]
    assert (deep["name"], deep["level"], deep["is_good"]) == (story.newest().name, "digest", True), deep
    assert story.store.bad() == [flipped]
    assert {len(losses) for losses in story.figures().values()} == {2}, "each rank repeats the same losses"
