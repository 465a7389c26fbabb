"""Two pytest fixtures for the tests of a training: `resil_guard` and `resil_cluster`.

pytest finds them wherever resil is installed (the entry point `resil` of the group `pytest11`), so this module imports
nothing until a test asks for a fixture. How to use them: docs/how-to/test-my-training-loop.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resilience.guard.testing import GuardScript
    from resilience.integrations.pytest_cluster import TestCluster

KINDS = ("auto", "slurm", "embedded")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the ini key that say which cluster the jobs of tests run on."""
    text = (
        "where resil_cluster runs jobs: auto (default), your SLURM where it is installed and answers, else embedded; "
        "slurm; or embedded, a scheduler of its own on this machine"
    )
    parser.getgroup("resil").addoption("--resil-cluster", choices=KINDS, help=text)
    parser.addini("resil_cluster", text, default="auto")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an ini value that makes no sense before a test runs, and not in each of them."""
    kind = config.getini("resil_cluster")
    if kind not in KINDS:
        raise pytest.UsageError(f"resil_cluster = {kind}: write one of {', '.join(KINDS)}")


@pytest.fixture
def resil_guard() -> Iterator[GuardScript]:
    """A guard that follows a script: every `TrainingGuard.from_env()` of the test does."""
    from resilience.guard.testing import GuardScript

    with GuardScript().installed() as script:
        yield script


@pytest.fixture
def resil_cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """A cluster for jobs of the test, all of which are ended after it: see `--resil-cluster`."""
    from resilience.integrations.pytest_cluster import open_cluster

    kind = str(request.config.getoption("--resil-cluster") or request.config.getini("resil_cluster"))
    own = request.getfixturevalue("tmp_path")
    with open_cluster(kind, own / "resil", request.config.rootpath) as cluster:
        yield cluster
