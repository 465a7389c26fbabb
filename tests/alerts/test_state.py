"""The alert state of a project is beside its runs, and on this node while that disk fails."""

from __future__ import annotations

import grp
import os
import pwd
import stat
import subprocess
import time
from pathlib import Path

import pytest

from resilience.alerts.commands import acknowledge, deliver, listing, silence
from resilience.alerts.incident import Silence
from resilience.alerts.notify import notify
from resilience.alerts.state import open_alert_state
from resilience.doctor.doctor import examine
from resilience.errors import StateDirectoryError
from resilience.finding import Finding, Report, Verdict
from resilience.runs.project import Project
from resilience.runs.run_directory import find_runs
from tests.alerts.test_ledger import incident
from tests.lab.fakes import NOW, make_project
from tests.lab.hung import hung_directory
from tests.system.people import NOBODY, needs_root


def test_the_alert_state_is_beside_the_runs_and_not_a_run(tmp_path: Path) -> None:
    project = make_project(tmp_path, environ={"XDG_STATE_HOME": str(tmp_path / "node")})
    state = open_alert_state(project)
    assert not state.path.exists()  # opening makes nothing
    state.ledger.save(incident())
    assert state.path == project.loaded.state_dir / ".alerts"
    assert [path.parent.name for path in state.path.rglob("*.json")] == ["incidents"]
    assert list(find_runs(project.loaded.state_dir)) == []
    assert (state.error, state.flush_fallback()) == ("", 0)


def test_a_state_directory_that_hangs_is_not_touched(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    settings = f'[run]\nname = "gpt"\nstate_dir = "{disk}"\n[watch]\nstate_deadline_s = 1\n'
    project = make_project(tmp_path, settings=settings, environ={"XDG_STATE_HOME": str(tmp_path / "node")})
    with hung_directory(disk):
        state = open_alert_state(project)
        assert "does not respond" in state.error
        state.ledger.save(incident())
        assert state.ledger.incidents() == (incident(),)
    assert [path.parent.name for path in (tmp_path / "node").rglob("*.json")] == ["incidents"]
    deadline = time.monotonic() + 30
    while (state := open_alert_state(project)).error and time.monotonic() < deadline:
        time.sleep(0.02)  # a probe that still runs needs a moment to end
    assert (state.error, state.flush_fallback()) == ("", 1)
    assert (disk / ".alerts" / "incidents" / f"{incident().fingerprint}.json").is_file()


def test_an_unknown_group_does_not_prevent_notifications(tmp_path: Path) -> None:
    settings = '[run]\nname = "gpt"\ngroup = "no-such-group"\n'
    project = make_project(tmp_path, settings=settings, environ={"XDG_STATE_HOME": str(tmp_path / "node")})
    state = open_alert_state(project)
    state.ledger.save(incident())
    assert open_alert_state(project).ledger.incidents() == (incident(),)


def alert_project(tmp_path: Path, run: str = "") -> Project:
    settings = f'[run]\nname = "gpt"\n{run}\n[alert]\nchannels = ["console"]\n'
    project = make_project(tmp_path, settings=settings, environ={"XDG_STATE_HOME": str(tmp_path / "node")})
    state = open_alert_state(project)
    state.ledger.save(incident())
    state.silences.add(Silence(id="77e0d2b1", until=NOW + 3600, subject="/x", by="ada"))
    return project


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("", 0o777), (".alerts", 0o777), (".alerts", 0o1777), (".alerts", 0o770), (".alerts/silences", 0o702),
        (".alerts/incidents", 0o720), (".alerts/outbox", 0o777),
    ],
)  # fmt: skip
def test_a_state_that_others_may_write_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, place: str, mode: int
) -> None:
    project = alert_project(tmp_path)
    directory = project.loaded.state_dir / place
    directory.mkdir(exist_ok=True)
    directory.chmod(mode)
    with pytest.raises(StateDirectoryError, match=f"other users may write {directory}") as caught:
        listing(project)
    for refused in (lambda: silence(project, check="fs", until=NOW + 60, why=""), lambda: next(deliver(project)),
                    lambda: acknowledge(project, everything=True)):  # fmt: skip
        with pytest.raises(StateDirectoryError):
            refused()
    (diagnosis,) = (d for d in examine(project).diagnoses if d.topic == "alerts")
    assert (diagnosis.verdict, diagnosis.advice) == (Verdict.CRITICAL, caught.value.hint)
    subprocess.run(["sh", "-c", caught.value.hint], check=True)
    assert [known.incident for known in listing(project).known] == [incident()]
    assert not [d for d in examine(project).diagnoses if d.topic == "alerts"]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o2775])
def test_a_state_directory_that_others_may_only_add_to_is_no_danger(tmp_path: Path, mode: int) -> None:
    project = alert_project(tmp_path)
    project.loaded.state_dir.chmod(mode)
    assert len(listing(project).known) == 1


@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_an_incident_that_others_may_write_is_refused_with_the_command_that_mends_it(tmp_path: Path, mode: int) -> None:
    project = alert_project(tmp_path)
    incidents = project.loaded.state_dir / ".alerts/incidents"
    (file,) = incidents.iterdir()
    file.chmod(mode)
    with pytest.raises(StateDirectoryError, match=f"other users may write {file}") as caught:
        listing(project)
    subprocess.run(caught.value.hint, shell=True, check=True)
    assert len(listing(project).known) == 1


@pytest.mark.parametrize("place", [".alerts", ".alerts/incidents"])
def test_a_state_behind_a_link_is_as_safe_as_the_directory_it_leads_to(tmp_path: Path, place: str) -> None:
    project = alert_project(tmp_path)
    elsewhere, linked = tmp_path / "elsewhere", project.loaded.state_dir / place
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    assert len(listing(project).known) == 1
    elsewhere.chmod(0o777)
    with pytest.raises(StateDirectoryError, match=f"other users may write {linked}") as caught:
        listing(project)
    subprocess.run(["sh", "-c", caught.value.hint], check=True)
    assert len(listing(project).known) == 1


def test_a_state_of_the_group_of_the_run_is_trusted(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    project = alert_project(tmp_path, f'group = "{group}"')
    assert stat.S_IMODE((project.loaded.state_dir / ".alerts/incidents").stat().st_mode) == 0o2770
    assert len(listing(project).known) == 1


def test_a_silence_that_others_may_have_written_mutes_nothing(tmp_path: Path) -> None:
    project = alert_project(tmp_path)
    state = project.loaded.state_dir / ".alerts"
    open_alert_state(project).silences.add(Silence(id="ffffffff", until=NOW + 3600, check="*"))
    (state / "silences").chmod(0o777)
    fault = Finding(subject="/data", verdict=Verdict.CRITICAL, fault="space", summary="full")
    said = "\n".join(notify(project, [Report(check="fs", findings=(fault,), time=NOW)]))
    assert "notified console: 1 incident" in said
    assert f"mend it: chmod -R go-w {state}" in said


@needs_root
def test_the_author_of_a_silence_and_an_acknowledgement_is_the_owner_of_the_file(tmp_path: Path) -> None:
    project = alert_project(tmp_path)
    acknowledge(project, [incident().episode])
    state = project.loaded.state_dir / ".alerts"
    for file in (state / f"incidents/{incident().episode}.ack", state / "silences/77e0d2b1.json"):
        os.chown(file, NOBODY, -1)
    found = listing(project)
    nobody = pwd.getpwuid(NOBODY).pw_name
    assert [found.known[0].incident.acknowledged_by, found.silences[0].by] == [nobody, nobody]


@needs_root
def test_a_part_of_the_state_that_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    project = alert_project(tmp_path)
    os.chown(project.loaded.state_dir / ".alerts/silences", NOBODY, -1)
    with pytest.raises(StateDirectoryError, match="silences belongs to") as caught:
        listing(project)
    subprocess.run(["sh", "-c", caught.value.hint], check=True)
    assert listing(project).silences == ()
