"""`resil kill` throws the switch and says what will happen, and what will not."""

from __future__ import annotations

import tomllib

import pytest

from tests.cli.shell import Shell


@pytest.mark.parametrize(("scope", "queued"), [("job", "end in seconds"), ("all", "are cancelled by the first")])
def test_the_switch_is_thrown_with_its_reason_and_reach(shell: Shell, scope: str, queued: str) -> None:
    shell.resil("submit")
    said = shell.resil("kill", "--why", "loss is NaN", "--scope", scope)
    switch = shell.run_dir / "switches" / "kill"
    assert said.code == 0 and f"kill switch thrown: {switch}" in said.out
    assert queued in said.out and "resil clear gpt" in said.out
    written = tomllib.loads(switch.read_text())
    assert (written["why"], written["scope"]) == ("loss is NaN", scope)


def test_a_run_of_an_own_script_is_told_apart(shell: Shell) -> None:
    (shell.folder / "mine.sh").write_text("#!/bin/bash\n")
    shell.resil("submit", "mine.sh")
    assert "queued with a script of its own" in shell.resil("kill").out


def test_a_run_that_is_not_there_gets_no_switch(shell: Shell) -> None:
    said = shell.resil("kill", "llama")
    assert said.code == 2 and not (shell.folder / ".resil").exists()


def test_a_kill_asks_no_scheduler(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.calls.clear()
    shell.resil("kill")
    assert shell.fake.calls == []
