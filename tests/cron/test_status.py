"""Whether the scheduler lives: what is said for each way in which it may not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from resilience.cron.driver_choice import drivers
from resilience.cron.drivers import DriverState
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.status import (
    Health,
    cron_status,
    describe_stop,
    judge_scheduler,
    lateness_of,
)
from resilience.job import Liveness
from resilience.settings.cron_settings import CronSettings
from tests.lab.fakes import NOW, make_project

SETTINGS = CronSettings()
ALIVE = DriverState(Liveness.ALIVE, "our line is in the crontab", NOW + 30)
GONE = DriverState(Liveness.GONE, "our line is missing from the crontab", hint="restore it: resil cron install")
UNKNOWN = DriverState(Liveness.UNKNOWN, "squeue did not answer in 30 s")


def installed(ago_s: float = 86400.0, driver: str = "crontab", mode: str = "") -> Installation:
    return Installation(driver=driver, token="0123456789abcdef", time=NOW - ago_s, by="ada", host="login1",
                        project="/p", python="/usr/bin/python3", mode=mode)  # fmt: skip


def beat(ago_s: float, pause_s: float = 60.0, driver: str = "crontab") -> Heartbeat:
    return Heartbeat(
        time=NOW - ago_s, expected=NOW - ago_s + pause_s, alive_since=NOW - 86400, driver=driver, host="login1"
    )


STOP = {"by": "ada", "why": "maintenance", "time": NOW - 60}
CASES = {
    "nothing at all": (None, None, None, None, Health.ABSENT, 1),
    "uninstalled": (None, beat(30), None, None, Health.ABSENT, 1),
    "ticks from somewhere": (None, beat(30, driver="tick"), None, None, Health.ALIVE, 0),
    "run in tmux, and it ended": (None, beat(400, driver="foreground"), None, None, Health.LATE, 1),
    "run in tmux, long ago": (None, beat(86400, driver="foreground"), None, None, Health.DEAD, 1),
    "as it should be": (installed(), beat(30), ALIVE, None, Health.ALIVE, 0),
    "just installed": (installed(20), None, ALIVE, None, Health.WAITING, 0),
    "just installed again": (installed(20), beat(5000), ALIVE, None, Health.WAITING, 0),
    "installed, and no tick ever": (installed(7200), None, ALIVE, None, Health.LATE, 1),
    "a tick is overdue": (installed(), beat(600), ALIVE, None, Health.LATE, 1),
    "a pulse may take its time": (installed(mode="pulse"), beat(1500, 900), ALIVE, None, Health.ALIVE, 0),
    "the line is gone": (installed(), beat(30), GONE, None, Health.DEAD, 1),
    "the line is gone, somebody else ticks": (installed(), beat(30, driver="foreground"), GONE, None, Health.ALIVE, 0),
    "the controller is dead, ticks come": (installed(), beat(30), UNKNOWN, None, Health.ALIVE, 0),
    "the controller is dead, none come": (installed(), beat(400), UNKNOWN, None, Health.LATE, 1),
    "nobody can look for a day": (installed(), beat(86400), UNKNOWN, None, Health.DEAD, 1),
    "stopped": (installed(), beat(30), ALIVE, STOP, Health.STOPPED, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_health_of_the_scheduler(case: str) -> None:
    installation, heartbeat, driver, stopped, health, code = CASES[case]
    found = judge_scheduler(installation, heartbeat, driver, stopped, now=NOW, settings=SETTINGS)
    assert (found.health, found.exit_code) == (health, code), found.reason
    assert found.reason and (found.advice or code == 0), "whoever reads it is told what to do"
    if health in (Health.DEAD, Health.ABSENT, Health.STOPPED):
        assert "resil cron" in found.advice


def test_a_dead_controller_is_never_called_a_dead_scheduler_at_once() -> None:
    found = judge_scheduler(installed(), beat(400), UNKNOWN, None, now=NOW, settings=SETTINGS)
    assert found.health is Health.LATE and "squeue did not answer" in found.reason


def test_late_s_of_the_settings_counts() -> None:
    found = judge_scheduler(installed(), beat(600), ALIVE, None, now=NOW, settings=CronSettings(late_s=3600.0))
    assert found.health is Health.ALIVE


def test_the_user_who_stopped_it_is_named() -> None:
    assert describe_stop(STOP, NOW) == "stopped by ada 1 min ago: maintenance"
    assert describe_stop({}, NOW) == "stopped by an unknown user"


def test_lateness_is_the_nearest_rank() -> None:
    found = lateness_of([float(n) for n in range(1, 101)])
    assert found is not None and (found.median_s, found.p95_s, found.count) == (50.0, 95.0, 100)
    assert lateness_of([]) is None
    one = lateness_of([3.0])
    assert one is not None and (one.median_s, one.p95_s) == (3.0, 3.0)


# ---- the whole


DRIVER = """
from resilience.cron.drivers import Availability, DriverState
from resilience.job import Liveness
class Fake:
    summary = "for tests"
    rank = 1
    def availability(self, context): return Availability(True, "it is a fake")
    def plan(self, installation, settings, context): return ()
    def install(self, installation, settings, context): return ()
    def uninstall(self, installation, settings, context): return ()
    def state(self, installation, settings, context):
        {state}
DRIVER = Fake()
"""


def with_driver(directory: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> CronProject:
    (directory / "plugins" / "drivers").mkdir(parents=True)
    (directory / "plugins" / "drivers" / "fake.py").write_text(DRIVER.format(state=state))
    monkeypatch.setenv("RESIL_PLUGINS", str(directory / "plugins"))
    drivers.cache_clear()
    cron = open_cron(make_project(directory))
    cron.state.install(installed(driver="fake"))
    return cron


def test_everything_is_found_in_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = 'return DriverState(Liveness.ALIVE, "it ticks", 1800000060.0)'
    cron = with_driver(tmp_path, state, monkeypatch)
    cron.state.beat(beat(30, driver="fake"))
    for number in range(3):
        slot = int(NOW) - 600 * number
        cron.state.record("crontab+probe", RunRecord(name="crontab/probe", slot=slot, outcome=Outcome.DONE,
                                                     time=slot + 4.0, started=slot + 2.0))  # fmt: skip
    (cron.directory).mkdir(mode=0o755)
    (cron.directory / "crontab").write_text("*/10 * * * *  /bin/true  # resil: name=probe\n")
    found = cron_status(cron)
    assert found.judgement.health is Health.ALIVE and found.exit_code == 0
    assert found.driver is not None and found.driver.next_tick == 1800000060.0
    assert found.lateness is not None and found.lateness.median_s == 2.0 and found.lateness.count == 3
    assert [row.name for row in found.rows] == ["crontab/probe"] and len(found.next) == 5
    drivers.cache_clear()


def test_a_driver_that_breaks_is_unknown_and_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cron = with_driver(tmp_path, 'raise RuntimeError("a bug")', monkeypatch)
    cron.state.beat(beat(30, driver="fake"))
    found = cron_status(cron)
    assert found.driver is not None and found.driver.liveness is Liveness.UNKNOWN
    assert "RuntimeError" in found.driver.summary and found.judgement.health is Health.ALIVE
    drivers.cache_clear()


def test_a_damaged_heartbeat_is_unknown_with_the_way_out(tmp_path: Path) -> None:
    cron = open_cron(make_project(tmp_path))
    cron.state.beat(beat(30))
    (cron.state.path / "heartbeat").write_text("{")
    found = cron_status(cron)
    assert found.judgement.health is Health.UNKNOWN and found.exit_code == 75
    assert "rm " in found.judgement.advice


def test_a_state_directory_that_hangs_is_unknown_within_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO stands for the file server: whoever opens it to read waits for ever."""
    from resilience.cron import status as module
    from resilience.cron.state_directory import CronDirectory

    monkeypatch.setattr(module, "READ_S", 0.3)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    cron = open_cron(make_project(tmp_path))
    os.mkfifo(tmp_path / "hung")

    def hang(self: CronDirectory) -> None:
        (tmp_path / "hung").open().read()

    monkeypatch.setattr(CronDirectory, "installation", hang)
    began = time.monotonic()
    found = cron_status(cron)
    assert time.monotonic() - began < 20
    assert found.judgement.health is Health.UNKNOWN and "no answer within" in found.judgement.reason
