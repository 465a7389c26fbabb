"""A training's environment with the guard alone names the `resil` that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.cli import missing


def program(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "resil").write_text("#!/bin/sh\n")
    (directory / "resil").chmod(0o755)
    return directory / "resil"


def test_the_other_resil_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    own, real = program(tmp_path / "train" / "bin"), program(tmp_path / "venv" / "bin")
    link = tmp_path / "local" / "resil"
    link.parent.mkdir()
    link.symlink_to(real)
    shadow = tmp_path / "shadow" / "resil"
    shadow.parent.mkdir()
    shadow.symlink_to(own)
    path = [str(one.parent) for one in (own, shadow)]
    assert missing.other_resil([*path, "", str(tmp_path / "none"), str(link.parent)], own.parent) == link
    assert missing.other_resil(path, own.parent) is None


def test_the_hint_is_the_same_command_with_the_other_resil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = program(tmp_path / "my tools")
    monkeypatch.setenv("PATH", str(real.parent))
    monkeypatch.setattr("sys.argv", ["resil", "status", "my run"])
    assert f"'{real}' status 'my run'" in missing.missing_packages().hint
    monkeypatch.setenv("PATH", "")
    assert "where it is installed" in missing.missing_packages().hint
