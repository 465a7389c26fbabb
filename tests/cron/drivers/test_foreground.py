"""The driver foreground: nothing is installed, and the heartbeat says how it is."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from resilience.cron.drivers import DriverState, state_of
from resilience.cron.drivers.foreground import DRIVER, PATIENCE_S
from resilience.cron.records import Heartbeat
from resilience.cron.state_directory import CronDirectory
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.site import Site, an_installation
from tests.lab.fakes import NOW

SETTINGS = CronSettings()


def state(context: Context, beat: Heartbeat | None = None) -> DriverState:
    if beat is not None:
        CronDirectory(context.state_dir).beat(beat)
    return state_of(DRIVER, an_installation(context, "foreground"), SETTINGS, context)


def a_beat(host: str, pid: int, expected: float = NOW + 60) -> Heartbeat:
    return Heartbeat(time=expected - 60, expected=expected, alive_since=NOW - 600, host=host, pid=pid)


def test_it_shows_the_command_to_run_and_installs_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    context = site.context("a project")
    (step,) = DRIVER.plan(an_installation(context, "foreground"), SETTINGS, context)
    assert shlex.split(step.text)[-3:] == ["resilience", "cron", "run"] and str(context.project) in shlex.split(
        step.text
    )
    before = site.snapshot()
    assert DRIVER.install(an_installation(context, "foreground"), SETTINGS, context) == ()
    assert site.snapshot() == before


def test_a_process_on_this_machine_is_checked_itself(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    found = state(context)
    assert found.liveness is Liveness.GONE and "resil" in found.hint
    found = state(context, a_beat("login1", os.getpid()))
    assert found.liveness is Liveness.ALIVE and found.next_tick == NOW + 60
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    found = state(context, a_beat("login1", child))
    assert found.liveness is Liveness.GONE and "has ended" in found.summary and "cron run" in found.hint


def test_a_process_on_another_host_is_alive_while_on_time_and_never_dead(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    assert state(context, a_beat("n17", 4711)).liveness is Liveness.ALIVE
    assert state(context, a_beat("n17", 4711, NOW - PATIENCE_S)).liveness is Liveness.ALIVE
    found = state(context, a_beat("n17", 4711, NOW - PATIENCE_S - 1))
    assert found.liveness is Liveness.UNKNOWN and "n17" in found.summary


def test_a_heartbeat_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    context = Site(tmp_path).context()
    state(context, a_beat("login1", os.getpid()))
    (context.state_dir / ".cron" / "heartbeat").write_text("[")
    assert state(context).liveness is Liveness.UNKNOWN
