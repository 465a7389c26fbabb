"""The planted secret is found where it does not belong: the watch over the whole run does bark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab.canary import PLANTED, SEED, canary_text, files_with

REPOSITORY = Path(__file__).parents[2]
HOOKS = "canary, canary_file, pytest_configure, pytest_runtest_logreport, pytest_sessionfinish"
LEAKS = """
def test_printed(canary): print(canary)
def test_logged(canary): __import__("logging").warning(canary)
def test_written(canary, tmp_path): (tmp_path / "outbox.json").write_text("x" + canary)
"""
NONE = """
def test_kept(canary, canary_file): assert canary in canary_file.read_text()
"""


def run(directory: Path, test: str) -> subprocess.CompletedProcess[str]:
    """A test run of its own, without other plugins: those take seconds to load."""
    (directory / "conftest.py").write_text(f"from tests.lab.canary import {HOOKS}\n")
    (directory / "test_it.py").write_text(test)
    kept = {name: value for name, value in os.environ.items() if name != SEED and "PYTEST" not in name}
    environment = kept | {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={directory}/base", "test_it.py"],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_each_leak_fails_the_run_though_every_test_passes(tmp_path: Path) -> None:
    done = run(tmp_path, LEAKS)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    leaks = [line for line in done.stdout.splitlines() if "SECRET LEAKED" in line]
    assert len(leaks) == 3
    assert "test_printed" in leaks[0] and "test_logged" in leaks[1] and "outbox.json" in leaks[2]


def test_a_secret_that_was_kept_fails_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, NONE)
    assert done.returncode == 0 and "LEAKED" not in done.stdout, done.stdout + done.stderr


def test_files_are_found_except_where_it_may_lie(tmp_path: Path) -> None:
    for name in ("a/x", f"a/{PLANTED}/y", "b c/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("needle")
    assert sorted(files_with("needle", tmp_path)) == [str(tmp_path / "a/x"), str(tmp_path / "b c/z")]


def test_the_environment_has_only_what_the_secret_is_made_of() -> None:
    assert canary_text() == canary_text() and canary_text() not in os.environ.values()
