"""A secret that is planted for a whole test run, and looked for in everything that the run wrote.

Tests of channels use it as token, password and address. At the end it must stand nowhere but in the files that it was
planted in: not in a captured output or log, not in a traceback, not in any file of pytest's temporary directories.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from pathlib import Path

import pytest

SEED = "RESIL_TEST_SEED"
"""What the processes of one run share. The canary itself is in no environment: SLURM keeps those of its jobs."""

PLANTED = "planted-secrets"
"""Directories of this name may hold it."""

seen_in: list[str] = []
"""Where it was found."""


def canary_text() -> str:
    """This run's secret."""
    seed = os.environ.setdefault(SEED, secrets.token_hex(8))
    return f"CaNaRy{hashlib.sha256(seed.encode()).hexdigest()[:24]}"


@pytest.fixture
def canary() -> str:
    """The secret that must be found nowhere."""
    return canary_text()


@pytest.fixture
def canary_file(tmp_path: Path) -> Path:
    """A file that holds it, as secrets lie: mode 0600."""
    return plant(tmp_path, "canary", canary_text())


def plant(directory: Path, name: str, text: str) -> Path:
    """Write a secret into a file where it may lie."""
    place = directory / PLANTED
    place.mkdir(mode=0o700, exist_ok=True)
    path = place / name
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return path


def pytest_configure(config: pytest.Config) -> None:
    """Choose it before worker processes are started: they inherit the seed."""
    canary_text()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Look at what each test printed and logged. (The traceback of a failure shows the test's own values.)"""
    place = f"what {report.nodeid} printed or logged"
    if place not in seen_in and any(canary_text() in text for _, text in report.sections):
        seen_in.append(place)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look at every file that the run left, and fail it if the secret is in one. Worker processes leave that to one."""
    if hasattr(session.config, "workerinput"):
        return
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = getattr(factory, "_basetemp", None)
    if base is not None:
        seen_in.extend(files_with(canary_text(), base))
    if seen_in:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if not isinstance(reporter, pytest.TerminalReporter):
            return
        reporter.write_line("")
        for place in seen_in:
            reporter.write_line(f"SECRET LEAKED: the planted secret stands in {place}", red=True)


def files_with(text: str, directory: Path) -> list[str]:
    """The files below a directory that hold a text; those where it may lie are left out, and so are large ones."""
    find = ["find", str(directory), "-xdev", "-name", PLANTED, "-prune", "-o", "-type", "f", "-size", "-4096k"]
    try:
        done = subprocess.run(
            [*find, "-exec", "grep", "-lF", "-e", text, "{}", "+"],
            capture_output=True, text=True, errors="replace", timeout=120, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"perhaps a file below {directory}: looking took too long"]
    return done.stdout.splitlines()
