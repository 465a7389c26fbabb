"""A shell for every test of a command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.alerts.routes import channels
from resilience.runs.project import schedulers
from tests.lab.shell import Shell, make_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    for cache in (schedulers, channels):
        cache.cache_clear()
    yield make_shell(tmp_path, monkeypatch, capsys)
    for cache in (schedulers, channels):
        cache.cache_clear()
