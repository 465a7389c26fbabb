"""A directory of small files goes on working when its disk is full, read-only, hangs or is gone."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from resilience.errors import StateDirectoryError
from resilience.system.child import run_in_child
from resilience.system.fallback_directory import FallbackDirectory, fallback_path
from tests.lab.disks import fill, make_read_only, small_disk
from tests.lab.fakes import make_system
from tests.lab.hung import hung_directory
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.system.writer import writer


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def directory(tmp_path: Path) -> FallbackDirectory:
    return FallbackDirectory(tmp_path / "home" / "a", tmp_path / "fallback" / "a")


def test_what_was_written_is_read_and_the_fallback_stays_empty(directory: FallbackDirectory) -> None:
    assert directory.names() == ()
    assert directory.read("x") is None
    directory.write("x", b"1")
    directory.write("x", b"2")
    directory.write("y", b"3", durable=False)
    assert (directory.names(), directory.read("x"), directory.read("y")) == (("x", "y"), b"2", b"3")
    assert directory.fallback is not None and not directory.fallback.exists()
    directory.remove("x")
    directory.remove("never there")
    assert (directory.names(), directory.error) == (("y",), "")


def test_names_with_a_dot_before_them_are_not_listed(directory: FallbackDirectory) -> None:
    directory.write("x", b"1")
    (directory.primary / ".x.123.tmp").write_bytes(b"")
    assert directory.names() == ("x",)


@pytest.mark.parametrize(("group", "modes"), [(False, (0o700, 0o600)), (True, (0o2770, 0o660))])
def test_modes_are_those_that_were_asked_for_whatever_the_umask(
    tmp_path: Path, group: bool, modes: tuple[int, int]
) -> None:
    before = os.umask(0o027)
    try:
        home, fallback = tmp_path / "state" / "a", tmp_path / "fallback" / "a"
        directory = FallbackDirectory(home, fallback)
        if group:
            directory = FallbackDirectory(home, fallback, gid=os.getgid(), directory_mode=0o2770, file_mode=0o660)
        directory.write("x", b"1")
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "state" / "a"), mode_of(tmp_path / "state" / "a" / "x")) == modes


def test_a_full_disk_is_no_end_and_the_files_move_home_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")
        directory.write("told", b"before")
        ballast = fill(disk)
        directory.write("told", b"after" * 1000)
        directory.write("new", b"new" * 1000)
        assert "No space left" in directory.error
        again = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")  # the next tick
        assert again.names() == ("new", "told")
        assert (again.read("told"), again.read("new")) == (b"after" * 1000, b"new" * 1000)
        assert again.flush_fallback() == 0
        ballast.unlink()
        assert again.flush_fallback() == 2
        assert names_in(tmp_path / "fallback" / "a") == []
        home = FallbackDirectory(disk / "a", None)
        assert (home.read("told"), home.read("new")) == (b"after" * 1000, b"new" * 1000)


def test_what_was_removed_from_a_read_only_disk_stays_removed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")
        directory.write("x", b"1")
        directory.write("y", b"1")
        make_read_only(disk, True)
        directory.remove("x")
        directory.write("y", b"2")
        assert "Read-only file system" in directory.error
        again = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")
        assert (again.names(), again.read("x"), again.read("y")) == (("y",), None, b"2")
        make_read_only(disk, False)
        again.flush_fallback()
        assert names_in(disk / "a") == ["y"]
        assert names_in(tmp_path / "fallback" / "a") == []


def test_a_name_that_was_removed_and_written_again_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")
        directory.write("x", b"1")
        make_read_only(disk, True)
        directory.remove("x")
        directory.write("x", b"2")
        assert (directory.names(), directory.read("x")) == (("x",), b"2")
        make_read_only(disk, False)
        directory.flush_fallback()
        assert FallbackDirectory(disk / "a", None).read("x") == b"2"
        directory.write("x", b"3")
        assert directory.read("x") == b"3"


def test_a_directory_that_vanishes_is_made_again(directory: FallbackDirectory) -> None:
    directory.write("x", b"1")
    shutil.rmtree(directory.primary)
    assert directory.names() == ()
    directory.write("x", b"2")
    assert (directory.primary / "x").read_bytes() == b"2"


def test_a_file_in_the_place_of_the_directory_sends_the_files_to_the_spare(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    directory = FallbackDirectory(tmp_path / "home" / "a", tmp_path / "fallback" / "a")
    directory.write("x", b"1")
    assert directory.error
    assert (directory.names(), directory.read("x")) == (("x",), b"1")
    directory.remove("x")
    assert directory.names() == ()


def test_a_disk_that_hangs_is_not_touched(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "disk") as disk:
        directory = FallbackDirectory(disk / "home" / "a", tmp_path / "fallback" / "a", unavailable="no response")
        ((_, answer),) = run_in_child({"all": (lambda: use(directory), 20.0)})
    assert answer.error is None
    assert answer.value == ["x", "y"]


def use(directory: FallbackDirectory) -> list[str]:
    """Do with it everything that can be done."""
    assert (directory.names(), directory.read("x"), directory.error) == ((), None, "no response")
    for name in ("x", "y", "z"):
        directory.write(name, b"2")
    directory.remove("y")
    directory.write("y", b"3")
    directory.quarantine("z")
    assert directory.read("y") == b"3"
    assert directory.flush_fallback() == 0
    assert directory.sibling("b").error == "no response"
    assert directory.sibling("b").names() == ()
    return list(directory.names())


def test_without_a_fallback_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    directory = FallbackDirectory(tmp_path / "home" / "a", None)
    with pytest.raises(StateDirectoryError):
        directory.write("x", b"1")
    assert directory.flush_fallback() == 0


def test_when_neither_takes_it_the_error_names_both(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    (tmp_path / "fallback").write_text("not a directory either")
    directory = FallbackDirectory(tmp_path / "home" / "a", tmp_path / "fallback" / "a")
    with pytest.raises(StateDirectoryError) as failed:
        directory.write("x", b"1")
    assert str(tmp_path / "home") in failed.value.message
    assert str(tmp_path / "fallback") in failed.value.message
    assert "namei -l" in failed.value.hint


@needs_root
@pytest.mark.parametrize("level", ["fallback", "fallback/a"])
def test_a_fallback_that_somebody_else_made_first_is_not_used(tmp_path: Path, level: str) -> None:
    (tmp_path / "home").write_text("not a directory")
    for name in ("fallback", "fallback/a"):
        (tmp_path / name).mkdir(mode=0o777)
    os.chown(tmp_path / level, NOBODY, NOBODY)
    if level == "fallback/a":
        (tmp_path / level / "x").write_bytes(b"a lie")
    directory = FallbackDirectory(tmp_path / "home" / "a", tmp_path / "fallback" / "a")
    if level == "fallback/a":
        assert directory.names() == ()
    with pytest.raises(StateDirectoryError):
        directory.write("x", b"1")


@needs_root
def test_a_file_that_somebody_else_put_into_the_fallback_is_not_believed(directory: FallbackDirectory) -> None:
    directory.write("x", b"1")
    assert directory.fallback is not None
    directory.fallback.mkdir(parents=True, mode=0o700)
    (directory.fallback / "x").write_bytes(b"a lie")
    os.chown(directory.fallback / "x", NOBODY, NOBODY)
    assert directory.read("x") == b"1"


@needs_root
def test_a_colleague_of_the_group_writes_where_the_first_one_did(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    tmp_path.chmod(0o755)
    gid = NOBODY
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o775)
    mine = FallbackDirectory(
        state / ".alerts" / "a", tmp_path / "s" / "a", directory_mode=0o2770, file_mode=0o660, gid=gid
    )
    mine.write("x", b"1")
    with acting_as(12345, gid):
        theirs = FallbackDirectory(
            state / ".alerts" / "a", tmp_path / "t" / "a", directory_mode=0o2770, file_mode=0o660, gid=gid
        )
        theirs.write("x", b"2")
        theirs.sibling("b").write("y", b"3")
    assert mine.error == theirs.error == ""
    assert mine.read("x") == b"2"
    assert (state / ".alerts" / "b" / "y").stat().st_gid == gid


def test_a_link_or_a_fifo_in_a_file_s_place_is_an_error_and_nobody_waits(directory: FallbackDirectory) -> None:
    directory.write("x", b"1")
    os.mkfifo(directory.primary / "pipe")
    (directory.primary / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link"):
        with pytest.raises(StateDirectoryError):
            directory.read(name)


def test_a_damaged_file_is_set_aside_and_not_seen_again(directory: FallbackDirectory) -> None:
    directory.write("x", b"rubbish")
    aside = Path(directory.quarantine("x"))
    assert aside.name.startswith(".damaged-x-")
    assert aside.read_bytes() == b"rubbish"
    assert (directory.names(), directory.read("x")) == ((), None)


def test_a_damaged_file_of_a_read_only_disk_is_not_seen_again_either(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        directory = FallbackDirectory(disk / "a", tmp_path / "fallback" / "a")
        directory.write("x", b"rubbish")
        make_read_only(disk, True)
        directory.quarantine("x")
        assert (directory.names(), directory.read("x")) == ((), None)
        make_read_only(disk, False)


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({}, f"/tmp/resil-{os.getuid()}/alerts-"),
        ({"XDG_STATE_HOME": ""}, f"/tmp/resil-{os.getuid()}/alerts-"),
        ({"XDG_STATE_HOME": "relative"}, f"/tmp/resil-{os.getuid()}/alerts-"),
        ({"XDG_STATE_HOME": "/local/me"}, "/local/me/resil/alerts-"),
    ],
)
def test_the_fallback_lies_on_this_node(tmp_path: Path, environ: dict[str, str], where: str) -> None:
    system = make_system(tmp_path, environ)
    assert str(fallback_path(system, Path("/data/.resil/.alerts"))).startswith(where)
    assert fallback_path(system, Path("/data/.resil/.alerts")) != fallback_path(system, Path("/other/.resil/.alerts"))


def test_a_crash_while_moving_home_loses_nothing(tmp_path: Path) -> None:
    """Killed at each system call, the file is in one of the two places, and whole."""
    home, fallback = tmp_path / "home", tmp_path / "fallback"
    reset = f"import shutil; shutil.rmtree({str(home)!r}, True); shutil.rmtree({str(fallback)!r}, True)"
    begin = "from resilience.system.fallback_directory import FallbackDirectory; from pathlib import Path"
    request = f"{begin}; FallbackDirectory(Path({str(home / 'a')!r}), Path({str(fallback / 'a')!r})).flush_fallback()"
    content = b"news" * 2000

    def prepare() -> FallbackDirectory:
        exec(reset)
        (fallback / "a").mkdir(parents=True, mode=0o700)
        (fallback / "a" / "x").write_bytes(content)
        (home / "a").mkdir(parents=True)
        (home / "a" / "x").write_bytes(b"old")
        return FallbackDirectory(home / "a", fallback / "a")

    with writer(tmp_path / "strace") as process:
        prepare()
        points = [p for p in process.kill_points(request) if p[0] in ("unlink", "rename", "fsync", "write")]
        assert len(points) >= 4
        for name, count in points:
            directory = prepare()
            process.run(request, f"{name}:signal=KILL:when={count}")
            assert directory.read("x") == content, (name, count)


def test_what_a_killed_writer_left_is_removed_a_day_later(directory: FallbackDirectory) -> None:
    directory.write("x", b"1")
    fresh, old = directory.primary / ".x.1.tmp", directory.primary / ".x.2.tmp"
    for path, age_s in ((fresh, 0.0), (old, 2 * 86400.0)):
        path.write_bytes(b"")
        os.utime(path, (time.time() - age_s,) * 2)
    assert directory.names() == ("x",)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_a_thousand_files_are_written_and_read_in_a_moment(directory: FallbackDirectory) -> None:
    began = time.monotonic()
    for number in range(1000):
        directory.write(f"{number}.json", b"x" * 800, durable=False)
    assert all(directory.read(name) for name in directory.names())
    assert time.monotonic() - began < 10  # 0.3 s on a quiet core
