"""The worker process: its system calls and its open files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.watch.scan import directory, worker
from resilience.watch.scan.worker import (
    LONGEST,
    Board,
    Parallelism,
    choose_parallelism,
    mounts_below,
    receive,
    send,
    taken,
)
from tests.lab.disks import small_disk
from tests.watch.scan.trees import a_tree, du, kib, run_scan, settle, write

PROGRAM = """
import sys
import time
from pathlib import Path
from resilience.watch.scan.scan import scan
found = scan(Path(sys.argv[1]), Path(sys.argv[2]), now=1.8e9, cores=2)
print(found.read, found.verified)
"""


def traced(root: Path, cache: Path, *options: str) -> tuple[str, str]:
    """Scan under strace; return the output, and the system calls that access files."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = root.parent / "calls"
    command = ["strace", *options, "-qq", "-o", str(log), "-e", "trace=%file,getdents64"]
    done = subprocess.run([*command, sys.executable, "-c", PROGRAM, root, cache], capture_output=True, text=True)
    if "ptrace" in done.stderr.lower() and done.returncode:
        pytest.skip("strace may not attach here")
    return done.stdout, log.read_text()


def test_an_unchanged_tree_costs_one_stat_for_each_directory_and_none_for_a_file(tmp_path: Path, cache: Path) -> None:
    root = a_tree(tmp_path / "tree")
    subprocess.run([sys.executable, "-c", PROGRAM, root, cache], check=True, capture_output=True)
    printed, calls = traced(root, cache, "-f")
    assert printed.split() == ["0", "25"]
    assert len(re.findall(r'newfstatat\(\d+, "t\d(?:/s\d)?", .*AT_SYMLINK_NOFOLLOW', calls)) == 24  # all but the root
    assert not re.search(r'"(?:t\d/s\d/)?f\d"', calls)
    assert f'"{root}"' in calls


def test_the_parent_process_never_touches_the_tree(tmp_path: Path, cache: Path) -> None:
    root = a_tree(tmp_path / "tree")
    printed, calls = traced(root, cache)
    assert printed.split() == ["25", "0"]
    assert [line for line in calls.splitlines() if f'"{root}' in line and not line.startswith("execve(")] == []


def test_mounts_below_a_directory_are_known_without_touching_them(tmp_path: Path) -> None:
    with small_disk(tmp_path / "a disk"):
        assert mounts_below(os.fsencode(tmp_path)) == {b"a disk"}
        assert mounts_below(os.fsencode(tmp_path / "a disk")) == frozenset()


def test_taking_from_a_list_keeps_items_appended_meanwhile() -> None:
    items = [1, 2]
    assert taken(items) == [1, 2]
    items.append(3)
    assert taken(items) == [3]
    assert items == []


def test_the_parent_reads_the_position_of_a_child_on_the_board() -> None:
    board = Board(2)
    assert board.where(1) == (0, None)
    pid = os.fork()
    if pid == 0:
        board.enter(1, b"runs/gpt", 7)
        board.wants_work = True
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.where(1) == (7, b"runs/gpt")
    assert board.where(0) == (0, None)
    assert board.wants_work
    assert not board.stopped


def test_each_position_replaces_the_one_before() -> None:
    board = Board(1)
    board.enter(0, b"a long path", 1)
    board.enter(0, b"short", 2)
    assert board.where(0) == (2, b"short")
    board.tick(0, 3)
    assert board.where(0) == (3, b"short")
    board.verify(0, 41)
    assert board.where(0) == (41, 41)
    board.set_idle(0, 4)
    assert board.where(0) == (4, None)


def test_a_path_longer_than_its_slot_leaves_the_next_slot_alone() -> None:
    board = Board(2)
    board.enter(1, b"neighbour", 1)
    board.enter(0, b"x" * 10_000, 1)
    assert board.where(0) == (1, b"x" * LONGEST)
    assert board.where(1) == (1, b"neighbour")


def test_messages_longer_than_the_pipe_buffer_arrive_intact() -> None:
    reading, writing = os.pipe()
    message = ("found", [b"x" * 300_000, 5])
    pid = os.fork()
    if pid == 0:
        send(writing, message)
        os._exit(0)
    os.close(writing)
    assert receive(reading) == message
    os.waitpid(pid, 0)
    with pytest.raises(EOFError):
        receive(reading)
    os.close(reading)


@pytest.mark.parametrize(
    ("stat_us", "cores", "processes", "threads"),
    [
        (1.6, 2, 4, 1),  # ext4, from cache
        (8, 1, 2, 1),  # ext4, from the disk
        (8, 64, 4, 1),  # a login node belongs to others as well
        (200, 2, 1, 16),  # a server answers
        (5000, 64, 1, 16),
    ],
)
def test_local_disks_get_processes_and_servers_get_threads(
    stat_us: float, cores: int, processes: int, threads: int
) -> None:
    chosen = choose_parallelism(stat_us * 1e-6, cores)
    assert (chosen.processes, chosen.threads) == (processes, threads)
    assert f"{stat_us:.0f} us" in chosen.reason


def test_the_reason_names_the_measurement_and_the_choice() -> None:
    assert choose_parallelism(2e-6, 1) == Parallelism(2, 1, "2 us per stat call: 2 processes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = a_tree(tmp_path / "tree", tops=5, subs=45, files=1)
    for number in range(700):
        write(tree / "large" / f"{number}", 10)
    settle(tree)
    return tree


def test_the_first_process_hands_over_when_stats_turn_out_slow(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "SLOW_STAT_S", 0.0)
    found = run_scan(root, cache)
    assert "16 threads" in found.pace
    assert found.is_complete
    assert (kib(found), found.totals.files[0], found.totals.directories[0]) == (du(root), 925, 232)
    again = run_scan(root, cache)
    assert "16 threads" in again.pace
    assert (again.read, again.verified, again.looks) == (0, 232, 232)
    assert again.totals == found.totals


def test_threads_detect_a_change(root: Path, cache: Path) -> None:
    threads = Parallelism(1, 16, "as on a network")
    run_scan(root, cache, parallelism=threads)
    write(root / "large" / "new")
    write(root / "t4" / "s5" / "new")
    found = run_scan(root, cache, parallelism=threads)
    assert found.read == 2
    assert kib(found) == du(root)


def test_threads_share_the_stat_calls_of_one_large_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat_once = directory.stat_entry

    def slowly(entry: object) -> object:
        time.sleep(0.004)  # a server far away
        return stat_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "stat_entry", slowly)
    found = run_scan(root, parallelism=Parallelism(1, 16, "as on a network"))
    assert kib(found) == du(root)
    assert found.took_s < 925 * 0.004  # one after the other it would take longer than that


def test_an_error_in_one_thread_is_an_error_of_its_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat_once = directory.stat_entry

    def broken(entry: object) -> object:
        if entry.name == "500":  # type: ignore[attr-defined]
            raise OSError(5, "the disk is broken")
        return stat_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "stat_entry", broken)
    found = run_scan(root, parallelism=Parallelism(1, 16, "as on a network"), deadline_s=60)
    bad = [path for path, number in zip(found.tree.paths, found.tree.trouble, strict=True) if number]
    assert bad == [b"large"]
    assert not found.out_of_time
