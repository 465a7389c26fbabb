"""One worker: what it reads of a directory, its system calls and its open files."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.watch.scan import worker as module
from resilience.watch.scan.tree import ELSEWHERE, PARTIAL, READ, UNREADABLE, UNTRUSTED, Record
from resilience.watch.scan.worker import Worker, beneath, mounts_below
from tests.lab.disks import small_disk
from tests.system.people import NOBODY, needs_root
from tests.watch.scan.trees import LONG_AGO, a_tree, settle, write


def a_worker(root: Path) -> Worker:
    """Return a worker that runs in this process."""
    made = Worker(os.fsencode(root), (), memoryview(bytearray(32)).cast("Q"), 2, int(time.time()), -1)
    made.root = os.open(root, os.O_RDONLY)
    made.device = os.fstat(made.root).st_dev
    return made


def read(root: Path, path: bytes = b"") -> Record:
    """Read one directory below a root."""
    made = a_worker(root)
    try:
        return made.read(path)
    finally:
        os.close(made.root)


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


def test_the_newest_and_the_largest_files_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_PER_DIRECTORY", 2)
    for number in range(20):
        path = write(tmp_path / f"{number}.log", 10)
        os.utime(path, (LONG_AGO + number, LONG_AGO + number))
    for name, size in (("old.bin", 90_000), ("older.bin", 50_000)):
        os.utime(write(tmp_path / name, size), (5, 5))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("old.bin")
    assert {name for name, *_ in read(tmp_path).remembered} == {b"18.log", b"19.log", b"old.bin", b"older.bin"}


def test_only_files_among_the_newest_or_largest_of_the_tree_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    for number in range(9):
        path = write(tmp_path / str(number) / "file", 10)
        os.utime(path, (LONG_AGO - number, LONG_AGO - number))
    new = write(tmp_path / "8" / "new", 10)
    os.utime(new, (LONG_AGO + 1, LONG_AGO + 1))
    made = a_worker(tmp_path)
    assert [len(made.read(b"%d" % number).remembered) for number in range(9)] == [1] * 3 + [0] * 5 + [1]
    os.close(made.root)


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


def test_a_file_deleted_before_its_stat_call_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write(tmp_path / str(number))
    stat_entries = module.stat_entries

    def stats(entries: object) -> list[os.stat_result | None]:
        (tmp_path / "3").unlink()
        return stat_entries(entries)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "stat_entries", stats)
    assert read(tmp_path).files == 4


def test_a_read_error_keeps_the_sums_of_the_entries_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    for number in range(4):
        write(tmp_path / str(number))
    asked: list[int] = []
    stat_entries = module.stat_entries

    def stats(entries: object) -> list[os.stat_result | None]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError(errno.EIO, "the disk is broken")
        return stat_entries(entries)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "stat_entries", stats)
    record = read(tmp_path)
    assert (record.state, record.trouble, record.files, record.mtime_ns) == (UNREADABLE, errno.EIO, 2, UNTRUSTED)


def test_reading_stops_between_chunks_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    for number in range(6):
        write(tmp_path / str(number))
    made = a_worker(tmp_path)
    made.board[0] = 1
    record = made.read(b"")
    os.close(made.root)
    assert (record.state, record.files, record.mtime_ns) == (PARTIAL, 2, UNTRUSTED)


def test_another_file_system_is_recorded_and_not_entered(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made = a_worker(tmp_path)
    made.device = -1
    record = made.read(b"other")
    os.close(made.root)
    assert (record.state, record.blocks) == (ELSEWHERE, 0)


def test_a_mount_point_is_recorded_without_a_stat_call(tmp_path: Path) -> None:
    write(tmp_path / "file")
    made = a_worker(tmp_path)
    made.mounts = {b"": {b"file"}, b"gone": {b"mount"}}
    record = made.read(b"")
    assert (record.children, record.files) == ((b"file",), 0)
    assert made.read(b"gone/mount").state == ELSEWHERE
    os.close(made.root)


def test_paths_beyond_the_kernels_limit_are_opened_in_steps(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    opened, path = os.dup(root), b""
    for _ in range(60):
        os.mkdir("x" * 200, dir_fd=opened)
        opened, before = os.open("x" * 200, os.O_RDONLY, dir_fd=opened), opened
        os.close(before)
        path += b"/" * bool(path) + b"x" * 200
    assert len(path) > 4096
    assert os.path.samestat(beneath(root, path, os.stat), os.fstat(opened))
    with pytest.raises(FileNotFoundError):
        beneath(root, path + b"/gone", os.stat)
    for descriptor in (root, opened):
        os.close(descriptor)


PROGRAM = """
import sys
import time
from pathlib import Path
from resilience.watch.scan import scan as module
module.SMALL = -1
found = module.scan(Path(sys.argv[1]), Path(sys.argv[2]), now=1.8e9)
print(found.read, found.verified)
"""


def traced(root: Path, cache: Path, *options: str) -> tuple[str, str]:
    """Scan under strace; return the output, and the system calls that access files."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = root.parent / "calls"
    command = ["strace", *options, "-qq", "-o", str(log), "-e", "trace=%file,getdents64"]
    done = subprocess.run([*command, sys.executable, "-c", PROGRAM, root, cache], capture_output=True, text=True)
    if "ptrace" in done.stderr.lower() and done.returncode:
        pytest.skip("strace may not attach here")
    return done.stdout, "".join(path.read_text() for path in root.parent.glob("calls*"))


def test_an_unchanged_tree_costs_one_stat_for_each_directory_and_remembered_file(tmp_path: Path, cache: Path) -> None:
    root = a_tree(tmp_path / "tree")
    subprocess.run([sys.executable, "-c", PROGRAM, root, cache], check=True, capture_output=True)
    printed, calls = traced(root, cache, "-ff")
    assert printed.split() == ["0", "25"]
    assert len(re.findall(r'newfstatat\(\d+, "t\d(?:/s\d)?", .*AT_SYMLINK_NOFOLLOW', calls)) == 24  # all but the root
    assert len(re.findall(r'"t\d/s\d/f\d"', calls)) == 60
    assert "getdents64" not in "".join(line for line in calls.splitlines() if f"{root}" in line)
    assert f'"{root}"' in calls


def test_the_parent_process_never_touches_the_tree(tmp_path: Path, cache: Path) -> None:
    root = a_tree(tmp_path / "tree")
    printed, calls = traced(root, cache)
    assert printed.split() == ["25", "0"]
    assert [line for line in calls.splitlines() if f'"{root}' in line and not line.startswith("execve(")] == []


def test_mounts_below_a_directory_are_known_without_touching_them(tmp_path: Path) -> None:
    with small_disk(tmp_path / "a disk"):
        root = os.open(tmp_path, os.O_RDONLY)
        assert mounts_below(root, b"") == {b"": {b"a disk"}}
        os.close(root)
