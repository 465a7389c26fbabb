"""Scans of real directories with real faults, compared with du."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.watch.scan import scan as scan_module
from resilience.watch.scan import worker
from resilience.watch.scan.scan import Progress, Scan
from resilience.watch.scan.tree import ELSEWHERE, STUCK, Record
from resilience.watch.scan.worker import REMEMBERED, REMEMBERED_PER_DIRECTORY, Worker
from tests.lab.disks import small_disk
from tests.lab.hung import hung_directory
from tests.lab.waiting import until
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way
from tests.watch.scan.trees import LONG_AGO, NOW, a_tree, du, kib, run_scan, settle, write

DAY = 86400


def in_state(found: Scan, expected: int) -> list[bytes]:
    """Return the directories in this state."""
    return [record.path for record in found.tree.in_state(expected)]


def paths(found: Scan) -> list[bytes]:
    return [record.path for record in found.tree.records]


def test_it_counts_allocated_blocks_as_du_does(root: Path) -> None:
    with open(root / "sparse", "wb") as file:
        file.truncate(2**30)
    found = run_scan(root)
    assert kib(found) == du(root)
    assert (found.tree.files[0], found.tree.directories[0]) == (61, 25)
    assert found.is_complete


def test_a_file_with_several_hard_links_counts_once(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    first = write(root / "a" / "file", 100_000)
    (root / "b").mkdir()
    for name in ("b/same", "b/again", "a/third"):
        os.link(first, root / name)
    found = run_scan(root)
    assert kib(found) == du(root)
    assert found.tree.files[0] == 1


def test_the_next_scan_sees_that_a_hard_link_was_removed(tmp_path: Path) -> None:
    root, cache = tmp_path / "tree", tmp_path / "cache"
    first = write(root / "a" / "file", 100_000)
    write(root / "b" / "own")
    os.link(first, root / "b" / "same")
    settle(root)
    run_scan(root, cache)
    first.unlink()
    found = run_scan(root, cache)
    assert found.verified >= 1  # b was not read again, and its name of the file counts now
    assert kib(found) == du(root)


def test_symbolic_links_are_counted_and_not_followed(tmp_path: Path, root: Path) -> None:
    write(tmp_path / "elsewhere" / "big", 1_000_000)
    for name, target in (("to directory", tmp_path / "elsewhere"), ("loop", root), ("broken", "nowhere")):
        (root / name).symlink_to(target)
    found = run_scan(root)
    assert kib(found) == du(root)
    assert found.tree.files[0] == 63


def test_a_root_that_is_a_symbolic_link_is_the_directory_it_points_to(tmp_path: Path, root: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    found = run_scan(tmp_path / "link")
    assert kib(found) == du(root)


def test_names_may_be_any_bytes(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    for name in (b"caf\xe9", b"new\nline", b"\x1b[31m", b"-rf", b"  ", "ü".encode()):
        write(root / os.fsdecode(name) / os.fsdecode(name))
    cache = tmp_path / "cache"
    run_scan(root, cache)
    found = run_scan(root, cache)
    assert kib(found) == du(root)
    assert {path.rpartition(b"/")[2] for path in paths(found)} == {
        b"",
        b"caf\xe9",
        b"new\nline",
        b"\x1b[31m",
        b"-rf",
        b"  ",
        "ü".encode(),
    }


def test_another_file_system_is_not_entered_and_not_even_probed(root: Path, cache: Path) -> None:
    with small_disk(root / "t1" / "other", "1m") as disk:
        write(disk / "file", 500_000)
        found = run_scan(root)
        assert kib(found) == du(root)
        assert in_state(found, ELSEWHERE) == [b"t1/other"]
        assert found.is_complete
        assert run_scan(root, cache).is_complete
        again = run_scan(root, cache)
        assert (kib(again), in_state(again, ELSEWHERE)) == (du(root), [b"t1/other"])
    unmounted = run_scan(root, cache)
    assert (kib(unmounted), in_state(unmounted, ELSEWHERE)) == (du(root), [])


def test_a_loop_of_bind_mounts_ends(root: Path) -> None:
    (root / "t0" / "loop").mkdir()
    mounted = subprocess.run(["mount", "--rbind", root, root / "t0" / "loop"], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a directory over another here: {mounted.stderr.strip()}")
    try:
        found = run_scan(root)
        assert found.tree.files[0] == 60
        assert found.is_complete
    finally:
        subprocess.run(["umount", "-l", root / "t0" / "loop"], check=True)


def test_directories_deeper_than_the_longest_path_are_scanned(tmp_path: Path) -> None:
    root, cache = tmp_path / "tree", tmp_path / "cache"
    root.mkdir()
    name, depth = "d" * 100, 120
    opened = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=opened)
        below = os.open(name, os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = below
    with open(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=opened), "wb") as file:
        file.write(bytes(50_000))
    os.close(opened)
    for _ in range(2):
        found = run_scan(root, cache, now=time.time())
        assert kib(found) == du(root)
        assert found.tree.directories[0] == depth + 1
        assert found.is_complete
    subprocess.run(["rm", "-rf", root], check=True)


@needs_root
def test_unreadable_directories_are_reported_and_the_rest_is_counted(root: Path) -> None:
    open_the_way(root / "t0")
    (root / "t2").chmod(0o700)
    with acting_as(NOBODY):
        found = run_scan(root)
    bad = [(record.path, record.trouble) for record in found.tree.records if record.trouble]
    assert bad == [(b"t2", 13)]
    assert found.tree.files[0] == 45
    assert found.tree.missing[0] == 1  # the totals are marked as lower bounds
    assert found.is_complete  # but there is nothing left to read
    assert not found.error


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text(""), "is a file"),
        (lambda path: os.mkfifo(path), "is a file"),
    ],
    ids=["missing", "file", "fifo"],
)
def test_a_root_that_cannot_be_scanned_is_an_error(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path / "root")  # type: ignore[operator]
    found = run_scan(tmp_path / "root", tmp_path / "cache", deadline_s=20)
    assert said in found.error
    assert not (tmp_path / "cache").exists()


def test_an_unchanged_tree_takes_one_stat_of_each_directory_and_remembered_file(root: Path, cache: Path) -> None:
    first = run_scan(root, cache)
    assert (first.read, first.verified) == (25, 0)
    again = run_scan(root, cache, now=NOW + 60)
    assert (again.read, again.verified, again.looks, again.unseen) == (0, 25, 25 + 60, 0)
    assert again.tree == first.tree
    assert again.is_complete


def test_only_changed_directories_are_read_again(root: Path, cache: Path) -> None:
    run_scan(root, cache)
    write(root / "t1" / "s2" / "new")
    write(root / "t3" / "deep" / "new" / "file")
    (root / "t0" / "s0" / "f0").unlink()
    subprocess.run(["rm", "-r", root / "t2" / "s4"], check=True)
    found = run_scan(root, cache)
    assert found.read == 3 + 2 + 2  # s2, t3 and the two in it, s0, t2, and the one that is not there any more
    assert kib(found) == du(root)
    assert (found.tree.files[0], found.tree.directories[0]) == (60 + 2 - 1 - 3, 25 + 2 - 1)


def test_a_directory_renamed_with_all_below_it_is_found_under_its_new_name(root: Path, cache: Path) -> None:
    run_scan(root, cache)
    (root / "t0").rename(root / "t3" / "moved")
    found = run_scan(root, cache)
    assert kib(found) == du(root)
    assert b"t3/moved/s4" in paths(found)
    assert b"t0" not in paths(found)


def test_two_directories_that_swap_names_are_distinguished(tmp_path: Path) -> None:
    root, cache = tmp_path / "tree", tmp_path / "cache"
    write(root / "a" / "p" / "x", 50_000)
    write(root / "b" / "q" / "y", 10)
    settle(root)
    run_scan(root, cache)
    (root / "a").rename(root / "c")
    (root / "b").rename(root / "a")
    (root / "c").rename(root / "b")
    settle(root)  # the same mtimes as before; only the inodes differ
    found = run_scan(root, cache)
    sizes = {path: found.tree.blocks[row] for row, path in enumerate(paths(found))}
    assert sizes[b"b"] > sizes[b"a"]


def test_a_log_that_grows_in_place_is_detected_at_once(root: Path, cache: Path) -> None:
    log = write(root / "t1" / "s1" / "train.log")
    settle(root)
    os.utime(log, (NOW - 60, NOW - 60))
    first = run_scan(root, cache)
    with open(log, "ab") as file:
        file.write(bytes(300_000))
    found = run_scan(root, cache)
    assert kib(found) == du(root) > kib(first)
    assert found.read == 1


@pytest.mark.parametrize("size", [0, 5_000, 20_000_000])
def test_an_old_file_that_grows_in_place_is_detected_at_once(root: Path, cache: Path, size: int) -> None:
    old = write(root / "t1" / "s1" / "old", size)
    settle(root)
    first = run_scan(root, cache)
    with open(old, "ab") as file:
        file.write(bytes(300_000))
    os.utime(old, (LONG_AGO, LONG_AGO))  # as a file system that is slow to tell the time
    found = run_scan(root, cache, now=NOW + 60)
    assert kib(found) == du(root) > kib(first)
    assert found.read == 1


def test_a_small_tree_is_read_whole_each_time(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "SMALL", 60)
    run_scan(root, cache)
    found = run_scan(root, cache)
    assert (found.read, found.verified, found.is_complete) == (25, 0, True)
    monkeypatch.setattr(scan_module, "SMALL", 59)
    assert run_scan(root, cache).verified == 25


def many_files(root: Path, count: int) -> None:
    """Create directories with more files of one age and size than a scan looks at again."""
    for number in range(count):
        path = root / f"d{number // 100}" / f"f{number}"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"x")
    settle(root)


def test_growth_of_files_that_were_not_looked_at_is_never_denied(tmp_path: Path) -> None:
    root, cache, count = tmp_path / "tree", tmp_path / "cache", 3 * REMEMBERED
    many_files(root, count)
    run_scan(root, cache)
    again = run_scan(root, cache, now=NOW + 60)
    looked_at = again.looks - again.verified
    assert REMEMBERED_PER_DIRECTORY < looked_at <= 2 * REMEMBERED
    assert again.unseen == count - looked_at
    for path in root.glob("*/*"):
        with path.open("ab") as file:
            file.write(bytes(10_000))
    settle(root)
    fresh = run_scan(root, cache, now=NOW + 120, fresh=True)
    assert (fresh.unseen, kib(fresh)) == (0, du(root))


def test_files_that_were_not_looked_at_are_read_by_the_daily_full_pass(tmp_path: Path) -> None:
    root, cache = tmp_path / "tree", tmp_path / "cache"
    many_files(root, 3 * REMEMBERED)
    first = run_scan(root, cache)
    for path in root.glob("*/*"):
        with path.open("ab") as file:
            file.write(bytes(10_000))
    settle(root)
    found = run_scan(root, cache, now=NOW + DAY + 61)
    assert found.read == len(first.tree)
    assert kib(found) == du(root)


def test_a_directory_that_changed_just_now_is_read_again_because_it_may_still_change(root: Path, cache: Path) -> None:
    write(root / "t1" / "new")
    run_scan(root, cache)
    found = run_scan(root, cache)
    assert found.read == 1
    assert kib(found) == du(root)


def test_files_deleted_during_the_scan_are_no_error(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree", tops=10, subs=10, files=5)
    churning = os.fork()
    number = 0
    while not churning:
        number += 1
        directory = root / f"t{number % 10}" / "s0" / f"gone{number % 1000}"
        write(directory / "file", 10)
        (directory / "file").unlink()
        directory.rmdir()
    try:
        found = [run_scan(root, tmp_path / "cache", now=NOW + number) for number in range(8)]
    finally:
        os.kill(churning, signal.SIGKILL)
        os.waitpid(churning, 0)
    for directory in root.glob("t*/s0/gone*"):  # the last one, half done
        shutil.rmtree(directory)
    assert not any(each.error for each in found)
    final = run_scan(root, tmp_path / "cache", now=NOW + 20)
    assert (final.tree.files[0], final.tree.directories[0], kib(final)) == (500, 111, du(root))


def test_a_directory_of_many_chunks_is_added_up(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    first = write(root / "first", 0)
    for number in range(1_500):
        path = first.with_name(f"{number:05d}.out")
        os.link(first, path) if number < 500 else os.mknod(path)
    found = run_scan(root)
    assert found.tree.files[0] == 1 + 1000
    assert kib(found) == du(root)


def test_where_stat_calls_wait_for_a_server_many_are_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = a_tree(tmp_path / "tree", tops=6, subs=6), tmp_path / "cache"
    for number in range(1500):
        write(root / "large" / f"{number}", 10)
    settle(root)
    stat_once = worker.stat_entries

    def from_far(entries: Any) -> Any:
        for _ in entries:
            time.sleep(0.005)
        return stat_once(entries)

    monkeypatch.setattr(worker, "stat_entries", from_far)
    many = run_scan(root, cache)
    assert "16 workers of 8 threads" in many.pace
    assert many.took_s < 0.8 * 1608 * 0.005  # one after the other they take longer than all of that
    assert kib(many) == du(root)
    again = run_scan(root, cache)
    assert (again.read, again.verified) == (0, 44)
    assert again.tree == many.tree


def test_a_hung_mount_below_the_root_is_not_touched(root: Path) -> None:
    with hung_directory(root / "t1" / "dead"):
        found = run_scan(root, deadline_s=20)
        assert found.is_complete
        assert found.tree.files[0] == 60
        assert found.took_s < 10


def test_a_root_that_hangs_is_reported_within_the_deadline(tmp_path: Path) -> None:
    with hung_directory(tmp_path / "dead") as dead:
        began = time.monotonic()
        found = run_scan(dead, tmp_path / "cache", deadline_s=3)
        assert time.monotonic() - began < 3 + 15
        assert "hangs" in found.error or "no answer" in found.error


def test_a_subdirectory_that_hangs_is_reported_and_the_rest_is_counted(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The list of mounts does not betray it: as with a server that died below an automounter, or a broken disk.
    monkeypatch.setattr("resilience.watch.scan.worker.mounts_below", lambda root, directory: {})
    with hung_directory(root / "t1" / "dead"):
        for _ in range(2):  # the second time beside what is known
            found = run_scan(root, cache, deadline_s=4)
            assert found.took_s < 20
            assert in_state(found, STUCK) == [b"t1/dead"]
            assert found.tree.files[0] == 60
            assert not found.is_complete
    found = run_scan(root, cache, deadline_s=60)  # a recovered directory clears itself
    assert found.is_complete
    assert (found.tree.files[0], kib(found)) == (60, du(root))


def test_below_a_directory_that_hangs_no_more_workers_hang(
    root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_scan(root, cache)
    look = Worker._look

    def hang(self: Worker, path: bytes) -> os.stat_result:
        if path.startswith(b"t1"):
            time.sleep(600)
        return look(self, path)

    monkeypatch.setattr(Worker, "_look", hang)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # two workers
    found = run_scan(root, cache, deadline_s=15)
    assert 1 <= len(in_state(found, STUCK)) <= 3, "of the six that are known"
    assert found.tree.files[0] == 60


def test_a_scan_continues_where_the_deadline_ended_the_last_one(tmp_path: Path) -> None:
    root, cache = a_tree(tmp_path / "tree", tops=15, subs=20, files=1), tmp_path / "cache"
    first = run_scan(root, cache, deadline_s=0.0)
    assert first.out_of_time
    assert not first.is_complete or first.tree.files[0] == 300
    reads = [first.read]
    while True:
        # A busy machine may need more time to start at all.
        found = run_scan(root, cache, deadline_s=0.05 + 0.01 * len(reads))
        reads.append(found.read)
        if found.is_complete:
            break
        assert len(reads) < 200
    assert sum(reads) <= 316 + 4 * len(reads)  # each scan may leave a directory or two half read
    assert (found.tree.files[0], kib(found)) == (300, du(root))


SCAN = """
import sys, time
from pathlib import Path
from resilience.watch.scan.scan import scan
from resilience.watch.scan import scan as scan_module
from resilience.watch.scan import worker
read = worker.Worker.read
def slowly(self, path):
    time.sleep(0.02)
    return read(self, path)
worker.Worker.read = slowly
def report(progress):
    print("tick", progress.directories, flush=True)
found = scan(Path(sys.argv[1]), Path(sys.argv[2]), now=1800000000.0, report=report)
print("found", found.interrupted, found.is_complete, found.tree.files[0], flush=True)
"""


def scanning(root: Path, cache: Path, program: str = SCAN) -> subprocess.Popen[str]:
    """Start a scan in a session of its own."""
    command = [sys.executable, "-c", program, str(root), str(cache)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def children_of(pid: int) -> set[int]:
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_scan_reports_partial_results_and_caches_them(tmp_path: Path, end: signal.Signals) -> None:
    root, cache = a_tree(tmp_path / "tree", tops=20, subs=20, files=1), tmp_path / "cache"
    with scanning(root, cache) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("tick") and int(line.split()[1]) > 20:
                os.killpg(process.pid, end)  # as a terminal does: to the whole process group
                break
        rest = process.stdout.read()
        assert process.wait(20) == 0
    interrupted, complete, files = rest.split("found ")[1].split()
    assert (interrupted, complete) == ("True", "False")
    assert 0 < int(files) < 400
    found = run_scan(root, cache)
    assert found.is_complete
    assert found.verified > 0
    assert found.tree.files[0] == 400


def test_the_scan_is_complete_although_a_worker_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = a_tree(tmp_path / "tree", tops=20, subs=20, files=1)
    killed: list[int] = []

    def kill_one(progress: Progress) -> None:
        workers = [pid for pid in children_of(os.getpid()) if os.getsid(pid) == pid]
        if workers and not killed:
            killed.append(workers[0])
            os.kill(killed[0], signal.SIGKILL)

    read = Worker.read

    def slowly(worker: Worker, path: bytes) -> Record:
        time.sleep(0.005)
        return read(worker, path)

    monkeypatch.setattr(Worker, "read", slowly)
    found = run_scan(root, report=kill_one)
    assert killed
    assert found.tree.files[0] == 400
    assert found.is_complete


def test_workers_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree", tops=20, subs=20, files=1)
    with scanning(root, tmp_path / "m") as process:
        assert process.stdout is not None
        while "tick" not in process.stdout.readline():
            pass
        workers = children_of(process.pid)
        process.kill()
    assert workers
    until(lambda: not any(map(is_running, workers)))


def is_running(pid: int) -> bool:
    """Return whether a process with this pid is running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_suspended_scan_reports_no_hung_directory(tmp_path: Path) -> None:
    root = a_tree(tmp_path / "tree", tops=3, subs=2, files=1)
    program = SCAN.replace("now=1800000000.0", "now=1800000000.0, deadline_s=12").replace("0.02", "0.4")
    with scanning(root, tmp_path / "m", program) as process:
        assert process.stdout is not None
        for _ in range(3):  # in the middle of a directory: each takes longer than the ticks are apart
            assert "tick" in process.stdout.readline()
        processes = [*children_of(process.pid), process.pid]  # as SLURM suspends a job
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.6)  # longer than the 2.4 s after which a worker counts as hung
        process.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        rest = process.stdout.read()
    assert "found False True 6" in rest


def test_workers_do_not_keep_the_output_open(root: Path) -> None:
    """A worker that hangs in the kernel closes no file: a reader of an inherited output would wait for ever."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom resilience.watch.scan.scan import scan\n"
        "scan(Path(sys.argv[1]), None, now=1.8e9, deadline_s=1)\nprint('done')\n"
    )
    with hung_directory(root / "dead"):
        done = subprocess.run(
            [sys.executable, "-c", program, root / "dead"], stdout=subprocess.PIPE, text=True, timeout=30
        )
        assert done.stdout == "done\n"


def test_progress_is_reported(root: Path, cache: Path) -> None:
    reports: list[Progress] = []
    run_scan(root, cache, report=reports.append)
    run_scan(root, cache, report=reports.append)
    assert reports[-1] == Progress(25, 85, 25)


def test_no_worker_is_left_behind(tmp_path: Path) -> None:
    before = children_of(os.getpid())
    run_scan(a_tree(tmp_path / "tree"), deadline_s=60)
    assert children_of(os.getpid()) <= before
