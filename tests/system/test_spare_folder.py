"""A folder of small files goes on working when its disk is full, read-only, hangs or is gone."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from resilience.errors import StateDirectoryError
from resilience.system.child import run_apart
from resilience.system.spare_folder import SpareFolder, spare_place
from tests.fakes import make_world
from tests.guard.disks import fill, make_read_only, small_disk
from tests.system.hung import hung_folder
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.system.writer import writer


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> SpareFolder:
    return SpareFolder(tmp_path / "home" / "a", tmp_path / "spare" / "a")


def test_what_was_written_is_read_and_the_spare_stays_empty(folder: SpareFolder) -> None:
    assert folder.names() == ()
    assert folder.read("x") is None
    folder.write("x", b"1")
    folder.write("x", b"2")
    folder.write("y", b"3", durable=False)
    assert (folder.names(), folder.read("x"), folder.read("y")) == (("x", "y"), b"2", b"3")
    assert folder.spare is not None and not folder.spare.exists()
    folder.remove("x")
    folder.remove("never there")
    assert (folder.names(), folder.trouble) == (("y",), "")


def test_names_with_a_dot_before_them_are_not_listed(folder: SpareFolder) -> None:
    folder.write("x", b"1")
    (folder.folder / ".x.123.tmp").write_bytes(b"")
    assert folder.names() == ("x",)


@pytest.mark.parametrize(("group", "modes"), [(False, (0o700, 0o600)), (True, (0o2770, 0o660))])
def test_modes_are_those_that_were_asked_for_whatever_the_umask(
    tmp_path: Path, group: bool, modes: tuple[int, int]
) -> None:
    before = os.umask(0o027)
    try:
        home, spare = tmp_path / "state" / "a", tmp_path / "spare" / "a"
        folder = SpareFolder(home, spare)
        if group:
            folder = SpareFolder(home, spare, gid=os.getgid(), folder_mode=0o2770, file_mode=0o660)
        folder.write("x", b"1")
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "state" / "a"), mode_of(tmp_path / "state" / "a" / "x")) == modes


def test_a_full_disk_is_no_end_and_the_files_move_home_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = SpareFolder(disk / "a", tmp_path / "spare" / "a")
        folder.write("told", b"before")
        ballast = fill(disk)
        folder.write("told", b"after" * 1000)
        folder.write("new", b"new" * 1000)
        assert "No space left" in folder.trouble
        again = SpareFolder(disk / "a", tmp_path / "spare" / "a")  # the next tick
        assert again.names() == ("new", "told")
        assert (again.read("told"), again.read("new")) == (b"after" * 1000, b"new" * 1000)
        assert again.bring_home() == 0
        ballast.unlink()
        assert again.bring_home() == 2
        assert names_in(tmp_path / "spare" / "a") == []
        home = SpareFolder(disk / "a", None)
        assert (home.read("told"), home.read("new")) == (b"after" * 1000, b"new" * 1000)


def test_what_was_removed_from_a_read_only_disk_stays_removed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = SpareFolder(disk / "a", tmp_path / "spare" / "a")
        folder.write("x", b"1")
        folder.write("y", b"1")
        make_read_only(disk, True)
        folder.remove("x")
        folder.write("y", b"2")
        assert "Read-only file system" in folder.trouble
        again = SpareFolder(disk / "a", tmp_path / "spare" / "a")
        assert (again.names(), again.read("x"), again.read("y")) == (("y",), None, b"2")
        make_read_only(disk, False)
        again.bring_home()
        assert names_in(disk / "a") == ["y"]
        assert names_in(tmp_path / "spare" / "a") == []


def test_a_name_that_was_removed_and_written_again_is_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = SpareFolder(disk / "a", tmp_path / "spare" / "a")
        folder.write("x", b"1")
        make_read_only(disk, True)
        folder.remove("x")
        folder.write("x", b"2")
        assert (folder.names(), folder.read("x")) == (("x",), b"2")
        make_read_only(disk, False)
        folder.bring_home()
        assert SpareFolder(disk / "a", None).read("x") == b"2"
        folder.write("x", b"3")
        assert folder.read("x") == b"3"


def test_a_folder_that_vanishes_is_made_again(folder: SpareFolder) -> None:
    folder.write("x", b"1")
    shutil.rmtree(folder.folder)
    assert folder.names() == ()
    folder.write("x", b"2")
    assert (folder.folder / "x").read_bytes() == b"2"


def test_a_file_in_the_place_of_the_folder_sends_the_files_to_the_spare(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    folder = SpareFolder(tmp_path / "home" / "a", tmp_path / "spare" / "a")
    folder.write("x", b"1")
    assert folder.trouble
    assert (folder.names(), folder.read("x")) == (("x",), b"1")
    folder.remove("x")
    assert folder.names() == ()


def test_a_disk_that_hangs_is_not_touched(tmp_path: Path) -> None:
    try:
        with hung_folder(tmp_path / "disk") as disk:
            folder = SpareFolder(disk / "home" / "a", tmp_path / "spare" / "a", away="it does not answer")
            ((_, answer),) = run_apart({"all": (lambda: use(folder), 20.0)})
    except OSError as error:
        pytest.skip(f"a FUSE file system cannot be mounted here: {error}")
    assert answer.error is None
    assert answer.value == ["x", "y"]


def use(folder: SpareFolder) -> list[str]:
    """Do with it everything that can be done."""
    assert (folder.names(), folder.read("x"), folder.trouble) == ((), None, "it does not answer")
    for name in ("x", "y", "z"):
        folder.write(name, b"2")
    folder.remove("y")
    folder.write("y", b"3")
    folder.set_aside("z")
    assert folder.read("y") == b"3"
    assert folder.bring_home() == 0
    assert folder.beside("b").trouble == "it does not answer"
    assert folder.beside("b").names() == ()
    return list(folder.names())


def test_without_a_spare_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    folder = SpareFolder(tmp_path / "home" / "a", None)
    with pytest.raises(StateDirectoryError):
        folder.write("x", b"1")
    assert folder.bring_home() == 0


def test_when_neither_takes_it_the_error_names_both(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    (tmp_path / "spare").write_text("not a folder either")
    folder = SpareFolder(tmp_path / "home" / "a", tmp_path / "spare" / "a")
    with pytest.raises(StateDirectoryError) as failed:
        folder.write("x", b"1")
    assert str(tmp_path / "home") in failed.value.message
    assert str(tmp_path / "spare") in failed.value.message
    assert "namei -l" in failed.value.hint


@needs_root
@pytest.mark.parametrize("level", ["spare", "spare/a"])
def test_a_spare_that_somebody_else_made_first_is_not_used(tmp_path: Path, level: str) -> None:
    (tmp_path / "home").write_text("not a folder")
    for name in ("spare", "spare/a"):
        (tmp_path / name).mkdir(mode=0o777)
    os.chown(tmp_path / level, NOBODY, NOBODY)
    if level == "spare/a":
        (tmp_path / level / "x").write_bytes(b"a lie")
    folder = SpareFolder(tmp_path / "home" / "a", tmp_path / "spare" / "a")
    if level == "spare/a":
        assert folder.names() == ()
    with pytest.raises(StateDirectoryError):
        folder.write("x", b"1")


@needs_root
def test_a_file_that_somebody_else_put_into_the_spare_is_not_believed(folder: SpareFolder) -> None:
    folder.write("x", b"1")
    assert folder.spare is not None
    folder.spare.mkdir(parents=True, mode=0o700)
    (folder.spare / "x").write_bytes(b"a lie")
    os.chown(folder.spare / "x", NOBODY, NOBODY)
    assert folder.read("x") == b"1"


@needs_root
def test_a_colleague_of_the_group_writes_where_the_first_one_did(tmp_path: Path) -> None:
    open_the_way(tmp_path / "x")
    tmp_path.chmod(0o755)
    gid = NOBODY
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o775)
    mine = SpareFolder(state / ".alerts" / "a", tmp_path / "s" / "a", folder_mode=0o2770, file_mode=0o660, gid=gid)
    mine.write("x", b"1")
    with acting_as(12345, gid):
        theirs = SpareFolder(
            state / ".alerts" / "a", tmp_path / "t" / "a", folder_mode=0o2770, file_mode=0o660, gid=gid
        )
        theirs.write("x", b"2")
        theirs.beside("b").write("y", b"3")
    assert mine.trouble == theirs.trouble == ""
    assert mine.read("x") == b"2"
    assert (state / ".alerts" / "b" / "y").stat().st_gid == gid


def test_a_link_or_a_fifo_in_a_file_s_place_is_an_error_and_nobody_waits(folder: SpareFolder) -> None:
    folder.write("x", b"1")
    os.mkfifo(folder.folder / "pipe")
    (folder.folder / "link").symlink_to("/etc/passwd")
    for name in ("pipe", "link"):
        with pytest.raises(StateDirectoryError):
            folder.read(name)


def test_a_damaged_file_is_set_aside_and_not_seen_again(folder: SpareFolder) -> None:
    folder.write("x", b"rubbish")
    aside = Path(folder.set_aside("x"))
    assert aside.name.startswith(".damaged-x-")
    assert aside.read_bytes() == b"rubbish"
    assert (folder.names(), folder.read("x")) == ((), None)


def test_a_damaged_file_of_a_read_only_disk_is_not_seen_again_either(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        folder = SpareFolder(disk / "a", tmp_path / "spare" / "a")
        folder.write("x", b"rubbish")
        make_read_only(disk, True)
        folder.set_aside("x")
        assert (folder.names(), folder.read("x")) == ((), None)
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
def test_the_spare_lies_on_this_node(tmp_path: Path, environ: dict[str, str], where: str) -> None:
    world = make_world(tmp_path, environ)
    assert str(spare_place(world, Path("/data/.resil/.alerts"))).startswith(where)
    assert spare_place(world, Path("/data/.resil/.alerts")) != spare_place(world, Path("/other/.resil/.alerts"))


def test_a_crash_while_moving_home_loses_nothing(tmp_path: Path) -> None:
    """Killed at each system call, the file is in one of the two places, and whole."""
    home, spare = tmp_path / "home", tmp_path / "spare"
    reset = f"import shutil; shutil.rmtree({str(home)!r}, True); shutil.rmtree({str(spare)!r}, True)"
    begin = "from resilience.system.spare_folder import SpareFolder; from pathlib import Path"
    request = f"{begin}; SpareFolder(Path({str(home / 'a')!r}), Path({str(spare / 'a')!r})).bring_home()"
    content = b"news" * 2000

    def prepare() -> SpareFolder:
        exec(reset)
        (spare / "a").mkdir(parents=True, mode=0o700)
        (spare / "a" / "x").write_bytes(content)
        (home / "a").mkdir(parents=True)
        (home / "a" / "x").write_bytes(b"old")
        return SpareFolder(home / "a", spare / "a")

    with writer(tmp_path / "strace") as process:
        prepare()
        points = [p for p in process.kill_points(request) if p[0] in ("unlink", "rename", "fsync", "write")]
        assert len(points) >= 4
        for name, count in points:
            folder = prepare()
            process.run(request, f"{name}:signal=KILL:when={count}")
            assert folder.read("x") == content, (name, count)


def test_what_a_killed_writer_left_is_removed_a_day_later(folder: SpareFolder) -> None:
    folder.write("x", b"1")
    fresh, old = folder.folder / ".x.1.tmp", folder.folder / ".x.2.tmp"
    for path, age_s in ((fresh, 0.0), (old, 2 * 86400.0)):
        path.write_bytes(b"")
        os.utime(path, (time.time() - age_s,) * 2)
    assert folder.names() == ("x",)
    assert (fresh.exists(), old.exists()) == (True, False)


def test_a_thousand_files_are_written_and_read_in_a_moment(folder: SpareFolder) -> None:
    began = time.monotonic()
    for number in range(1000):
        folder.write(f"{number}.json", b"x" * 800, durable=False)
    assert all(folder.read(name) for name in folder.names())
    assert time.monotonic() - began < 10  # 0.3 s on a quiet core
