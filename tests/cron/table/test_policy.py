"""Nobody but the owner, root and the project's own group chooses what runs with the owner's rights.

A link leads where the kernel says it does, and every directory that could turn it is named.
"""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
from pathlib import Path

import pytest

from resilience.cron.table.policy import Facts, Policy, explain, facts_of, follow

ME, OTHER, ROOT = 1000, 1001, 0
MINE, TEAM, USERS = 1000, 5000, 100


def directory(mode: int = 0o755, uid: int = ME, gid: int = MINE) -> Facts:
    return Facts(path="/p/cron", mode=stat.S_IFDIR | mode, uid=uid, gid=gid)


def file(mode: int = 0o755, uid: int = ME, gid: int = MINE) -> Facts:
    return Facts(path="/p/cron/x y", mode=stat.S_IFREG | mode, uid=uid, gid=gid)


PRIVATE = Policy(uid=ME, is_private=lambda gid: gid == MINE, name_of={ME: "me", OTHER: "eve", ROOT: "root"}.__getitem__)
SHARED = Policy(
    uid=ME, gid=TEAM, group="team", is_private=lambda gid: gid == MINE, name_of={ME: "me", OTHER: "eve"}.__getitem__
)


@pytest.mark.parametrize(
    "facts", [directory(), directory(0o700), directory(0o775), directory(uid=ROOT, gid=0), directory(0o2775)]
)
def test_ones_own_directory_and_roots_pass(facts: Facts) -> None:
    assert PRIVATE.judge_directory(facts) is None


@pytest.mark.parametrize("facts", [file(), file(0o500), file(0o775), file(uid=ROOT, gid=0), file(0o775, ROOT, 0)])
def test_ones_own_file_and_roots_pass(facts: Facts) -> None:
    assert PRIVATE.judge_file(facts, directory()) is None


@pytest.mark.parametrize("policy", [PRIVATE, SHARED])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757, 0o2777, 0o703, 0o702])
@pytest.mark.parametrize("uid", [ME, ROOT, OTHER])
def test_world_writable_paths_are_rejected_even_with_the_sticky_bit(policy: Policy, mode: int, uid: int) -> None:
    for refusal in (
        policy.judge_directory(directory(mode, uid, TEAM)),
        policy.judge_file(file(mode & 0o777, uid, TEAM), directory(0o2770, ME, TEAM)),
    ):
        assert refusal is not None
        assert "is world-writable" in refusal.reason
        assert refusal.hint in {"chmod o-w /p/cron", "chmod o-w '/p/cron/x y'"}


@pytest.mark.parametrize("mode", [0o775, 0o770, 0o720])
def test_a_group_writable_file_is_rejected_if_no_group_operates_the_project(mode: int) -> None:
    for refusal in (
        PRIVATE.judge_directory(directory(mode, ME, USERS)),
        PRIVATE.judge_file(file(mode, ME, USERS), directory()),
    ):
        assert refusal is not None
        assert "is group-writable" in refusal.reason
        assert refusal.hint.startswith("chmod g-w /") or refusal.hint == "chmod g-w '/p/cron/x y'"


def test_the_group_of_one_project_operates_no_other() -> None:
    assert SHARED.judge_directory(directory(0o2770, ME, TEAM)) is None
    refusal = SHARED.judge_directory(directory(0o2770, ME, USERS))
    assert refusal is not None
    assert "is group-writable" in refusal.reason


def test_another_ones_file_or_directory_is_refused() -> None:
    refusal = PRIVATE.judge_file(file(uid=OTHER), directory())
    assert refusal is not None
    assert refusal.reason == "the file /p/cron/x y belongs to eve, but would run with the rights of me"
    assert "copy" in refusal.hint
    refusal = PRIVATE.judge_directory(directory(uid=OTHER))
    assert refusal is not None
    assert "the directory /p/cron belongs to eve" in refusal.reason


def test_a_members_file_runs_where_the_group_operates_the_project() -> None:
    shared = directory(0o2770, ME, TEAM)
    assert SHARED.judge_file(file(0o770, OTHER, TEAM), shared) is None
    assert SHARED.judge_directory(directory(0o2770, OTHER, TEAM)) is None


@pytest.mark.parametrize(
    ("of_file", "of_directory"),
    [
        (file(0o770, OTHER, TEAM), directory(0o770, ME, TEAM)),  # not setgid: the group of a file says nothing
        (file(0o750, OTHER, USERS), directory(0o2770, ME, TEAM)),  # another group's file
        (file(0o750, OTHER, TEAM), directory(0o2755, ME, MINE)),  # another group's directory
    ],
)
def test_a_foreign_file_is_still_rejected(of_file: Facts, of_directory: Facts) -> None:
    refusal = SHARED.judge_file(of_file, of_directory)
    assert refusal is not None
    assert "belongs to eve, and group team does not control it safely" in refusal.reason
    assert "chgrp team" in refusal.hint
    assert "chmod g+s" in refusal.hint


def test_writers_of_an_access_list_are_judged_too() -> None:
    assert PRIVATE.judge_file(file(0o775)._replace(users=(ME, ROOT), groups=(MINE, 0)), directory()) is None
    assert SHARED.judge_directory(directory(0o2770, ME, TEAM)._replace(groups=(TEAM,))) is None
    for facts, who in (
        (file(0o775)._replace(users=(OTHER,)), "eve"),
        (file(0o775)._replace(groups=(TEAM,)), "group 5000"),
    ):
        refusal = PRIVATE.judge_file(facts, directory())
        assert refusal is not None
        assert f"is writable for {who} by its access list" in refusal.reason
        assert refusal.hint == "setfacl -b '/p/cron/x y'"


def test_root_runs_what_belongs_to_root_alone() -> None:
    policy = Policy(uid=ROOT, name_of={ROOT: "root", ME: "me"}.__getitem__)
    assert policy.judge_file(file(uid=ROOT, gid=0), directory(uid=ROOT, gid=0)) is None
    assert policy.judge_file(file(), directory(uid=ROOT, gid=0)) is not None
    assert policy.judge_directory(directory()) is not None


def test_far_above_only_replaceable_directories_are_rejected() -> None:
    assert PRIVATE.judge_above(directory(0o1777, ROOT)) is None
    assert PRIVATE.judge_above(directory(0o2770, OTHER, USERS)) is None
    refusal = PRIVATE.judge_above(directory(0o777, ROOT))
    assert refusal is not None
    assert refusal.hint == "chmod o-w /p/cron"


# ---- links and access lists -----------------------------------------------------------------------------------


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
