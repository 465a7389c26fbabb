"""Looks with a watchdog of file systems as `resil watch` does, on real file systems."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilience.finding import Finding, Report
from resilience.runs.project import Project
from resilience.watch.watch import watch
from resilience.watch.watchdogs import load_watchdog
from tests.fakes import make_project


def report_of(project: Project, kind: str, **settings: Any) -> Report:
    """One tick of one watchdog, `settings` as a command line gives them."""
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    (report,) = watch(project, [load_watchdog(project, kind, given)])
    return report


def a_tick(project: Project, kind: str, **settings: Any) -> dict[str, list[Finding]]:
    """What one tick says, by subject."""
    found: dict[str, list[Finding]] = {}
    for finding in report_of(project, kind, **settings).findings:
        found.setdefault(finding.subject, []).append(finding)
    return found


def the_finding(project: Project, kind: str, path: Path | str, **settings: Any) -> Finding:
    """What a tick says of one named path, when that is one thing."""
    (findings,) = a_tick(project, kind, paths=(str(path),), **settings).values()
    assert len(findings) == 1, findings
    return findings[0]


def refused(project: Project, kind: str, **settings: Any) -> str:
    """Why settings are refused: what `resil watch` says of them, with its advice."""
    (finding,) = report_of(project, kind, **settings).findings
    assert finding.verdict.name == "UNKNOWN" and finding.fault == "settings", finding
    return f"{finding.summary}; {finding.advice}"


@contextmanager
def mounted(folder: Path, options: str, *, kind: str = "tmpfs", source: str = "tmpfs") -> Iterator[Path]:
    """A file system of its own; the test is skipped where it cannot be mounted."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", kind, "-o", options, source, folder], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a {kind} here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@contextmanager
def bound(source: Path, folder: Path, options: str) -> Iterator[Path]:
    """A folder mounted a second time, for instance read-only."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "--bind", source, folder], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a folder twice here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", f"remount,bind,{options}", folder], check=True)
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def a_project(folder: Path, settings: str = "", environ: Mapping[str, str] | None = None, **ports: Any) -> Project:
    """A project whose state directory and memory lie in `folder`."""
    text = '[run]\nname = "gpt"\ncommand = "true"\n' + settings
    state = {"XDG_STATE_HOME": str(folder / "state"), "PATH": "/usr/bin:/bin", **(environ or {})}
    return make_project(folder, settings=text, environ=state, **ports)
