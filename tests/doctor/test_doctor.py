"""The doctor looks at everything, judges each, and never falls ill itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.base.mounts import Mount
from resilience.cluster import ClusterConfig
from resilience.doctor import doctor
from resilience.doctor.diagnosis import Diagnosis
from resilience.doctor.doctor import CLIENTS, Examination, examine
from resilience.errors import NotSupported, ProbeError, SchedulerUnavailable
from resilience.finding import Verdict
from resilience.runs.project import Project
from resilience.settings.load import load
from tests.lab.fakes import DOWN, FakeScheduler, make_project, make_system
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


def topics(project: Project) -> dict[str, Diagnosis]:
    return {diagnosis.topic: diagnosis for diagnosis in examine(project).diagnoses}


def test_the_worst_finding_is_the_verdict() -> None:
    found = tuple(Diagnosis("x", verdict, "") for verdict in (Verdict.OK, Verdict.UNKNOWN, Verdict.WARNING))
    assert Examination(found).worst is Verdict.UNKNOWN
    assert Examination(()).worst is Verdict.OK


def test_everything_is_looked_at_and_nothing_is_left_behind(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    before = sorted((tmp_path / "project").rglob("*"))
    found = topics(project)
    assert {"settings", "scheduler", "JobRequeue", "state directory", "file system", "templates"} <= set(found)
    assert found["settings"].text == str(project.loaded.path)
    assert found["scheduler"].text == "SLURM 24.11 responds"
    assert "python" in found["templates"].text
    assert sorted((tmp_path / "project").rglob("*")) == before


def test_without_settings_the_way_to_some_is_told(tmp_path: Path) -> None:
    found = topics(make_project(tmp_path, settings=""))["settings"]
    assert (found.verdict, found.advice) == (Verdict.OK, "write a commented one: resil init")


ANYTHING = [DOWN, NotSupported("no"), ProbeError("gone"), RuntimeError("boom"), SystemExit(3), RecursionError(),
            KeyError("x"), AttributeError("y"), OSError(5, "Input/output error")]  # fmt: skip


@pytest.mark.parametrize("error", ANYTHING, ids=repr)
def test_a_scheduler_that_raises_anything_is_unknown_and_the_rest_is_looked_at(
    tmp_path: Path, error: BaseException
) -> None:
    class Broken(FakeScheduler):
        def config(self) -> ClusterConfig:
            raise error

    found = topics(make_project(tmp_path, Broken()))
    assert found["scheduler"].verdict is Verdict.UNKNOWN
    assert (str(error) or type(error).__name__) in found["scheduler"].text
    assert {"state directory", "templates"} <= set(found)


@pytest.mark.parametrize("answer", [None, 3, ClusterConfig("slurm", partitions=3)])  # type: ignore[arg-type]
def test_a_scheduler_that_answers_nonsense_is_unknown(tmp_path: Path, answer: Any) -> None:
    found = examine(make_project(tmp_path, FakeScheduler(answers=answer))).diagnoses
    assert any(d.topic == "scheduler" and d.verdict is Verdict.UNKNOWN for d in found)
    assert any(d.topic == "templates" for d in found)


def test_what_the_doctor_does_not_know_ends_it_no_more_than_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise ZeroDivisionError("oops")

    for name in ("current_mounts", "template_library"):
        monkeypatch.setattr(doctor, name, broken)
    found = topics(make_project(tmp_path))
    assert {name: found[name].verdict for name in ("state directory", "templates", "scheduler")} == {
        "state directory": Verdict.UNKNOWN, "templates": Verdict.UNKNOWN, "scheduler": Verdict.OK
    }  # fmt: skip


def test_a_plugin_that_cannot_be_loaded_or_is_not_there_is_critical(tmp_path: Path) -> None:
    system = make_system(tmp_path)
    found = topics(Project(system, load(system, overrides={"scheduler.name": "slrum"})))["scheduler"]
    assert (found.verdict, found.advice) == (Verdict.CRITICAL, "did you mean slurm?")


def test_missing_commands_of_slurm_are_critical_and_named(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in CLIENTS[:3]:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    system = make_system(tmp_path, {"PATH": str(directory)})
    found = topics(Project(system, load(system, overrides={"scheduler.name": "slurm"})))["SLURM commands"]
    assert (found.verdict, found.text) == (Verdict.CRITICAL, "not on PATH: scancel, srun")
    assert "local" in found.advice


def test_variables_that_override_the_scripts_are_a_warning(tmp_path: Path) -> None:
    project = make_project(tmp_path, environ={"SBATCH_PARTITION": "x"})
    assert topics(project)["environment"].text == "set: SBATCH_PARTITION; they override #SBATCH lines"


def test_the_embedded_scheduler_is_named_as_what_it_is(tmp_path: Path) -> None:
    found = topics(make_project(tmp_path, FakeScheduler(answers=ClusterConfig("local"))))
    assert "embedded" in found["scheduler"].text and found["scheduler"].verdict is Verdict.OK


# ---- the state directory ------------------------------------------------------------------------------------------


@needs_root
def test_a_state_directory_that_cannot_be_written_is_critical(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    project = make_project(tmp_path)
    with acting_as(NOBODY):
        found = topics(project)["state directory"]
    assert (found.verdict, "Permission denied" in found.text) == (Verdict.CRITICAL, True)
    assert "state_dir" in found.advice


def test_a_file_in_the_state_directorys_place_is_critical(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.loaded.state_dir.write_text("")
    assert topics(project)["state directory"].verdict is Verdict.CRITICAL


MOUNTS = [
    ("fake", "lustre", Verdict.OK, "shared"),
    ("fake", "ext4", Verdict.WARNING, "probably local"),
    ("fake", "tmpfs", Verdict.WARNING, "probably local"),
    ("local", "ext4", Verdict.OK, "jobs run on this machine"),
    ("local", "tmpfs", Verdict.WARNING, "tmpfs"),
    ("fake", "", Verdict.UNKNOWN, "type of the file system is unknown"),
]


@pytest.mark.parametrize(("scheduler", "type_", "verdict", "said"), MOUNTS)
def test_the_file_system_is_judged_by_who_must_see_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, type_: str, verdict: Verdict, said: str
) -> None:
    monkeypatch.setattr(doctor, "current_mounts", lambda: (Mount("/", type_, "x"),) if type_ else ())
    found = topics(make_project(tmp_path, FakeScheduler(name=scheduler)))["file system"]
    assert (found.verdict, said in found.text) == (verdict, True)


# ---- the runs -----------------------------------------------------------------------------------------------------


def test_switches_that_lie_there_are_told_with_the_way_back(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.directory("gpt").create("[run]\n")
    (project.directory("gpt").path / "switches" / "kill").touch()
    found = topics(project)["run gpt"]
    assert (found.verdict, found.advice) == (Verdict.WARNING, "to clear it: resil clear gpt")


def test_a_run_that_cannot_be_looked_at_hides_no_other(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    for name in ("a", "gpt"):
        project.directory(name).create("")
    (project.directory("gpt").path / "switches" / "kill").touch()
    switches = project.directory("a").path / layout.SWITCHES
    switches.rmdir()
    found = topics(project)
    assert (found["run a"].verdict, found["run gpt"].verdict) == (Verdict.UNKNOWN, Verdict.WARNING)


def test_a_state_directory_whose_runs_cannot_be_listed_is_unknown(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.loaded.state_dir.write_text("")
    assert topics(project)["runs"].verdict is Verdict.UNKNOWN


def test_a_person_without_a_home_can_be_examined(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    host = project.system.host._replace(home=Path("/proc/nonexistent"))
    assert examine(Project(replace(project.system, host=host), project.loaded, project._clients)).diagnoses


def test_a_silent_scheduler_is_told_with_its_advice(tmp_path: Path) -> None:
    found = topics(make_project(tmp_path, FakeScheduler(trouble=DOWN)))["scheduler"]
    assert isinstance(DOWN, SchedulerUnavailable)
    assert (found.verdict, found.advice) == (Verdict.UNKNOWN, DOWN.hint)
