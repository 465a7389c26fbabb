"""Outputs are few, small, private files, and exist only where something was written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience.cron.state_directory import CronDirectory
from resilience.cron.table.output import OutputFile, output_directory, outputs, prune
from resilience.errors import StateDirectoryError
from tests.cron.records import put_run
from tests.lab.disks import fill, small_disk

KEY = "cron.hourly+backup"


def test_a_silent_run_takes_no_file(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    file = OutputFile(directory, KEY, 100)
    file.append(b"", is_last=True)
    assert (file.name, outputs(directory, KEY), directory.path.exists()) == ("", (), False)


@pytest.mark.parametrize(("group", "mode"), [("", 0o600), ("team", 0o660)])
def test_an_output_is_for_those_who_operate_the_project(tmp_path: Path, group: str, mode: int) -> None:
    before = os.umask(0)
    try:
        file = OutputFile(CronDirectory(tmp_path, group), KEY, 100)
        file.append(b"one\n")
        file.append(b"two\n", is_last=True)
    finally:
        os.umask(before)
    assert file.path is not None and file.path.stat().st_mode & 0o777 == mode
    assert (file.name, file.path.read_bytes()) == ("100.txt", b"one\ntwo\n")


def test_a_slot_that_runs_again_keeps_the_words_of_both(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    for word in (b"first", b"second", b"third"):
        OutputFile(directory, KEY, 100).append(word)
    OutputFile(directory, KEY, 99).append(b"older")
    assert outputs(directory, KEY) == ("99.txt", "100.txt", "100-2.txt", "100-3.txt")
    assert (output_directory(directory, KEY) / "100-2.txt").read_bytes() == b"second"


def test_no_link_is_followed(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    output_directory(directory, KEY).mkdir(parents=True)
    (output_directory(directory, KEY) / "100.txt").symlink_to(tmp_path / "elsewhere")
    OutputFile(directory, KEY, 100).append(b"words")
    assert not (tmp_path / "elsewhere").exists()


def test_the_newest_are_kept_and_those_that_run_and_nothing_else_is_touched(tmp_path: Path) -> None:
    directory = CronDirectory(tmp_path)
    for slot in (9, 100, 20, 1000, 300):
        OutputFile(directory, KEY, slot).append(b"x")
    (output_directory(directory, KEY) / "notes").write_text("mine")
    put_run(directory, KEY, 20)
    prune(directory, KEY, 2)
    assert outputs(directory, KEY) == ("20.txt", "300.txt", "1000.txt")
    assert (output_directory(directory, KEY) / "notes").exists()
    prune(directory, "cron.hourly+other", 2)


def test_output_lost_on_a_full_disk_is_marked_as_missing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "128k") as disk:
        file = OutputFile(CronDirectory(disk), KEY, 100)
        file.append(b"begin\n")
        ballast = fill(disk)
        with pytest.raises(StateDirectoryError, match="No space left"):
            file.append(b"middle\n" * 10_000)
        ballast.unlink()
        file.append(b"end\n", is_last=True)
        assert file.path is not None
        kept = file.path.read_bytes()
    assert kept.startswith(b"begin\n")
    assert kept.endswith(b"\n... output is missing here: No space left on device ...\nend\n")
