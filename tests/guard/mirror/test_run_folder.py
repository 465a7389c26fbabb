"""What the guard writes is whole or not there, and has the modes of the run directory."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from resilience.base.files import replace_file
from resilience.guard.mirror.run_folder import file_mode, remove_remains, subfolder
from tests.guard.disks import fill, small_disk
from tests.system.writer import writer


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("folder", "file"), [(0o700, 0o600), (0o2770, 0o660), (0o770, 0o600), (0o2750, 0o600), (0o2775, 0o660)]
)
def test_only_a_folder_made_for_a_group_gives_its_files_to_the_group(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    assert file_mode(str(tmp_path)) == file
    tmp_path.chmod(0o700)


def test_a_missing_folder_is_made_with_the_runs_mode_but_never_the_run_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        subfolder(str(run), "beats")
    assert not run.exists()
    run.mkdir()
    run.chmod(0o2770)
    assert mode_of(Path(subfolder(str(run), "beats"))) == 0o2770
    run.chmod(0o700)
    assert mode_of(Path(subfolder(str(run), "journal"))) == 0o700


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "beat").symlink_to(tmp_path / "victim")
    replace_file(str(tmp_path / "beat"), "new", mode=0o600)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "beat").read_text() == "new" and not (tmp_path / "beat").is_symlink()
    assert names(tmp_path) == ["beat", "victim"]


def test_two_writers_of_one_file_never_mix_their_texts(tmp_path: Path) -> None:
    path = str(tmp_path / "beat")
    texts = ["a" * 5000, "b" * 9000]
    seen: set[str] = set()

    def write(text: str) -> None:
        for _ in range(300):
            replace_file(path, text, mode=0o600)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writing in writers:
        writing.start()
    while any(writing.is_alive() for writing in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add((tmp_path / "beat").read_text())
    assert seen <= set(texts)
    assert names(tmp_path) == ["beat"]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    for name in (".12.n1.aa.tmp", ".12.n2.bb.tmp", "12.n1", ".hidden"):
        (tmp_path / name).touch()
    os.utime(tmp_path / ".12.n1.aa.tmp", (1000.0, 1000.0))
    os.utime(tmp_path / "12.n1", (1000.0, 1000.0))
    remove_remains(str(tmp_path), time.time())
    assert names(tmp_path) == [".12.n2.bb.tmp", ".hidden", "12.n1"]
    remove_remains(str(tmp_path / "gone"), time.time())


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "beat"
        replace_file(str(path), "old", mode=0o600)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            replace_file(str(path), "new" * 10_000, mode=0o600)
        assert path.read_text() == "old"
        assert names(disk) == ["ballast", "beat"]


def test_a_writer_killed_at_any_system_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "finished"
    module = "resilience.base.files"
    request = f"from {module} import *; replace_file({str(path)!r}, 'new', mode=0o600, durable=True)"
    with writer(tmp_path / "strace.log") as process:
        seen = set()
        path.write_text("old")
        for name, count in process.kill_points(request):
            if name in {
                "brk",
                "mmap",
                "munmap",
                "mremap",
                "futex",
                "read",
                "newfstatat",
                "fstat",
                "lseek",
                "getdents64",
            }:
                continue
            path.write_text("old")
            process.run(request, f"{name}:signal=KILL:when={count}")
            seen.add(path.read_text())
        assert seen == {"old", "new"}
        remove_remains(str(tmp_path), time.time() + 1000.0)
        assert names(tmp_path) == ["finished", "strace.log"]
