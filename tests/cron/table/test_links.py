"""A link leads where the kernel says it does, and every directory that could turn it is named."""

from __future__ import annotations

import errno
import os
import random
import struct
from pathlib import Path

import pytest

from resilience.cron.table.policy import explain, facts_of, follow


def test_a_path_without_links_leads_to_itself(tmp_path: Path) -> None:
    here = tmp_path.resolve() / "x"
    here.touch()
    walk = follow(here)
    assert (walk.path, walk.strict) == (here, (here.parent,))
    assert set(walk.passed) == set(here.parents) - {here.parent}


def test_every_directory_that_holds_a_link_is_named(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    for name in ("a", "b", "c/d"):
        (top / name).mkdir(parents=True)
    (top / "c/d/file").touch()
    (top / "b/directory").symlink_to("../c/d")
    (top / "a/link").symlink_to(top / "b/directory/file")
    walk = follow(top / "a/link")
    assert walk.path == top / "c/d/file"
    assert set(walk.strict) == {top / "a", top / "b", top / "c/d"}
    assert {top, top / "c", Path("/")} <= set(walk.passed)
    assert not set(walk.passed) & set(walk.strict)


def test_as_many_links_are_followed_as_by_the_kernel(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "0").touch()
    for number in range(1, 46):
        (top / str(number)).symlink_to(str(number - 1))
    for number in range(36, 46):
        try:
            (top / str(number)).stat()
        except OSError as error:
            with pytest.raises(OSError, match="symbolic links") as raised:
                follow(top / str(number))
            assert raised.value.errno == error.errno == errno.ELOOP
        else:
            assert follow(top / str(number)).path == top / "0"


def test_a_maze_of_links_leads_where_the_kernel_says(tmp_path: Path) -> None:
    draw = random.Random(5)
    top = tmp_path.resolve()
    directories = [top]
    for number in range(12):
        directories.append(draw.choice(directories) / f"d{number}")
        directories[-1].mkdir()
    files = [draw.choice(directories) / f"f{number}" for number in range(8)]
    for path in files:
        path.touch()
    links: list[Path] = []
    for number in range(60):
        link = draw.choice(directories) / f"l{number}"
        target = draw.choice([*directories, *files, *links, top / "nowhere", link])
        shape = draw.choice(
            ["{absolute}", "{relative}", "./{relative}", "{relative}/", "//{absolute}", "{relative}/../{name}"]
        )
        relative = os.path.relpath(target, link.parent)
        link.symlink_to(shape.format(absolute=target, relative=relative, name=target.name))
        links.append(link)
    led = 0
    for start in [*links, *(draw.choice(links) / draw.choice(["..", "d1", "f1", "../.."]) for _ in range(60))]:
        try:
            opened = os.open(start, os.O_PATH)
        except OSError as error:
            with pytest.raises(OSError) as raised:
                follow(start)
            assert raised.value.errno == error.errno, start
        else:
            expected = os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115
            os.close(opened)
            assert str(follow(start).path) == expected
            led += 1
    assert led > 30


def test_errors_are_sentences() -> None:
    assert explain(OSError(errno.ENOENT, "x")) == "it is a broken symbolic link"
    assert explain(OSError(errno.ELOOP, "x")) == "it is a circular symbolic link"
    assert explain(OSError(errno.EACCES, "x")) == "permission to read it is denied"
    assert explain(OSError(errno.EIO, "x")) == "it cannot be read: Input/output error"
    assert explain(OSError("it was exchanged")) == "it was exchanged"


def test_facts_are_those_of_what_a_path_leads_to(tmp_path: Path) -> None:
    (tmp_path / "x").touch(0o640)
    (tmp_path / "link").symlink_to("x")
    info = (tmp_path / "x").stat()
    assert facts_of(tmp_path / "link")[1:] == (info.st_mode, info.st_uid, info.st_gid, (), ())


def test_writers_of_an_access_list_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch(0o600)
    nobody = 0xFFFFFFFF
    # user::rw-, user:1234:rw-, user:1235:r--, group::r--, group:99:rw-, mask::rw-, other::---
    entries = [(1, 6, nobody), (2, 6, 1234), (2, 4, 1235), (4, 4, nobody), (8, 6, 99), (16, 6, nobody), (32, 0, nobody)]
    for permissions, expected in ((6, ((1234,), (99,))), (4, ((), ()))):
        entries[5] = (16, permissions, nobody)
        raw = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(path, "system.posix_acl_access", raw)
        except OSError as error:
            pytest.skip(f"no access lists on {tmp_path}: {error.strerror}")
        facts = facts_of(path)
        assert (facts.users, facts.groups) == expected
