"""Where a scan is remembered when the home folder is full, or hangs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.guard.disks import fill, small_disk
from tests.system.hung import hung_folder
from tests.system.people import NOBODY, needs_root
from tests.watch.scan.trees import NOW, a_tree, look


def test_a_full_home_leaves_the_memory_on_this_node_and_takes_it_back(tmp_path: Path) -> None:
    root, spare = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan"
    with small_disk(tmp_path / "home") as home:
        ballast = fill(home)
        found = look(root, home / "cache", spare=spare)
        assert f"remembered on this node, in {spare}" in found.notes[0] and "space" in found.notes[0]
        ballast.unlink()
        again = look(root, home / "cache", now=NOW + 700, spare=spare)
        assert (again.notes, again.verified) == ((), 25)
        assert list((home / "cache").glob("*.scan"))


def test_a_home_that_hangs_hangs_no_scan(tmp_path: Path) -> None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    root, spare, began = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan", time.monotonic()
    with hung_folder(tmp_path / "home") as home:
        found = look(root, home / "cache", spare=spare, deadline_s=2.0)
        assert found.is_complete and "no answer within 1 s" in found.notes[0]
        assert look(root, home / "cache", spare=spare, deadline_s=2.0).verified == 25
    assert time.monotonic() - began < 20


@needs_root
def test_a_spare_folder_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    root, spare = a_tree(tmp_path / "tree"), tmp_path / "node" / "scan"
    (tmp_path / "file").write_text("no folder")
    assert look(root, None, spare=spare).notes == ()
    assert look(root, None, now=NOW + 1, spare=spare).verified == 25
    os.chown(tmp_path / "node", NOBODY, NOBODY)
    found = look(root, tmp_path / "file" / "cache", spare=spare)
    assert found.verified == 0 and "start afresh" in found.notes[-1]
