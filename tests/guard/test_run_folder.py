"""What the guard writes is whole or not there, and has the modes of the run directory."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from resilience.guard.run_folder import file_mode, replace_file, subfolder
from tests.guard.disks import fill, small_disk
from tests.system.writer import writer


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("folder", "file"), [(0o700, 0o600), (0o2770, 0o660), (0o770, 0o600), (0o2750, 0o600), (0o2775, 0o660)]
)
def test_only_a_folder_made_for_a_group_gives_its_files_to_the_group(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    assert file_mode(str(tmp_path)) == file
    tmp_path.chmod(0o700)


def test_a_missing_folder_is_made_with_the_runs_mode_but_never_the_run_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(FileNotFoundError):
        subfolder(str(run), "beats")
    assert not run.exists()
    run.mkdir()
    run.chmod(0o2770)
    assert mode_of(Path(subfolder(str(run), "beats"))) == 0o2770
    run.chmod(0o700)
    assert mode_of(Path(subfolder(str(run), "journal"))) == 0o700


def test_what_a_killed_writer_left_is_replaced_and_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".beat.tmp").symlink_to(victim)
    replace_file(str(tmp_path / "beat"), "new", mode=0o600)
    assert victim.read_text() == "mine"
    assert (tmp_path / "beat").read_text() == "new"
    assert names(tmp_path) == ["beat", "victim"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk / "beat"
        replace_file(str(path), "old", mode=0o600)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            replace_file(str(path), "new" * 10_000, mode=0o600)
        assert path.read_text() == "old"
        assert names(disk) == ["ballast", "beat"]


def test_a_writer_killed_at_any_system_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "finished"
    request = f"from resilience.guard.run_folder import *; replace_file({str(path)!r}, 'new', mode=0o600, durable=True)"
    with writer(tmp_path / "strace.log") as process:
        seen = set()
        path.write_text("old")
        for name, count in process.kill_points(request):
            if name in {
                "brk",
                "mmap",
                "munmap",
                "mremap",
                "futex",
                "read",
                "newfstatat",
                "fstat",
                "lseek",
                "getdents64",
            }:
                continue
            path.write_text("old")
            process.run(request, f"{name}:signal=KILL:when={count}")
            seen.add(path.read_text())
        assert seen == {"old", "new"}
        replace_file(str(path), "third", mode=0o600)
        assert [name for name in names(tmp_path) if name.endswith(".tmp")] == []
