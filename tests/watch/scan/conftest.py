"""A tree to scan, and the directory of the scan cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.watch.scan.trees import a_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create 20 directories in 4, with 3 files each."""
    return a_tree(tmp_path / "tree")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
