"""Each fault as a process meets it, and that it is undone whoever is killed."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resilience.base.mounts import current_mounts
from resilience.inject.files import behaviour, mounting, preload
from resilience.inject.files.behaviour import Behaviour
from tests.inject.files.faulty import faulty, needs_mount
from tests.inject.files.saving import ALL, error_of, errors, write
from tests.lab.disks import small_disk
from tests.lab.waiting import until

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler (cc) is needed")


FAULTS = {
    "full": (behaviour.disk_full(), {"write": "ENOSPC", "mkdir": "ENOSPC"}),
    "quota": (behaviour.disk_full(quota=True), {"write": "EDQUOT", "mkdir": "EDQUOT"}),
    "read-only": (
        behaviour.read_only(),
        dict.fromkeys(("create", "write", "mkdir", "rename", "unlink"), "EROFS"),
    ),
    "eio": (behaviour.input_output_error(), dict.fromkeys(("read", "write", "fsync"), "EIO")),
    "eio at reads": (behaviour.input_output_error("read"), {"read": "EIO"}),
    "stale": (behaviour.stale(), dict.fromkeys(ALL, "ESTALE")),
}


@needs_mount
@pytest.mark.parametrize("fault", FAULTS)
def test_a_mounted_fault_has_the_errors_of_the_real_one_and_goes_without_a_trace(tmp_path: Path, fault: str) -> None:
    what, expected = FAULTS[fault]
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (directory / "old").write_bytes(b"0123456789")
    with faulty(directory, what) as server:
        found = errors(directory)
        if fault == "read-only":
            assert os.statvfs(directory).f_flag & os.ST_RDONLY
        assert found == expected
        server.undo()
        assert [error_of(lambda: os.listdir(directory)), error_of(lambda: write(directory / "after"))] == ["", ""]
    assert not server.mounted


@needs_mount
def test_a_full_disk_takes_what_fits_says_so_and_has_room_again_after_a_deletion(tmp_path: Path) -> None:
    with faulty(tmp_path, behaviour.disk_full(1_000_000)):
        assert error_of(lambda: write(tmp_path / "first", 1_500_000)) == "ENOSPC"
        assert (tmp_path / "first").stat().st_size == 1_000_000
        assert shutil.disk_usage(tmp_path).free == 0
        with open(tmp_path / "first", "r+b", buffering=0) as file:
            file.write(bytes(10_000))  # what is there already can be written over
        (tmp_path / "first").unlink()
        assert 900_000 < shutil.disk_usage(tmp_path).free <= 1_000_000
        write(tmp_path / "second", 900_000)


@needs_mount
def test_a_full_disk_has_no_space_for_the_holes_of_a_file_either(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(bytes(50_000))
    with faulty(tmp_path, behaviour.disk_full()), open(tmp_path / "sparse", "w+b", buffering=0) as file:
        file.truncate(100_000)
        assert error_of(lambda: os.pwrite(file.fileno(), b"x", 50_000)) == "ENOSPC"
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[5] = 1
            assert error_of(memory.flush) == "ENOSPC"
        with open(tmp_path / "old", "r+b") as old, mmap.mmap(old.fileno(), 0) as memory:
            memory[5] = 1
            memory.flush()


@needs_mount
def test_a_slow_disk_is_late_for_each_and_slow_for_all_and_its_end_wakes_who_waits(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x")
    with faulty(tmp_path, behaviour.slow(3600.0, None)) as server:
        reader = subprocess.Popen(["cat", str(tmp_path / "old")], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.3)
        server.guardian.terminate()
        assert reader.communicate(timeout=30)[0] == b"x"
    with faulty(tmp_path, behaviour.slow(0.0, 10_000_000)):
        began = time.monotonic()
        write(tmp_path / "new", 5_000_000)
        assert time.monotonic() - began >= 0.45


@needs_mount
def test_what_was_opened_during_a_fault_works_after_it(tmp_path: Path) -> None:
    with faulty(tmp_path, behaviour.disk_full()) as server:
        with open(tmp_path / "log", "wb", buffering=0) as log:
            assert error_of(lambda: log.write(b"lost")) == "ENOSPC"
            server.undo()
            log.write(b"kept")
            assert (tmp_path / "log").read_bytes() == b"kept"
            assert server.guardian.poll() is None, "the server is there as long as the log is open"
        server.guardian.wait(30)


@needs_mount
def test_what_was_open_before_a_fault_does_not_see_it(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb", buffering=0) as log, faulty(tmp_path, behaviour.stale()):
        log.write(b"kept")
    assert (tmp_path / "log").read_bytes() == b"kept"


@needs_mount
def test_the_pages_of_a_memory_map_are_written_when_the_fault_ends(tmp_path: Path) -> None:
    (tmp_path / "tensors").write_bytes(bytes(100_000))
    with (
        open(tmp_path / "tensors", "r+b") as before,
        faulty(tmp_path, Behaviour()) as server,
        open(tmp_path / "tensors", "r+b") as file,
        mmap.mmap(file.fileno(), 0) as memory,
    ):
        memory[50_000] = 7
        server.undo()
        # The kernel hands copies of the pages over, and waits for no answer but at fsync(2).
        until(lambda: os.pread(before.fileno(), 1, 50_000) == b"\x07", "the page to arrive")


@needs_mount
@pytest.mark.parametrize("killed", ["server", "guardian"])
def test_whichever_process_is_killed_the_other_undoes_the_fault(tmp_path: Path, killed: str) -> None:
    with faulty(tmp_path, behaviour.stale()) as server:
        os.kill(server.pid if killed == "server" else server.guardian.pid, signal.SIGKILL)
        until(lambda: not server.mounted, "the fault to be undone")
        (tmp_path / "new").write_text("works")


@needs_mount
def test_a_fault_ends_by_itself_when_its_time_is_over(tmp_path: Path) -> None:
    with faulty(tmp_path, behaviour.stale(), last_s=0.5) as server:
        until(lambda: not server.mounted, "the fault to end")
        assert server.guardian.wait(30) == 0


@needs_mount
def test_four_processes_write_at_once_and_a_directory_of_many_files_is_listed_whole(tmp_path: Path) -> None:
    script = "import os, sys; [open(f'{sys.argv[1]}-{i}', 'wb').write(os.urandom(5000)) for i in range(250)]"
    with faulty(tmp_path, Behaviour()):
        writers = [subprocess.Popen([sys.executable, "-Sc", script, str(tmp_path / str(n))]) for n in range(4)]
        assert [writer.wait(100) for writer in writers] == [0] * 4
        assert len(os.listdir(tmp_path)) == 1000
        assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) == 5_000_000


def test_a_small_file_system_is_filled_for_real_and_empty_again_after_sigkill(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "4m") as disk,
        open(disk / "log", "wb", buffering=0) as log,
        faulty(disk, behaviour.disk_full(100_000), how="fill") as server,
    ):
        assert shutil.disk_usage(disk).free <= 100_000
        assert error_of(lambda: write(disk / "new", 200_000)) == "ENOSPC"
        assert error_of(lambda: log.write(bytes(10_000))) == "ENOSPC", "open files see it as well"
        assert sorted(os.listdir(disk)) == ["log", "new"]
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: shutil.disk_usage(disk).free > 3_000_000, "the space to be free again")


@needs_compiler
@pytest.mark.parametrize("fault", ["full", "read-only", "stale"])
def test_a_training_with_the_library_meets_the_same_errors(tmp_path: Path, fault: str) -> None:
    what, expected = FAULTS[fault]
    directory, control = tmp_path / "real", tmp_path / "control"
    directory.mkdir()
    (directory / "old").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(directory)
    environ = preload.environment(preload.library(tmp_path / "library"), control, os.environ)
    argv = [sys.executable, "-m", "tests.inject.files.saving", str(tmp_path / "link")]
    with faulty(directory, what, how="preload", control=control):
        run = subprocess.run(argv, env=environ, capture_output=True, check=True)
    assert json.loads(run.stdout) == expected
    after = subprocess.run(argv, env=environ, capture_output=True, check=True)
    assert set(json.loads(after.stdout)) <= {"mkdir", "rename", "unlink", "read", "stat"}, "what the first has left"
    assert "ENOSPC" not in after.stdout.decode()


@needs_compiler
def test_the_library_goes_by_the_file_of_the_moment_and_no_longer_than_it_says(tmp_path: Path) -> None:
    control, data = tmp_path / "control", tmp_path / "data"
    data.mkdir()
    script = (
        "import sys; from pathlib import Path; from tests.inject.files.saving import *\n"
        "for line in sys.stdin: print(error_of(lambda: write(Path(sys.argv[1]) / 'new')), flush=True)"
    )
    environ = preload.environment(preload.library(tmp_path), control, os.environ)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(data)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        stdin, stdout = training.stdin, training.stdout
        assert stdin is not None and stdout is not None

        def told(error: str) -> bool:
            print(file=stdin, flush=True)
            return stdout.readline().strip() == error

        assert told("")
        preload.write(control, preload.line(behaviour.disk_full(), data, time.time() + 600))
        until(lambda: told("ENOSPC"), "the fault to be seen")
        control.unlink()
        until(lambda: told(""), "its end to be seen")
        preload.write(control, preload.line(behaviour.disk_full(), data, time.time() + 2))
        until(lambda: told("ENOSPC"), "the fault to be seen")
        until(lambda: told(""), "its end, with nobody to undo it")
        preload.write(control, preload.line(behaviour.slow(0.4, None), data, time.time() + 600))
        began = time.monotonic()
        until(lambda: told("") and time.monotonic() - began > 0.8, "the delay to be seen")
        stdin.close()


@needs_mount
@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_a_fault_is_undone_in_a_mount_namespace_that_was_made_meanwhile(tmp_path: Path) -> None:
    with faulty(tmp_path, behaviour.stale()) as server:
        container = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", "echo in; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert container.stdin is not None and container.stdout is not None
        assert container.stdout.readline() == b"in\n"
        server.undo()
        assert server.guardian.wait(30) == 0, "nothing has the file system any more"
        assert server.name.encode() not in Path(f"/proc/{container.pid}/mountinfo").read_bytes()
        container.communicate(b"\n")


@needs_mount
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a tmpfs, which needs root")
def test_an_unmount_that_comes_too_late_leaves_the_disk_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "scratch") as disk:
        (disk / "real").touch()
        with faulty(disk, behaviour.stale()) as server:
            seen = current_mounts()
            server.undo()
            with monkeypatch.context() as late:
                late.setattr(mounting, "current_mounts", lambda: seen)
                mounting.unmount(disk, server.name)
        assert (disk / "real").exists()
