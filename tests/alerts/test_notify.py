"""Notifications after a tick, also if the alert state or its disk fails."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.alerts.incident import Incident
from resilience.alerts.ledger import Ledger
from resilience.alerts.notify import notify
from resilience.alerts.state import open_alert_state
from resilience.finding import Finding, Report, Verdict
from resilience.runs.project import Project
from resilience.system.child import run_in_child
from tests.lab.disks import fill, make_read_only, small_disk
from tests.lab.fakes import NOW, FakeClock, make_project
from tests.lab.hung import hung_directory

pytestmark = pytest.mark.usefixtures("probed_here")

OK, WARNING, UNKNOWN, CRITICAL = Verdict


class Desk:
    """A project whose only channel is a program that writes down what it gets."""

    def __init__(self, directory: Path, more: str = "", run: str = "") -> None:
        self.pager = directory / "pager"
        self.clock = FakeClock()
        self.told = directory / "told"
        self.pager.write_text(f'#!/bin/sh\ncat >> "{self.told}"\n')
        self.pager.chmod(0o755)
        settings = (
            f'[run]\nname = "gpt"\n{run}\n[watch]\nstate_deadline_s = 1\n'
            f'[alert]\nchannels = ["pager"]\n{more}\n[channel.pager]\nkind = "command"\nargv = ["{self.pager}"]\n'
        )
        environ = {"XDG_STATE_HOME": str(directory / "node"), "PATH": os.environ["PATH"]}
        self.project: Project = make_project(directory, settings=settings, environ=environ, clock=self.clock)

    def tick(
        self, verdict: Verdict, after_s: float = 0.0, subjects: tuple[str, ...] = ("/scratch",)
    ) -> tuple[str, ...]:
        self.clock.time += after_s
        fault = "" if verdict is OK else "space"
        found = tuple(Finding(subject=s, verdict=verdict, fault=fault, summary="91% used") for s in subjects)
        return notify(self.project, [Report(check="fs", findings=found, time=self.clock.time)])

    def alerts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.read_text().splitlines()] if self.told.exists() else []

    @property
    def reasons(self) -> list[str]:
        return [alert["reason"] for alert in self.alerts()]


class ANote:
    """A note about another subject of the same check."""

    def is_noted(self, project: Project) -> bool:
        return True

    def noted(self, project: Project, reports: Sequence[Report] = ()) -> tuple[Report, ...]:
        return (Report(check="fs", findings=(Finding(subject="/home", verdict=OK, summary=""),), time=NOW),)

    def forget(self, project: Project) -> None:
        pass


def test_a_note_closes_no_incident_of_a_watch(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    full = Finding(subject="/scratch", verdict=WARNING, fault="space", summary="91% used")
    notify(desk.project, [Report(check="fs", findings=(full,), time=NOW)], typed="")
    for _ in range(4):
        desk.clock.time += 60
        notify(desk.project, (), notes=ANote(), typed="")
    assert desk.reasons == ["FIRST"]


def test_a_fault_and_its_resolution_are_notified(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.tick(OK) == ()
    (line,) = desk.tick(WARNING)
    assert re.fullmatch(r"notified pager: 1 incident \([0-9a-f]{8}\)", line)
    assert desk.tick(WARNING, after_s=60) == ()
    (line,) = desk.tick(OK, after_s=600)
    assert line.startswith("notified pager: 1 incident")
    first, end = desk.alerts()
    assert (first["reason"], end["reason"]) == ("FIRST", "RESOLVED")
    assert first["thread"] == end["thread"] == first["notices"][0]["episode"]
    assert first["notices"][0]["episode"] in line
    assert (first["host"], first["project"]) == ("login1", str(desk.project.loaded.project))


@pytest.mark.parametrize("before", [("/data",), ()], ids=["later", "for the first time"])
def test_two_watchdogs_at_once_send_one_message_about_each_incident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...]
) -> None:
    """The messages of two watchdogs differ if one of them has found more, and the outbox then keeps both. Before the
    first fault of a project there is no directory for their claims."""
    open_one, is_open = Ledger.open, threading.Event()

    def open_slowly(ledger: Ledger, incident: Incident) -> Incident:
        opened = open_one(ledger, incident)
        if not is_open.is_set():
            is_open.set()
            time.sleep(0.5)
        return opened

    desk = Desk(tmp_path, "group_s = 0")
    desk.clock.at_sleep = time.sleep
    if before:
        desk.tick(WARNING, subjects=before)
    monkeypatch.setattr(Ledger, "open", open_slowly)
    first = threading.Thread(target=desk.tick, args=(WARNING,))
    first.start()
    assert is_open.wait(60)
    desk.tick(WARNING, subjects=("/scratch", "/home"))
    first.join()
    told = sorted(one["subject"] for alert in desk.alerts() for one in alert["notices"])
    assert told == [*before, "/home", "/scratch"]


def test_without_channels_nothing_is_sent_or_written(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    settings = desk.project.loaded.settings
    silent = replace(settings, alert=replace(settings.alert, channels=()))
    project = replace(desk.project, loaded=desk.project.loaded._replace(settings=silent))
    found = Finding(subject="/scratch", verdict=CRITICAL, fault="space", summary="full")
    assert notify(project, [Report(check="fs", findings=(found,), time=NOW)]) == ()
    assert not project.loaded.state_dir.exists()


def test_many_incidents_are_counted_in_the_line(tmp_path: Path) -> None:
    (line,) = Desk(tmp_path).tick(CRITICAL, subjects=tuple(f"job {n}" for n in range(40)))
    assert line.startswith("notified pager: 40 incidents (")
    assert line.endswith(", ...)")
    assert len(line) < 120


def test_a_failing_channel_is_reported_and_its_message_stays_queued(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.pager.write_text("#!/bin/sh\nexit 1\n")
    said = " ".join(desk.tick(WARNING))
    assert "pager failed to deliver a message" in said
    assert "1 message still queued" in said
    assert len(open_alert_state(desk.project).outbox.pending()) == 1
    desk.pager.write_text(f'#!/bin/sh\ncat >> "{desk.told}"\n')
    desk.tick(WARNING, after_s=3600)
    assert desk.reasons == ["FIRST"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('quiet_hours = "late"', "'late' in [alert] quiet_hours"),
        ('escalation = ["soon: pager"]', "'soon: pager' in [alert] escalation"),
        ('escalation = ["1h: pagr"]', "did you mean pager?"),
    ],
)
def test_a_misspelled_policy_is_reported_and_notifications_are_sent(tmp_path: Path, more: str, said: str) -> None:
    desk = Desk(tmp_path, more)
    lines = desk.tick(WARNING)
    assert any(said in line for line in lines)
    assert desk.reasons == ["FIRST"]


def test_a_run_of_a_group_has_alerts_of_the_group(tmp_path: Path) -> None:
    import grp

    group = grp.getgrgid(os.getgid()).gr_name
    desk = Desk(tmp_path, run=f'group = "{group}"')
    before = os.umask(0o077)
    try:
        desk.tick(WARNING)
    finally:
        os.umask(before)
    directory = desk.project.loaded.state_dir / ".alerts"
    for path in (directory, directory / "incidents", directory / "sent"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o2770, path
    (incident,) = (directory / "incidents").glob("*.json")
    assert stat.S_IMODE(incident.stat().st_mode) == 0o660


def test_without_a_group_alerts_are_private(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.tick(WARNING)
    assert stat.S_IMODE((desk.project.loaded.state_dir / ".alerts").stat().st_mode) == 0o700


# ---- disks


@pytest.mark.parametrize(
    ("harm", "mend"),
    [
        (fill, lambda disk: (disk / "ballast").unlink()),
        (lambda disk: make_read_only(disk, True), lambda disk: make_read_only(disk, False)),
    ],
    ids=["full", "read-only"],
)
def test_a_full_disk_of_the_alert_state_is_notified(
    tmp_path: Path, harm: Callable[[Path], object], mend: Callable[[Path], object]
) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        desk = Desk(tmp_path, run=f'state_dir = "{disk}"')
        desk.tick(OK)
        harm(disk)
        lines = desk.tick(CRITICAL)
        assert any("alerts are saved in" in line and str(tmp_path / "node") in line for line in lines)
        desk.tick(CRITICAL, after_s=60)
        mend(disk)
        lines = desk.tick(CRITICAL, after_s=600)
        assert any("moved back from" in line for line in lines)
        assert list((disk / ".alerts" / "incidents").glob("*.json"))
        desk.tick(OK, after_s=600)
        assert desk.reasons == ["FIRST", "RESOLVED"]


def test_a_hanging_disk_of_the_alert_state_is_notified_and_blocks_nothing(tmp_path: Path) -> None:
    """Incidents notified before are not notified again, although the ledger's disk does not respond."""
    disk = tmp_path / "disk"
    desk = Desk(tmp_path, run=f'state_dir = "{disk}"')

    def tick(verdict: Verdict, *subjects: str) -> tuple[list[str], float]:
        began = time.monotonic()
        ((_, answer),) = run_in_child({"tick": (lambda: list(desk.tick(verdict, subjects=subjects)), 60.0)})
        assert answer.error is None, answer.error
        desk.clock.time += 600
        return answer.value, time.monotonic() - began

    tick(WARNING, "/home")
    disk.rename(tmp_path / "elsewhere")
    with hung_directory(disk):
        lines, _ = tick(WARNING, "/home", "/scratch")
        assert any("does not respond" in line for line in lines)
        again, took_s = tick(WARNING, "/home", "/scratch")
        assert not any("told" in line for line in again)
        assert took_s < 30
    said = [(alert["reason"], notice["subject"]) for alert in desk.alerts() for notice in alert["notices"]]
    assert said == [("FIRST", "/home"), ("FIRST", "/scratch")]
    disk.rmdir()
    (tmp_path / "elsewhere").rename(disk)
    tick(OK, "/home", "/scratch")
    said = [(alert["reason"], notice["subject"]) for alert in desk.alerts() for notice in alert["notices"]]
    assert sorted(said[2:]) == [("RESOLVED", "/home"), ("RESOLVED", "/scratch")]


def test_when_the_state_directory_vanishes_known_incidents_are_not_notified_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    desk = Desk(tmp_path, run=f'state_dir = "{disk}"')
    desk.tick(WARNING)
    disk.rename(tmp_path / "elsewhere")
    disk.write_text("what lies in its place")
    desk.tick(WARNING, after_s=600)
    assert desk.reasons == ["FIRST"]
    desk.tick(OK, after_s=600)
    assert desk.reasons == ["FIRST", "RESOLVED"]


def test_an_old_copy_is_ignored_for_incidents_of_another_node(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    desk = Desk(tmp_path, run=f'state_dir = "{disk}"')
    desk.tick(WARNING)
    disk.rename(tmp_path / "elsewhere")
    disk.write_text("what lies in its place")
    desk.tick(OK, after_s=2 * 3600)
    assert desk.reasons == ["FIRST"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"time": 1800000060.0, "incidents": [3]}', b"\xff"])
def test_a_damaged_copy_is_ignored(tmp_path: Path, content: bytes) -> None:
    disk = tmp_path / "disk"
    desk = Desk(tmp_path, run=f'state_dir = "{disk}"')
    desk.tick(WARNING)
    (copy,) = (tmp_path / "node").rglob("ledger-copy.json")
    copy.write_bytes(content)
    disk.rename(tmp_path / "elsewhere")
    disk.write_text("what lies in its place")
    desk.tick(OK, after_s=60)
    assert desk.reasons == ["FIRST"]


def incident_files(desk: Desk) -> list[Path]:
    return sorted((desk.project.loaded.state_dir / ".alerts/incidents").glob("*.json"))


@pytest.mark.parametrize("lost", ["deleted", "damaged", "emptied"])
def test_a_fault_after_a_lost_incident_file_is_a_new_incident_and_is_notified(tmp_path: Path, lost: str) -> None:
    desk = Desk(tmp_path)
    desk.tick(WARNING)
    (file,) = incident_files(desk)
    if lost == "deleted":
        file.unlink()
    else:
        file.write_text("" if lost == "emptied" else '{"episode": ')
    desk.tick(OK, after_s=60)
    desk.tick(WARNING, after_s=60)
    first, second = desk.alerts()
    assert first["reason"] == second["reason"] == "FIRST"
    assert first["notices"][0]["episode"] != second["notices"][0]["episode"]


def test_two_projects_have_different_ids_for_the_same_fault(tmp_path: Path) -> None:
    ids = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        desk = Desk(tmp_path / name)
        desk.tick(WARNING)
        desk.tick(OK, after_s=600)
        desk.tick(WARNING, after_s=600)
        ids |= {alert["notices"][0]["episode"] for alert in desk.alerts()}
    assert len(ids) == 4


def test_two_watchdogs_that_find_a_fault_at_the_same_moment_send_one_notification(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                desk.tick(WARNING)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    desk.tick(WARNING, after_s=60)
    assert desk.reasons == ["FIRST"]


def test_an_incident_that_no_disk_can_record_is_notified_once_an_hour(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.tick(OK)
    desk.clock.time -= desk.clock.time % 3600
    incidents = desk.project.loaded.state_dir / ".alerts/incidents"
    incidents.parent.mkdir(parents=True, exist_ok=True)
    incidents.touch()
    place = open_alert_state(desk.project).ledger.directory.fallback
    assert place is not None
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    for _ in range(3):
        desk.tick(WARNING, after_s=60)
    assert desk.reasons == ["FIRST"]
    desk.tick(WARNING, after_s=3600)
    assert desk.reasons == ["FIRST", "FIRST"]
