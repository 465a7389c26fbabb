"""Fixtures for tests of the guard: a run directory, printed messages, a node of ranks, machines and cgroups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.guards import make_run
from tests.guard.memory.memory_cgroups import MIB, Machine, RealCgroup, a_real_cgroup
from tests.guard.ranks import Node, a_node


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


@pytest.fixture
def said() -> list[str]:
    """Collects the messages of a guard created with `say=said.append`."""
    return []


@pytest.fixture
def node(run: Path) -> Iterator[Node]:
    with a_node(run) as node:
        yield node


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def real() -> Iterator[RealCgroup]:
    with a_real_cgroup(200 * MIB) as cgroup:
        yield cgroup
