"""What a submit that queued nothing leaves is what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, read_intents, record_intent
from resilience.runs.submit import rollback, take_snapshot


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_folders_that_were_not_there_go_again_up_to_the_first_that_was(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a" / "b" / "gpt")
    snapshot = take_snapshot(directory)
    assert snapshot.missing == (tmp_path / "a" / "b" / "gpt", tmp_path / "a" / "b", tmp_path / "a")
    directory.create("")
    record_intent(directory, Intent("mine", "fake", "", (), 0.0, by="alice"))
    rollback(directory, snapshot, {"mine"})
    assert names(tmp_path) == []


def test_a_folder_that_others_began_to_use_meanwhile_stays(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "state" / "gpt")
    snapshot = take_snapshot(directory)
    directory.create("")
    RunDirectory(tmp_path / "state" / "llama").create("")
    rollback(directory, snapshot, set())
    assert not directory.path.exists() and (tmp_path / "state" / "llama" / layout.RUN_FILE).exists()


def test_a_journal_with_somebody_elses_intent_keeps_everything(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    snapshot = take_snapshot(directory)
    directory.create("")
    record_intent(directory, Intent("theirs", "fake", "", (), 0.0, by="bob"))
    rollback(directory, snapshot, {"mine"})
    assert [intent.token for intent in read_intents(directory)] == ["theirs"] and directory.exists()


@pytest.mark.parametrize("file", ["data.txt", "logs/old.out"])
def test_files_that_lay_in_the_folder_before_stay(tmp_path: Path, file: str) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    (directory.path / file).parent.mkdir(parents=True)
    (directory.path / file).touch()
    before = names(tmp_path)
    snapshot = take_snapshot(directory)
    directory.create("")
    rollback(directory, snapshot, set())
    assert names(tmp_path) == before


def test_an_existing_runs_settings_are_written_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    directory.create("# before\n")
    snapshot = take_snapshot(directory)
    directory.create("# after\n")
    rollback(directory, snapshot, set())
    assert (directory.path / layout.RUN_FILE).read_text() == "# before\n"


def test_undoing_raises_nothing_over_the_error_that_led_to_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "gpt")
    snapshot = take_snapshot(directory)
    rollback(directory, snapshot, set())
    directory.create("")
    (directory.path / layout.SUBMISSIONS).mkdir()
    rollback(directory, snapshot, set())


def test_a_run_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpt" / layout.RUN_FILE).mkdir(parents=True)
    with pytest.raises(StateDirectoryError, match="not a regular file"):
        take_snapshot(RunDirectory(tmp_path / "gpt"))
