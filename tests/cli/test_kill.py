"""`resil kill` throws the switch and says what will happen, and what will not."""

from __future__ import annotations

import tomllib

import pytest

from tests.cli.shell import SETTINGS, Shell
from tests.fakes import DOWN
from tests.guard.disks import fill, make_read_only
from tests.system.people import needs_root
from tests.watch.checks.filesystem.watching import mounted


@pytest.mark.parametrize(("scope", "queued"), [("job", "end in seconds"), ("all", "are cancelled as the first")])
def test_the_switch_is_thrown_with_its_reason_and_reach(shell: Shell, scope: str, queued: str) -> None:
    shell.resil("submit")
    said = shell.resil("kill", "--why", "loss is NaN", "--scope", scope)
    switch = shell.run_dir / "switches" / "kill"
    assert said.code == 0 and f"kill switch set: {switch}" in said.out
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


def test_a_kill_asks_the_scheduler_once_and_throws_before(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.calls.clear()
    switch = shell.run_dir / "switches" / "kill"
    lay_there: list[bool] = []
    jobs = shell.fake.jobs
    shell.fake.jobs = lambda **wishes: (lay_there.append(switch.exists()), jobs(**wishes))[1]  # type: ignore[func-returns-value,method-assign]
    shell.resil("kill")
    assert (shell.fake.calls, lay_there) == (["jobs"], [True])


def test_a_scheduler_that_does_not_answer_keeps_nobody_from_throwing(shell: Shell) -> None:
    shell.resil("submit")
    shell.fake.trouble = DOWN
    said = shell.resil("kill")
    assert said.code == 0 and "the scheduler did not say what runs" in said.out
    assert (shell.run_dir / "switches" / "kill").exists()


def test_a_run_whose_files_cannot_be_read_is_killed_all_the_same(shell: Shell) -> None:
    shell.resil("submit")
    (shell.run_dir / "submissions.jsonl").unlink()
    (shell.run_dir / "submissions.jsonl").mkdir()
    said = shell.resil("kill")
    assert said.code == 0 and "what it does could not be looked up: " in said.out and "resil cancel gpt" in said.out


@needs_root
def test_on_a_full_disk_it_works_and_says_what_is_missing(shell: Shell) -> None:
    with mounted(shell.folder.parent / "disk", "size=512k,mode=755") as disk:
        shell.settings(SETTINGS.replace("[run]\n", f'[run]\nstate_dir = "{disk}"\n'))
        assert shell.resil("submit").code == 0
        fill(disk)
        said = shell.resil("kill", "--why", "loss is NaN", "--scope", "all")
        assert said.code == 0 and (disk / "gpt" / "switches" / "kill").read_bytes() == b""
        assert "the disk is full, so the switch is an empty file" in said.out
        assert "end in seconds as they start" in said.out, "an empty one has no scope"


@needs_root
def test_on_a_read_only_disk_it_names_the_way_that_is_left(shell: Shell) -> None:
    with mounted(shell.folder.parent / "disk", "size=512k,mode=755") as disk:
        shell.settings(SETTINGS.replace("[run]\n", f'[run]\nstate_dir = "{disk}"\n'))
        shell.resil("submit")
        make_read_only(disk, True)
        said = shell.resil("kill")
        assert said.code == 1 and "Read-only file system" in said.err and "resil cancel" in said.err
