"""The child that looks: what it asks the kernel for, and what it keeps open."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resilience.watch.scan.worker import mounts_below, taken
from tests.guard.disks import small_disk
from tests.watch.scan.trees import a_tree

PROGRAM = """
import sys
from pathlib import Path
from resilience.watch.scan.scan import scan
found = scan(Path(sys.argv[1]), Path(sys.argv[2]), now=1.8e9, cores=2)
print(found.read, found.verified)
"""


def test_an_unchanged_tree_costs_one_stat_for_each_folder_and_none_for_a_file(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    root, memory, log = a_tree(tmp_path / "tree"), tmp_path / "memory", tmp_path / "calls"
    command = [sys.executable, "-c", PROGRAM, str(root), str(memory)]
    subprocess.run(command, check=True, capture_output=True)
    tracing = ["strace", "-f", "-qq", "-o", str(log), "-e", "trace=%file,getdents64"]
    traced = subprocess.run([*tracing, *command], capture_output=True, text=True)
    if "ptrace" in traced.stderr.lower() and traced.returncode:
        pytest.skip("strace may not attach here")
    assert traced.stdout.split() == ["0", "25"]
    calls = log.read_text()
    assert len(re.findall(r'newfstatat\(\d+, "t\d(?:/s\d)?", .*AT_SYMLINK_NOFOLLOW', calls)) == 24  # all but the root
    assert not re.search(r'"(?:t\d/s\d/)?f\d"', calls)
    assert f'"{root}"' in calls


def test_the_parent_never_touches_the_tree(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    root, log = a_tree(tmp_path / "tree"), tmp_path / "calls"
    command = [sys.executable, "-c", PROGRAM, str(root), str(tmp_path / "memory")]
    tracing = ["strace", "-qq", "-o", str(log), "-e", "trace=%file,getdents64"]
    traced = subprocess.run([*tracing, *command], capture_output=True, text=True)
    if "ptrace" in traced.stderr.lower() and traced.returncode:
        pytest.skip("strace may not attach here")
    assert traced.stdout.split() == ["25", "0"]
    touched = [line for line in log.read_text().splitlines() if f'"{root}' in line and not line.startswith("execve(")]
    assert touched == []


def test_mounts_below_a_folder_are_known_without_touching_them(tmp_path: Path) -> None:
    with small_disk(tmp_path / "a disk"):
        assert mounts_below(os.fsencode(tmp_path)) == {b"a disk"}
        assert mounts_below(os.fsencode(tmp_path / "a disk")) == frozenset()


def test_taking_from_a_list_leaves_what_others_add() -> None:
    items = [1, 2]
    assert taken(items) == [1, 2]
    items.append(3)
    assert taken(items) == [3]
    assert items == []
