"""Whether the scheduler lives: one answer for each way in which it may not, whoever asks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resilience.cron.checks.cron import CHECK, SCHEDULER, CronCheckSettings
from resilience.cron.driver_choice import drivers
from resilience.cron.drivers import DriverState
from resilience.cron.drivers.scrontab import DRIVER as SCRONTAB
from resilience.cron.health import Health, Judgement, describe_stop, judge_scheduler
from resilience.cron.late import late_notice
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Heartbeat, Installation
from resilience.cron.state_directory import CronDirectory
from resilience.cron.status import cron_status
from resilience.doctor.cron import outlook
from resilience.finding import Finding, Verdict
from resilience.job import Liveness
from resilience.runs.context import Context
from resilience.settings.cron_settings import CronSettings
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.cron.drivers.site import SCRONTAB as STAND_IN
from tests.cron.drivers.site import Site, an_installation
from tests.cron.fake_driver import fake_driver
from tests.lab.fakes import NOW, make_project

SETTINGS = CronSettings()
ALIVE = DriverState(Liveness.ALIVE, "our line is in the crontab", NOW + 30)
GONE = DriverState(Liveness.GONE, "our line is missing from the crontab", hint="restore it: resil cron install")
DISABLED = DriverState(Liveness.GONE, "scancel disabled our entry", hint="restore it: resil cron install")
UNKNOWN = DriverState(Liveness.UNKNOWN, "squeue did not answer in 30 s")
IN_AN_HOUR = DriverState(Liveness.ALIVE, "jobs 88, 89 are queued", NOW + 3600)
STOP = {"by": "ada", "why": "maintenance", "time": NOW - 60}


def installed(ago_s: float = 86400.0, driver: str = "crontab", mode: str = "") -> Installation:
    return Installation(driver=driver, token="0123456789abcdef", time=NOW - ago_s, by="ada", host="login1",
                        project="/p", python="/usr/bin/python3", mode=mode)  # fmt: skip


def beat(ago_s: float, pause_s: float = 60.0, driver: str = "crontab") -> Heartbeat:
    return Heartbeat(
        time=NOW - ago_s, expected=NOW - ago_s + pause_s, alive_since=NOW - 86400, driver=driver, host="login1"
    )


CASES = {
    "nothing at all": (None, None, None, None, Health.ABSENT),
    "uninstalled": (None, beat(30), None, None, Health.ABSENT),
    "ticks from somewhere": (None, beat(30, driver="tick"), None, None, Health.ALIVE),
    "run in tmux, and it ended": (None, beat(400, driver="foreground"), None, None, Health.LATE),
    "run in tmux, long ago": (None, beat(86400, driver="foreground"), None, None, Health.DEAD),
    "as it should be": (installed(), beat(30), ALIVE, None, Health.ALIVE),
    "nobody asked the driver": (installed(), beat(30), None, None, Health.ALIVE),
    "just installed": (installed(20), None, ALIVE, None, Health.WAITING),
    "just installed again": (installed(20), beat(5000), ALIVE, None, Health.WAITING),
    "installed, and no tick for long": (installed(400), None, ALIVE, None, Health.LATE),
    "installed, and no tick ever": (installed(7200), None, ALIVE, None, Health.DEAD),
    "a tick is overdue": (installed(), beat(300), ALIVE, None, Health.LATE),
    "crond died": (installed(), beat(7200), ALIVE, None, Health.DEAD),
    "a pulse may take its time": (installed(mode="pulse"), beat(1500, 900), ALIVE, None, Health.ALIVE),
    "the next job begins in an hour": (installed(driver="slurm"), beat(30, driver="slurm"), IN_AN_HOUR, None,
                                       Health.LATE),
    "installed, and the first job begins in an hour": (installed(20, "slurm"), None, IN_AN_HOUR, None, Health.LATE),
    "an hour from now is usual": (installed(), beat(30, 3600), IN_AN_HOUR, None, Health.ALIVE),
    "the line is gone": (installed(), beat(30), GONE, None, Health.DEAD),
    "scancel disabled the entry": (installed(driver="scrontab"), beat(30, driver="scrontab"), DISABLED, None,
                                   Health.DEAD),
    "the line is gone, somebody else ticks": (installed(), beat(30, driver="foreground"), GONE, None, Health.ALIVE),
    "the controller is dead, ticks come": (installed(), beat(30), UNKNOWN, None, Health.ALIVE),
    "the controller is dead, none come": (installed(), beat(400), UNKNOWN, None, Health.LATE),
    "nobody can look for a day": (installed(), beat(86400), UNKNOWN, None, Health.DEAD),
    "stopped": (installed(), beat(30), ALIVE, STOP, Health.STOPPED),
    "a clock is wrong": (installed(), beat(-3600), ALIVE, None, Health.UNKNOWN),
}  # fmt: skip
CODES = {Health.ALIVE: 0, Health.WAITING: 0, Health.UNKNOWN: 75}


@pytest.mark.parametrize("case", CASES)
def test_the_health_of_the_scheduler(case: str) -> None:
    installation, heartbeat, driver, stopped, health = CASES[case]
    found = judge_scheduler(installation, heartbeat, driver, stopped, now=NOW, settings=SETTINGS)
    assert (found.health, found.exit_code) == (health, CODES.get(health, 1)), found.reason
    assert found.reason and (found.advice or found.exit_code == 0), "whoever reads it is told what to do"
    if health in (Health.DEAD, Health.ABSENT, Health.STOPPED):
        assert "resil cron" in found.advice
    if driver is not None and health is not Health.STOPPED and "clock" not in case:
        assert driver.summary in found.reason


def test_a_dead_controller_is_never_called_a_dead_scheduler_at_once() -> None:
    found = judge_scheduler(installed(), beat(400), UNKNOWN, None, now=NOW, settings=SETTINGS)
    assert found.health is Health.LATE and "squeue did not answer" in found.reason


def test_a_chain_that_begins_in_an_hour_is_told_as_that() -> None:
    found = judge_scheduler(installed(driver="slurm"), beat(30), IN_AN_HOUR, None, now=NOW, settings=SETTINGS)
    assert "no tick for another 1 h" in found.reason and "jobs 88, 89" in found.reason


@pytest.mark.parametrize("late_s", [{"settings": CronSettings(late_s=3600.0)}, {"settings": SETTINGS, "late_s": 3600}])
def test_late_s_of_the_settings_counts(late_s: dict[str, object]) -> None:
    found = judge_scheduler(installed(), beat(600), ALIVE, None, now=NOW, **late_s)  # type: ignore[arg-type]
    assert found.health is Health.ALIVE


def test_a_whole_cluster_that_has_just_come_back_raises_no_alarm() -> None:
    for up_s, health in ((40, Health.WAITING), (400, Health.DEAD)):
        found = judge_scheduler(
            installed(), beat(86400), UNKNOWN, None, now=NOW, settings=SETTINGS, awake_since=NOW - up_s
        )
        assert found.health is health
    assert "up for only" in judge_scheduler(
        installed(), beat(86400), ALIVE, None, now=NOW, settings=SETTINGS, awake_since=NOW - 40
    ).reason  # fmt: skip


def test_the_user_who_stopped_it_is_named() -> None:
    assert describe_stop(STOP, NOW) == "stopped by ada 1 min ago: maintenance"
    assert describe_stop({}, NOW) == "stopped by an unknown user"


ANSWERS = {
    "it ticks": (30, "ALIVE", NOW + 30, Health.ALIVE, Verdict.OK),
    "late": (300, "ALIVE", None, Health.LATE, Verdict.WARNING),
    "dead": (7200, "ALIVE", None, Health.DEAD, Verdict.CRITICAL),
    "disabled": (30, "GONE", None, Health.DEAD, Verdict.CRITICAL),
    "in an hour": (30, "ALIVE", NOW + 3600, Health.LATE, Verdict.WARNING),
    "no answer": (30, "UNKNOWN", None, Health.ALIVE, Verdict.OK),
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CronProject]]:
    """A project whose installed driver answers as it is told."""

    def made(ago_s: float, liveness: str, summary: str, next_tick: float | None) -> CronProject:
        (tmp_path / "plugins" / "drivers").mkdir(parents=True)
        driver = fake_driver(f'return DriverState(Liveness.{liveness}, "{summary}", {next_tick})')
        (tmp_path / "plugins" / "drivers" / "fake.py").write_text(driver)
        monkeypatch.setenv("RESIL_PLUGINS", str(tmp_path / "plugins"))
        drivers.cache_clear()
        cron = open_cron(make_project(tmp_path))
        cron.state.install(installed(driver="fake"))
        cron.state.beat(beat(ago_s, driver="fake"))
        return cron

    yield made
    drivers.cache_clear()


def watched(context: Context, deadline_s: float | None = None) -> tuple[Judgement, Finding]:
    """What the watchdog reads, and what it says."""
    settings = CronCheckSettings()
    (target,) = CHECK.targets(settings, context)
    reading = CHECK.probe(target._replace(deadline_s=deadline_s), settings, context, {})[SCHEDULER]
    (finding,) = CHECK.judge(SCHEDULER, [Timed(NOW, reading)], settings, NOW)
    assert reading.judgement is not None
    return reading.judgement, finding


@pytest.mark.parametrize("case", ANSWERS)
def test_status_doctor_and_watchdog_give_one_answer(fake: Callable[..., CronProject], case: str) -> None:
    ago_s, liveness, next_tick, health, verdict = ANSWERS[case]
    cron = fake(ago_s, liveness, case, next_tick)
    status = cron_status(cron).judgement
    assert status.health is health and case in status.reason
    judged, finding = watched(context_of(cron.project))
    assert (judged.health, judged.reason) == (health, status.reason)
    assert finding.verdict is verdict and case in finding.summary
    assert health.value in outlook(cron).text
    if ago_s > 60:
        assert f"is {health.value}" in late_notice(cron.project)


def test_a_driver_that_hangs_costs_the_watchdog_its_answer_and_not_the_heartbeat(
    fake: Callable[..., CronProject],
) -> None:
    cron = fake(30, 'ALIVE if __import__("time").sleep(60) else Liveness.ALIVE', "never", None)
    began = time.monotonic()
    judged, finding = watched(context_of(cron.project), deadline_s=2.0)
    assert time.monotonic() - began < 30
    assert judged.health is Health.ALIVE and finding.verdict is Verdict.OK and "did not respond" in finding.summary


def test_an_scrontab_entry_that_scancel_disabled_is_dead_for_the_watchdog_too(tmp_path: Path) -> None:
    site = Site(tmp_path)
    context = site.context()
    installation = an_installation(context, "scrontab")
    SCRONTAB.install(installation, SETTINGS, context)
    directory, now = CronDirectory(context.state_dir), context.system.clock.now()
    directory.install(installation)
    directory.beat(Heartbeat(time=now + 1, expected=now + 61, alive_since=now, driver="scrontab"))
    for cancelled, health in ((False, Health.ALIVE), (True, Health.DEAD)):
        if cancelled:
            job = json.loads((tmp_path / "scrontab.jobs").read_text())["jobs"][0]["id"]
            stand_in = [sys.executable, "-I", "-S", str(STAND_IN), "--scancel", str(job)]
            subprocess.run(stand_in, env=site.environ(), check=True, timeout=60)
        judged, _ = watched(context)
        assert judged.health is health, judged
    assert "its job was cancelled" in judged.reason and "resil cron install" in judged.advice
