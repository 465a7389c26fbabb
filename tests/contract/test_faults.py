"""What every fault promises, whoever wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from resilience.cli.inject import OTHERS, RESERVED
from resilience.inject import Scene, fault_plugins, typed
from resilience.inject.injecting import load_fault
from resilience.plugins import Family
from resilience.runs.injections import read_injections
from resilience.watch.options import attributes_of, options_of
from tests.inject.marks import allow
from tests.lab.shell import Shell, make_shell

EVERY = Family("faults", "FAULT", ()).names()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    fault_plugins.cache_clear()
    yield make_shell(tmp_path, monkeypatch, capsys)
    fault_plugins.cache_clear()


def test_there_are_those_that_users_were_promised() -> None:
    assert {"clock", "exit", "hang", "kill", "leak", "oom", "scheduler", "slow", "stop"} <= set(EVERY)
    assert not {typed(name) for name in EVERY} & set(OTHERS)


@pytest.mark.parametrize("name", EVERY)
def test_options_are_frozen_documented_and_not_reserved(name: str) -> None:
    fault = load_fault(name)
    settings = fault.Settings()
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(settings, fields(fault.Settings)[0].name, None)
    helps = attributes_of(fault.Settings)
    assert {field.name for field in fields(fault.Settings)} == set(helps), "each field has its line below Attributes:"
    assert not {option.flag for option in options_of(fault.Settings)} & RESERVED
    assert fault.argument == "" or fault.argument in helps
    assert fault.length_s >= 0 and 10 < len(fault.summary) < 90 and not fault.summary.endswith(".")


@pytest.mark.parametrize("name", EVERY)
def test_help_has_its_options_and_examples_of_itself(shell: Shell, name: str) -> None:
    said = shell.resil("inject", typed(name), "--help")
    assert said.code == 0 and "--dry-run" in said.out and ("--for" in said.out) == bool(load_fault(name).length_s)
    assert all(line.startswith(f"resil inject {typed(name)}") for line in load_fault(name).example.split("; "))
    assert "Examples: resil inject" in re.sub(r"\s+", " ", said.out)


@pytest.mark.parametrize("name", EVERY)
def test_without_permission_nothing_is_looked_at(shell: Shell, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = allow(shell, allowed=False)
    monkeypatch.setattr(load_fault(name), "look", None, raising=False)
    words = [load_fault(name).argument] if load_fault(name).argument else []
    said = shell.resil("inject", typed(name), *words, "--dry-run")
    assert said.code == 2 and "allow_inject = true" in said.err and read_injections(directory) == ()


@pytest.mark.parametrize("name", ["clock"])
def test_what_was_never_started_can_be_undone_twice(shell: Shell, name: str) -> None:
    directory = allow(shell)
    scene = Scene(shell.project, directory, f"{name}-0000", 0.0)
    for _ in range(2):
        load_fault(name).undo({"state_dir": str(directory.path.parent), "shift_s": 1.0}, scene)
