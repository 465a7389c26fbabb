"""The doctor looks at everything, judges each, and never falls ill itself."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.base.mounts import Mount
from resilience.cluster import ClusterConfig
from resilience.doctor import diagnosis, doctor
from resilience.doctor.diagnosis import Diagnosis
from resilience.doctor.doctor import CLIENTS, Examination, examine
from resilience.errors import NotSupported, ProbeError, ResilError, SchedulerUnavailable
from resilience.finding import Verdict
from resilience.job import Job, JobId
from resilience.runs.injections import Injection, create_injection, keep_injection
from resilience.runs.project import Project, schedulers
from resilience.settings.load import load
from resilience.system.process import ProcessRunner
from tests.lab.fakes import DOWN, FakeScheduler, make_project, make_system
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way


def topics(project: Project) -> dict[str, Diagnosis]:
    return {found.topic: found for found in examine(project).diagnoses}


def test_the_worst_finding_is_the_verdict() -> None:
    found = tuple(Diagnosis("x", verdict, "") for verdict in (Verdict.OK, Verdict.UNKNOWN, Verdict.WARNING))
    assert Examination(found).worst is Verdict.UNKNOWN
    assert Examination(()).worst is Verdict.OK


def test_everything_is_looked_at_and_nothing_is_left_behind(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    before = sorted((tmp_path / "project").rglob("*"))
    found = topics(project)
    assert {"settings", "scheduler", "JobRequeue", "state directory", "file system", "templates"} <= set(found)
    assert found["scheduler"].text == "SLURM 24.11 answered `scontrol show config`"
    assert "python" in found["templates"].text
    assert sorted((tmp_path / "project").rglob("*")) == before


def test_a_plugin_directory_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins").mkdir()
    monkeypatch.setenv("RESIL_PLUGINS", f"{tmp_path}/plugins")
    assert "plugins" not in topics(make_project(tmp_path))
    monkeypatch.setenv("RESIL_PLUGINS", f"{tmp_path}/plugins:{tmp_path}/plugin")
    found = topics(make_project(tmp_path))["plugins"]
    assert found.verdict is Verdict.WARNING and found.text.startswith(f"{tmp_path}/plugin of $RESIL_PLUGINS is not")


def test_without_settings_the_way_to_some_is_told(tmp_path: Path) -> None:
    found = topics(make_project(tmp_path, FakeScheduler(name="local"), settings=""))["settings"]
    assert (found.verdict, found.advice) == (Verdict.OK, "write a commented one: resil init")


def test_settings_are_ok_only_when_each_is_valid(tmp_path: Path) -> None:
    project = make_project(tmp_path, FakeScheduler(name="local"))
    assert topics(project)["settings"].text == f"{project.loaded.path} was read, and each setting is valid"
    bad = '[run]\nname = "gpt"\ncommand = "x"\ntemplate = "torchrnu"\n'
    found = topics(make_project(tmp_path, FakeScheduler(name="local"), settings=bad))["settings"]
    assert (found.verdict, "torchrnu" in found.text, "torchrun" in found.advice) == (Verdict.CRITICAL, True, True)


# ---- sacct and scrontab: asked, and not read from slurm.conf -------------------------------------------------------


class Accounted(FakeScheduler):
    """A cluster whose slurm.conf names accounting and scrontab."""

    def __init__(self, history: ResilError | None = None, **answers: Any) -> None:
        super().__init__(answers=ClusterConfig("slurm", **{"accounting": True, "scrontab": True, **answers}))
        self.past = history

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        if self.past is not None:
            raise self.past
        return ()


def test_accounting_is_ok_when_sacct_has_answered(tmp_path: Path) -> None:
    found = topics(make_project(tmp_path, Accounted()))["accounting"]
    assert (found.verdict, found.text) == (Verdict.OK, "`sacct -j 1` answered")


def test_accounting_whose_daemon_is_dead_is_unknown_with_the_words_of_sacct(tmp_path: Path) -> None:
    dead = SchedulerUnavailable("sacct: Connection refused", hint="slurmdbd may be down")
    found = topics(make_project(tmp_path, Accounted(dead)))["accounting"]
    assert (found.verdict, found.advice) == (Verdict.UNKNOWN, "slurmdbd may be down")
    assert "`sacct -j 1` failed: sacct: Connection refused" in found.text


def test_accounting_that_is_off_is_not_asked_and_one_that_is_not_named_is_unknown(tmp_path: Path) -> None:
    off = topics(make_project(tmp_path, Accounted(RuntimeError("asked"), accounting=False)))["accounting"]  # type: ignore[arg-type]
    assert (off.verdict, off.text.startswith("off in slurm.conf")) == (Verdict.OK, True)
    assert topics(make_project(tmp_path, Accounted(accounting=None)))["accounting"].verdict is Verdict.UNKNOWN


SCRONTAB = [
    ("", True, Verdict.WARNING, "slurm.conf enables it, but `scrontab -l` failed"),
    ("", False, Verdict.OK, "not usable here"),
    ("echo 'no crontab for ada'; exit 1", True, Verdict.OK, "`scrontab -l` answered"),
    ("echo '0 * * * * true'", True, Verdict.OK, "`scrontab -l` answered"),
    ("echo 'scrontab: fatal: scrontab is disabled on this cluster' >&2; exit 1", False, Verdict.OK, "disabled"),
    ("echo 'scrontab: error: Unable to contact slurm controller' >&2; exit 1", True, Verdict.UNKNOWN, "Unable to"),
]


@pytest.mark.parametrize(("program", "enabled", "verdict", "said"), SCRONTAB)
def test_scrontab_is_what_the_program_says_and_not_slurm_conf(
    tmp_path: Path, program: str, enabled: bool, verdict: Verdict, said: str
) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    if program:
        (directory / "scrontab").write_text(f"#!/bin/sh\n{program}\n")
        (directory / "scrontab").chmod(0o755)
    environ = {"PATH": f"{directory}:/no/such/bin"}
    project = make_project(tmp_path, Accounted(scrontab=enabled), environ=environ, runner=ProcessRunner())
    found = topics(project)["scrontab"]
    assert (found.verdict, said in found.text) == (verdict, True), found


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


def test_a_plugin_that_cannot_be_loaded_is_critical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedulers").mkdir()
    (tmp_path / "schedulers" / "pbs.py").write_text("1 / 0\n")
    monkeypatch.setenv("RESIL_PLUGINS", str(tmp_path))
    schedulers.cache_clear()
    try:
        system = make_system(tmp_path)
        found = topics(Project(system, load(system, overrides={"scheduler.name": "pbs"})))["scheduler"]
    finally:
        schedulers.cache_clear()
    assert (found.verdict, found.advice) == (Verdict.CRITICAL, "correct the file; all other plugins keep working")
    assert "pbs.py:1: ZeroDivisionError" in found.text


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


def test_a_state_directory_whose_file_system_hangs_is_critical_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(_: Path) -> None:
        time.sleep(600)

    monkeypatch.setattr(diagnosis, "try_to_write", hang)
    monkeypatch.setattr(diagnosis, "WRITE_S", 0.3)
    found = topics(make_project(tmp_path))["state directory"]
    assert (found.verdict, "did not respond within 0.3 s" in found.text) == (Verdict.CRITICAL, True)


def test_where_was_written_is_said_and_what_is_not_there_yet(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    before = topics(project)["state directory"].text
    state_dir = project.loaded.state_dir
    assert before == f"wrote a file in {state_dir.parent} and removed it; {state_dir} is made at the first submit"
    state_dir.mkdir()
    assert topics(project)["state directory"].text == f"wrote a file in {project.loaded.state_dir} and removed it"


MOUNTS = [
    ("fake", "lustre", Verdict.OK, "share"),
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


def test_a_fault_that_is_on_is_told_with_the_command_that_undoes_it(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    directory = project.directory("gpt")
    directory.create("")
    on = create_injection(directory, Injection(id="", fault="stop", target="rank 3 of job 12"))
    keep_injection(directory, replace(create_injection(directory, Injection(id="", fault="kill")), ended=1.0))
    told = [one for one in examine(project).diagnoses if one.topic == "run gpt"]
    assert [(one.verdict, one.advice) for one in told] == [(Verdict.WARNING, f"to undo it: resil inject undo {on.id}")]
    assert "stop: rank 3 of job 12 (still on)" in told[0].text


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
