"""Whether the scheduler lives: what is said for each way in which it may not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from resilience.cron.driver_choice import drivers
from resilience.cron.health import Health
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Installation, Outcome, RunRecord
from resilience.cron.status import cron_status, lateness_of
from resilience.job import Liveness
from tests.cron.fake_driver import fake_driver
from tests.lab.fakes import NOW, make_project


def installed(driver: str = "crontab") -> Installation:
    return Installation(driver=driver, token="0123456789abcdef", time=NOW - 86400, by="ada", host="login1",
                        project="/p", python="/usr/bin/python3")  # fmt: skip


def beat(ago_s: float, driver: str = "crontab") -> Heartbeat:
    return Heartbeat(time=NOW - ago_s, expected=NOW - ago_s + 60, alive_since=NOW - 86400, driver=driver)


def test_lateness_is_the_nearest_rank() -> None:
    found = lateness_of([float(n) for n in range(1, 101)])
    assert found is not None and (found.median_s, found.p95_s, found.count) == (50.0, 95.0, 100)
    assert lateness_of([]) is None
    one = lateness_of([3.0])
    assert one is not None and (one.median_s, one.p95_s) == (3.0, 3.0)


# ---- the whole


def with_driver(directory: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> CronProject:
    (directory / "plugins" / "drivers").mkdir(parents=True)
    (directory / "plugins" / "drivers" / "fake.py").write_text(fake_driver(state))
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


def test_a_chain_that_fails_behind_a_scheduler_that_ticks_is_told_as_by_the_watchdog(tmp_path: Path) -> None:
    """The watchdog says: try `resil cron status`."""
    cron = open_cron(make_project(tmp_path))
    cron.state.install(installed(driver="slurm"))
    (cron.state.path / "driver").mkdir()
    noted = cron.state.path / "driver" / "trouble"
    noted.write_text("the scheduler ended with code 127 (failure 2)\n")
    os.utime(noted, (NOW, NOW))
    assert "the scheduler ended with code 127 (failure 2)" in cron_status(cron).trouble
    cron.state.stop("ada", "", NOW)
    assert not cron_status(cron).trouble


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
