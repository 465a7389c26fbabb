"""A driver that hangs, breaks or does not know is UNKNOWN, soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resilience.cron import driver_choice
from resilience.cron.driver_choice import driver_state, drivers
from resilience.cron.drivers import DriverState
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Installation
from resilience.job import Liveness
from resilience.watch.watchdogs import context_of
from tests.lab.fakes import NOW, make_project

DRIVER = """
import subprocess
from resilience.errors import ResilError
from resilience.cron.drivers import DriverState
from resilience.job import Liveness
class Fake:
    summary = "for tests"
    rank = 1
    def availability(self, context): ...
    def plan(self, installation, settings, context): ...
    def install(self, installation, settings, context): ...
    def uninstall(self, installation, settings, context): ...
    def state(self, installation, settings, context):
        {body}
DRIVER = Fake()
"""
INSTALLED = Installation(driver="fake", token="0" * 16, time=NOW - 9000, by="ada", host="h", project="/p", python="/py")
Say = Callable[[str], DriverState]


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    return open_cron(make_project(tmp_path))


@pytest.fixture
def say(tmp_path: Path, cron: CronProject, monkeypatch: pytest.MonkeyPatch) -> Iterator[Say]:
    """Have the driver do this, and return what is made of it."""
    (tmp_path / "plugins" / "drivers").mkdir(parents=True)
    monkeypatch.setenv("RESIL_PLUGINS", str(tmp_path / "plugins"))

    def asked(body: str) -> DriverState:
        (tmp_path / "plugins" / "drivers" / "fake.py").write_text(DRIVER.format(body=body))
        drivers.cache_clear()
        return driver_state(INSTALLED, cron.settings, context_of(cron.project))

    yield asked
    drivers.cache_clear()


ALIVE = 'return DriverState(Liveness.ALIVE, "job 88 runs", 1800000060.0, "a hint")'


def test_the_drivers_answer_is_complete(say: Say) -> None:
    assert say(ALIVE) == DriverState(Liveness.ALIVE, "job 88 runs", 1800000060.0, "a hint")


def test_a_hung_driver_is_unknown_soon(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_choice, "DRIVER_S", 0.5)
    began = time.monotonic()
    found = say('subprocess.run(["sleep", "1000"])')
    assert time.monotonic() - began < 30
    assert found.liveness is Liveness.UNKNOWN
    assert found.summary == "backend fake did not respond within 0.5 s"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('raise ResilError("squeue is not there", hint="load its module")', "squeue is not there"),
        ('raise RuntimeError("a bug")', "RuntimeError: a bug"),
        ('return DriverState(Liveness.UNKNOWN, "squeue said nothing")', "squeue said nothing"),
        ("return None", "TypeError"),
    ],
)
def test_an_error_is_unknown_and_never_gone(say: Say, body: str, why: str) -> None:
    found = say(body)
    assert found.liveness is Liveness.UNKNOWN and why in found.summary
