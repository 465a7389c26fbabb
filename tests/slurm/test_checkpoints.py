"""A night of a training on two nodes that saves asynchronously into a store: each attempt is cut off in a save.

Kill switch, time limit and the loss of a node all come while a save is in flight; between the attempts a bit of the
newest checkpoint flips, or a file of it is cut short. No attempt may begin with anything that does not verify, and the
end must be that of a training that nothing has happened to: the same losses and weights, each sample seen as often.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

from tests.lab.slurm.cluster import Cluster
from tests.lab.slurm.store_run import StoreRun

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: pip install torch (extra `torch`)"),
]
BATCH_NODE, OTHER_NODE = "n1", "n2"
SAVES: dict[str, Any] = {"every": 20, "save_s": 0.3}
SAMPLES, BATCH, WORLD = 1000, 4, 4


@pytest.fixture(scope="module")
def spare_cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, kill_wait=20) as cluster:
        yield cluster


@dataclass
class Night:
    """What has happened so far.

    Attributes:
        dice: draws how far a save gets after its data is written, until a node is lost.
        expected: the step at which each attempt has to begin.
        damaged: name and file of the newest checkpoint, if it was damaged since the last attempt.
    """

    run: StoreRun
    dice: random.Random
    expected: list[int] = field(default_factory=lambda: [0])
    damaged: tuple[str, str] | None = None

    @property
    def attempt(self) -> int:
        return len(self.expected)

    def kill(self) -> None:
        """A colleague throws the kill switch in a save."""
        with self.run.in_a_save(self.attempt):
            self.run.ask("kill", "--why", "enough")
        self._check_stopped()
        self.run.ask("clear")

    def time_is_over(self) -> None:
        """The time limit comes in a save."""
        with self.run.in_a_save(self.attempt):
            self.run.cluster.run(
                ["scontrol", "update", f"jobid={self.run.job}", "EndTime=now+25"], self.run.user, check=True
            )
        self._check_stopped()

    def lose(self, node: str, *, late: bool = False) -> None:
        """A node fails in a save, with all that runs on it. Nothing of a save whose data is not all written may ever be
        loaded; with `late` the save goes on for a drawn time, and is committed or not."""
        run = self.run
        run.until(lambda: len(run.of(self.attempt, "checkpoint")) > 1, f"two checkpoints of attempt {self.attempt}")
        before = len(run.lines("held"))
        run.write("hold", "")
        run.until(lambda: len(run.lines("held")) > before, "a save to be held")
        held = int(run.lines("held")[-1])
        if late:
            (run.project / "hold").unlink()
            time.sleep(self.dice.uniform(0, 0.5))
        run.cluster.fail_node(node)
        (run.project / "hold").unlink(missing_ok=True)
        run.cluster.wait_for(run.job, {"NODE_FAIL", "FAILED", "CANCELLED"})
        run.cluster.start_slurmd(node)
        run.until(lambda: run.cluster.node_states()[node] == "idle", f"{node} to be back")
        assert run.newest().manifest().attempt == self.attempt
        assert late or run.newest().step < held, "half of that save was lost"

    def damage(self, kind: str) -> None:
        """Damage the newest checkpoint: the next attempt has to begin with the one before, and says why."""
        self.damaged = self.run.damage(kind)

    def begin(self) -> None:
        """Submit the next attempt: it begins with the newest checkpoint that is not damaged, and has read all of it."""
        run = self.run
        good = run.store.checkpoints()[-2 if self.damaged else -1]
        self.expected.append(good.step)
        run.submit()
        run.until(lambda: {len(run.lines("begins", rank)) for rank in range(WORLD)} == {self.attempt}, "all to begin")
        assert run.begins() == self.expected, run.log
        run.until(lambda: run.of(self.attempt, "checkpoint_chosen"), "it in the journal")
        (chosen,) = run.of(self.attempt, "checkpoint_chosen")
        assert (chosen["name"], chosen["is_read"]) == (good.name, True)
        found = [(one["name"], one["file"]) for one in run.of(self.attempt, "checkpoint_bad")]
        assert found == ([self.damaged] if self.damaged else [])
        if self.damaged:
            (bad,) = run.of(self.attempt, "checkpoint_bad")
            why = run.told("ckpt", "show", bad["name"])["set_aside"]
            assert {word: why[word] for word in ("file", "expected", "found")}.items() <= bad.items(), why
            assert why["expected"] != why["found"], why
            self.damaged = None
        assert run.store.bad() == sorted(run.damaged)

    def _check_stopped(self) -> None:
        end = self.run.until_end(self.attempt)
        assert (end["end"], end["exit_code"]) == ("stopped", 75), self.run.log
        self.run.cluster.wait_for(self.run.job, {"FAILED"})
        self.run.check_told(self.attempt)


NIGHTS = {
    "kill, time limit, lost node": ("kill", "flip", "time", "cut", "other node late"),
    "lost batch node first": ("batch node", "cut", "kill", "flip", "time"),
    "lost nodes, and damage after each": ("other node", "flip", "batch node late", "cut", "kill"),
}


@pytest.mark.parametrize("night", NIGHTS)
def test_a_night_of_cuts_ends_as_if_nothing_had_happened(spare_cluster: Cluster, night: str) -> None:
    run = StoreRun(spare_cluster, f"night-{list(NIGHTS).index(night)}", ranks=2)
    began, story = time.monotonic(), Night(run, random.Random(night))
    run.configure(last=10**6, **SAVES)
    run.submit()
    faults: dict[str, Callable[[], None]] = {
        "kill": story.kill,
        "time": story.time_is_over,
        "other node": lambda: story.lose(OTHER_NODE),
        "other node late": lambda: story.lose(OTHER_NODE, late=True),
        "batch node": lambda: story.lose(BATCH_NODE),
        "batch node late": lambda: story.lose(BATCH_NODE, late=True),
        "flip": lambda: story.damage("flip"),
        "cut": lambda: story.damage("cut"),
    }
    is_first = True
    for name in NIGHTS[night]:
        if name not in ("flip", "cut"):
            if not is_first:
                story.begin()
            is_first = False
        faults[name]()
    last = run.newest().step + 2 * SAVES["every"]
    run.configure(last=last, **SAVES)
    story.begin()
    assert run.until_end(story.attempt)["end"] == "finished", run.log
    run.check_told(story.attempt)
    (deep,) = run.told("ckpt", "verify", "--deep")["checkpoints"]
    assert (deep["name"], deep["level"], deep["is_good"]) == (run.newest().name, "digest", True), deep
    assert run.newest().step == last

    alone = StoreRun(spare_cluster, f"alone-{run.name}", ranks=2)
    alone.configure(last=last, **SAVES)
    alone.submit()
    assert alone.until_end()["end"] == "finished", alone.log
    figures = {step: losses for step, losses in run.figures().items() if step <= last}  # a lost node's steps may go on
    assert figures == alone.figures(), "bit by bit, also in what was done again"
    finals = [[one.lines("final", rank) for rank in range(WORLD)] for one in (run, alone)]
    assert finals[0] == finals[1] and all(len(lines) == 1 for lines in finals[0])
    seen = [[int(word) for word in lines[0].split()[-SAMPLES:]] for lines in finals[0]]
    together = [sum(counts) for counts in zip(*seen, strict=True)]
    assert sum(together) <= last * BATCH * WORLD and max(together) - min(together) <= 1
    took_s = time.monotonic() - began
    print(f"\n{night}: attempts began at {story.expected}, ended at {last}; {run.store.bad()}; {took_s:.0f} s")
