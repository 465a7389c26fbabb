"""Whoever ends `resil cron run` with Ctrl-C means it; whatever else ends it is missed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from resilience.cli.run_cron import _say_what_follows
from resilience.cron.late import late_notice
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat
from tests.fakes import NOW, FakeScheduler, make_project


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    cron = open_cron(make_project(tmp_path, FakeScheduler()))
    cron.state.path.mkdir(parents=True)
    cron.state.beat(
        Heartbeat(
            time=NOW - 7200, expected=NOW - 7140, alive_since=NOW - 9000, driver="foreground", pid=os.getpid(),
            host=cron.project.world.host.name,
        )
    )  # fmt: skip
    return cron


@pytest.mark.parametrize(
    ("number", "is_missed"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGHUP, True)]
)
def test_only_ctrl_c_is_meant(
    cron: CronProject, number: int, is_missed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _say_what_follows(cron, [number])
    assert bool(late_notice(cron.project)) is is_missed
    assert ("resil cron stop" in capsys.readouterr().out) is is_missed
