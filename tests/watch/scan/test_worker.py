"""The child that scans: what it asks the kernel for, and what it keeps open."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.watch.scan import directory
from resilience.watch.scan import worker as pace
from resilience.watch.scan.worker import LONGEST, Board, Pace, decide, mounts_below, receive, send, taken
from tests.lab.disks import small_disk
from tests.watch.scan.trees import a_tree, du, kib, look, settle, write

PROGRAM = """
import sys
import time
from pathlib import Path
from resilience.watch.scan.scan import scan
found = scan(Path(sys.argv[1]), Path(sys.argv[2]), now=1.8e9, cores=2)
print(found.read, found.verified)
"""


def traced(root: Path, memory: Path, *options: str) -> tuple[str, str]:
    """Scan under strace: what it prints, and its calls that touch files."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = root.parent / "calls"
    command = ["strace", *options, "-qq", "-o", str(log), "-e", "trace=%file,getdents64"]
    done = subprocess.run([*command, sys.executable, "-c", PROGRAM, root, memory], capture_output=True, text=True)
    if "ptrace" in done.stderr.lower() and done.returncode:
        pytest.skip("strace may not attach here")
    return done.stdout, log.read_text()


def test_an_unchanged_tree_costs_one_stat_for_each_directory_and_none_for_a_file(tmp_path: Path, memory: Path) -> None:
    root = a_tree(tmp_path / "tree")
    subprocess.run([sys.executable, "-c", PROGRAM, root, memory], check=True, capture_output=True)
    printed, calls = traced(root, memory, "-f")
    assert printed.split() == ["0", "25"]
    assert len(re.findall(r'newfstatat\(\d+, "t\d(?:/s\d)?", .*AT_SYMLINK_NOFOLLOW', calls)) == 24  # all but the root
    assert not re.search(r'"(?:t\d/s\d/)?f\d"', calls)
    assert f'"{root}"' in calls


def test_the_parent_never_touches_the_tree(tmp_path: Path, memory: Path) -> None:
    root = a_tree(tmp_path / "tree")
    printed, calls = traced(root, memory)
    assert printed.split() == ["25", "0"]
    assert [line for line in calls.splitlines() if f'"{root}' in line and not line.startswith("execve(")] == []


def test_mounts_below_a_directory_are_known_without_touching_them(tmp_path: Path) -> None:
    with small_disk(tmp_path / "a disk"):
        assert mounts_below(os.fsencode(tmp_path)) == {b"a disk"}
        assert mounts_below(os.fsencode(tmp_path / "a disk")) == frozenset()


def test_taking_from_a_list_leaves_what_others_add() -> None:
    items = [1, 2]
    assert taken(items) == [1, 2]
    items.append(3)
    assert taken(items) == [3]
    assert items == []


def test_a_child_is_heard_though_it_says_nothing() -> None:
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


def test_each_note_replaces_the_one_before() -> None:
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


def test_messages_longer_than_a_pipe_arrive_whole() -> None:
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
    ("look_us", "cores", "processes", "threads"),
    [
        (1.6, 2, 4, 1),  # ext4, from memory
        (8, 1, 2, 1),  # ext4, from the disk
        (8, 64, 4, 1),  # a login node belongs to others as well
        (200, 2, 1, 16),  # a server answers
        (5000, 64, 1, 16),
    ],
)
def test_local_disks_get_processes_and_servers_get_threads(
    look_us: float, cores: int, processes: int, threads: int
) -> None:
    pace = decide(look_us * 1e-6, cores)
    assert (pace.processes, pace.threads) == (processes, threads)
    assert f"{look_us:.0f} us" in pace.reason


def test_the_reason_is_a_sentence() -> None:
    assert decide(2e-6, 1) == Pace(2, 1, "2 us for each look: 2 processes")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = a_tree(tmp_path / "tree", tops=5, subs=45, files=1)
    for number in range(700):
        write(tree / "large" / f"{number}", 10)
    settle(tree)
    return tree


def test_the_first_process_hands_over_when_stats_turn_out_slow(
    root: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW_LOOK_S", 0.0)
    found = look(root, memory)
    assert "16 threads" in found.pace
    assert found.is_complete
    assert (kib(found), found.totals.files[0], found.totals.directories[0]) == (du(root), 925, 232)
    again = look(root, memory)
    assert "16 threads" in again.pace
    assert (again.read, again.verified, again.looks) == (0, 232, 232)
    assert again.totals == found.totals


def test_a_change_is_found_by_threads_too(root: Path, memory: Path) -> None:
    threads = Pace(1, 16, "as on a network")
    look(root, memory, pace=threads)
    write(root / "large" / "new")
    write(root / "t4" / "s5" / "new")
    found = look(root, memory, pace=threads)
    assert found.read == 2
    assert kib(found) == du(root)


def test_the_stats_of_one_large_directory_are_shared_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_once = directory.look

    def slowly(entry: object) -> object:
        time.sleep(0.004)  # a server far away
        return look_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(pace, "look", slowly)
    found = look(root, pace=Pace(1, 16, "as on a network"))
    assert kib(found) == du(root)
    assert found.took_s < 925 * 0.004  # one after the other it would take longer than that


def test_an_error_in_one_thread_is_an_error_of_its_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look_once = directory.look

    def broken(entry: object) -> object:
        if entry.name == "500":  # type: ignore[attr-defined]
            raise OSError(5, "the disk is broken")
        return look_once(entry)  # type: ignore[arg-type]

    monkeypatch.setattr(pace, "look", broken)
    found = look(root, pace=Pace(1, 16, "as on a network"), deadline_s=60)
    bad = [path for path, number in zip(found.tree.paths, found.tree.trouble, strict=True) if number]
    assert bad == [b"large"]
    assert not found.out_of_time
