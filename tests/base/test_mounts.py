"""The file system of a path is read from /proc, without touching that file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.base.mounts import Mount, current_mounts, mount_of, parse_mountinfo

# The first lines of /proc/self/mountinfo on a login node (Debian 12), with Lustre, NFS, and an odd directory.
RECORDED = (
    "22 1 0:20 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/u\n"
    "26 22 0:24 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=65536k\n"
    "31 22 8:1 / /home rw,noatime - ext4 /dev/sda1 rw\n"
    "35 22 0:40 / /scratch rw,flock - lustre 10.0.0.1@o2ib:/scratch rw\n"
    "36 22 0:41 / /home/alice rw - nfs4 filer:/export/alice rw,vers=4.2\n"
    "37 22 0:42 / /mnt/odd\\040directory\\134x\\011y rw - nfs filer:/odd\\040export rw\n"
)


def test_each_line_is_a_mount_with_its_type_source_and_options() -> None:
    mounts = parse_mountinfo(RECORDED)
    assert [(mount.point, mount.type) for mount in mounts[:3]] == [
        ("/", "overlay"), ("/dev/shm", "tmpfs"), ("/home", "ext4")
    ]  # fmt: skip
    assert mounts[3][:4] == ("/scratch", "lustre", "10.0.0.1@o2ib:/scratch", ("rw", "flock"))
    assert mounts[4] == Mount(
        "/home/alice", "nfs4", "filer:/export/alice", ("rw",), "/", "0:41", frozenset({"rw", "vers=4.2"}), 36, 22
    )
    assert mounts[5][:3] == ("/mnt/odd directory\\x\ty", "nfs", "filer:/odd export")


def test_optional_fields_and_escaped_blanks_of_a_mount_are_understood() -> None:
    (mount,) = parse_mountinfo(r"32 23 0:28 /a\134b /with\040blank rw shared:9 master:1 - cgroup2 none rw,nsdelegate")
    assert (mount.root, mount.point, mount.type) == ("/a\\b", "/with blank", "cgroup2")


@pytest.mark.parametrize("character", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "é"])
def test_a_character_that_some_take_for_a_line_end_stays_in_a_mounts_name(character: str) -> None:
    text = f"30 1 0:1 / /mnt/a{character}b rw - nfs4 filer:/x rw\n"
    assert [mount.point for mount in parse_mountinfo(text)] == [f"/mnt/a{character}b"]


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "\n\n",
        "22 1 0:20 / /",
        "22 1 0:20 / / rw - overlay",
        " - - - ",
        "a b 0:1 / /x rw - nfs y rw",
        "1 2 3",
        "x" * 9999,
    ],
)
def test_an_invalid_line_is_skipped(damage: str) -> None:
    assert parse_mountinfo(damage) == ()
    assert len(parse_mountinfo(damage + "\n" + RECORDED)) == 6


@pytest.mark.parametrize(
    ("path", "type_", "local"),
    [
        ("/etc", "overlay", True),
        ("/", "overlay", True),
        ("/home", "ext4", True),
        ("/home/bob/run", "ext4", True),
        ("/home/alice/run", "nfs4", False),
        ("/home/alicex", "ext4", True),
        ("/scratch/x/../y", "lustre", False),
        ("/scratch2", "overlay", True),
        ("/dev/shm/x", "tmpfs", True),
    ],
)
def test_a_path_is_on_the_deepest_mount_above_it(path: str, type_: str, local: bool) -> None:
    mount = mount_of(Path(path), parse_mountinfo(RECORDED))
    assert mount is not None
    assert (mount.type, mount.is_node_local) == (type_, local)


def test_of_two_mounts_at_one_point_the_later_one_counts() -> None:
    twice = RECORDED + "40 35 0:50 / /scratch rw - tmpfs tmpfs rw\n"
    mount = mount_of(Path("/scratch/x"), parse_mountinfo(twice))
    assert mount is not None and mount.type == "tmpfs"


def test_without_mounts_there_is_no_mount_of_a_path() -> None:
    assert mount_of(Path("/x"), ()) is None


def test_this_machines_own_mounts_are_read() -> None:
    assert mount_of(Path("/proc/self"), current_mounts()) is not None
