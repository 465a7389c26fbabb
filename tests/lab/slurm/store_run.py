"""A run on the test cluster whose training saves asynchronously into a store, and what an onlooker knows of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from tests.lab.slurm.cluster_run import ClusterRun

# Each step depends on the weights, the optimizer, the position in the data and the random numbers of all steps before,
# of each rank. The figures are those of a training without faults only if each resume has found all of that.
# argv: the last step, and how many seconds the writing of a save takes.
TRAINING = """\
import os, random, sys, time
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from resilience.checkpoints import Store
from resilience.checkpoints.random_state import ResumableSampler, read_random_state, write_random_state
from resilience.guard import TrainingGuard

LAST, SAVE_S = int(sys.argv[1]), float(sys.argv[2])
root, rank, world = Path(os.environ["RESIL_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
hold = Path("hold")  # while it exists, the writing of a save takes longer


def tell(name, *words):
    with open(root / f"{name}.{rank}", "a") as file:
        print(*words, file=file)


class Writer(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        time.sleep(SAVE_S)
        if hold.exists():
            tell("held", guard.count)
        while hold.exists():
            time.sleep(0.05)
        return super().write_data(plan, planner)


torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(1000, 64)
torch.manual_seed(rank)
random.seed(rank)
sampler = ResumableSampler(len(data), rank=rank, world=world)
seen = torch.zeros(len(data), dtype=torch.int64)  # how often this rank has trained on each sample
meeting = "meeting.{SLURM_JOB_ID}.{RESIL_ATTEMPT}".format_map(os.environ)
dist.init_process_group("gloo", init_method=f"file://{root}/{meeting}", rank=rank, world_size=world)
for_saves = dist.new_group(backend="gloo")  # the collectives of a save come between those of the steps


def state():
    return {"model": model.state_dict(), "momentum": optimizer.state_dict()["state"], f"seen.{rank}": seen}


def load(checkpoint):
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    loaded = state()
    dcp.load(loaded, checkpoint_id=checkpoint.path)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": loaded["momentum"]})
    read_random_state(checkpoint.path / f"random.{rank}.json", sampler)


def train_step():
    sampler.set_epoch(sampler.epoch)
    indices = [index for index, _ in zip(sampler, range(4), strict=False)]
    loss = (model(data[indices]) * random.random()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    sampler.trained(len(indices))
    seen[indices] += 1
    return loss.item()


with TrainingGuard.from_env(store=(store := Store.from_env())) as guard:
    if guard.should_stop_early():
        sys.exit(guard.exit_code)
    if checkpoint := store.latest():
        load(checkpoint)
        guard.resumed(checkpoint.step)
    tell("begins", checkpoint.step if checkpoint else 0)
    while guard.count < LAST:
        time.sleep(0.05)
        loss = train_step()
        decision = guard.step(loss=loss)
        tell("steps", guard.count, loss.hex())
        if decision.save or guard.count == LAST:
            with guard.saving(metrics={"loss": loss}) as part:
                write_random_state(part.path / f"random.{rank}.json", sampler)
                part.until(dcp.async_save(state(), storage_writer=Writer(part.path), process_group=for_saves))
        if decision.stop:
            break
    else:
        guard.finished()
        tell("final", *model.state_dict()["0.weight"].flatten().tolist(), *seen.tolist())
dist.destroy_process_group()
sys.exit(guard.exit_code)
"""
SETTINGS = """\
[run]
name = "{name}"
command = "{python} train.py {last} {save_s}"
template = "srun"
[submit]
signal_lead_s = 2
requeue = false
[attempt]
beat_s = 1
[checkpoints]
path = "checkpoints"
[guard]
every = "{every} steps"
poll_s = 0.3
beat_s = 1
first_save_s = 3
walltime_ask_s = 1
walltime_margin_s = 8
exit_timeout_s = 8
[environment]
OMP_NUM_THREADS = 1
GLOO_SOCKET_IFNAME = "lo"
[sbatch]
time = "10"
nodes = 2
{sbatch}
"""


@dataclass
class StoreRun(ClusterRun):
    """Such a run.

    Attributes:
        ranks: number of ranks on each of its two nodes.
        damaged: the names of the checkpoints that `damage` has changed.
    """

    ranks: int = 1
    damaged: list[str] = field(default_factory=list)

    def configure(self, *, last: int, every: int, save_s: float, sbatch: str = "") -> None:
        """Write its settings: the last step, steps between saves, how long one is written, and more for [sbatch]."""
        text = SETTINGS.format(name=self.name, python=self.cluster.python, last=last, every=every, save_s=save_s,
                               sbatch=f"ntasks-per-node = {self.ranks}\n{sbatch}")  # fmt: skip
        self.write("resil.toml", text)
        self.write("train.py", TRAINING)

    @property
    def store(self) -> StoreDirectory:
        return StoreDirectory(self.project / "checkpoints")

    def newest(self) -> Checkpoint:
        return self.store.checkpoints()[-1]

    def trained(self) -> int:
        """The last step of rank 0."""
        return int(self.lines("steps")[-1].split()[0]) if self.lines("steps") else 0

    @contextmanager
    def in_a_save(self, attempt: int) -> Iterator[None]:
        """Hold a save of an attempt, which has committed another one, until the training has decided to stop."""
        self.until(lambda: self.of(attempt, "checkpoint"), f"a checkpoint of attempt {attempt}")
        before = len(self.lines("held"))
        self.write("hold", "")
        self.until(lambda: len(self.lines("held")) > before, "a save to be held")
        yield
        self.until(lambda: any(one["stop"] for one in self.of(attempt, "decision")), "the decision to stop")
        (self.project / "hold").unlink()

    def of(self, attempt: int, event: str) -> list[dict[str, Any]]:
        """The events of this kind that rank 0 has recorded in an attempt."""
        return [one for one in self.events("0", attempt) if one["event"] == event]

    def damage(self, kind: str = "flip") -> tuple[str, str]:
        """Flip a bit in the largest file of the newest checkpoint, or cut it short; return the names of both."""
        checkpoint = self.newest()
        entry = max(checkpoint.manifest().files, key=lambda one: one.size)
        with open(checkpoint.path / entry.path, "r+b") as file:
            if kind == "flip":
                file.seek(entry.size // 2)
                (byte,) = file.read(1)
                file.seek(entry.size // 2)
                file.write(bytes([byte ^ 1]))
            else:
                file.truncate(entry.size // 2)
        self.damaged.append(checkpoint.name)
        return checkpoint.name, entry.path

    def told(self, *words: str) -> dict[str, Any]:
        """What a command says as JSON."""
        said: dict[str, Any] = json.loads(self.ask(*words, "--json"))
        return said

    def begins(self) -> list[int]:
        """The step at which each attempt has begun, which is the same on all ranks."""
        ranks = [self.lines("begins", rank) for rank in range(2 * self.ranks)]
        assert ranks == [ranks[0]] * len(ranks), ranks
        return [int(step) for step in ranks[0]]

    def check_told(self, attempt: int) -> int:
        """Journal, status and the commands agree with the disk about an attempt that has ended; return the last
        step that it saved."""
        saved = self.of(attempt, "save")[-1]["step"]
        newest = self.newest()
        assert newest.step == saved and newest.manifest().attempt == attempt, (newest.name, self.log)
        assert self.store.parts() == [], "nothing is left in flight"
        (run,) = self.told("status")["runs"]
        assert (run["save"]["step"], run["checkpoints"]["newest"]["step"]) == (saved, saved), run
        listed = self.told("ckpt", "list")
        assert [one["name"] for one in listed["checkpoints"]] == [one.name for one in self.store.checkpoints()]
        assert [one["name"] for one in listed["bad"]] == self.store.bad()
        assert self.ask("ckpt", "latest") == f"{newest.path}\n"
        return newest.step

    def figures(self) -> dict[int, set[tuple[str, ...]]]:
        """The losses of all ranks after each step, of each time it was made."""
        found: dict[int, set[tuple[str, ...]]] = {}
        for path in sorted(Path(self.directory).glob("steps.*")):
            rank = path.suffix.removeprefix(".")
            for line in path.read_text().splitlines():
                step, loss = line.split()
                found.setdefault(int(step), set()).add((rank, loss))
        return found
