"""Checkpoint files: whole or not there, the newest found, the labelled kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.integrations.checkpoint_files import checkpoint_path, move_into_place, newest_checkpoint, remove_older


def made(folder: Path, step: int, label: str = "") -> Path:
    path = checkpoint_path(folder, step, label)
    path.write_text("it")
    return path


def test_the_newest_is_that_with_the_most_steps_and_half_a_file_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    made(tmp_path, 99)
    newest = made(tmp_path, 100, "before-drop")
    made(tmp_path, 101).rename(tmp_path / "resil-step=00000101.part")
    (tmp_path / "last.ckpt").write_text("another's")
    assert newest_checkpoint(tmp_path) == str(newest)


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    made(tmp_path, 99_999_999)
    newest = made(tmp_path, 100_000_000)
    assert newest_checkpoint(tmp_path) == str(newest)


def test_older_ones_go_and_those_with_a_label_stay(tmp_path: Path) -> None:
    kept = [made(tmp_path, 1, "mine"), made(tmp_path, 4), made(tmp_path, 5)]
    made(tmp_path, 2)
    folder = checkpoint_path(tmp_path, 3)
    folder.mkdir()
    (folder / "shard").write_text("it")
    remove_older(tmp_path, 2)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    remove_older(tmp_path, 0)  # would be a training without a checkpoint
    assert newest_checkpoint(tmp_path) == str(kept[-1])


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_moved_into_place_with_all_that_is_in_it(tmp_path: Path, there: bool) -> None:
    path = checkpoint_path(tmp_path, 7)
    if there:
        path.mkdir()
        (path / "old").write_text("of an attempt before")
    part = path.with_suffix(".part")
    (part / "deep").mkdir(parents=True)
    (part / "deep" / "shard").write_text("it")
    move_into_place(part, path)
    assert [file.name for file in path.rglob("*") if file.is_file()] == ["shard"]
    assert not part.exists()


def test_a_label_names_no_other_folder(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, 7, "../x").parent == tmp_path
