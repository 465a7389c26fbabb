"""The guard handles unusual files in the switch directory, and a directory that is missing or hangs."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from resilience import layout
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.switch_directory import QUIET_S, SwitchDirectory, called
from tests.guard.guards import make_guard, train
from tests.lab.descriptors import count_descriptors
from tests.lab.waiting import until
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

STRANGER_GID = 65533
ME = 65532


class Looker:
    """A switch directory with its messages and a fake clock."""

    def __init__(self, run: Path, **settings: Any) -> None:
        self.said: list[str] = []
        self.seconds = 0.0
        place = RankInfo(run="demo", run_dir=str(run), job_id="12", attempt=3)
        self.recorder = Recorder(place, self.said.append)
        self.directory = SwitchDirectory(
            place, GuardSettings(**settings), self.recorder, monotonic=lambda: self.seconds
        )

    def sees(self, kind: str = layout.KILL_SWITCH) -> bool:
        return self.directory.read(kind) is not None


@pytest.fixture
def kill(run: Path) -> Path:
    return run / layout.SWITCHES / layout.KILL_SWITCH


def test_without_a_switch_nothing_is_reported(run: Path) -> None:
    looker = Looker(run)
    assert not looker.sees()
    assert looker.said == []


def test_a_bare_touch_is_a_switch_of_its_owner(run: Path, kill: Path) -> None:
    kill.touch()
    found = Looker(run).directory.read(layout.KILL_SWITCH)
    assert found is not None
    assert (found.switch.who, found.switch.why, found.path) == (kill.owner(), "", str(kill))


def test_the_stop_file_of_another_job_is_never_probed(run: Path) -> None:
    (run / layout.SWITCHES / "stop.99").touch()
    looker = Looker(run)
    assert not looker.sees("stop.12")
    assert looker.said == []


# ---- what is no switch


def put(kind: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "link":
        target = path.parent.parent / "elsewhere"
        target.touch()
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to("/nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("making a device needs root (sudo make test)")
    else:
        monkeypatch.chdir(path.parent)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)


@pytest.mark.parametrize("owners", ["", "owner", "group", "any"])
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("link", "a symbolic link"),
        ("dangling link", "a symbolic link"),
        ("fifo", "a FIFO"),
        ("directory", "a directory"),
        ("socket", "a socket"),
        ("device", "a device"),
    ],
)
def test_a_file_that_is_not_regular_is_rejected_and_reported_once(
    run: Path, kill: Path, kind: str, word: str, owners: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(kind, kill, monkeypatch)
    looker = Looker(run, switch_owners=owners)
    assert not any(looker.sees() for _ in range(20))
    assert looker.said == [f"warning: the kill switch {kill} is rejected: it is {word}, not a regular file"]


def test_a_rejected_switch_is_reported_again_after_a_change(
    run: Path, kill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looker = Looker(run)
    for kind in ("fifo", "directory", "fifo"):
        put(kind, kill, monkeypatch)
        looker.sees()
        looker.sees()
        kill.rmdir() if kill.is_dir() else kill.unlink()
        looker.sees()
    assert [sentence.split(" it is ")[1].split(",")[0] for sentence in looker.said] == [
        "a FIFO",
        "a directory",
        "a FIFO",
    ]
    kill.touch()
    assert looker.sees()


def test_a_look_does_not_wake_the_writer_of_a_fifo(run: Path, kill: Path) -> None:
    os.mkfifo(kill)
    looker = Looker(run)
    is_over = threading.Event()
    woken = []

    def write() -> None:
        while not is_over.is_set():
            try:
                os.close(os.open(kill, os.O_WRONLY | os.O_NONBLOCK))
                woken.append(True)
            except OSError as error:
                assert error.errno == errno.ENXIO  # no reader

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(2000):
        looker.sees()
    is_over.set()
    writer.join()
    assert woken == []


def test_a_switch_copied_from_another_run_is_rejected_and_reported(run: Path, kill: Path) -> None:
    kill.write_text('run = "llama"\nwhy = "loss is NaN"\n')
    looker = Looker(run)
    assert not looker.sees() and not looker.sees()
    (said,) = looker.said
    assert "it is for run llama, not for demo" in said
    kill.write_text('run = "demo"\nwhy = "loss is NaN"\n')
    assert looker.sees()


# ---- whose switches


@needs_root
@pytest.mark.parametrize(
    ("owners", "gid", "is_obeyed"),
    [
        ("owner", 0, False),
        ("group", 0, True),
        ("group", STRANGER_GID, False),
        ("any", STRANGER_GID, True),
    ],
)
def test_a_strangers_switch_is_judged_by_the_policy(
    run: Path, kill: Path, owners: str, gid: int, is_obeyed: bool
) -> None:
    kill.touch()
    os.chown(kill, NOBODY, gid)
    looker = Looker(run, switch_owners=owners)
    assert [looker.sees() for _ in range(3)] == [is_obeyed] * 3
    assert is_obeyed or (len(looker.said) == 1 and f"policy `{owners}`" in looker.said[0])


@needs_root
@pytest.mark.parametrize(("mode", "is_obeyed"), [(0o700, False), (0o755, False), (0o2770, True), (0o1777, True)])
def test_write_permission_for_the_directory_allows_setting_its_switches(
    run: Path, kill: Path, mode: int, is_obeyed: bool
) -> None:
    kill.touch()
    os.chown(kill, NOBODY, 0)
    kill.parent.chmod(mode)
    assert Looker(run).sees() is is_obeyed


@needs_root
@pytest.mark.parametrize(
    ("recorded", "is_obeyed"),
    [
        ('[run]\ngroup = "lab"\n', True),
        ('[run]\nswitch_owners = "any"\n', True),
        ('[run]\nswitch_owners = "owner"\ngroup = "lab"\n', False),
        ("[run]\n", False),
        ("run = 3\n", True),  # invalid: the directory's permissions count
        ('[run]\nswitch_owners = "everybody"\n', True),
        ("[run\n", True),
    ],
)
def test_batch_shell_and_training_apply_the_same_owner_policy(
    run: Path, kill: Path, recorded: str, is_obeyed: bool
) -> None:
    """The batch shell applies the policy that the run was submitted with."""
    kill.touch()
    os.chown(kill, NOBODY, 0)
    kill.parent.chmod(0o2770)
    (run / layout.RUN_FILE).write_text(recorded)
    assert Looker(run).sees() is is_obeyed
    assert not Looker(run, switch_owners="owner").sees()


@needs_root
def test_the_owner_and_root_are_always_accepted(run: Path, kill: Path) -> None:
    os.chown(run, NOBODY, STRANGER_GID)
    for uid in (NOBODY, 0):
        kill.touch()
        os.chown(kill, uid, 0)
        assert Looker(run, switch_owners="owner").sees()


@needs_root
def test_a_switch_unreadable_by_a_colleagues_umask_is_accepted(run: Path, kill: Path) -> None:
    open_the_way(kill)
    for directory in (run, kill.parent):
        os.chown(directory, ME, ME)
        directory.chmod(0o2770)
    kill.touch(mode=0o600)
    os.chown(kill, NOBODY, ME)
    with acting_as(ME):
        assert Looker(run, switch_owners="group").sees()
        assert not Looker(run, switch_owners="owner").sees()


@needs_root
def test_our_own_stop_file_is_accepted_in_a_colleagues_run(run: Path) -> None:
    open_the_way(run / "x")
    os.chown(run, NOBODY, STRANGER_GID)
    stop = run / layout.SWITCHES / "stop.12"
    stop.touch()
    stop.chmod(0o644)
    os.chown(stop, ME, ME)
    looker = Looker(run, switch_owners="owner")
    with acting_as(ME):
        assert looker.directory.read("stop.12", accept_own=True) is not None
        assert looker.directory.read("stop.12") is None
    os.chown(stop, ME + 1, ME)
    with acting_as(ME):
        assert looker.directory.read("stop.12", accept_own=True) is None


# ---- a directory that is not well


def test_an_unavailable_run_directory_is_reported_once_and_works_again(run: Path, kill: Path) -> None:
    looker = Looker(run)
    away = run.with_name("away")
    run.rename(away)
    assert not any(looker.sees(kind) for kind in (layout.KILL_SWITCH, layout.SAVE_SWITCH) for _ in range(5))
    (said,) = looker.said
    assert f"cannot read the switches in {kill.parent}: No such file or directory. The training continues" in said
    away.rename(run)
    kill.touch()
    assert looker.sees()


@needs_root
def test_a_directory_without_permission_is_reported_once_and_retried(run: Path, kill: Path) -> None:
    open_the_way(kill)
    run.chmod(0o755)
    kill.touch()
    kill.parent.chmod(0o700)
    looker = Looker(run)
    with acting_as(ME):
        assert not any(looker.sees() for _ in range(5))
        (said,) = looker.said
        assert "Permission denied" in said
    kill.parent.chmod(0o755)
    with acting_as(ME):
        assert looker.sees()


def test_a_file_in_place_of_the_directory_is_reported(run: Path) -> None:
    shutil.rmtree(run / layout.SWITCHES)
    (run / layout.SWITCHES).touch()
    looker = Looker(run)
    assert not looker.sees()
    assert "Not a directory" in looker.said[0]


@contextmanager
def reads_fail(number: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resilience.base.switches.read_regular", Mock(side_effect=OSError(number, os.strerror(number))))
        yield


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_an_unstable_file_server_is_reported_at_intervals(run: Path, kill: Path, number: int) -> None:
    kill.touch()
    looker = Looker(run)

    def a_bad_moment() -> None:
        with reads_fail(number):
            assert not looker.sees()
        assert looker.sees()

    for _ in range(5):
        a_bad_moment()
    assert len(looker.said) == 1 and os.strerror(number) in looker.said[0]
    looker.seconds = QUIET_S + 1
    assert looker.sees()
    a_bad_moment()
    assert len(looker.said) == 2


@pytest.mark.parametrize("number", [errno.ELOOP, errno.ENXIO, errno.EINVAL])
def test_a_file_replaced_during_the_check_is_handled_by_the_next(run: Path, kill: Path, number: int) -> None:
    kill.touch()
    looker = Looker(run)
    with reads_fail(number):
        assert not looker.sees()
    assert looker.said == []
    assert looker.sees()


@pytest.mark.parametrize("gone", [("pwd", "grp", "tomllib"), ("tomllib",)], ids=str)
def test_a_switch_is_accepted_without_reason_and_owners_name_if_the_python_installation_is_gone(
    run: Path, kill: Path, gone: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill.write_text('why = "loss is NaN"')
    for module in gone:
        monkeypatch.setitem(sys.modules, module, None)
    found = Looker(run).directory.read(layout.KILL_SWITCH)
    assert found is not None and found.switch.why == ""
    assert found.switch.who == str(os.geteuid()) or "pwd" not in gone


def test_a_directory_service_that_does_not_answer_holds_no_switch_up(
    run: Path, kill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill.touch()
    is_over = threading.Event()

    def wait(uid: int) -> None:
        is_over.wait()
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", wait)
    monkeypatch.setattr("resilience.base.switches.NAME_S", 0.05)
    looker = Looker(run)
    found = [looker.directory.read(layout.KILL_SWITCH) for _ in range(5)]
    waiting = [thread for thread in threading.enumerate() if thread.name == "resil-name"]
    is_over.set()
    assert {one and one.switch.who for one in found} == {str(os.geteuid())}
    assert len(waiting) == 1


def test_no_descriptor_is_left_open(run: Path, kill: Path) -> None:
    looker = Looker(run)
    kill.touch()
    before = count_descriptors()
    for _ in range(50):
        looker.sees()
        looker.sees(layout.SAVE_SWITCH)
    assert count_descriptors() <= before


def test_kinds_of_switches_have_names() -> None:
    assert [called("kill"), called("save"), called("stop.12")] == ["kill switch", "save switch", "stop file"]


# ---- in a guard


def test_a_training_continues_while_its_run_directory_is_unavailable_and_reads_switches_afterwards(
    run: Path, kill: Path, said: list[str]
) -> None:
    away = run.with_name("away")
    with make_guard(run, say=said.append) as guard:
        guard.step()
        run.rename(away)
        until(lambda: any("cannot read the switches" in sentence for sentence in said))
        assert not any(guard.step() for _ in range(1000))
        away.rename(run)
        kill.write_text("enough")
        assert train(guard).stop
    assert len([sentence for sentence in said if "cannot read the switches" in sentence]) == 1
