"""The exit code in the journal is the real one of the process. All with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guard.guards import make_run
from tests.guard.ranks import REPOSITORY

HEAD = """
import sys
from resilience.guard import TrainingGuard
guard = TrainingGuard.from_env(poll_s=0.02, host_memory=False, gpu_memory="off", walltime=False)
def train(steps=10):
    for _ in range(steps):
        if guard.step().stop:
            break
def loop(error):
    with guard:
        train()
        raise error
def caught(error):
    try:
        loop(error)
    except BaseException:
        pass
"""


@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("train(); sys.exit(3)", 3, [("end", 3)]),
        ("train(); exit(3)", 3, [("end", 3)]),
        ("train(); quit('a sentence')", 1, [("end", 1)]),
        ("train(); exit()", 0, [("end", 0)]),
        ("loop(KeyboardInterrupt())", -2, [("end", 130)]),
        ("caught(KeyboardInterrupt()); sys.exit(1)", 1, [("end", 130), ("exit", 1)]),  # as Lightning does
        ("caught(OSError()); sys.exit(guard.exit_code)", 1, [("end", 1)]),
        ("caught(OSError()); exit(5)", 5, [("end", 1), ("exit", 5)]),
        ("caught(SystemExit(4)); sys.exit(4)", 4, [("end", 4)]),
    ],
)
def test_the_last_record_has_the_real_exit_code(
    tmp_path: Path, program: str, code: int, told: list[tuple[str, int]]
) -> None:
    run = make_run(tmp_path / "run")
    environ = {"RESIL_RUN_DIR": str(run), "RESIL_RUN": "run", "RESIL_JOB_ID": "12", "RESIL_ATTEMPT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + program],
        env={**environ, "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    events = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    assert [(one["event"], one["exit_code"]) for one in events if "exit_code" in one] == told
