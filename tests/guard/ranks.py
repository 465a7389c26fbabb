"""Ranks as real processes that run given statements, and their node's heartbeat process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]

_PROGRAM = """
import ctypes, json, os, sys, threading, time
from resilience.guard.heartbeat import connection as connection
from resilience.guard.heartbeat.beat import SharedProgress
from resilience.guard.heartbeat.writer import start_writer
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
exec(sys.argv[3])
place = RankInfo(**json.loads(sys.argv[1]))
slot, recorder = SharedProgress(), Recorder(place)
writer = start_writer(place, GuardSettings(**json.loads(sys.argv[2])), slot, recorder)
over = False
def look():
    while not over:
        writer.work()
        time.sleep(0.02)
threading.Thread(target=look, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    kind, _, code = line.partition(" ")
    print(json.dumps(eval(code) if kind == "ask" else exec(code)), flush=True)
over = True
writer.stop(5.0)
"""


class Rank:
    """One rank. Its stderr is collected in a file."""

    def __init__(self, place: dict[str, Any], settings: dict[str, Any], first: str, stderr: Path, *wrap: str) -> None:
        self._stderr = stderr
        environ = {**os.environ, "RESIL_RUN_DIR": place["run_dir"], "RESIL_ATTEMPT": "3", "SLURM_JOB_ID": "12"}
        with open(stderr, "wb") as errors:
            self.process = subprocess.Popen(
                [*wrap, sys.executable, "-c", _PROGRAM, json.dumps(place), json.dumps(settings), first],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ, cwd=REPOSITORY,
            )  # fmt: skip
        assert self._read() == "ready\n", self.said()

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the rank's process."""
        return json.loads(self._tell(f"ask {expression}"))

    def do(self, statement: str) -> None:
        """Run a statement in the rank's process."""
        self._tell(f"do {statement}")

    def begin(self, statement: str) -> None:
        """Run a statement that does not return in the rank's process."""
        assert self.process.stdin is not None
        print(f"do {statement}", file=self.process.stdin, flush=True)

    def said(self) -> list[str]:
        """Return the rank's lines on stderr."""
        return self._stderr.read_text().splitlines()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait for the process to end."""
        self.process.send_signal(number)
        self.process.wait(20)

    def leave(self) -> None:
        """End the process cleanly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)

    def close(self) -> None:
        """Kill the process if it is still running."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _tell(self, line: str) -> str:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


class Node:
    """The ranks of a node and their run directory."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.ranks: list[Rank] = []

    def start(
        self, rank: int, *, world: int = 2, host: str = "n1", first: str = "", wrap: Sequence[str] = (), **settings: Any
    ) -> Rank:
        """Start a rank; `first`: a statement that the rank runs first."""
        place = {
            "rank": rank, "world": world, "local_rank": rank, "run_dir": str(self.run), "job_id": "12", "attempt": 3,
            "host": host, "launch_id": f"12-{self.run.parent.name}",
        }  # fmt: skip
        told = self.run.parent / f"stderr.{len(self.ranks)}"
        started = Rank(place, {"beat_s": 0.1, "poll_s": 0.05, **settings}, first, told, *wrap)
        self.ranks.append(started)
        return started

    def address_file(self) -> Path:
        """Return the path of rank 0's address file; creates its directory."""
        (self.run / "agreement").mkdir(exist_ok=True)
        return self.run / "agreement" / f"12-{self.run.parent.name}"

    def beats(self, host: str = "n1") -> dict[str, Any]:
        """Return the content of the beats file; empty if there is none."""
        try:
            return tomllib.loads((self.run / "beats" / f"12.{host}").read_text())
        except FileNotFoundError:
            return {}

    def journal(self, rank: int) -> list[dict[str, Any]]:
        """Return the lines of a rank's journal."""
        try:
            text = (self.run / "journal" / f"12.{rank}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines()]

    def mirrors(self) -> list[int]:
        """Return the pids of this run's heartbeat processes, found as the batch shell does."""
        found = []
        for directory in Path("/proc").iterdir():
            with suppress(OSError):
                is_ours = f"RESIL_RUN_DIR={self.run}\0".encode() in (directory / "environ").read_bytes()
                if is_ours and (directory / "comm").read_text() == "resil-mirror\n":
                    found.append(int(directory.name))
        return found


@contextmanager
def a_node(run: Path) -> Iterator[Node]:
    """A node whose ranks and heartbeat process are killed at the end."""
    node = Node(run)
    try:
        yield node
    finally:
        for rank in node.ranks:
            rank.close()
        for pid in node.mirrors():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
