"""A training directory for a launcher, ended with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.launched import Launched


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """A directory in which a training may be launched."""
    made = Launched(tmp_path)
    yield made
    made.finish()
