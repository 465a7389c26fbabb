"""A run directory with a pretended scheduler, for tests of what the batch shell does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.templates.batch import Batch


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    made = Batch.make(tmp_path)
    yield made
    made.clean_up()
