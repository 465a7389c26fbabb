"""`resil cancel` ends a run's jobs and says what is still ending."""

from __future__ import annotations

from dataclasses import replace

from resilience.job import JobState
from tests.cli.shell import Shell
from tests.fakes import DOWN


def test_what_was_told_to_end_is_named(shell: Shell) -> None:
    shell.resil("submit", "--chain", "2")
    shell.fake.records[0] = replace(shell.fake.records[0], state=JobState.RUNNING)
    said = shell.resil("cancel")
    assert said.out.splitlines()[0] == "cancelled run gpt: 101, 102"
    assert "still ending: 101" in said.out


def test_only_what_waits_can_be_cancelled(shell: Shell) -> None:
    shell.resil("submit", "--chain", "2")
    shell.fake.records[0] = replace(shell.fake.records[0], state=JobState.RUNNING)
    said = shell.resil("cancel", "gpt", "--pending")
    assert said.out.startswith("cancelled the queued jobs of run gpt: 102")
    assert shell.fake.records[0].state is JobState.RUNNING


def test_nothing_to_cancel_and_nobody_to_ask_are_two_things(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("cancel")
    assert shell.resil("cancel").code == 1
    shell.fake.trouble = DOWN
    assert shell.resil("cancel").code == 75


def test_the_next_status_is_a_new_look(shell: Shell) -> None:
    shell.resil("submit")
    shell.resil("status")
    shell.resil("cancel")
    assert "not queued" in shell.resil("status").out
