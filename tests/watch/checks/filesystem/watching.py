"""A watchdog of file systems as `resil watch` runs it, on real file systems."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import SettingsError
from resilience.finding import Finding, Report
from resilience.runs.project import Project
from resilience.watch.watch import watch
from resilience.watch.watchdogs import load_watchdog
from tests.lab.fakes import FakeClock, make_project
from tests.watch.checks.outcome import outcome


class Watching:
    """A watchdog of file systems over many ticks, of a project in this directory, with a fake clock."""

    def __init__(self, directory: Path, kind: str = "fs", settings: str = "", **ports: Any) -> None:
        self.directory, self.kind, self.clock = directory, kind, ports.setdefault("clock", FakeClock())
        self.project = a_project(directory, settings, **ports)

    def report(self, **settings: Any) -> Report:
        """Run one tick of one watchdog, with `settings` as from the command line."""
        given = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
        (report,) = watch(self.project, [load_watchdog(self.project, self.kind, given)])
        return report

    def tick(self, *paths: Path | str, **settings: Any) -> dict[str, list[Finding]]:
        """Run one tick; return the findings by subject. Without paths, the default ones are probed."""
        found: dict[str, list[Finding]] = {}
        for finding in self.report(**({"paths": tuple(map(str, paths))} if paths else {}), **settings).findings:
            found.setdefault(finding.subject, []).append(finding)
        return found

    def finding(self, path: Path | str, **settings: Any) -> Finding:
        """Run one tick; return the only finding about one path."""
        (findings,) = self.tick(path, **settings).values()
        assert len(findings) == 1, findings
        return findings[0]

    def expect(self, expected: str, path: Path | str, *words: str, **settings: Any) -> Finding:
        """Run one tick; expect this verdict, fault and text of the finding about one path."""
        finding = self.finding(path, **settings)
        assert outcome(finding) == expected and all(word in finding.summary for word in words), finding
        return finding

    def refused(self, **settings: Any) -> str:
        """Return the error of `resil watch` for invalid settings, with its hint."""
        try:
            (finding,) = self.report(**settings).findings
        except SettingsError as error:
            return f"{error.message}; {error.hint}"
        assert outcome(finding) == "UNKNOWN settings", finding
        return f"{finding.summary}; {finding.advice}"


@contextmanager
def mounted(directory: Path, options: str, *, kind: str = "tmpfs", source: str = "tmpfs") -> Iterator[Path]:
    """Mount a separate file system; skip the test if that is not possible."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", kind, "-o", options, source, directory], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a {kind} here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=False)


@contextmanager
def bound(source: Path, directory: Path, options: str) -> Iterator[Path]:
    """Bind-mount a directory, for instance read-only."""
    directory.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "--bind", source, directory], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a directory twice here: {done.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", f"remount,bind,{options}", directory], check=True)
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=False)


def a_project(directory: Path, settings: str = "", environ: Mapping[str, str] | None = None, **ports: Any) -> Project:
    """Return a project whose state directory and readings are in `directory`."""
    text = '[run]\nname = "gpt"\ncommand = "true"\n' + settings
    state = {"XDG_STATE_HOME": str(directory / "state"), "PATH": "/usr/bin:/bin", **(environ or {})}
    return make_project(directory, settings=text, environ=state, **ports)


def a_program(directory: Path, name: str, body: str) -> str:
    """Write a shell script; return its path."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)
