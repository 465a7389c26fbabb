"""Alerts that a channel will never take are told by the next command, in one line, and never in its way."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from resilience.cli.banner import DEADLINE_S, warn_of_dead_letters
from tests.alerts.stand_in import an_alert
from tests.fakes import NOW, make_project
from tests.system.hung import hung_folder

FOLDER = Path(".resil") / ".alerts" / "dead"


def test_nothing_is_said_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = make_project(tmp_path)
    warn_of_dead_letters(project)
    (project.loaded.project / FOLDER).mkdir(parents=True)
    (project.loaded.project / FOLDER / ".a1.email.123.tmp").write_text("of a writer that was killed")
    warn_of_dead_letters(project)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("apart", [True, False])
def test_how_many_there_are_is_said_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], apart: bool
) -> None:
    project = make_project(tmp_path)
    folder = project.loaded.project / FOLDER
    folder.mkdir(parents=True)
    for number in range(2):
        (folder / f"a{number}.email").write_text("{}")
    warn_of_dead_letters(project, apart=apart)
    assert capsys.readouterr() == (
        "",
        "resil: there are 2 alerts that their channels will never take: see resil alert\n",
    )


def test_those_that_a_full_disk_did_not_take_count_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from resilience.alerts.state import open_alert_state

    project = make_project(tmp_path, environ={"XDG_STATE_HOME": str(tmp_path / "state")})
    outbox = open_alert_state(project).outbox
    outbox.put(an_alert(), "email", NOW)
    (project.loaded.project / FOLDER).write_text("in the way of the folder")
    outbox.give_up(outbox.pending()[0], "no such recipient", "", NOW, "n1")
    warn_of_dead_letters(project)
    assert "1 alert" in capsys.readouterr().err


def test_a_state_directory_that_hangs_keeps_no_command_up(tmp_path: Path) -> None:
    with hung_folder(tmp_path / "hung") as folder:
        project = make_project(tmp_path, settings=f'[run]\nstate_dir = "{folder}"\n')
        began = time.monotonic()
        warn_of_dead_letters(project)
        assert time.monotonic() - began < DEADLINE_S + 3


def test_a_shell_that_completes_is_told_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    folder = project.loaded.project / FOLDER
    folder.mkdir(parents=True)
    (folder / "a1.email").write_text("{}")
    monkeypatch.setenv("_RESIL_COMPLETE", "complete_bash")
    warn_of_dead_letters(project)
    assert capsys.readouterr().err == ""


def test_it_loads_nothing_that_is_not_needed() -> None:
    import subprocess

    code = "import resilience.cli.banner, sys; print([m for m in ('hashlib', 'typer', 'json') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
