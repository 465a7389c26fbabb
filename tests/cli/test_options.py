"""Completion answers from local state, never raises, never asks the scheduler; options mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.cli import options, runs
from resilience.cli.options import complete_runs, complete_templates, open_project
from resilience.runs.injections import Injection, create_injection
from tests.lab.shell import Shell


def test_names_of_runs_and_templates_are_completed_without_asking_the_scheduler(shell: Shell) -> None:
    for name in ("gpt", "gpt2", "llama"):
        shell.resil("submit", "--run", name)
    shell.fake.calls.clear()
    assert complete_runs("gp") == ["gpt", "gpt2"]
    assert complete_runs("") == ["gpt", "gpt2", "llama"]
    assert complete_templates("tor") == ["torchrun"]
    assert shell.fake.calls == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("drill k", ["kill-rank"]),
        ("inject disk", ["disk-full"]),
        ("inject undo ", ["stop-"]),
        ("inject clock ", ["forward", "back"]),
        ("inject scheduler l", ["lag", "lost-node"]),
    ],
)
def test_what_breaks_a_run_is_completed_and_of_faults_those_that_are_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, typed: str, offered: list[str]
) -> None:
    shell.resil("submit")
    run = shell.project.directory("gpt")
    for one in (Injection(id="", fault="kill", ended=1.0), Injection(id="", fault="stop", until=2e9)):
        create_injection(run, one)
    monkeypatch.setenv("COMP_WORDS", f"resil {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    monkeypatch.setenv("_RESIL_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        shell.resil()
    names = shell.capsys.readouterr().out.split()
    assert [name[: len(one)] for name, one in zip(names, offered, strict=True)] == offered


@pytest.mark.parametrize("trouble", ["settings", "state directory", "templates", "here", "home", "config"])
def test_nothing_that_is_broken_prints_into_somebodys_prompt(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, trouble: str
) -> None:
    if trouble == "settings":
        shell.settings("[torn")
    elif trouble == "state directory":
        (shell.directory / ".resil").write_text("")
    elif trouble == "templates":
        (shell.directory / "slurm_templates").mkdir()
        (shell.directory / "slurm_templates" / "x.sbatch.j2").write_bytes(b"\xff")
    elif trouble == "here":
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
    elif trouble == "home":
        monkeypatch.setenv("HOME", "/proc/nonexistent")
    else:
        monkeypatch.setenv("RESIL_CONFIG", "/proc/nonexistent")
    for incomplete in ("", "x", "\udcff", "x" * 10_000):
        assert isinstance(complete_runs(incomplete), list)
        assert isinstance(complete_templates(incomplete), list)
    assert capsys.readouterr() == ("", "")
    assert shell.fake.calls == []


def test_whatever_opening_a_project_raises_completion_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    for module in (options, runs):
        monkeypatch.setattr(module, "open_project", broken)
    assert (complete_runs(""), complete_templates("")) == ([], [])


def test_the_scheduler_named_on_the_command_line_wins(shell: Shell) -> None:
    assert open_project().scheduler_name() == "fake"
    assert open_project(scheduler="local").scheduler_name() == "local"


def test_a_settings_file_can_be_named(shell: Shell) -> None:
    (shell.directory / "other.toml").write_text('[run]\nname = "other"\n')
    assert open_project(Path("other.toml")).default_run() == "other"
