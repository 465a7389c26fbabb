"""Settings on a disk that hangs: required files are an error, the user's own are skipped with a warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.errors import ProbeError
from resilience.finding import Verdict
from resilience.runs import open_project
from resilience.runs.open_project import open_in_child
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.ports import System, SystemClock
from resilience.system.stuck import StuckMemory
from resilience.watch import watchdogs
from resilience.watch.watch import watch
from tests.lab.fakes import make_system
from tests.lab.hung import hung_directory


@pytest.fixture
def hung_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(StuckMemory, "of", classmethod(lambda cls, system: cls([tmp_path / "node" / "stuck"])))
    monkeypatch.setattr(open_project, "START_S", 0.3)
    with hung_directory(tmp_path / "home") as directory:
        yield directory


def a_world(directory: Path, home: Path, **environ: str) -> System:
    directory.mkdir()
    return make_system(directory, {"XDG_CONFIG_HOME": str(home / "config"), **environ}, clock=SystemClock())


def test_a_hung_home_directory_is_reported_and_hides_nothing_else(tmp_path: Path, hung_home: Path) -> None:
    system = a_world(tmp_path / "project", hung_home)
    for words in ("no answer within 0.3 s", "STUCK since"):
        project = open_in_child(system)
        (report,) = watch(project, [])
        (found,) = report.findings
        assert (report.check, found.verdict) == ("settings", Verdict.UNKNOWN)
        assert f"cannot read {hung_home}/config/resil/config.toml, defaults apply" in found.summary
        assert words in found.summary


def test_a_given_settings_file_is_required(tmp_path: Path, hung_home: Path) -> None:
    system = a_world(tmp_path / "project", hung_home)
    with pytest.raises(ProbeError, match="no answer within"):
        open_in_child(system, path=hung_home / "resil.toml")


def test_a_hung_directory_on_path_blocks_no_watchdog(
    tmp_path: Path, hung_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdogs, "SEARCH_S", 2.0)
    system = a_world(tmp_path / "project", tmp_path, PATH=f"{hung_home}/bin:/usr/bin")
    project = Project(system, load(system))
    (report,) = watch(project, [watchdogs.load_watchdog(project, "job")])
    (found,) = report.findings
    assert found.verdict is Verdict.UNKNOWN
    assert found.summary.startswith(f"cannot search PATH for sbatch: {hung_home}/bin")
    assert found.summary.endswith(" does not respond: no answer within 2 s")
