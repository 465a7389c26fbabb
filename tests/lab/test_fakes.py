"""The fake scheduler stands for the port: a test that passes with it means something."""

from __future__ import annotations

import inspect

from resilience.schedulers import Scheduler
from resilience.system.ports import Clock
from tests.lab.fakes import FakeClock, FakeScheduler


def test_the_fake_has_every_method_of_the_port_with_the_same_arguments() -> None:
    wanted = {name: value for name, value in vars(Scheduler).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {name: str(inspect.signature(value)) for name, value in wanted.items()} == {
        name: str(inspect.signature(getattr(FakeScheduler, name))) for name in wanted
    }


def test_the_types_agree() -> None:
    scheduler: Scheduler = FakeScheduler()
    clock: Clock = FakeClock()
    assert scheduler.name == "fake" and clock.now() > 0
