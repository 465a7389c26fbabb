"""A run of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.runs.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "llama")
    directory.create("")
    return directory
