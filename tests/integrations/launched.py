"""Trainings under a real launcher: start one, wait for its ranks, read their diaries."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from tests.lab.slurm.processes import descendants, kill_all

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines=1"]
ACCELERATE += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
"""With `--cpu` it starts one process regardless; this one starts several, and the script sets the CPU."""


def needs(*libraries: str) -> pytest.MarkDecorator:
    """Skip, with the reason, if a library of the integration is not installed."""
    missing = [library for library in libraries if not is_installed(library)]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed (pip install)")


def is_installed(library: str) -> bool:
    """Return whether a library, or a module of one, can be imported."""
    parent = library.rpartition(".")[0]
    return (not parent or is_installed(parent)) and importlib.util.find_spec(library) is not None


class Launched:
    """One training directory with its run directory, and the processes launched there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        for name in layout.FOLDERS:
            (self.run_dir / name).mkdir(parents=True, exist_ok=True)
        self.attempt = 0
        self.process: subprocess.Popen[str] | None = None
        self.output = directory / "output"

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a job's launch, without that of the job in which the tests may run."""
        known = ("RESIL_", "SLURM", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(known)}
        clean |= {"RESIL_RUN_DIR": str(self.run_dir), "RESIL_RUN": "it", "RESIL_JOB_ID": "7", "OMP_NUM_THREADS": "1"}
        clean |= {"RESIL_ATTEMPT": str(self.attempt), "RESIL_GUARD__POLL_S": "0.1", "PYTHONPATH": str(REPOSITORY)}
        return clean | {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1"} | variables

    def launch(self, command: list[str], **variables: str) -> None:
        """Start the next attempt."""
        self.attempt += 1
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                command, env=self.environment(**variables), stdout=output, stderr=output, cwd=self.directory, text=True
            )

    def wait(self, within_s: float = 240) -> int:
        """Wait for the launcher's end and return its exit code."""
        assert self.process is not None
        return self.process.wait(within_s)

    def finish(self) -> None:
        """Kill everything: launchers start their workers in separate sessions, and do not always end them."""
        if self.process is not None:
            launcher = self.process
            kill_all(lambda: descendants([launcher.pid]) | ({launcher.pid} if launcher.poll() is None else set()))
            launcher.wait()

    def throw(self, switch: str, text: str = "") -> None:
        """Set a switch."""
        (self.run_dir / layout.SWITCHES / switch).write_text(text)

    def clear(self, switch: str) -> None:
        """Clear a switch."""
        (self.run_dir / layout.SWITCHES / switch).unlink()

    def diary(self, rank: int) -> list[dict[str, Any]]:
        """Return the records of a rank, of all attempts, without an incomplete line."""
        try:
            lines = (self.directory / f"rank{rank}.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def last(self, rank: int, event: str) -> dict[str, Any]:
        """Return the last record of a kind."""
        found = [entry for entry in self.diary(rank) if entry["event"] == event]
        assert found, f"rank {rank} never wrote {event}: {self.output.read_text()[-4000:]}"
        return found[-1]

    def count(self, rank: int, event: str) -> int:
        """Return the number of records of a kind from a rank."""
        return sum(entry["event"] == event for entry in self.diary(rank))

    def guard_events(self, rank: int = 0) -> list[dict[str, Any]]:
        """Return the guard's journal."""
        path = self.run_dir / layout.JOURNAL / f"7.{rank}.jsonl"
        assert path.exists(), f"rank {rank} has no journal: {self.output.read_text()[-4000:]}"
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def has_ended(self, rank: int = 0) -> bool:
        """Return whether the guard has written its `end`."""
        return any(entry["event"] == "end" for entry in self.guard_events(rank))

    def end(self, rank: int = 0) -> dict[str, Any]:
        """Return the guard's `end`."""
        ends = [entry for entry in self.guard_events(rank) if entry["event"] == "end"]
        assert ends
        return ends[-1]

    def until(self, what: Callable[[], Any], within_s: float = 240) -> None:
        """Wait for a condition; fail, with the output, after the deadline or if the launcher ends first."""
        deadline = time.monotonic() + within_s
        while not what():
            ended = self.process is not None and self.process.poll() is not None
            if ended and what():
                return
            late = time.monotonic() > deadline
            assert not (late or ended), f"did not happen: {self.output.read_text()[-4000:]}"
            time.sleep(0.05)

    def until_step(self, step: int, world: int) -> None:
        """Wait until every rank of this attempt has done this many steps."""
        self.until(
            lambda: all(any(e["event"] == "step" and e["step"] >= step for e in self.diary(r)) for r in range(world))
        )
