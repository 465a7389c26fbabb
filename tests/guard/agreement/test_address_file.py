"""The address file: which files are swept, which are trusted, and real launches side by side."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.agreement.address_file import (
    OLD_S,
    Address,
    AddressFile,
    make_private_directory,
    read_address,
    remove_own,
)
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from tests.guard.guarded import a_launch
from tests.guard.guards import make_run
from tests.guard.ranks import Node
from tests.lab.waiting import until
from tests.system.people import NOBODY, needs_root


def a_place(run: Path | None, **more: Any) -> RankInfo:
    fields = {"world": 2, "run_dir": str(run or ""), "job_id": "12", "restart": 2, "attempt": 5, "host": "n1"}
    return RankInfo(**{**fields, "launch_id": "12-2-0", **more})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "agreement"
    directory.mkdir(0o700)
    return directory


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody listens, and nobody will while the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def write(directory: Path, name: str, port: int = 4711, **fields: object) -> Path:
    """A good address file."""
    return put(directory / name, json.dumps({"host": "127.0.0.1", "port": port, "token": "abc", **fields}))


def the_file(path: Path, **more: Any) -> AddressFile:
    place = a_place(path.parent.parent, **more)
    return AddressFile(path, place, Recorder(place))


def sweep(directory: Path, **more: Any) -> list[str]:
    the_file(directory / "12-2-0", **more)._remove_stale()
    return sorted(path.name for path in directory.iterdir())


def test_files_of_earlier_starts_and_attempts_go_and_all_others_stay(directory: Path, dead_port: int) -> None:
    for name in ("12-0-0", "12-1-0", "12-2-0", "12-2-1", "12-3-0", "123-0-0", "2-1-0"):
        write(directory, name, dead_port, node="n2", pid=1, attempt=5)
    write(directory, "9-0-0", dead_port, node="n2", pid=1, attempt=4)
    write(directory, "13-0-0", dead_port, node="n2", pid=1, attempt=6)
    write(directory, "8-0-0", dead_port)  # whose it is nobody knows
    assert sweep(directory) == ["12-2-0", "12-2-1", "12-3-0", "123-0-0", "13-0-0", "2-1-0", "8-0-0"]


def test_no_file_is_swept_whose_rank_0_listens(directory: Path, listener: socket.socket, dead_pid: int) -> None:
    port = listener.getsockname()[1]
    names = [
        write(directory, "12-0-0", port, node="n2", pid=1, attempt=1).name,
        write(directory, "7-0-0", port, node="n1", pid=dead_pid, attempt=5).name,
        write(directory, "8-0-0", port, node="n2", pid=1, attempt=5).name,
    ]
    os.utime(directory / "8-0-0", (0.0, 0.0))
    assert sweep(directory) == names


def test_of_our_own_node_a_file_without_process_and_listener_goes(
    directory: Path, dead_port: int, dead_pid: int
) -> None:
    write(directory, "0-0-dead", dead_port, node="n1", pid=dead_pid, attempt=0)
    write(directory, "0-0-elsewhere", dead_port, node="n2", pid=dead_pid, attempt=0)
    write(directory, "0-0-alive", dead_port, node="n1", pid=os.getpid(), attempt=0)
    assert sweep(directory, job_id="0", attempt=0) == ["0-0-alive", "0-0-elsewhere"]


def test_after_a_week_the_file_of_another_node_goes_if_no_process_listens(directory: Path, dead_port: int) -> None:
    for name, seconds in (("7-0-0", OLD_S + 1), ("8-0-0", OLD_S - 3600)):
        when = time.time() - seconds
        os.utime(write(directory, name, dead_port, node="n2", pid=1, attempt=5), (when, when))
    assert sweep(directory) == ["8-0-0"]


def test_a_sweep_touches_only_private_regular_files(directory: Path, tmp_path: Path, dead_port: int) -> None:
    victim = write(tmp_path, "victim", dead_port, node="n2", pid=1, attempt=1)
    (directory / "12-0-0").symlink_to(victim)
    os.mkfifo(directory / "12-0-1", 0o600)
    (directory / "12-0-2").mkdir()
    write(directory, "12-0-3", dead_port, node="n2", pid=1, attempt=1).chmod(0o644)
    for number, text in enumerate(["", "{", "[]", "[" * 50_000, '{"port": []}', '{"host": "127.0.0.1", "port": 1e99}']):
        put(directory / f"12-1-{number}", text)
    before = sorted(path.name for path in directory.iterdir())
    assert sweep(directory) == before
    assert victim.exists() and stat.S_ISFIFO((directory / "12-0-1").lstat().st_mode)


@needs_root
def test_a_file_of_another_user_stays(directory: Path, dead_port: int) -> None:
    os.chown(write(directory, "12-0-0", dead_port, node="n1", pid=0, attempt=1), NOBODY, NOBODY)
    assert sweep(directory) == ["12-0-0"]


def test_the_temporary_file_of_a_killed_writer_goes_after_a_while(directory: Path) -> None:
    for name, when in ((".12-2-0.aa.tmp", time.time() - 3600), (".12-2-0.bb.tmp", time.time())):
        (directory / name).touch(0o600)
        os.utime(directory / name, (when, when))
    assert sweep(directory) == [".12-2-0.bb.tmp"]


def test_a_sweep_ends_when_the_launch_does_and_minds_no_missing_directory(directory: Path, dead_port: int) -> None:
    write(directory, "12-0-0", dead_port, node="n2", pid=1, attempt=1)
    file = the_file(directory / "12-2-0")
    file.withdraw()
    file._remove_stale()
    assert (directory / "12-0-0").exists()
    the_file(directory / "none" / "12-2-0")._remove_stale()


def test_only_the_file_of_this_very_process_is_its_own(directory: Path) -> None:
    path = directory / "12-2-0"
    the_file(path).publish(Address("127.0.0.1", 4711, "abc"))
    until(path.exists)
    for node, pid in (("n2", os.getpid()), ("n1", 1)):
        assert not remove_own(str(path), node, pid) and path.exists()
    assert remove_own(str(path), "n1", os.getpid()) and not path.exists()
    assert not remove_own(str(path), "n1", os.getpid()), "gone already"


# ---- which file is trusted ------------------------------------------------------------------------------------------


def test_a_good_file_is_trusted(tmp_path: Path) -> None:
    found = read_address(write(tmp_path / "agreement", "12"))
    assert found is not None and (found.host, found.port, found.token) == ("127.0.0.1", 4711, "abc")


def test_a_link_a_fifo_or_a_directory_in_its_place_is_not_followed_and_blocks_no_rank(tmp_path: Path) -> None:
    good = write(tmp_path / "agreement", "12")
    link, dangling, fifo, nothing = (good.parent / name for name in ("link", "dangling", "fifo", "nothing"))
    link.symlink_to(good)
    dangling.symlink_to(nothing)
    os.mkfifo(fifo, 0o600)
    (tmp_path / "linked directory").symlink_to(good.parent)
    for path in (link, dangling, fifo, good.parent, nothing, tmp_path / "none" / "x", tmp_path / "linked directory/12"):
        assert read_address(path) is None, path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o660, 0o770, 0o777, 0o702])
def test_a_file_or_a_directory_that_others_can_use_is_not_trusted(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "agreement", "12")
    (path.parent if mode & 0o100 else path).chmod(mode)
    assert read_address(path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "17", '{"host": 1, "port": 2, "token": "x"}', '{"host": "a", "port": "x", "token": "x"}']
    + [json.dumps({"host": "a", "port": port, "token": "x"}) for port in (0, -1, 65536, 1.5, True, None)]
    + [json.dumps({"host": "a", "port": 1, "token": 7}), "[" * 50_000, '{"host": "a", "port": 1}'],
)
def test_a_file_without_a_sensible_address_is_ignored(tmp_path: Path, text: str) -> None:
    assert read_address(put(tmp_path / "agreement" / "12", text)) is None


@needs_root
@pytest.mark.parametrize("owned", ["12", ""], ids=["file", "directory"])
def test_a_file_of_another_user_or_in_the_directory_of_one_is_not_trusted(tmp_path: Path, owned: str) -> None:
    path = write(tmp_path / "resil-0", "12")
    os.chown(path.parent / owned, NOBODY, NOBODY)
    assert read_address(path) is None


def test_a_directory_of_ours_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    directory = tmp_path / "agreement"
    directory.mkdir()
    directory.chmod(0o777)
    make_private_directory(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


# ---- real launches -------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Where the ranks of one user write their address on a node, without a run directory."""
    return tmp_path / "launch" / f"resil-{os.getuid()}"


def test_without_a_run_directory_the_next_launch_sweeps_what_a_killed_one_left(own: Path) -> None:
    with a_launch(own.parent, None, 2, MASTER_PORT="1") as launch:
        launch.wait_for_steps()
        until(lambda: own.is_dir() and list(own.glob("12-*")))
        launch.kill()
    [left] = own.iterdir()
    with a_launch(own.parent, None, 2, MASTER_PORT="2") as launch:
        until(lambda: not left.exists())
        until(lambda: [path for path in own.iterdir() if not path.name.startswith(".")])
        assert left.name not in {path.name for path in own.iterdir()}


def test_a_requeued_job_sweeps_what_was_left_when_all_was_killed_mirror_and_all(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with a_launch(tmp_path / "launch", run, 2) as launch:
        launch.wait_for_steps()
        until(lambda: list((run / "agreement").glob("12-0*")))
        until(lambda: len(Node(run).mirrors()) == 1 and list((run / "beats").glob("12.*")))
        mirrors = Node(run).mirrors()
        for pid in mirrors:
            os.kill(pid, signal.SIGSTOP)  # it can do nothing any more, and nobody starts another
        launch.kill()
        for pid in mirrors:
            os.kill(pid, signal.SIGKILL)
    [left] = (run / "agreement").iterdir()
    with a_launch(tmp_path / "launch", run, 2, RESIL_RESTART_COUNT="1", RESIL_ATTEMPT="4", SLURMD_NODENAME="n2"):
        until(lambda: not left.exists())


def test_two_launches_that_live_side_by_side_leave_each_other_alone(own: Path, dead_port: int, dead_pid: int) -> None:
    with a_launch(own.parent, None, 2, MASTER_PORT="1") as first:
        until(lambda: own.is_dir() and list(own.glob("12-*")))
        first.wait_for_steps()
        dead = write(own, "zz", dead_port, node="n1", pid=dead_pid)
        with a_launch(own.parent, None, 2, MASTER_PORT="2") as other:
            until(lambda: not dead.exists())  # it comes last
            other.wait_for_steps()
            until(lambda: len(list(own.glob("12-*"))) == 2)
