"""What would harm a run is refused before a byte is written."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from resilience.checkpoints.pins import Pin, pin
from resilience.errors import ResilError, UsageError
from resilience.inject.checkpoint.in_use import InUse, check_in_place, check_output, check_source, store_around
from tests.checkpoints.saves import committed, new_store, write_part
from tests.system.people import NOBODY, acting_as, open_the_way


def nobody(run: str) -> str:
    return ""


@contextmanager
def opened(path: Path, how: str) -> Iterator[int]:
    """Have a file open, or mapped, in another process."""
    code = {
        "reading": "f = open(path)",
        "writing": "f = open(path, 'a')",
        "mapped": "import mmap; f = open(path); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close()",
    }[how]
    program = f"import sys; path = sys.argv[1]; {code}; print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"1\n"
        yield other.pid
        other.stdin.close()


@pytest.mark.parametrize(
    ("how", "copy", "itself"),
    [
        ("reading", "", "is open in process"),
        ("mapped", "", "is open in process"),
        ("writing",) + ("open for writing",) * 2,
    ],
)
@pytest.mark.parametrize("in_directory", [False, True])
def test_a_file_that_another_process_has_open(
    tmp_path: Path, how: str, copy: str, itself: str, in_directory: bool
) -> None:
    file = tmp_path / "ckpt" / "model.pt"
    file.parent.mkdir()
    file.write_bytes(bytes(8192))
    path = file.parent if in_directory else file
    with opened(file, how) as pid:
        for in_place, words in ((False, copy), (True, itself)):
            if words:
                with pytest.raises(InUse, match=words) as told:
                    check_source(path, in_place=in_place)
                assert f"process {pid} (" in told.value.message
            else:
                check_source(path, in_place=in_place)
    check_source(path, in_place=True)


def test_what_this_process_has_open_is_its_own_matter(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(4096))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        check_source(path, in_place=True)


def test_a_save_in_flight_is_not_copied(tmp_path: Path) -> None:
    store = new_store(tmp_path / "ckpt")
    part = write_part(store, 10)
    with pytest.raises(InUse, match="is a save in flight"):
        check_source(store.path / part / "model.bin", in_place=False)


def test_nothing_is_written_into_a_directory_of_checkpoints(tmp_path: Path) -> None:
    store = new_store(tmp_path / "ckpt")
    name = committed(store, 10)
    for path in (store.path / "model.pt", store.path / name / "model.pt", store.path / name / "optimizer" / "x"):
        with pytest.raises(InUse, match="a directory of checkpoints of the run run-1, which stays as it is"):
            check_output(path)
    assert store_around(store.path / name / "model.bin") is not None and store_around(tmp_path / "x") is None
    check_output(tmp_path / "model.pt")


def test_a_directory_above_that_may_not_be_listed_is_no_obstacle(tmp_path: Path) -> None:
    above = tmp_path / "home"
    (above / "alice").mkdir(parents=True)
    open_the_way(above / "alice" / "x")
    (above / "alice").chmod(0o777)
    above.chmod(0o711)
    with acting_as(NOBODY) if os.geteuid() == 0 else nullcontext():
        check_output(above / "alice" / "out.pt")


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda path: path.write_text(""), "exists already"), (lambda path: path.symlink_to("x"), "exists already"),
     (lambda path: None, "there is no directory")],
)  # fmt: skip
def test_an_output_has_to_be_new_in_a_directory_that_is_there(tmp_path: Path, make: object, words: str) -> None:
    path = tmp_path / "out" if words.startswith("exists") else tmp_path / "no" / "out"
    make(path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=words) as told:
        check_output(path)
    assert told.value.hint


def test_in_place_the_state_of_the_run_and_of_its_checkpoints_counts(tmp_path: Path) -> None:
    store = new_store(tmp_path / "ckpt")
    path = store.path / committed(store, 10)
    check_in_place(path / "model.bin", nobody)
    asked = []

    def alive(run: str) -> str:
        asked.append(run)
        return "the run run-1 has the live job 12"

    refused: list[ResilError] = []
    for look in (alive, nobody, nobody, nobody):
        with pytest.raises(ResilError) as told:
            check_in_place(path, look)
        refused.append(told.value)
        if len(refused) == 1:
            part = write_part(store, 20)
        elif len(refused) == 2:
            (store.path / part).rename(tmp_path / "away")
            pin(store, path.name, Pin("for the paper"))
        elif len(refused) == 3:
            (path / "model.bin").chmod(0o444)
    words = ("has the live job 12", "a save is in flight", "is pinned in", "model.bin is read-only")
    assert asked == ["run-1"]
    assert all(word in error.message and error.hint for word, error in zip(words, refused, strict=True))
