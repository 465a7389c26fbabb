"""/dev/shm that fills up stops the training before its data loaders die by SIGBUS."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import GuardError
from resilience.guard.rank_info import RankInfo
from resilience.guard.settings import GuardSettings, read_settings
from resilience.guard.triggers.shared_memory import SharedMemory, judge

MIB = 2**20


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A /dev/shm of 8 MiB and 100 files."""
    directory = tmp_path / "shm"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=100", "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], timeout=20, check=True)


def make_trigger(path: Path | str, **settings: Any) -> SharedMemory:
    return SharedMemory(RankInfo(host="n17"), GuardSettings(**settings), path=str(path))


@pytest.mark.parametrize(
    ("used", "size", "files", "most", "said"),
    [
        (949, 1000, 0, 0, None),
        (950, 1000, 0, 0, "95.0 % full, 950 B of 1000 B"),
        (32 * 2**30, 32 * 2**30, 0, 0, "100.0 % full, 32.0 GiB of 32.0 GiB"),
        (5, 0, 0, 0, None),  # mounted with size=0: no limit of its own
        (5, 1000, 99, 100, "99.0 % full, 99 of 100 files"),
        (5, 1000, 94, 100, None),
    ],
)
def test_bytes_and_files_are_judged(used: int, size: int, files: int, most: int, said: str | None) -> None:
    assert judge(used, size, files, most, percent=95.0) == said


def test_a_real_one_that_fills_asks_to_save_and_stop(small_tmpfs: Path) -> None:
    trigger = make_trigger(small_tmpfs)
    (small_tmpfs / "batch").write_bytes(bytes(7 * MIB))
    assert trigger.poll() is None
    (small_tmpfs / "another").write_bytes(bytes(MIB - 64 * 1024))
    wanted = trigger.poll()
    assert wanted is not None
    assert (wanted.save, wanted.stop, wanted.trigger) == (True, True, "shared_memory")
    assert wanted.why.startswith(f"{small_tmpfs} of n17 is 99.2 % full, 7.9 MiB of 8.0 MiB: data-loader workers die")
    (small_tmpfs / "batch").unlink()
    trigger.done("saved")
    assert trigger.poll() is None


def test_a_real_one_that_runs_out_of_files_asks_as_well(small_tmpfs: Path) -> None:
    trigger = make_trigger(small_tmpfs)
    for number in range(97):
        (small_tmpfs / str(number)).touch()
    wanted = trigger.poll()
    assert wanted is not None
    assert "of 100 files" in wanted.why


def test_the_percentage_is_a_setting(small_tmpfs: Path) -> None:
    (small_tmpfs / "batch").write_bytes(bytes(4 * MIB))
    assert make_trigger(small_tmpfs, shm_percent=60.0).poll() is None
    assert make_trigger(small_tmpfs, shm_percent=50.0).poll() is not None


def test_one_mounted_later_is_noticed(tmp_path: Path, small_tmpfs: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    trigger = make_trigger(tmp_path / "link", shm_percent=50.0)
    assert trigger.poll() is None
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(small_tmpfs)
    (small_tmpfs / "batch").write_bytes(bytes(5 * MIB))
    assert trigger.poll() is not None


def test_a_directory_on_a_disk_is_not_watched(tmp_path: Path) -> None:
    """Some containers have /dev/shm on their disk, which may well be 96 % full and stay so."""
    kind = subprocess.run(["stat", "-fc", "%T", str(tmp_path)], capture_output=True, text=True, timeout=20, check=True)
    if kind.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip("needs a temporary directory on a disk")
    assert os.statvfs(tmp_path).f_blocks > os.statvfs(tmp_path).f_bavail
    assert make_trigger(tmp_path, shm_percent=1.5).poll() is None


def test_without_a_dev_shm_there_is_nothing_to_watch(tmp_path: Path) -> None:
    assert make_trigger(tmp_path / "nothing").poll() is None


def test_the_machines_own_is_probed() -> None:
    assert make_trigger("/dev/shm", shm_percent=100.0).poll() is None
    assert SharedMemory.ranks == "node"


@pytest.mark.parametrize("value", [0.95, 1, 0, 101, -1])
def test_a_percentage_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(GuardError, match="shm_percent"):
        read_settings({}, shm_percent=value)
