"""Which means is chosen, and what is refused in words before anything happens."""

from __future__ import annotations

import pytest

from resilience.base.mounts import Mount
from resilience.errors import UsageError
from resilience.inject.files import ballast, behaviour, preload
from resilience.inject.files.behaviour import Behaviour
from resilience.inject.files.choice import check_directory, choose, describe
from resilience.inject.files.place import Facts

FREE = Facts(directory="/scratch/me/ckpt", owner=7, uid=7, device=1)
FULL = behaviour.disk_full()


@pytest.mark.parametrize(
    ("fault", "facts", "by", "is_preloaded", "chosen"),
    [
        (FULL, FREE, "", False, "fill"),
        (behaviour.disk_full(quota=True), FREE, "", False, "mount"),
        (FULL, FREE._replace(device=2), "", False, "mount"),
        (FULL, FREE._replace(fill="shared"), "", True, "mount"),
        (FULL, FREE._replace(fill="shared", mountable="/dev/fuse: no"), "", True, "preload"),
        (behaviour.stale(), FREE._replace(mountable="/dev/fuse: no"), "", True, "preload"),
        (FULL, FREE, "preload", True, "preload"),
    ],
)
def test_the_first_means_that_is_permitted_is_chosen(
    fault: Behaviour, facts: Facts, by: str, is_preloaded: bool, chosen: str
) -> None:
    how, not_by = choose(fault, {"n1": FREE, "n2": facts}, by, is_preloaded=is_preloaded, device=2)
    assert how == chosen
    tried = ["fill", "mount", "preload"] if fault == FULL else ["mount", "preload"]
    assert len(not_by) == (0 if by else tried.index(chosen))


def test_a_node_that_permits_nothing_is_named_with_each_reason() -> None:
    facts = {"n1": FREE, "n2": FREE._replace(fill="/ (ext4) is shared", mountable="/dev/fuse: Permission denied")}
    with pytest.raises(UsageError) as caught:
        choose(FULL, facts, "", is_preloaded=False, device=2)
    for text in (
        "/ (ext4) is shared (on n2)",
        "Permission denied (on n2)",
        "no training runs that was started by `resil inject preload -- COMMAND`",
    ):
        assert text in str(caught.value)


def test_the_library_cannot_count_bytes_and_no_other_means_exists() -> None:
    with pytest.raises(UsageError, match="counts no bytes"):
        choose(behaviour.disk_full(1), {"n": FREE}, "preload", is_preloaded=True, device=2)
    with pytest.raises(UsageError, match="no such means"):
        choose(FULL, {"n": FREE}, "fills", is_preloaded=True, device=2)


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (FREE._replace(error="/x: No such file or directory"), "No such file"),
        (FREE._replace(owner=0), "not your own"),
        (FREE._replace(directory="/tmp", owner=7), "not your own"),
        (FREE._replace(is_faulty=True), "has a fault already"),
        (FREE._replace(directory="/scratch/me"), "holds /scratch/me/.resil/gpt"),
    ],
)
def test_a_directory_that_must_not_be_hit_is_refused(facts: Facts, word: str) -> None:
    check_directory({"n": FREE}, ["/scratch/me/.resil/gpt", "/home/me"])
    with pytest.raises(UsageError, match=word):
        check_directory({"n": FREE, "m": facts}, ["/scratch/me/.resil/gpt", "/home/me"])


@pytest.mark.parametrize(
    ("mount", "uid", "size", "word"),
    [
        (None, 7, 1, "unknown"),
        (Mount("/scratch", "lustre", "mds:/scratch"), 7, 1, "neither a tmpfs nor a loop device"),
        (Mount("/", "ext4", "/dev/vda"), 7, 1, "neither a tmpfs nor a loop device"),
        (Mount("/dev/shm", "tmpfs", "tmpfs"), 7, 1, "other programs"),
        (Mount("/run/user/7", "tmpfs", "tmpfs"), 7, 1, "other programs"),
        (Mount("/mnt/a", "tmpfs", "tmpfs"), 8, 1, "another user"),
        (Mount("/mnt/a", "ext4", "/dev/loop1"), 7, 2**40, "larger"),
        (Mount("/mnt/a", "tmpfs", "tmpfs"), 7, 6000, "in memory"),
        (Mount("/mnt/a", "tmpfs", "tmpfs"), 7, 5000, ""),
        (Mount("/mnt/a", "ext4", "/dev/loop1"), 7, 2**30, ""),
    ],
)
def test_only_a_small_file_system_of_ones_own_is_filled(mount: Mount | None, uid: int, size: int, word: str) -> None:
    found = ballast.why_not(mount, owner=7, uid=uid, size=size, free=size, memory_free=10_000)
    assert word in found and bool(word) == bool(found)


def test_the_line_for_the_library_says_until_when_and_what() -> None:
    from pathlib import Path

    assert preload.line(FULL, Path("/a b"), 99.6) == "100 28 96 0 0 /a b\n"
    assert preload.line(behaviour.stale(), Path("/a"), 5) == "5 116 31 0 0 /a\n"
    assert preload.line(behaviour.slow(0.25, 1000), Path("/a"), 5) == "5 0 128 250000 1000 /a\n"


def test_each_fault_is_described_in_words() -> None:
    assert describe(behaviour.disk_full(2**20)) == "has 1.0 MiB left, then writes fail with ENOSPC"
    assert describe(behaviour.disk_full()) == "has no space: writes fail with ENOSPC"
    assert describe(behaviour.stale()) == "fails with ESTALE at everything"
    assert describe(behaviour.read_only()) == "fails with EROFS at writes, changes"
    assert describe(behaviour.slow(0.5, 2**20)) == "answers 0.5 s late and moves 1.0 MiB per second"
