"""What is set aside, where that is impossible: it stays, whole, and no record says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.checkpoints import prune
from resilience.checkpoints.names import BAD, TRASH
from resilience.checkpoints.quarantine import set_aside
from resilience.checkpoints.retention import Policy
from resilience.errors import CheckpointError
from tests.checkpoints.saves import committed, listed, new_store
from tests.lab.disks import small_disk


def test_a_directory_of_bad_ones_on_another_file_system_is_said_and_loses_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    committed(store, 10)
    with small_disk(tmp_path / "disk") as disk:
        (store.path / BAD).symlink_to(disk)
        with pytest.raises(CheckpointError, match=r"not on the file system of .*neither a mount nor a link"):
            set_aside(store, store.checkpoints()[0], why="mine")
        assert list(disk.iterdir()) == [] and listed(store) == {10: 1}


def test_a_trash_on_another_file_system_is_said_and_loses_nothing(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    for step in (10, 20, 30):
        committed(store, step)
    with small_disk(tmp_path / "disk") as disk:
        (store.path / TRASH).rmdir()
        (store.path / TRASH).symlink_to(disk)
        pruned = prune.run(store, Policy(latest=2), now=0.0)
        assert not pruned.deleted and "step-00000010: Invalid cross-device link" in pruned.failed[0]
        assert listed(store) == {10: 1, 20: 1, 30: 1}


def test_a_checkpoint_that_is_gone_leaves_no_record(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    committed(store, 10)
    (one,) = store.checkpoints()
    one.path.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is gone"):
        set_aside(store, one)
    assert list((store.path / BAD).iterdir()) == []
