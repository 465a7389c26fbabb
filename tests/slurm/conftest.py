"""One real cluster for all tests of a session that ask for it, brought back to its first state before each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.lab.slurm import accounting
from tests.lab.slurm.cluster import Cluster

HERE = Path(__file__).parent
TIMEOUT_S = 900
"""Longer than several waits of PATIENCE_S: a wait in vain says what it was for, and this limit would not."""
CLUSTER = pytest.StashKey[Cluster]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test of this directory `slurm`; keep each file in one process; skip where impossible.

    Most of them wait for SLURM, so files run side by side, each process with a cluster of its own. (tests/conftest.py
    keeps them together as well, where the mark does not.)
    """
    reasons = Cluster.requirements()
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker("slurm")
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(f"slurm-{item.path.stem}"))
        if reasons:
            item.add_marker(pytest.mark.skip(reason=f"no real SLURM: {'; '.join(reasons)}"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A SLURM of four nodes, see `tests.lab.slurm.cluster`."""
    with Cluster() as booted:
        request.config.stash[CLUSTER] = booted
        yield booted


@pytest.fixture(scope="module")
def accounted() -> Iterator[Cluster]:
    """A small cluster with a database of its own."""
    if reasons := Cluster.requirements(dbd=True):
        pytest.skip(f"no SLURM accounting: {'; '.join(reasons)}; to get it: {accounting.HOW_TO_GET}")
    with Cluster(nodes=2, dbd=True) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def fresh_cluster(request: pytest.FixtureRequest) -> None:
    """Leave no job, fault or drained node of one test to the next."""
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").reset()


@pytest.fixture
def alice(cluster: Cluster) -> str:
    return cluster.users[0]


@pytest.fixture
def bob(cluster: Cluster) -> str:
    return cluster.users[1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the daemons said last beside a failure."""
    report = yield
    booted = item.config.stash.get(CLUSTER, None)
    if report.failed and booted is not None and "cluster" in getattr(item, "fixturenames", ()):
        report.sections.append(("SLURM daemons", booted.logs()))
    return report
