"""A project knows its run's name, its run directories, its scheduler, and whose switches a run obeys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import UsageError
from resilience.runs.project import Project, run_name_from
from resilience.runs.switches import policy_of_run
from resilience.settings.load import load
from resilience.submission import check_run_name
from resilience.switch import OwnerPolicy
from tests.lab.fakes import make_project, make_system


def submitted(project: Project, *names: str, run_file: str = "") -> None:
    for name in names:
        project.directory(name).create(run_file)


@pytest.mark.parametrize(
    ("text", "name"),
    [("gpt", "gpt"), ("my run", "my-run"), ("...x", "x"), ("", "run"), ("___", "run"), ("été", "t-"),
     ("a/../b", "a-..-b"), ("a\nb", "a-b"), ("x" * 300, "x" * 100), ("-rf", "rf"), ("\u0661", "run")],
)  # fmt: skip
def test_any_text_makes_a_runs_name(text: str, name: str) -> None:
    assert run_name_from(text).strip("-") == name.strip("-")
    check_run_name(run_name_from("x" + text))


def test_the_run_is_called_as_the_settings_say_else_as_the_directory(tmp_path: Path) -> None:
    assert make_project(tmp_path).default_run() == "gpt"
    (tmp_path / "a").mkdir()
    assert make_project(tmp_path / "a", settings="[submit]\n").default_run() == "project"


def test_a_script_names_the_run_only_where_there_are_no_settings(tmp_path: Path) -> None:
    script = Path("jobs/train v2.sbatch")
    assert make_project(tmp_path, settings="").default_run(script) == "train-v2"
    assert make_project(tmp_path).default_run(script) == "gpt"


@pytest.mark.parametrize("name", ["my run", "../x", "/etc", "-x", "a\\nb", "x" * 101])
def test_a_name_in_the_settings_that_cannot_be_one_is_refused_and_not_changed_in_silence(
    tmp_path: Path, name: str
) -> None:
    project = make_project(tmp_path, settings=f'[run]\nname = "{name}"\n')
    with pytest.raises(UsageError, match="cannot be a run's name"):
        project.default_run()


def test_without_a_name_ones_own_run_is_meant_or_the_only_one(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    with pytest.raises(UsageError, match="no run has been submitted here yet") as none:
        project.existing()
    assert none.value.hint == "start one: resil submit"
    submitted(project, "other")
    assert project.existing().run == "other"
    submitted(project, "third")
    with pytest.raises(UsageError, match="several runs") as several:
        project.existing()
    assert several.value.hint == "name one of: other, third"
    submitted(project, "gpt")
    assert project.existing().run == "gpt"


def test_a_misspelt_run_is_answered_with_the_nearest(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    submitted(project, "llama", "mixtral")
    with pytest.raises(UsageError, match="there is no run 'lama'") as near:
        project.existing("lama")
    assert near.value.hint == "did you mean llama?"
    with pytest.raises(UsageError) as far:
        project.existing("zzz")
    assert far.value.hint == "see them all: resil status"


def test_a_path_names_a_colleagues_run(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    theirs = tmp_path / "theirs" / "llama"
    (theirs).mkdir(parents=True)
    (theirs / layout.RUN_FILE).touch()
    assert project.existing(str(theirs)).path == theirs
    assert project.existing("../theirs/llama").path == theirs


def test_slurm_is_taken_where_sbatch_is_installed_and_nothing_set(tmp_path: Path) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    system = make_system(tmp_path, {"PATH": str(directory)})
    assert Project(system, load(system)).scheduler_name() == "local"
    (directory / "sbatch").write_text("#!/bin/sh\n")
    (directory / "sbatch").chmod(0o755)
    assert Project(system, load(system)).scheduler_name() == "slurm"
    assert Project(system, load(system, overrides={"scheduler.name": "local"})).scheduler_name() == "local"


def test_a_client_is_made_once_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    assert project.scheduler() is project.scheduler("fake")
    with pytest.raises(UsageError, match="'slrum'") as caught:
        project.scheduler("slrum")
    assert caught.value.hint == "did you mean slurm?"


RECORDED = [
    ('[run]\nswitch_owners = "any"\n', OwnerPolicy.ANY),
    ('[run]\nswitch_owners = "owner"\ngroup = "lab"\n', OwnerPolicy.OWNER),
    ('[run]\ngroup = "lab"\n', OwnerPolicy.GROUP),
    ("[run]\n", OwnerPolicy.OWNER),
    ('[run]\nswitch_owners = "bob"\n', OwnerPolicy.GROUP),
    ("torn [", OwnerPolicy.GROUP),
]


@pytest.mark.parametrize(("run_file", "policy"), RECORDED)
def test_a_run_obeys_whom_it_was_submitted_to_obey_whatever_my_settings_say(
    tmp_path: Path, run_file: str, policy: OwnerPolicy
) -> None:
    """Where run.toml says nothing of use, the directory's own permissions tell: here, the group's."""
    project = make_project(tmp_path, settings='[run]\nswitch_owners = "any"\n')
    directory = project.directory("llama")
    directory.create(run_file)
    (directory.path / layout.SWITCHES).chmod(0o770)
    assert policy_of_run(directory) is policy


def test_a_project_can_be_asked_from_another_directory(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    elsewhere = Project(replace(project.system, cwd=tmp_path), project.loaded, project._clients)
    assert elsewhere.directory("gpt").path == project.directory("gpt").path
