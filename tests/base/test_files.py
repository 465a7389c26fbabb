"""Small files: only regular files are read, writes are atomic, and only unchanged files are removed."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from resilience.base.files import (
    LIMIT_BYTES,
    NOT_REGULAR,
    append,
    kind_of,
    open_directory,
    read_own,
    read_regular,
    remove_same,
    replace_file,
)
from tests.system.people import acting_as, needs_root, open_the_way

SOMEBODY = 65532


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[int]:
    directory = open_directory(tmp_path)
    yield directory
    os.close(directory)


def test_a_file_is_read_with_its_status(tmp_path: Path, opened: int) -> None:
    (tmp_path / "kill").write_text("enough")
    for found in (read_regular(tmp_path / "kill"), read_regular("kill", directory=opened)):
        assert found is not None and (found[0], found[1].st_size) == (b"enough", 6)
    assert read_regular("save", directory=opened) is None


def test_a_read_is_limited(tmp_path: Path) -> None:
    (tmp_path / "kill").write_bytes(b"x" * 10 * LIMIT_BYTES)
    found = read_regular(tmp_path / "kill")
    assert found is not None and len(found[0]) == LIMIT_BYTES


def test_a_read_that_ends_early_is_not_the_end_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """read(2) returns what precedes a page that cannot be read, and the error only when it is called again."""
    (tmp_path / "manifest").write_bytes(b"x" * 9000)
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 4096)))
    found = read_regular(tmp_path / "manifest")
    assert found is not None and len(found[0]) == 9000


class Odd(NamedTuple):
    """A file that is not regular: how to create it, its kind, and the error number of a read."""

    make: Callable[[Path], object]
    word: str
    number: int


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # the path of a socket must be short


ODD_FILES = {
    "link": Odd(lambda path: path.symlink_to(__file__), "a symbolic link", errno.ELOOP),
    "dangling link": Odd(lambda path: path.symlink_to("/nowhere"), "a symbolic link", errno.ELOOP),
    "link to itself": Odd(lambda path: path.symlink_to(path.name), "a symbolic link", errno.ELOOP),
    "fifo": Odd(os.mkfifo, "a FIFO", errno.EINVAL),
    "directory": Odd(Path.mkdir, "a directory", errno.EINVAL),
    "socket": Odd(bind, "a socket", errno.ENXIO),
}


@pytest.mark.parametrize("odd", ODD_FILES.values(), ids=ODD_FILES)
def test_anything_else_is_an_error_at_once(tmp_path: Path, odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd.make(tmp_path / "kill")
    with pytest.raises(OSError) as caught:
        read_regular(tmp_path / "kill")
    assert caught.value.errno == odd.number and odd.number in NOT_REGULAR
    assert kind_of((tmp_path / "kill").lstat()) == odd.word


def test_a_device_is_no_regular_file_either() -> None:
    with pytest.raises(OSError) as caught:
        read_regular("/dev/zero")
    assert caught.value.errno == errno.EINVAL


def test_devices_have_a_kind_and_regular_files_have_none(tmp_path: Path) -> None:
    assert kind_of(Path("/dev/null").stat()) == "a device"
    (tmp_path / "kill").touch()
    assert kind_of((tmp_path / "kill").stat()) == ""


@needs_root
def test_a_directory_that_we_may_enter_and_not_list_is_opened(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    tmp_path.chmod(0o711)
    (tmp_path / "kill").write_text("enough")
    with acting_as(SOMEBODY):
        directory = open_directory(tmp_path)
        found = read_regular("kill", directory=directory)
        os.close(directory)
        assert found is not None and found[0] == b"enough"


@needs_root
@pytest.mark.parametrize(("uid", "mode", "is_read"), [(0, 0o600, True), (0, 0o640, False), (SOMEBODY, 0o600, False)])
def test_only_a_private_file_of_this_user_counts_as_own(tmp_path: Path, uid: int, mode: int, is_read: bool) -> None:
    path = tmp_path / "address"
    path.write_text("secret")
    path.chmod(mode)
    os.chown(path, uid, 0)
    assert (read_own(path) == "secret") is is_read


def test_a_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "beat").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "beat", "one", mode=0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["beat"]


def test_the_only_writer_truncates_a_partial_line_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    append(path, b"one\n", mode=0o600, is_only_writer=True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))
    try:
        with pytest.raises(OSError):
            append(path, b"two\n", mode=0o600, is_only_writer=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"one\n"


def test_the_same_file_is_removed(tmp_path: Path, opened: int) -> None:
    (tmp_path / "save").touch()
    info = (tmp_path / "save").stat()
    assert remove_same("save", info.st_ino, info.st_mtime_ns, directory=opened)
    assert not remove_same("save", info.st_ino, info.st_mtime_ns, directory=opened)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_another_file_is_put_back(
    tmp_path: Path, opened: int, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "old").touch()
    info = (tmp_path / "old").stat()
    (tmp_path / "save").write_text("new")
    assert not remove_same("save", info.st_ino, info.st_mtime_ns, directory=opened)
    assert (tmp_path / "save").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "save"]


def test_a_directory_in_its_place_is_left(tmp_path: Path, opened: int) -> None:
    (tmp_path / "save").mkdir()
    assert not remove_same("save", 1, 1, directory=opened)
    assert (tmp_path / "save").is_dir()


def test_no_request_is_lost_between_a_check_and_a_removal(tmp_path: Path, opened: int) -> None:
    """One thread writes switches as fast as possible, the other reads and removes them: the last is always read."""
    last, seen = 3000, -1

    def throw() -> None:
        for number in range(last + 1):
            replace_file(tmp_path / "save", str(number), mode=0o600)

    thrower = threading.Thread(target=throw)
    thrower.start()
    while True:
        is_over = not thrower.is_alive()
        found = read_regular("save", directory=opened)
        if found is not None:
            assert int(found[0]) >= seen
            seen = int(found[0])
            remove_same("save", found[1].st_ino, found[1].st_mtime_ns, directory=opened)
        elif is_over:
            break
    assert seen == last
    assert list(tmp_path.iterdir()) == []
