"""A file or directory that is typed, and hangs, is said in seconds by every command that reads it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from resilience.runs import open_project
from tests.lab.hung import hung_directory
from tests.lab.shell import Shell


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "dead/job.sh"),
        ("submit", "dead/job.sh", "--dry-run"),
        ("adopt", "dead/job.sh"),
        ("init", "--from", "dead/job.sh", "new"),
        ("init", "dead/new"),
    ],
    ids=" ".join,
)
def test_what_hangs_is_said_and_nothing_waits(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(open_project, "START_S", 2.0)  # a look that has not begun does not hang yet
    monkeypatch.chdir(shell.directory)
    with hung_directory(shell.directory / "dead") as dead:
        began = time.monotonic()
        said = shell.resil(*words)
        assert (said.code, time.monotonic() - began < 10) == (75, True), said
        assert f"{Path(dead)}/" in said.err and "does not respond" in said.err and "try:" in said.err
