"""A line in other commands where the scheduler of cron is late: one small read, and silence where nobody can tell."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.late import late_notice
from resilience.cron.records import Installation
from resilience.runs.project import Project
from tests.lab.fakes import NOW, FakeScheduler, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path, FakeScheduler())


def write(at: Project, name: str, /, **record: Any) -> Path:
    path = at.loaded.state_dir / ".cron" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def beat(project: Project, ago_s: float, driver: str = "foreground", **fields: Any) -> None:
    times = {"time": NOW - ago_s, "expected": NOW - ago_s + 60, "alive_since": NOW - ago_s}
    write(project, "heartbeat", driver=driver, **times, **fields)


def install(project: Project, driver: str, ago_s: float) -> None:
    made = Installation(driver=driver, token="t", time=NOW - ago_s, by="ada", host="n1", project="/p", python="/py")
    write(project, "driver.json", **made.to_json())


def test_without_cron_there_is_no_notice(project: Project) -> None:
    assert late_notice(project) == ""


def test_one_that_ticks_is_not_spoken_of(project: Project) -> None:
    beat(project, 60)
    assert late_notice(project) == ""


def test_a_late_scheduler_is_reported_with_its_age_and_a_command(project: Project) -> None:
    beat(project, 300)
    notice = late_notice(project)
    assert "late" in notice and "5 min ago" in notice and "resil cron status" in notice and "\n" not in notice
    beat(project, 86400)
    assert "dead" in late_notice(project)


def test_one_that_was_stopped_or_uninstalled_is_not_missed(project: Project) -> None:
    beat(project, 86400)
    stop = write(project, "stop", by="ada")
    assert late_notice(project) == ""
    stop.unlink()
    beat(project, 86400, driver="crontab")
    assert late_notice(project) == ""
    install(project, "crontab", 1e6)
    assert "crontab" in late_notice(project)


def test_one_that_its_owner_ended_is_not_missed_until_it_is_installed(project: Project) -> None:
    beat(project, 86400, is_last=True)
    assert late_notice(project) == ""
    install(project, "foreground", 1e6)
    assert "dead" in late_notice(project)


def test_one_that_was_installed_and_never_ticked_is_missed(project: Project) -> None:
    install(project, "slurm", 120)
    assert late_notice(project) == ""
    install(project, "slurm", 1200)
    assert "without a tick since" in late_notice(project)
    beat(project, 86400, driver="slurm")
    assert "without a tick since" in late_notice(project), "it was installed anew since its last tick"


def test_patience_is_the_settings_or_the_scheduler_s_own(project: Project) -> None:
    beat(project, 600, patience_s=3600)
    assert late_notice(project) == ""
    beat(project, 90)
    assert late_notice(project) == ""
    from resilience.settings.cron_settings import CronSettings

    strict = replace(project.loaded.settings, cron=CronSettings(late_s=10))
    assert late_notice(replace(project, loaded=project.loaded._replace(settings=strict)))


@pytest.mark.parametrize("harm", ["", "{", "[]", '{"time": "x", "expected": 1}', "fifo", "directory", "link"])
def test_damage_costs_the_notice_and_nothing_else(project: Project, harm: str) -> None:
    path = project.loaded.state_dir / ".cron" / "heartbeat"
    path.parent.mkdir(parents=True)
    if harm == "fifo":
        os.mkfifo(path)
    elif harm == "directory":
        path.mkdir()
    elif harm == "link":
        path.symlink_to("/etc/passwd")
    else:
        path.write_text(harm)
    assert late_notice(project) == ""
