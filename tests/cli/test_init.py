"""`resil init` writes settings that can be used, also where the ones that are there are broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell


def test_what_was_written_is_named_and_passes_the_check(shell: Shell) -> None:
    said = shell.resil("init", "new")
    assert said.code == 0
    assert f"wrote {shell.folder / 'new' / 'resil.toml'}" in said.out and "next: set `command`" in said.out
    assert shell.resil("config", "check", "-c", "new/resil.toml").code == 0


def test_a_script_is_taken_over(shell: Shell) -> None:
    Path("old.sh").write_text("#!/bin/bash\n#SBATCH -p gpu -J llama -o x.out\n")
    said = shell.resil("init", "new", "--from", "old.sh")
    assert "note: --output" in said.out
    assert 'partition = "gpu"' in (shell.folder / "new" / "resil.toml").read_text()


def test_what_is_there_is_kept_unless_forced(shell: Shell) -> None:
    before = (shell.folder / "resil.toml").read_text()
    said = shell.resil("init")
    assert said.code == 2 and "exists already" in said.err
    assert (shell.folder / "resil.toml").read_text() == before
    assert shell.resil("init", "--force").code == 0


def test_broken_settings_keep_nobody_from_writing_new_ones(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.settings("[torn")
    assert shell.resil("init", "--force").code == 0
    assert shell.resil("config", "check").code == 0
    monkeypatch.setenv("RESIL_CONFIG", "/proc/nonexistent")
    assert "make one: resil init" in shell.resil("status").err
    assert shell.resil("init", "another").code == 0
