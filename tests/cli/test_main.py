"""The table of commands and the files agree; help costs no import, and leads a person on."""

from __future__ import annotations

from importlib import import_module

import pytest
from typer import Typer

from resilience import __version__
from resilience.cli.main import COMMANDS
from tests.lab.shell import Shell


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_with_its_line_by_section(shell: Shell, flag: str) -> None:
    said = shell.resil(flag)
    assert said.code == 0
    for name, command in COMMANDS.items():
        assert f"  {name} " in said.out and command.summary in said.out
        assert f"{command.section}:" in said.out
    assert "Get started: resil demo" in said.out


def test_without_a_command_the_help_is_shown(shell: Shell) -> None:
    said = shell.resil()
    assert said.code == 0 and "submit" in said.out


def test_the_version_is_shown(shell: Shell) -> None:
    assert shell.resil("--version").out == f"resil {__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(shell: Shell, name: str) -> None:
    said = shell.resil(name, "--help")
    assert said.code == 0
    assert said.out.startswith(f"Usage: resil {name} ")
    assert f"resil {name}" in said.out.partition("\n")[2] or name == "config"
    assert shell.resil(name, "-h") == said


def test_a_misspelt_command_is_answered_with_the_nearest(shell: Shell) -> None:
    assert "Did you mean 'submit'?" in shell.resil("sumbit").err
    assert "Did you mean" not in shell.resil("zzzz").err


def test_every_app_of_the_commands_modules_is_in_the_table() -> None:
    modules = {entry.home.partition(":")[0] for entry in COMMANDS.values()}
    apps = {f"{module}:{name}" for module in modules for name, value in vars(import_module(module)).items()
            if isinstance(value, Typer)}  # fmt: skip
    assert apps == {entry.home for entry in COMMANDS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_line_of_the_table_leads_to_a_command_and_fits_a_terminal(name: str) -> None:
    entry = COMMANDS[name]
    assert entry.summary.endswith(".") and len(entry.summary) < 62


@pytest.mark.parametrize("group", [(), ("alert",), ("cron",), ("config",), ("watch",)])
def test_no_sentence_of_a_help_is_cut_at_80_columns(shell: Shell, group: tuple[str, ...]) -> None:
    lines = shell.resil(*group, "--help").out.splitlines()
    assert len(lines) > 5 and not [line for line in lines[1:] if line.rstrip().endswith("...")]
