"""`resil doctor` shows each finding with its advice, and fails only when something is critical."""

from __future__ import annotations

from tests.cli.shell import Shell
from tests.fakes import DOWN


def test_each_finding_is_a_line_with_its_advice_below(shell: Shell) -> None:
    said = shell.resil("doctor")
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["VERDICT", "TOPIC", "FOUND"]
    assert "SLURM 24.11 answers" in said.out and "-> " in said.out


def test_not_knowing_is_no_failure_and_critical_is_one(shell: Shell) -> None:
    shell.fake.trouble = DOWN
    assert shell.resil("doctor").code == 0
    (shell.folder / ".resil").write_text("a file in the way")
    said = shell.resil("doctor", "--json")
    assert said.code == 1
    assert said.json["verdict"] == "CRITICAL"
    assert set(said.json["diagnoses"][0]) == {"topic", "verdict", "text", "advice"}


def test_a_scheduler_that_is_not_there_is_critical(shell: Shell) -> None:
    said = shell.resil("doctor", "--scheduler", "slrum")
    assert said.code == 1 and "did you mean slurm?" in said.out
