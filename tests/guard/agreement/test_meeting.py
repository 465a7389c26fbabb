from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.guard.agreement import meeting as meeting_module
from resilience.guard.agreement.alone import Agreement
from resilience.guard.agreement.heard import Heard
from resilience.guard.agreement.meeting import (
    AddressFile,
    address_file,
    allow_descriptors,
    are_on_several_nodes,
    make_private_folder,
    meet,
    open_listener,
    read_address,
)
from resilience.guard.agreement.network import NetworkAgreement
from resilience.guard.agreement.wire import Address
from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from tests.guard.agreement.ranks import save
from tests.guard.guards import wait_until
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

ADDRESS = Address("127.0.0.1", 4711, "abc")


class Scene:
    """Ranks of one run, and what they say."""

    def __init__(self, run: Path | None, world: int = 2, nodes: int = 1) -> None:
        self.said: list[str] = []
        self.news: list[Heard] = []
        self.world, self.nodes = world, nodes
        self.run_dir = str(run) if run is not None else ""
        self.made: list[Agreement] = []

    def place(self, rank: int) -> RankInfo:
        return RankInfo(
            rank=rank, world=self.world, nodes=self.nodes, run_dir=self.run_dir, job_id="12", meeting="12-0", host="n17"
        )

    def recorder(self, rank: int = 0) -> Recorder:
        return Recorder(self.place(rank), self.said.append)

    def meet(self, rank: int, **settings: object) -> Agreement:
        gate = Gate()
        gate.open()
        chosen = GuardSettings(**settings)  # type: ignore[arg-type]
        made = meet(gate, self.news.append, self.place(rank), chosen, None, self.recorder(rank))
        self.made.append(made)
        made.start()
        return made

    def leave(self) -> None:
        threads = [threading.Thread(target=made.leave, args=(2.0,)) for made in self.made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "run")
    yield scene
    scene.leave()


def is_up(made: Agreement) -> bool:
    assert isinstance(made, NetworkAgreement)
    uplink = made._control.uplink
    return uplink is not None and uplink.is_up()


# ---- the file ------------------------------------------------------------------------------------------------------


def test_ranks_find_each_other_by_a_private_file_that_is_gone_after_the_launch(scene: Scene) -> None:
    scene.meet(0)
    other = scene.meet(1)
    wait_until(lambda: is_up(other))
    path = address_file(scene.place(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["host"] == "127.0.0.1"
    scene.leave()
    assert list(path.parent.iterdir()) == []
    assert scene.said == []


def test_the_token_is_another_one_for_each_launch(scene: Scene) -> None:
    path = address_file(scene.place(0))
    scene.meet(0)
    wait_until(lambda: read_address(path) is not None)
    first = read_address(path)
    scene.meet(0)
    assert first is not None
    wait_until(lambda: (found := read_address(path)) is not None and found.token != first.token)


def test_the_file_of_a_newer_launch_is_left_alone(scene: Scene) -> None:
    path = address_file(scene.place(0))
    old, new = (AddressFile(path, scene.place(0), scene.recorder()) for _ in range(2))
    old.publish(ADDRESS)
    wait_until(lambda: read_address(path) is not None)
    new.publish(Address("127.0.0.1", 4712, "def"))
    wait_until(lambda: (found := new.read()) is not None and found.port == 4712)
    old.withdraw()
    assert new.read() is not None
    new.withdraw()
    assert not path.exists()


def write(path: Path, text: str = '{"host": "127.0.0.1", "port": 4711, "token": "abc"}') -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_good_file_is_believed(tmp_path: Path) -> None:
    found = read_address(write(tmp_path / "agreement" / "12"))
    assert found is not None
    assert (found.host, found.port, found.token) == ("127.0.0.1", 4711, "abc")


def test_a_link_a_fifo_or_a_folder_in_its_place_is_not_followed_and_blocks_nobody(tmp_path: Path) -> None:
    good = write(tmp_path / "agreement" / "12")
    link, dangling, fifo = (good.parent / name for name in ("link", "dangling", "fifo"))
    link.symlink_to(good)
    dangling.symlink_to(good.parent / "nothing")
    os.mkfifo(fifo, 0o600)
    for path in (link, dangling, fifo, good.parent, good.parent / "nothing", tmp_path / "no folder" / "x"):
        assert read_address(path) is None


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    good = write(tmp_path / "agreement" / "12")
    (tmp_path / "elsewhere").symlink_to(good.parent)
    assert read_address(tmp_path / "elsewhere" / "12") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o660])
def test_a_file_that_others_can_read_or_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "agreement" / "12")
    path.chmod(mode)
    assert read_address(path) is None


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_folder_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "agreement" / "12")
    path.parent.chmod(mode)
    assert read_address(path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "17", '{"host": 1, "port": 2, "token": "x"}', '{"host": "a", "port": "x", "token": "x"}']
    + [json.dumps({"host": "a", "port": port, "token": "x"}) for port in (0, -1, 65536, 1.5, True, None)]
    + [json.dumps({"host": "a", "port": 1, "token": 7}), "[" * 50_000, '{"host": "a", "port": 1}'],
)
def test_a_file_that_says_nothing_sensible_is_waited_over(tmp_path: Path, text: str) -> None:
    assert read_address(write(tmp_path / "agreement" / "12", text)) is None


@needs_root
def test_a_file_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "agreement" / "12")
    os.chown(path, NOBODY, NOBODY)
    assert read_address(path) is None


# ---- the folder ----------------------------------------------------------------------------------------------------


def test_a_folder_of_ours_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "agreement"
    folder.mkdir()
    folder.chmod(0o777)
    make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link", "file", "fifo"])
def test_a_folder_that_somebody_made_before_us_in_tmp_is_refused_with_a_clear_word(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    open_the_way(shared)
    trap = shared / f"resil-{os.getuid()}"
    loot = shared / "loot"
    with acting_as(NOBODY):
        loot.mkdir(0o777)
        if kind == "folder":
            trap.mkdir(0o777)
        elif kind == "link":
            trap.symlink_to(loot)
        elif kind == "file":
            trap.write_text("")
        else:
            os.mkfifo(trap)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)
    scene = Scene(None)
    scene.meet(0)
    wait_until(lambda: scene.said)
    scene.leave()
    assert "address could not be written" in scene.said[0]
    assert str(trap) in scene.said[0]
    assert ("belongs to somebody else" in scene.said[0]) or ("no folder" in scene.said[0])
    assert len(scene.said) == 1
    assert list(loot.iterdir()) == []
    if kind == "folder":
        assert list(trap.iterdir()) == []


@needs_root
def test_what_a_stranger_put_into_tmp_is_not_believed_either(tmp_path: Path) -> None:
    path = write(tmp_path / "resil-0" / "12")
    os.chown(path.parent, NOBODY, NOBODY)
    assert read_address(path) is None


# ---- a file system that refuses ------------------------------------------------------------------------------------


def test_a_run_directory_that_cannot_be_written_costs_the_decisions_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting_module, "RETRY_S", 0.05)
    run = tmp_path / "run"
    run.mkdir()
    (run / "agreement").write_text("in the way")
    scene = Scene(run)
    first, other = scene.meet(0), scene.meet(1)
    wait_until(lambda: scene.said)
    assert "no rank can ask the others" in scene.said[0]
    assert other.arrive() is not None  # the training goes on
    other.wish(save())
    assert not is_up(other)
    (run / "agreement").unlink()
    wait_until(lambda: is_up(other))  # it was put right
    wait_until(lambda: any(heard.kind == "committed" for heard in scene.news))
    assert len(scene.said) == 1
    for made in (first, other):
        made._gate.count += 1
        assert made.arrive().save
        made.finish("saved", 0.1)
    scene.leave()


def test_a_file_system_that_hangs_holds_up_neither_the_start_nor_the_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(meeting_module, "replace_file", lambda *_, **__: hung.wait(60))
    monkeypatch.setattr(meeting_module, "REMOVE_S", 0.2)
    first = scene.meet(0)
    assert first.arrive() is not None
    scene.leave()
    assert not hung.is_set()
    hung.set()


# ---- where to listen -----------------------------------------------------------------------------------------------


def test_ranks_of_several_nodes_without_a_run_directory_are_told_and_never_wait() -> None:
    scene = Scene(None, nodes=2)
    for rank in (0, 1):
        made = scene.meet(rank)
        assert type(made) is Agreement
        made.wish(save())
        decision = made.wait_for_start(60)
        assert decision is not None
        assert not decision.stop
        assert not made.arrive()
        assert not made.arrive_at_poll()
        made.decide_start(decision)
        made.finish("saved", 0.1)
        made.resumed()
        made.forget()
    scene.leave()
    assert len(scene.said) == 2
    assert "several nodes and there is no run directory" in scene.said[0]


@pytest.mark.parametrize(
    ("nodes", "master", "several"),
    [
        (2, "", True),
        (2, "127.0.0.1", True),
        (1, "192.0.2.77", False),
        (0, "", False),
        (0, "127.0.0.1", False),
        (0, "localhost", False),
        (0, "192.0.2.77", True),
        (0, "no-such-host.invalid", True),
    ],
)
def test_several_nodes_are_what_slurm_says_or_a_master_elsewhere(nodes: int, master: str, several: bool) -> None:
    assert are_on_several_nodes(RankInfo(rank=1, world=4, nodes=nodes), master) is several


def test_an_interface_that_is_not_there_is_named_and_another_one_taken(scene: Scene) -> None:
    listener = open_listener(scene.place(0), "192.0.2.77", scene.recorder())
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert "cannot listen on the interface '192.0.2.77'" in scene.said[0]


def test_one_node_listens_on_loopback_only(scene: Scene) -> None:
    with open_listener(scene.place(0), "", scene.recorder()) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_one_connection_per_rank_is_allowed_for() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        allow_descriptors(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 768)
        allow_descriptors(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 768)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
