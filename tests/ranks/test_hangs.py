"""One of four real ranks hangs: the right one is named, with the reason, from what the guards record anyway."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from resilience.base.processes import is_alive
from resilience.ranks.beats import read_beats
from resilience.ranks.verdict import HangVerdict, judge
from resilience.runs.run_directory import RunDirectory
from tests.guard.guards import make_run
from tests.guard.ranks import Node
from tests.lab.disks import needs_fuse
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.xdist_group("hangs"),
]
SOAK = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="takes minutes: set RESIL_SOAK=1"),
]
ROUNDS = int(os.environ.get("RESIL_HANGS", "1"))
WHY = {
    "sleep": "outside the collective that the others wait in",
    "loop": "outside the collective that the others wait in",
    "stop": "stopped by a signal",
    "gil": "a library holds the GIL|outside the collective",  # if the guard has looked just before
    "sleeping-gil": "a library holds the GIL|outside the collective",
    "dead": "ended without a final message",
    "left": "left the training, while the others wait in a collective",
    "disk": r"waiting in the kernel|outside the collective .*, in request_wait_answer",
}


class Launcher:
    """Starts trainings; torch is imported once."""

    def __init__(self) -> None:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        script = Path(__file__).parent / "hanging_training.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @contextmanager
    def training(self, run: Path, *argv: object) -> Iterator[None]:
        """Four ranks on two nodes, killed at the end."""
        common = {
            "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "RESIL_RUN_DIR": str(run), "RESIL_ATTEMPT": "3", "SLURM_JOB_ID": "12",
        }  # fmt: skip
        ranks = [
            [common | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "SLURMD_NODENAME": f"n{1 + rank // 2}"},
             str(run.parent / f"stderr.{rank}"), *map(str, argv)]
            for rank in range(4)
        ]  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(ranks) + "\n")
        self.process.stdin.flush()
        pids = json.loads(self.process.stdout.readline())
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda: not any(map(is_alive, pids)))
            for pid in Node(run).mirrors():
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(name="launcher")
def a_launcher() -> Iterator[Launcher]:
    """A launcher, ended after the test."""
    launcher = Launcher()
    yield launcher
    launcher.process.communicate(timeout=60)


def steps(run: Path) -> list[int]:
    return sorted(rank.step for node in read_beats(RunDirectory(run)) for rank in node.ranks)


def first_verdict(run: Path) -> tuple[HangVerdict, float]:
    """Return the first verdict with a witness after the steps have stood still for a second, and how long it took."""
    until(lambda: len(steps(run)) == 4 and steps(run)[-1] >= 10, "ten steps", 60)
    seen, since = steps(run), time.monotonic()
    while time.monotonic() < since + 1:
        time.sleep(0.1)
        if steps(run) != seen:
            seen, since = steps(run), time.monotonic()

    def witnessed() -> HangVerdict | None:
        found = judge(read_beats(RunDirectory(run)))
        return found if found.is_witnessed or " left the training" in found.why else None

    found = until(witnessed, "a verdict", 40)
    assert found is not None
    return found, time.monotonic() - since


@pytest.mark.parametrize(
    "kind",
    ["sleep", *(pytest.param(kind, marks=SOAK) for kind in ("stop", "loop", "gil", "sleeping-gil", "dead", "left")),
     pytest.param("disk", marks=[*SOAK, needs_fuse])],
)  # fmt: skip
@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_the_rank_that_hangs_is_named(kind: str, tmp_path: Path, launcher: Launcher) -> None:
    for number in range(ROUNDS):
        odd = random.Random(f"{kind} {number}").randrange(4)
        base = tmp_path / str(number)
        base.mkdir()
        run = make_run(base / "gpt")
        with ExitStack() as stack:
            stack.enter_context(launcher.training(run, kind, odd, 20 + number, base / "hung" / "data"))
            if kind == "disk":  # released first: before that, its rank cannot be killed
                stack.enter_context(hung_directory(base / "hung"))
            found, took_s = first_verdict(run)
        print(f"{kind} {number}: rank {odd}: {found.why}, {took_s:.1f} s after the last step")
        assert found.ranks == (odd,) and found.hosts == (f"n{1 + odd // 2}",), found
        assert re.search(WHY[kind], found.why) and "(1 of 4 ranks)" in found.why
