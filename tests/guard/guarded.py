"""Complete guards as real processes: ranks of one launch that train independently until they are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.guard.ranks import REPOSITORY
from tests.lab.waiting import until

_PROGRAM = """
import os, sys, time
from resilience.guard import TrainingGuard
from resilience.guard.agreement import client, network
network.ABSENT_S = float(sys.argv[1])
client.GONE_S = float(os.environ.get("GONE_S", "5"))
guard = TrainingGuard.from_env(
    host_memory=False, gpu_memory="off", walltime="RESIL_END_TIME" in os.environ,
    signals=("USR1",), poll_s=0.05, beat_s=0.1, round_s=1.0,
    skew_steps=0,  # a restarted rank catches up while the others wait
)
nan_at = int(os.environ.get("NAN_AT", "0"))
loss = float(os.environ["LOSS"]) if "LOSS" in os.environ else None
step_s = float(os.environ.get("STEP_S." + os.environ["RANK"], "0.01"))
last = int(os.environ.get("LAST." + os.environ["RANK"], "0"))
with guard:
    if loss is not None:
        guard.resumed(0)
    while True:
        decision = guard.step(float("nan") if guard.count + 1 == nan_at else loss)
        if decision.save:
            with guard.saving() as saving:
                open(sys.argv[2] + ".saved", "a").write(f"{guard.count} ")
                if save_s := float(os.environ.get("SAVE_S." + os.environ["RANK"], "0")):
                    durable_at = time.monotonic() + save_s
                    saving.until(lambda: time.monotonic() > durable_at)
        if decision.stop or guard.count == last:
            break
        open(sys.argv[2], "w").write(str(guard.count))
        time.sleep(step_s)
sys.exit(guard.exit_code)
"""


class Launch:
    """The ranks of one launch, uncoupled: each steps at its own speed."""

    def __init__(self, directory: Path, run: Path | None, world: int, absent_s: float, **environ: str) -> None:
        self.directory = directory
        self.world = world
        self._absent_s = absent_s
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(("RESIL", "SLURM"))}
        self._environ |= {"RESIL_JOB_ID": "12", "RESIL_ATTEMPT": "3", "RESIL_RUN": "demo", "WORLD_SIZE": str(world)}
        self._environ |= {"LOCAL_WORLD_SIZE": str(world), "TMPDIR": str(directory), "SLURMD_NODENAME": "n1"}
        self._environ.pop("XDG_RUNTIME_DIR", None)
        if run is not None:
            self._environ["RESIL_RUN_DIR"] = str(run)
        self._environ |= environ
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(world):
            self.start(rank)

    def start(self, rank: int) -> None:
        """Start or restart a rank."""
        mine = {**self._environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with open(self.directory / f"stderr.{rank}", "ab") as errors:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(self._absent_s), str(self.directory / f"steps.{rank}")],
                env=mine, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def said(self, rank: int) -> list[str]:
        """Return a rank's lines on stderr."""
        return (self.directory / f"stderr.{rank}").read_text().splitlines()

    def steps(self, rank: int) -> int:
        """Return the number of steps of a rank."""
        with suppress(OSError, ValueError):
            return int((self.directory / f"steps.{rank}").read_text())
        return 0

    def saves(self, rank: int) -> list[int]:
        """Return the steps after which a rank has saved."""
        path = self.directory / f"steps.{rank}.saved"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def journal(self, rank: int) -> list[dict[str, Any]]:
        """Return the lines of a rank's journal."""
        path = Path(self._environ["RESIL_RUN_DIR"]) / "journal" / f"12.{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_steps(self) -> None:
        """Wait until each rank has done at least one more step."""
        living = [rank for rank, process in self.processes.items() if process.poll() is None]
        before = {rank: self.steps(rank) for rank in living}
        until(lambda: all(self.steps(rank) > before[rank] for rank in living))

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to one rank."""
        self.processes[rank].send_signal(number)

    def kill(self, *ranks: int) -> None:
        """Kill these ranks, or all, with SIGKILL."""
        chosen = ranks or tuple(self.processes)
        for rank in chosen:
            self.processes[rank].kill()
        for rank in chosen:
            self.processes[rank].wait()


@contextmanager
def a_launch(
    directory: Path, run: Path | None, world: int, *, absent_s: float = 60.0, **environ: str
) -> Iterator[Launch]:
    """Start ranks that train; kill them at the end."""
    directory.mkdir(exist_ok=True)
    launch = Launch(directory, run, world, absent_s, **environ)
    try:
        yield launch
    finally:
        launch.kill()
