"""A file that has not changed is stored once for every other checkpoint, and no damage reaches two neighbours."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from resilience.base.mounts import Mount
from resilience.checkpoints import prune, reuse
from resilience.checkpoints.commit import commit
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import part_name
from resilience.checkpoints.retention import Policy
from resilience.checkpoints.trash import discard
from resilience.checkpoints.verify import verify
from tests.lab.disks import small_disk

FROZEN = b"weights that are not trained " * 100


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreDirectory:
    """An empty one, on a file system for which hard links are known, whatever this machine has."""
    monkeypatch.setattr(reuse, "current_mounts", lambda: (Mount("/", "ext4", "disk"),))
    return StoreDirectory.create(tmp_path / "checkpoints")


def save(store: StoreDirectory, step: int, frozen: bytes = FROZEN, **values: Any) -> int:
    """Commit a checkpoint of a frozen and of a trained file; return the bytes that were not stored again."""
    part = store.path / part_name(step, 1, 1)
    (part / "base").mkdir(parents=True)
    (part / "base" / "frozen.bin").write_bytes(frozen)
    (part / "head.bin").write_bytes(b"trained to step %9d" % step)
    (part / "empty").touch()
    saved: int = commit(store, part.name, {}, **{"reuse": True} | values)["reused_bytes"]
    return saved


def inode(store: StoreDirectory, step: int) -> int:
    return (store.find(step).path / "base" / "frozen.bin").stat().st_ino


def good(store: StoreDirectory) -> list[int]:
    return [one.step for one in store.checkpoints() if verify(one).is_good]


def test_every_other_checkpoint_shares_what_has_not_changed(store: StoreDirectory) -> None:
    assert [save(store, step) for step in (1, 2, 3, 4, 5)] == [0, 0, len(FROZEN), len(FROZEN), len(FROZEN)]
    assert inode(store, 1) == inode(store, 3) == inode(store, 5) != inode(store, 2) == inode(store, 4)
    heads = {(store.find(step).path / "head.bin").stat().st_ino for step in (1, 2, 3, 4, 5)}
    assert len(heads) == 5
    assert good(store) == [1, 2, 3, 4, 5]
    assert (store.find(5).path / "base" / "frozen.bin").read_bytes() == FROZEN
    save(store, 6, FROZEN + b"!")
    assert good(store) == [1, 2, 3, 4, 5, 6]


def test_a_damaged_file_costs_no_two_neighbours(store: StoreDirectory) -> None:
    for step in (1, 2, 3, 4, 5):
        save(store, step)
    with open(store.find(5).path / "base" / "frozen.bin", "r+b") as file:
        file.write(b"W")
    assert good(store) == [2, 4]


def test_neighbours_share_nothing_whatever_was_deleted_between(store: StoreDirectory) -> None:
    chance = random.Random(7)
    shared = 0
    for step in range(1, 30):
        shared += bool(save(store, step))
        found = store.checkpoints()
        for before, after in pairwise(found):
            if after.step == step:
                assert inode(store, before.step) != inode(store, step)
        if len(found) > 2 and chance.random() < 0.6:
            discard(store, chance.choice(found).name)
    assert shared > 5


def test_after_a_rollback_the_later_neighbour_counts_too(store: StoreDirectory) -> None:
    for step in (1, 2, 4):
        save(store, step)
    assert inode(store, 1) == inode(store, 4)
    assert save(store, 3) == 0
    assert inode(store, 3) not in (inode(store, 2), inode(store, 4))


def test_an_earlier_save_in_flight_may_become_the_neighbour(store: StoreDirectory) -> None:
    save(store, 1)
    save(store, 2)
    (store.path / part_name(3, 1, 2)).mkdir()
    assert save(store, 4) == 0
    (store.path / part_name(3, 1, 2)).rename(store.path / part_name(6, 1, 2))
    assert save(store, 5) == len(FROZEN)


def test_pruning_one_leaves_the_others_whole(store: StoreDirectory) -> None:
    for step in (1, 2, 3, 4, 5):
        save(store, step)
    prune.run(store, Policy(every_steps=3), now=0.0)
    assert good(store) == [3, 4, 5]


def test_a_damaged_source_is_not_linked_to(store: StoreDirectory) -> None:
    save(store, 1)
    save(store, 2)
    with open(store.find(1).path / "base" / "frozen.bin", "r+b") as file:
        file.write(b"W")
    assert save(store, 3) == 0
    assert good(store) == [2, 3]


def test_it_is_off_unless_asked_for(store: StoreDirectory) -> None:
    assert [save(store, step, reuse=False) for step in (1, 2, 3)] == [0, 0, 0]
    assert len({inode(store, step) for step in (1, 2, 3)}) == 3


def test_crc32_is_not_enough_to_call_files_equal(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilience.checkpoints.commit.best_algorithm", lambda: "crc32")
    assert [save(store, step) for step in (1, 2, 3)] == [0, 0, 0]
    monkeypatch.undo()
    monkeypatch.setattr(reuse, "current_mounts", lambda: (Mount("/", "ext4", "disk"),))
    assert [save(store, step) for step in (4, 5, 6)] == [0, 0, len(FROZEN)]  # xxhash was installed meanwhile


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "overlay", "cifs", "beegfs", "9p", "ramdisk"])
def test_where_links_are_not_known_to_be_safe_nothing_is_linked(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    assert not reuse.is_safe(Mount("/", kind, "disk")) and not reuse.is_safe(None)
    monkeypatch.setattr(reuse, "current_mounts", lambda: (Mount("/", kind, "disk"),))
    assert [save(store, step) for step in (1, 2, 3)] == [0, 0, 0]


def test_a_link_to_another_file_system_counts_as_that(
    store: StoreDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = (Mount("/", "ext4", "disk"), Mount(str(store.path.resolve()), "nfs4", "server:/"))
    monkeypatch.setattr(reuse, "current_mounts", lambda: mounts)
    (tmp_path / "shortcut").symlink_to(store.path)
    assert [save(StoreDirectory(tmp_path / "shortcut"), step) for step in (1, 2, 3)] == [0, 0, 0]


def test_a_real_tmpfs_is_known(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        store = StoreDirectory.create(disk / "checkpoints")
        assert [save(store, step) for step in (1, 2, 3)] == [0, 0, len(FROZEN)]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EMLINK, errno.EXDEV, errno.ENOSPC, errno.EOPNOTSUPP])
@pytest.mark.parametrize("call", ["link", "rename"])
def test_where_a_link_fails_the_own_file_stays(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    original = getattr(os, call)

    def refuse(source: Any, target: Any, **values: Any) -> None:
        if "frozen.bin" in str(target):
            raise OSError(number, os.strerror(number), str(target))
        original(source, target, **values)

    save(store, 1)
    save(store, 2)
    monkeypatch.setattr(os, call, refuse)
    assert save(store, 3) == 0
    assert good(store) == [1, 2, 3]
    assert sorted(path.name for path in (store.find(3).path / "base").iterdir()) == ["frozen.bin"]


def test_another_mode_is_not_given_away(store: StoreDirectory) -> None:
    save(store, 1)
    save(store, 2)
    (store.find(1).path / "base" / "frozen.bin").chmod(0o666)
    assert save(store, 3) == 0


class Killed(BaseException):
    """What a process does after SIGKILL: nothing."""


def test_killed_at_any_change_of_the_disk_the_others_are_whole(
    store: StoreDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)
    save(store, 2)
    calls = 0

    def counted(name: str, at: int) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(*arguments: Any, **values: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= at:
                raise Killed
            return original(*arguments, **values)

        return call

    for at in range(1, 20):
        calls = 0
        with monkeypatch.context() as patch:
            for name in ("link", "rename", "unlink", "replace"):
                patch.setattr(os, name, counted(name, at))
            with suppress(Killed):
                save(store, 3)
        assert good(store) == [one.step for one in store.checkpoints()]
        if calls < at:
            break
        assert good(store)[:2] == [1, 2]
        for part in store.parts():
            discard(store, part)
        for one in store.checkpoints()[2:]:
            discard(store, one.name)
    assert 4 < at < 19 and good(store) == [1, 2, 3]
