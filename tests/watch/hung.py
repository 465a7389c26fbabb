"""A file system that never responds; skips the test if it cannot be mounted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lab.hung import hung_directory


@contextmanager
def hung_disk(directory: Path) -> Iterator[Path]:
    """Mount a file system that never responds."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hung_directory(directory))
        except OSError as error:
            pytest.skip(f"mounting /dev/fuse is not permitted: {error}")
        yield directory
