"""A watchdog of one's own at the command line: written by `--new`, and one that is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.watch import watchdogs
from tests.lab.shell import Shell
from tests.test_plugin_contract import WATCHDOG


@pytest.fixture(autouse=True)
def fresh_plugins(shell: Shell) -> Iterator[None]:
    """Look for plugins anew: each process looks once."""
    watchdogs.checks.cache_clear()
    yield
    watchdogs.checks.cache_clear()


def test_a_broken_watchdog_is_unknown_and_the_others_are_run(shell: Shell) -> None:
    directory = shell.directory.parent / "plugins"
    (directory / "checks").mkdir()
    (directory / "checks" / "licence.py").write_text(WATCHDOG.replace("def judge(", "def jugde("))
    (directory / "checks" / "worse.py").write_text("import (")
    everything = shell.resil("watch", "--all", "--no-alert", "--json")
    verdicts = {report["check"]: report["findings"] for report in everything.json["reports"]}
    assert "has no method judge" in verdicts["licence"][0]["summary"]
    assert "worse.py:1: SyntaxError" in verdicts["worse"][0]["summary"]
    assert verdicts["fs"][0]["verdict"] in ("OK", "WARNING", "CRITICAL")
    alone = shell.resil("watch", "licence")
    assert (alone.code, "Traceback" in alone.err, "bug" in alone.err) == (3, False, False)
    assert f"{directory}/checks/licence.py:" in alone.err
    assert shell.resil("watch", "fs", "--no-alert").code in (0, 1, 2)
    assert "has no method judge" in shell.resil("watch", "--list").out


@pytest.mark.parametrize("is_named", [True, False], ids=["in RESIL_PLUGINS", "in the project"])
def test_a_new_watchdog_works_as_it_stands_and_so_does_its_test(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    directory = shell.directory.parent / "plugins" if is_named else shell.directory / "resil_plugins"
    if not is_named:
        monkeypatch.delenv("RESIL_PLUGINS")
        monkeypatch.setenv("RESIL_SCHEDULER__NAME", "local")
        watchdogs.checks.cache_clear()
    wrote = shell.resil("watch", "--new", "gpu_room")
    assert wrote.code == 0
    assert f"wrote {directory}/checks/gpu_room.py" in wrote.out
    commands = wrote.out.partition("next:\n")[2].rstrip()
    assert ("export RESIL_PLUGINS" in commands) == (not is_named)
    program = commands.replace("resil watch", f"{sys.executable} -m resilience watch") + " --no-alert --scheduler local"
    paths = {"PYTHONPATH": str(Path(__file__).parents[2]), "RESIL_SCHEDULER__NAME": "local"}
    done = subprocess.run(["sh", "-ec", program], capture_output=True, text=True, env={**os.environ, **paths})
    assert (done.returncode, done.stderr) == (0, "")
    assert "test_this_host_can_be_probed: passed" in done.stdout
    assert "GPU_ROOM OK - this host: " in done.stdout
    tested = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-qc",
            "/dev/null",
            f"--basetemp={directory}/base",
            directory / "test_gpu_room.py",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **paths},
    )
    assert "2 passed" in tested.stdout
    assert shell.resil("watch", "--new", "gpu_room").code == 3


@pytest.mark.parametrize("name", ["fs", "../evil", "My-Own", "_own", "a b", "1st", "x" * 60])
def test_a_name_that_cannot_be_used_writes_nothing(shell: Shell, name: str) -> None:
    refused = shell.resil("watch", "--new", name)
    assert refused.code == 3
    assert refused.err.startswith("resil: ")
    assert not list(shell.directory.parent.rglob("test_*.py"))


def test_existing_files_are_not_overwritten(shell: Shell) -> None:
    test = shell.directory.parent / "plugins" / "test_own.py"
    test.write_text("mine")
    assert f"{test} exists" in shell.resil("watch", "--new", "own").err
    assert test.read_text() == "mine"
    assert not (test.parent / "checks").exists()
