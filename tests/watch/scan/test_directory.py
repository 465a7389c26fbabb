"""Reading one directory: sums, hot files, and errors."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from resilience.watch.scan import directory as module
from resilience.watch.scan.directory import HOT_PER_DIRECTORY, LARGE_BLOCKS, open_directory, read_directory, status_of
from resilience.watch.scan.tree import ELSEWHERE, PARTIAL, READ, UNREADABLE, UNTRUSTED, Record
from tests.system.people import NOBODY, needs_root
from tests.watch.scan.trees import LONG_AGO, settle, write


def read(root: Path, path: bytes = b"", **options: object) -> Record:
    """Read one directory below a root."""
    opened = os.open(root, os.O_RDONLY)
    try:
        device = os.fstat(opened).st_dev
        return read_directory(opened, path, **{"device": device, "now": int(time.time()), **options})  # type: ignore[arg-type]
    finally:
        os.close(opened)


def test_the_record_counts_files_and_lists_subdirectories(tmp_path: Path) -> None:
    write(tmp_path / "b" / "inside")
    (tmp_path / "a").mkdir()
    write(tmp_path / "model.pt", 50_000)
    (tmp_path / "link").symlink_to("b")
    os.mkfifo(tmp_path / "fifo")
    settle(tmp_path)
    os.utime(tmp_path / "model.pt", (LONG_AGO + 5, LONG_AGO + 5))
    record = read(tmp_path)
    own = tmp_path.stat()
    model = (tmp_path / "model.pt").stat()
    assert record.children == (b"a", b"b")
    assert record.files == 3
    assert record.state == READ
    assert record.mtime_ns == own.st_mtime_ns
    assert record.blocks == own.st_blocks + model.st_blocks + (tmp_path / "link").lstat().st_blocks
    assert record.checkpoint_blocks == model.st_blocks
    assert record.newest >= LONG_AGO + 5


def test_a_directory_that_has_just_changed_is_not_trusted(tmp_path: Path) -> None:
    assert read(tmp_path).mtime_ns == UNTRUSTED
    future = time.time() + 9999
    os.utime(tmp_path, (future, future))
    assert read(tmp_path).mtime_ns == UNTRUSTED
    settle(tmp_path)
    assert read(tmp_path).mtime_ns == LONG_AGO * 10**9


def test_the_newest_files_are_hot_and_the_largest(tmp_path: Path) -> None:
    now = int(time.time())
    for number in range(20):
        path = write(tmp_path / f"{number}.log", 10)
        os.utime(path, (now - 100 + number, now - 100 + number))
    with open(tmp_path / "old.bin", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, LARGE_BLOCKS * 512)
    os.utime(tmp_path / "old.bin", (LONG_AGO, LONG_AGO))
    names = {hot.name for hot in read(tmp_path).hot}
    assert names == {b"16.log", b"17.log", b"18.log", b"19.log", b"old.bin"}
    assert len(names) == HOT_PER_DIRECTORY + 1
    assert {hot.name for hot in read(tmp_path, recent=now).hot} == {b"old.bin"}


@needs_root
def test_the_owner_is_the_user_with_most_of_the_blocks(tmp_path: Path) -> None:
    write(tmp_path / "small", 10)
    os.chown(write(tmp_path / "big", 100_000), NOBODY, NOBODY)
    assert read(tmp_path).uid == NOBODY
    (tmp_path / "big").unlink()
    assert read(tmp_path).uid == 0


def test_a_deleted_directory_is_recorded_as_missing(tmp_path: Path) -> None:
    assert read(tmp_path, b"gone").trouble == errno.ENOENT
    write(tmp_path / "file")
    assert read(tmp_path, b"file").trouble == errno.ENOENT
    (tmp_path / "link").symlink_to(tmp_path)
    assert read(tmp_path, b"link").trouble == errno.ENOENT


def test_a_file_deleted_before_its_stat_call_is_not_counted(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / str(number))

    def stats(entries: object) -> list[os.stat_result | None]:
        (tmp_path / "3").unlink()
        return module.stat_entries(entries)  # type: ignore[arg-type]

    assert read(tmp_path, stats=stats).files == 4


def test_a_read_error_keeps_the_sums_of_the_entries_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    for number in range(4):
        write(tmp_path / str(number))
    asked: list[int] = []

    def stats(entries: object) -> list[os.stat_result | None]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError(errno.EIO, "the disk is broken")
        return module.stat_entries(entries)  # type: ignore[arg-type]

    record = read(tmp_path, stats=stats)
    assert (record.state, record.trouble, record.files, record.mtime_ns) == (UNREADABLE, errno.EIO, 2, UNTRUSTED)


def test_reading_stops_between_chunks_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    for number in range(6):
        write(tmp_path / str(number))
    record = read(tmp_path, alive=lambda entries: False)
    assert (record.state, record.files, record.mtime_ns) == (PARTIAL, 2, UNTRUSTED)


def test_another_file_system_is_recorded_and_not_entered(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    record = read(tmp_path, b"other", device=-1)
    assert (record.state, record.blocks) == (ELSEWHERE, 0)


def test_a_mount_point_is_recorded_without_a_stat_call(tmp_path: Path) -> None:
    write(tmp_path / "mount" / "file")
    write(tmp_path / "file")
    record = read(tmp_path, barriers=frozenset({b"mount"}))
    assert (record.children, record.files) == ((b"mount",), 1)


def test_paths_beyond_the_kernels_limit_are_opened_in_steps(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    opened, path = os.dup(root), b""
    for _ in range(60):
        os.mkdir("x" * 200, dir_fd=opened)
        opened, before = os.open("x" * 200, os.O_RDONLY, dir_fd=opened), opened
        os.close(before)
        path += b"/" * bool(path) + b"x" * 200
    assert len(path) > 4096
    below = open_directory(root, path)
    assert os.path.samestat(os.fstat(below), os.fstat(opened))
    assert os.path.samestat(status_of(root, path), os.fstat(opened))
    with pytest.raises(FileNotFoundError):
        open_directory(root, path + b"/gone")
    for descriptor in (root, opened, below):
        os.close(descriptor)
