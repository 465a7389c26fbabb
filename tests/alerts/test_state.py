"""The alert state of a project is beside its runs, and on this node while that disk fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from resilience.alerts.state import open_alert_state
from resilience.runs.run_directory import find_runs
from tests.alerts.test_ledger import incident
from tests.lab.fakes import make_project
from tests.lab.hung import hung_directory


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
    try:
        with hung_directory(disk):
            state = open_alert_state(project)
            assert "does not respond" in state.error
            state.ledger.save(incident())
            assert state.ledger.incidents() == (incident(),)
    except OSError as error:
        pytest.skip(f"a FUSE file system cannot be mounted here: {error}")
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
