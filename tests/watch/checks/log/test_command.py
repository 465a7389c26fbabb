"""`resil watch log` on the command line: exit codes, output, and readings kept between calls."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.guard.ranks import REPOSITORY
from tests.watch.checks.log.watcher import write


def resil(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RESIL", "XDG"))}
    environ |= {"HOME": str(directory), "PYTHONPATH": str(REPOSITORY), "XDG_RUNTIME_DIR": str(directory)}
    return subprocess.run(
        [sys.executable, "-m", "resilience", "watch", "log", "--no-alert", *arguments],
        cwd=directory, env=environ, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_exit_codes_are_those_of_a_nagios_plugin(tmp_path: Path) -> None:
    write(tmp_path / "train.log", "step 5 loss\n", at=time.time() - 5)
    assert resil(tmp_path, "train.log").returncode == 0
    write(tmp_path / "old.log", "step 5 loss\n", at=time.time() - 7200)
    silent = resil(tmp_path, "old.log")
    assert silent.returncode == 2 and "LOG CRITICAL" in silent.stdout and "no new step for 2 h" in silent.stdout
    assert resil(tmp_path, "nothing.log").returncode == 3


def test_an_invalid_regular_expression_is_a_usage_error(tmp_path: Path) -> None:
    write(tmp_path / "train.log", "a" * 3000 + "\n", at=time.time())
    broken = resil(tmp_path, "train.log", "--progress-regex", r"step (\d+")
    assert broken.returncode == 3 and "position 5" in broken.stdout + broken.stderr
    assert "Traceback" not in broken.stdout + broken.stderr
    endless = resil(tmp_path, "train.log", "--progress-regex", r"(?:a+)+(b)")
    assert endless.returncode == 3 and "backtracking" in endless.stdout + endless.stderr


def test_progress_is_remembered_between_calls(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    began = time.time()
    write(log, "step 5 loss\n", at=began)
    assert resil(tmp_path, "train.log", "--timeout-s", "1").returncode in (0, 2)
    while time.time() < began + 1.5:
        time.sleep(0.05)
    write(log, "the same old line\n", at=time.time(), append=True)
    found = resil(tmp_path, "train.log", "--timeout-s", "1")
    assert found.returncode == 2 and "last line: the same old line" in found.stdout
