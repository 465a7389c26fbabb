"""What the tests of the guard share: a run directory, what is printed, a node of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.guards import make_run
from tests.guard.ranks import Node, a_node


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


@pytest.fixture
def said() -> list[str]:
    """The sentences of a guard that is made with `say=said.append`."""
    return []


@pytest.fixture
def node(run: Path) -> Iterator[Node]:
    with a_node(run) as node:
        yield node
