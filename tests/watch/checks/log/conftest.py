"""A watchdog of the runs of a state directory with a fake clock, and a run whose first attempt has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.fakes import FakeClock
from tests.watch.checks.log.training_run import Run
from tests.watch.checks.log.watcher import LogWatcher


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run(tmp_path: Path, clock: FakeClock) -> Run:
    one = Run(tmp_path, clock)
    one.attempt(1, 101)
    return one


@pytest.fixture
def watchdog(tmp_path: Path, clock: FakeClock) -> LogWatcher:
    return LogWatcher(tmp_path, clock=clock)
