"""Real ranks of one launch that train with a guard and a store: processes, and their agreement over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilience import layout

REPOSITORY = Path(__file__).parents[2]

_PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from resilience.checkpoints import Store
from resilience.guard import TrainingGuard

plan, told, options = json.loads(sys.argv[1]), open(sys.argv[2], "a", buffering=1), json.loads(sys.argv[3])
rank = int(os.environ["RANK"])
store = Store.from_env()
guard = TrainingGuard.from_env(
    store=store, host_memory=False, gpu_memory="off", walltime=False, signals=(), poll_s=0.05, beat_s=0.1, round_s=1.0,
    **options,
)
def tell(*words):
    print(json.dumps(words), file=told)
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
with guard:
    if guard.should_stop_early():
        tell("stopped")
        sys.exit(guard.exit_code)
    try:
        found = store.latest()
    except Exception as error:
        tell("none", type(error).__name__, str(error))
        sys.exit(1)
    tell("latest", found and found.name)
    if found:
        guard.resumed(found.step)
    for step, event, who in plan:
        while guard.count < step:
            guard.step()
        with guard.saving(metrics={"loss": 1 / step}) as part:
            (part.path / f"rank{rank}.bin").write_bytes(os.urandom(1000))
            if event == "kill" and rank == who:
                os.kill(os.getpid(), signal.SIGKILL)
            if event == "hang" and rank == who:
                part.until(lambda: False)
            if event == "slow" and rank == who:
                tell("writing", step)
                part.until(lambda: os.path.exists(sys.argv[2] + ".go"))
            if event == "fail" and rank == who:
                def fail():
                    raise OSError(28, "No space left on device")
                part.until(fail)
        tell("left", step)
        if not event:  # a busy machine takes its time to commit
            wait_for(store.path / f"step-{step:08d}")
tell("end", guard.exit_code)
sys.exit(guard.exit_code)
"""


class Launch:
    """The ranks of one attempt.

    Attributes:
        processes: of the ranks.
    """

    def __init__(self, directory: Path, plan: list[Any], *, world: int, attempt: int, **options: Any) -> None:
        self.directory, self._attempt = directory, attempt
        run = directory / "run"
        for name in layout.FOLDERS:
            (run / name).mkdir(parents=True, exist_ok=True)
        known = ("RESIL", "SLURM", "RANK", "WORLD", "LOCAL", "XDG_RUNTIME")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(known)}
        environ |= {"RESIL_JOB_ID": str(attempt), "RESIL_ATTEMPT": str(attempt), "RESIL_RUN": "demo"}
        environ |= {"RESIL_RUN_DIR": str(run), "RESIL_CHECKPOINTS__PATH": str(directory / "ckpt")}
        environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "TMPDIR": str(directory)}
        self.processes = []
        settings = json.dumps(options)
        for rank in range(world):
            with open(self._file("stderr", rank), "wb") as errors:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _PROGRAM, json.dumps(plan), self._file("told", rank), settings],
                        env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        cwd=REPOSITORY, stdin=subprocess.DEVNULL, stderr=errors,
                    )
                )  # fmt: skip

    def _file(self, kind: str, rank: int) -> str:
        return str(self.directory / f"{kind}.{self._attempt}.{rank}")

    def told(self, rank: int) -> list[Any]:
        """Return what a rank has told."""
        path = Path(self._file("told", rank))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self, rank: int) -> str:
        """Return a rank's stderr."""
        return Path(self._file("stderr", rank)).read_text()

    def go(self, rank: int) -> None:
        """Let a slow save of a rank end."""
        Path(self._file("told", rank) + ".go").touch()

    def wait(self, timeout_s: float = 40.0) -> list[int]:
        """Wait for the ranks; return their exit codes."""
        return [process.wait(timeout_s) for process in self.processes]

    def journal(self, rank: int, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these kinds of a rank's journal."""
        path = self.directory / "run" / "journal" / f"{self._attempt}.{rank}.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [event for event in events if event["event"] in kinds]


@contextmanager
def a_launch(directory: Path, plan: list[Any], *, world: int = 3, attempt: int = 1, **options: Any) -> Iterator[Launch]:
    """Start ranks; kill them at the end."""
    launch = Launch(directory, plan, world=world, attempt=attempt, **options)
    try:
        yield launch
    finally:
        for process in launch.processes:
            process.kill()
            process.wait()
