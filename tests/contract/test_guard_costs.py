"""What the guard may cost: no system call in a step, no module but the standard library's, a light import."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = {"dataclasses", "inspect", "typing", "json", "socket", "logging", "subprocess", "pathlib", "threading", "re",
         "enum", "tomllib", "selectors", "hmac", "hashlib", "asyncio"}  # fmt: skip
"""Modules of the standard library that cost milliseconds each: they come when the guard starts, or later."""

STEPS = """\
import sys
from resilience.guard import TrainingGuard
with TrainingGuard.from_env(poll_s=3600) as guard:
    guard.step()
    for _ in range(int(sys.argv[1])):
        guard.step()
"""
LOADED = """\
import json, sys
before = set(sys.modules)
from resilience.guard import TrainingGuard
imported = sorted(set(sys.modules) - before)
with TrainingGuard.from_env() as guard:
    guard.step()
print(json.dumps([imported, sorted(set(sys.modules) - before)]))
"""


def environ_of_a_job(tmp_path: Path) -> dict[str, str]:
    run = tmp_path / "run"
    for directory in ("switches", "beats", "journal", "attempts"):
        (run / directory).mkdir(parents=True)
    job = {"RESIL_RUN": "demo", "RESIL_RUN_DIR": str(run), "RESIL_JOB_ID": "7", "RESIL_ATTEMPT": "1"}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), **job}


def calls_of(steps: int, tmp_path: Path) -> int:
    """System calls of the training thread, as `strace -c` counts them."""
    told = tmp_path / f"strace-{steps}"
    environ = environ_of_a_job(tmp_path / str(steps))
    argv = ["strace", "-c", "-e", "trace=all", "-o", str(told), sys.executable, "-c", STEPS, str(steps)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not attach here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    total = re.search(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)(?:\s+\d+)?\s+total$", told.read_text(), re.MULTILINE)
    assert total is not None, told.read_text()
    return int(total[1]) - futexes(told.read_text())


def futexes(table: str) -> int:
    """Calls by which threads hand over the interpreter: how often depends on the machine's load, not on the steps."""
    found = re.search(r"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?futex$", table, re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_million_steps_make_no_system_call(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace: sudo scripts/system-packages")
    without = min(calls_of(0, tmp_path / str(turn)) for turn in range(2))
    with_steps = min(calls_of(1_000_000, tmp_path / str(turn)) for turn in range(2))
    assert abs(with_steps - without) <= 3  # how threads end differs by a call or two; a million steps do not


def test_importing_the_guard_loads_nothing_heavy_and_no_third_party_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env=environ_of_a_job(tmp_path), capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    imported, started = (set(names) for names in json.loads(done.stdout.splitlines()[-1]))
    assert not imported & HEAVY
    assert len(imported) < 25, sorted(imported)
    ours = {name for name in started if name.split(".")[0] == "resilience"}
    outsiders = {name.split(".")[0] for name in started - ours} - set(sys.stdlib_module_names)
    assert not outsiders
    allowed = (
        "resilience.guard",
        "resilience.base",
        "resilience.messages",
        "resilience.errors",
        "resilience.quantities",
        "resilience.layout",
        "resilience.switch",
        "resilience.cron_late",
    )
    assert all(name == "resilience" or name.startswith(allowed) for name in ours), sorted(ours)
