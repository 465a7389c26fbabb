"""`resil clear` takes the switches back, and the mark of the end only when asked."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_switches_are_taken_back_and_named(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("kill")
    shell.resil("save")
    assert shell.resil("clear").out == "cleared: kill, save\n"
    assert shell.resil("clear").out == "run gpt has no switch set\n"


def test_a_finished_run_stays_finished_until_that_is_taken_back_too(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "finished").touch()
    assert "resil clear gpt --finished" in shell.resil("clear", "gpt").out
    assert shell.resil("clear", "--finished").out == "cleared: finished\n"
    assert not (shell.run_dir / "finished").exists()
