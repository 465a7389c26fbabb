"""A shell for every test of a command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.runs.project import schedulers
from tests.lab.shell import Shell, make_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    schedulers.cache_clear()
    yield make_shell(tmp_path, monkeypatch, capsys)
    schedulers.cache_clear()
