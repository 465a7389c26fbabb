"""`resil save` asks for a checkpoint, by name if wanted."""

from __future__ import annotations

import tomllib

from tests.cli.shell import Shell


def test_a_save_is_asked_for_with_its_label(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("save", "--label", "before-lr-drop", "-m", "new schedule")
    assert said.code == 0 and "save switch set" in said.out
    written = tomllib.loads((shell.run_dir / "switches" / "save").read_text())
    assert (written["label"], written["why"]) == ("before-lr-drop", "new schedule")


def test_a_label_that_no_folder_could_have_is_refused(shell: Shell) -> None:
    shell.resil("submit")
    said = shell.resil("save", "--label", "../x")
    assert said.code == 2 and "cannot be a checkpoint's label" in said.err
