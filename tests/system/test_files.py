"""Files are whole or not there, whatever kills the writer, fills the disk or lies in their place."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.base import files
from resilience.base.files import STALE_S
from resilience.errors import ResilError, StateDirectoryError
from resilience.system import files as shipped
from resilience.system.files import (
    NotRegularFile,
    append_line,
    explain_os_error,
    make_directory,
    read_lines,
    read_regular,
    shipped_directory,
    write_atomic,
)
from tests.base.test_files import ODD_FILES
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.system.writer import OF_THE_INTERPRETER, REFUSED, writer

REPOSITORY = Path(__file__).parents[2]
OLD, NEW = "old" * 1000, "new" * 3000


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.endswith(".tmp")]


def age(directory: Path) -> None:
    """Make what a crashed writer left look as old as it will be when somebody cares."""
    for name in leftovers(directory):
        past = (directory / name).stat().st_mtime - STALE_S - 1
        os.utime(directory / name, (past, past))


@pytest.fixture(params=[0o000, 0o077, 0o027, 0o777], ids=lambda mask: f"umask{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@contextmanager
def tmpfs(directory: Path, options: str) -> Iterator[Path]:
    """A file system of its own, or a skip where mounting is not permitted."""
    directory.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


# ---- write_atomic


def test_a_written_file_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomic(path, "gr\u00fcn \udcff")
    assert path.read_bytes() == b"gr\xc3\xbcn \xff"
    write_atomic(path, b"")
    assert path.read_bytes() == b""
    assert names_in(tmp_path) == ["state"]


def test_a_file_that_its_reader_takes_away_at_once_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_file = files.replace_file

    def replaced_and_read(path: Path, content: str, *, mode: int, durable: bool) -> None:
        replace_file(path, content, mode=mode, durable=durable)
        path.unlink()

    monkeypatch.setattr(files, "replace_file", replaced_and_read)
    write_atomic(tmp_path / "save", "who = 'ada'\n")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o644])
def test_a_file_has_the_mode_asked_for_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    write_atomic(tmp_path / "state", "x", mode=mode)
    append_line(tmp_path / "journal", {"a": 1}, mode=mode)
    assert (mode_of(tmp_path / "state"), mode_of(tmp_path / "journal")) == (mode, mode)


def test_sigkill_at_every_system_call_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "run" / "state"
    path.parent.mkdir()
    request = f"write_atomic(Path({str(path)!r}), {NEW!r})"
    seen = set()
    with writer(tmp_path / "strace") as process:
        write_atomic(path, OLD)
        points = [point for point in process.kill_points(request) if point[0] not in OF_THE_INTERPRETER]
        assert {"write", "fsync", "rename"} <= {name for name, _ in points}
        assert [name for name, _ in points].count("fsync") == 2, "the file and then its directory"
        for name, count in points:
            write_atomic(path, OLD)
            assert process.run(request, f"{name}:signal=SIGKILL:when={count}").code == -signal.SIGKILL
            content = path.read_text()
            assert content in (OLD, NEW), f"torn by SIGKILL at {name} {count}"
            seen.add(content)
    assert seen == {OLD, NEW}, "the points lie before and after the rename"
    assert leftovers(path.parent), "some writer was killed with its temporary file open"
    write_atomic(path, OLD)
    assert leftovers(path.parent), "a young one may belong to a writer that lives"
    age(path.parent)
    write_atomic(path, NEW)
    assert names_in(path.parent) == ["state"]


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EIO", "ESTALE", "EROFS"])
def test_whatever_the_kernel_refuses_the_file_stays_whole_and_nothing_is_left(tmp_path: Path, error: str) -> None:
    path = tmp_path / "run" / "state"
    path.parent.mkdir()
    request = f"write_atomic(Path({str(path)!r}), {NEW!r})"
    with writer(tmp_path / "strace") as process:
        for call in ("openat", "write", "fchmod", "fsync", "rename"):
            write_atomic(path, OLD)
            assert process.run(request, f"{call}:error={error}:when=1").code == REFUSED
            assert path.read_text() == OLD
        write_atomic(path, OLD)
        assert process.run(request, f"fsync:error={error}:when=2").code == REFUSED, "a directory that is not on disk"
    assert names_in(path.parent) == ["state"]


def test_a_file_system_that_cannot_sync_directories_is_good_enough(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with writer(tmp_path / "strace") as process:
        assert process.run(f"write_atomic(Path({str(path)!r}), {NEW!r})", "fsync:error=EINVAL:when=2").code == 0
    assert path.read_text() == NEW


def test_a_reader_never_sees_a_part_while_a_writer_is_busy_and_then_killed(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomic(path, "a" * 300_000)
    script = (
        "import sys\nfrom pathlib import Path\nfrom resilience.system.files import write_atomic\n"
        "while True:\n    for letter in 'ab':\n        write_atomic(Path(sys.argv[1]), letter * 300_000)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=REPOSITORY)
    try:
        seen: set[str] = set()
        end = time.monotonic() + 20
        reads = 0
        while (len(seen) < 2 or reads < 300) and time.monotonic() < end:
            content = path.read_text()
            assert len(content) == 300_000 and len(set(content)) == 1
            seen.add(content[0])
            reads += 1
    finally:
        child.kill()
        child.wait()
    assert seen == {"a", "b"}
    assert len(set(path.read_text())) == 1


def test_a_full_disk_keeps_the_old_file_and_names_the_quota(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=64k") as directory:
        write_atomic(directory / "state", OLD)
        with pytest.raises(StateDirectoryError, match="No space left") as caught:
            write_atomic(directory / "state", "x" * 200_000)
        assert (directory / "state").read_text() == OLD
        assert names_in(directory) == ["state"], "what did not fit is not left on a full disk"
    assert "quota" in caught.value.hint
    assert caught.value.transient


def test_no_inode_left_is_a_full_disk_too(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "nr_inodes=2") as directory:
        (directory / "state").write_text(OLD)
        with pytest.raises(StateDirectoryError) as caught:
            write_atomic(directory / "state", NEW)
        assert (directory / "state").read_text() == OLD
    assert "inodes" in caught.value.hint


def test_a_read_only_file_system_is_told_as_such(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", "ro") as directory:
        for attempt in (
            lambda: write_atomic(directory / "state", "x"),
            lambda: append_line(directory / "journal", {}),
            lambda: make_directory(directory / "run", mode=0o700),
        ):
            with pytest.raises(StateDirectoryError, match="Read-only") as caught:
                attempt()
            assert not caught.value.transient
            assert "state_dir" in caught.value.hint


def test_a_missing_directory_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(StateDirectoryError, match="missing/state"):
        write_atomic(tmp_path / "missing" / "state", "x")


def test_a_sweep_removes_only_old_temporary_files_of_the_same_file(tmp_path: Path) -> None:
    strangers = [".state.tmp.bak", ".other.abc.tmp", "state.tmp", ".state2.abc.tmp"]
    for name in [*strangers, ".state.abc.tmp"]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    write_atomic(tmp_path / "state", "x")
    assert names_in(tmp_path) == sorted([*strangers, "state"])


@pytest.mark.parametrize(
    ("number", "hint", "transient"),
    [
        (errno.ENOSPC, "quota", True),
        (errno.EDQUOT, "quota", True),
        (errno.ESTALE, "another node", True),
        (errno.EIO, "another node", True),
        (errno.EACCES, "permission", False),
        (errno.EROFS, "state_dir", False),
        (errno.ENAMETOOLONG, "", False),
    ],
)
def test_what_the_kernel_says_becomes_what_to_try(number: int, hint: str, transient: bool) -> None:
    error = explain_os_error(OSError(number, "x"), "write", Path("/run/state"))
    assert error.message == f"cannot write /run/state: {os.strerror(number)}"
    assert hint in error.hint and bool(hint) == bool(error.hint)
    assert error.transient is transient


def test_an_error_without_a_number_is_not_told_as_success() -> None:
    error = explain_os_error(OSError("odd"), "write", Path("/x"))
    assert error.message == "cannot write /x: odd"


# ---- directories


@pytest.mark.parametrize("mode", [0o700, 0o2770])
def test_a_directory_has_the_mode_asked_for_whatever_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    assert make_directory(tmp_path / "a" / "b" / "c", mode=mode) == (
        tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c",
    )  # fmt: skip
    assert mode_of(tmp_path / "a" / "b" / "c") == mode
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == mode & ~0o022


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o751)
    assert make_directory(tmp_path, mode=0o700) == ()
    assert mode_of(tmp_path) == 0o751


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_something_else_in_a_directories_place_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.touch()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateDirectoryError, match="cannot create"):
        make_directory(path / "scripts", mode=0o700)


# ---- journals


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.text(st.characters(exclude_categories=[])), JSON, max_size=4), max_size=5))
def test_what_is_journalled_reads_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    for record in records:
        append_line(path, record, sync=False)
    assert list(read_lines(path)) == records


def test_a_journal_reads_well_with_cat(tmp_path: Path) -> None:
    append_line(tmp_path / "journal", {"why": "l\u00e4uft hei\u00df\n"})
    assert (tmp_path / "journal").read_text() == '{"why":"l\u00e4uft hei\u00df\\n"}\n'


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "journal")) == []


@pytest.mark.parametrize(
    "damage",
    [b'{"torn', b"\x00" * 4096, b"\xff\xfe", b"[" * 200_000, b"[1,2]", b"null", b'{"n":' + b"9" * 5000 + b"}", b"\r"],
    ids=lambda damage: repr(damage[:12]),
)
def test_a_damaged_line_costs_only_itself(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal"
    append_line(path, {"n": 1})
    with path.open("ab") as file:
        file.write(damage)
    append_line(path, {"n": 2})
    append_line(path, {"n": 3})
    assert [record["n"] for record in read_lines(path)] == [1, 2, 3]


def test_a_line_that_does_not_fit_is_refused_and_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    append_line(path, {"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limits[1]))
    try:
        with pytest.raises(StateDirectoryError, match="cannot write"):
            append_line(path, {"n": 2, "text": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.read_bytes().endswith(b"\n"), "the kernel took a part of it"
    append_line(path, {"n": 3})
    assert [record["n"] for record in read_lines(path)] == [1, 3]


def test_eight_writers_at_once_lose_and_mix_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    script = (
        "import sys\nfrom pathlib import Path\nfrom resilience.system.files import append_line\n"
        "sys.stdin.read(1)\n"
        "for n in range(150):\n"
        "    append_line(Path(sys.argv[1]), {'w': int(sys.argv[2]), 'n': n, 'x': 'x' * (n * 97 % 9000)}, sync=False)\n"
    )
    start, go = os.pipe()
    children = [
        subprocess.Popen([sys.executable, "-S", "-c", script, str(path), str(number)], cwd=REPOSITORY, stdin=start)
        for number in range(8)
    ]
    os.close(start)
    os.write(go, b"x" * 8)
    os.close(go)
    assert [child.wait(timeout=60) for child in children] == [0] * 8
    lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines if line]
    assert all(len(record["x"]) == record["n"] * 97 % 9000 for record in records)
    for number in range(8):
        assert [record["n"] for record in records if record["w"] == number] == list(range(150))


@needs_root
def test_a_colleague_may_append_to_an_empty_journal_that_is_not_theirs(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    path = tmp_path / "journal"
    path.touch()
    path.chmod(0o666)
    with acting_as(NOBODY):
        append_line(path, {"n": 1}, mode=0o660)
    assert [record["n"] for record in read_lines(path)] == [1]


def test_a_fifo_in_a_journals_place_does_not_block_its_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal")
    assert list(read_lines(tmp_path / "journal")) == []


# ---- read_regular


@pytest.mark.parametrize("kind", ODD_FILES)
def test_anything_but_a_regular_file_is_refused_without_waiting(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ODD_FILES[kind].make(tmp_path / "switch")
    with pytest.raises(NotRegularFile, match="link" if "link" in kind else "not a regular file") as caught:
        read_regular(tmp_path / "switch")
    assert not caught.value.transient


@needs_root
def test_a_file_we_may_not_read_is_an_error_and_not_absent(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    (tmp_path / "switch").touch(mode=0o600)
    with acting_as(NOBODY), pytest.raises(StateDirectoryError, match="Permission denied"):
        read_regular(tmp_path / "switch")


@pytest.mark.parametrize("kind", ["slurm_templates", "cron"])
def test_a_clone_has_them_beside_the_package(kind: str) -> None:
    assert shipped_directory(kind).is_dir()


def test_a_wheel_has_them_below_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    from pathlib import Path

    package = Path(str(tmp_path)) / "site-packages" / "resilience"
    (package / "_shipped" / "cron").mkdir(parents=True)
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    assert shipped_directory("cron") == package / "_shipped" / "cron"
    with pytest.raises(ResilError, match="lacks its slurm_templates directory"):
        shipped_directory("slurm_templates")
