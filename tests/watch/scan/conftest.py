"""A tree to scan, and the directory of the scan cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.watch.scan import scan
from tests.watch.scan.trees import a_tree


@pytest.fixture(autouse=True)
def no_tree_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small trees are read whole each time: here they stand for large ones."""
    monkeypatch.setattr(scan, "SMALL", -1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Create 20 directories in 4, with 3 files each."""
    return a_tree(tmp_path / "tree")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
