"""What a guard noted of a late scheduler becomes one incident, the same that the watchdog would tell."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from resilience.alerts.commands import deliver
from resilience.alerts.notify import notify
from resilience.alerts.state import open_alert_state
from resilience.cron import late as notes
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System
from resilience.watch.watch import watch, watchdogs_of


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "resil.toml").write_text(
        f'[run]\nstate_dir = "{tmp_path}/state"\n[alert]\nchannels = ["console"]\n'
        f'[channel.console]\npath = "{tmp_path}/told"\n'
    )
    system = System(cwd=tmp_path)
    return Project(system, load(system))


def beat(project: Project, ago_s: float) -> None:
    moment = time.time() - ago_s
    directory = project.loaded.state_dir / ".cron"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "heartbeat").write_text(
        json.dumps({"time": moment, "expected": moment + 60, "alive_since": moment, "driver": "foreground"})
    )


def note(project: Project) -> Path:
    path = project.loaded.state_dir / ".cron" / "notes" / "late"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"time": time.time(), "run": "gpt"}))
    return path


def told(project: Project) -> list[str]:
    path = project.loaded.project / "told"
    return path.read_text().splitlines() if path.exists() else []


def incidents(project: Project) -> list[tuple[str, str, str]]:
    return [(i.check, i.subject, i.fault) for i in open_alert_state(project).ledger.incidents()]


def test_flushing_the_alerts_reports_it_and_deletes_the_note(project: Project) -> None:
    beat(project, 3600)
    path = note(project)
    list(deliver(project, notes=notes))
    assert incidents(project) == [("cron", "scheduler", "late")]
    assert len(told(project)) == 1 and "CRITICAL" in told(project)[0]
    assert not path.exists()


def test_the_watchdog_does_not_tell_it_again(project: Project) -> None:
    beat(project, 3600)
    note(project)
    notify(project, (), notes=notes)
    note(project)
    watchdogs, _ = watchdogs_of(project, ["cron"])
    notify(project, list(watch(project, watchdogs)), notes=notes)
    assert incidents(project) == [("cron", "scheduler", "late")] and len(told(project)) == 1


def test_a_note_about_a_recovered_scheduler_reports_nothing(project: Project) -> None:
    beat(project, 10)
    path = note(project)
    list(deliver(project, notes=notes))
    assert told(project) == [] and not path.exists()


def test_the_content_of_a_note_is_not_trusted(project: Project) -> None:
    beat(project, 10)
    note(project).write_text("{" * 1000)
    notify(project, (), notes=notes)
    assert told(project) == []


def test_without_a_note_nothing_is_checked(project: Project) -> None:
    beat(project, 3600)
    notify(project, (), notes=notes)
    assert incidents(project) == []
