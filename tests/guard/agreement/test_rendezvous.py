"""How ranks find each other: where rank 0 listens, the address file, and a file system that refuses."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.guard.agreement import address_file as file_module
from resilience.guard.agreement import rendezvous as rendezvous_module
from resilience.guard.agreement.address_file import Address, AddressFile, address_file, read_address
from resilience.guard.agreement.base import Agreement, AgreementEvent
from resilience.guard.agreement.network import NetworkAgreement
from resilience.guard.agreement.rendezvous import (
    allow_descriptors,
    are_on_several_nodes,
    is_ours,
    listening_host,
    open_listener,
    rendezvous,
)
from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from tests.guard.agreement.ranks import client_of, leave_together, save
from tests.lab.waiting import until
from tests.system.people import NOBODY, acting_as, needs_root, open_the_way

ADDRESS = Address("127.0.0.1", 4711, "abc")


class Context:
    """Ranks of one run, and what they say."""

    def __init__(self, run: Path | None, nodes: int = 1) -> None:
        self.said: list[str] = []
        self.news: list[AgreementEvent] = []
        self.nodes = nodes
        self.run_dir = str(run or "")
        self.made: list[Agreement] = []

    def place(self, rank: int) -> RankInfo:
        return RankInfo(
            rank=rank, world=2, nodes=self.nodes, run_dir=self.run_dir, job_id="12", launch_id="12-0", host="n17"
        )

    def recorder(self, rank: int = 0) -> Recorder:
        return Recorder(self.place(rank), self.said.append)

    def meet(self, rank: int) -> Agreement:
        gate = Gate()
        gate.open()
        made = rendezvous(gate, self.news.append, self.place(rank), GuardSettings(), None, self.recorder(rank))
        self.made.append(made)
        made.start()
        return made

    def leave(self) -> None:
        leave_together(self.made, 2.0)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    context = Context(tmp_path / "run")
    yield context
    context.leave()


def is_up(made: Agreement) -> bool:
    assert isinstance(made, NetworkAgreement)
    return client_of(made).is_up()


# ---- the file ------------------------------------------------------------------------------------------------------


def test_ranks_find_each_other_by_a_private_file_that_is_gone_after_the_launch(context: Context) -> None:
    context.meet(0)
    other = context.meet(1)
    until(lambda: is_up(other))
    path = address_file(context.place(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert json.loads(path.read_text())["host"] == "127.0.0.1"
    context.leave()
    assert list(path.parent.iterdir()) == []
    assert context.said == []


def test_the_token_is_another_one_for_each_launch(context: Context) -> None:
    path = address_file(context.place(0))
    context.meet(0)
    until(lambda: read_address(path) is not None)
    first = read_address(path)
    context.meet(0)
    until(lambda: (found := read_address(path)) and first and found.token != first.token)


def test_the_file_of_a_newer_launch_is_left_alone(context: Context) -> None:
    path = address_file(context.place(0))
    old, new = (AddressFile(path, context.place(0), context.recorder()) for _ in range(2))
    old.publish(ADDRESS)
    until(lambda: read_address(path) is not None)
    new.publish(Address("127.0.0.1", 4712, "def"))
    until(lambda: (found := read_address(path)) is not None and found.port == 4712)
    old.withdraw()
    assert read_address(path) is not None
    new.withdraw()
    assert not path.exists()


@needs_root
@pytest.mark.parametrize("kind", ["directory", "link", "file", "fifo"])
def test_a_directory_that_another_user_made_before_us_in_tmp_is_refused_and_named(
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
        if kind == "directory":
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
    context = Context(None)
    context.meet(0)
    until(lambda: context.said)
    context.leave()
    (warning,) = context.said
    assert "address could not be written" in warning and str(trap) in warning
    assert "belongs to another user" in warning or "not a directory" in warning
    assert list(loot.iterdir()) == [] and (kind != "directory" or list(trap.iterdir()) == [])


# ---- a file system that refuses ------------------------------------------------------------------------------------


def test_a_run_directory_that_cannot_be_written_costs_the_decisions_until_it_can(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "RETRY_S", 0.05)
    in_the_way = Path(context.run_dir, "agreement")
    in_the_way.parent.mkdir()
    in_the_way.touch()
    first, other = context.meet(0), context.meet(1)
    until(lambda: context.said)
    assert "no rank can request a save or a stop of the others" in context.said[0]
    assert other.on_step() is not None  # the training goes on
    other.request(save())
    assert not is_up(other)
    in_the_way.unlink()
    until(lambda: is_up(other))  # it was put right
    until(lambda: any(event.kind == "committed" for event in context.news))
    assert len(context.said) == 1
    for made in (first, other):
        made._gate.count += 1
        assert made.on_step().save
        made.finish("saved", 0.1)


def test_a_file_system_that_hangs_holds_up_neither_the_start_nor_the_end(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()
    monkeypatch.setattr(file_module, "replace_file", lambda *_, **__: hung.wait(60))
    monkeypatch.setattr(file_module, "REMOVE_S", 0.2)
    first = context.meet(0)
    assert first.on_step() is not None
    context.leave()
    assert not hung.is_set()
    hung.set()


# ---- where to listen -----------------------------------------------------------------------------------------------


def test_ranks_of_several_nodes_without_a_run_directory_are_warned_and_never_wait() -> None:
    context = Context(None, nodes=2)
    for rank in (0, 1):
        made = context.meet(rank)
        assert type(made) is Agreement
        made.request(save())
        decision = made.wait_for_start(60)
        assert decision is not None and not decision.stop
        assert not made.on_step() and not made.on_poll()
        made.decide_start(decision)
        made.finish("saved", 0.1)
        made.resumed()
        made.after_fork_in_child()
    context.leave()
    assert len(context.said) == 2
    assert "several nodes without a run directory" in context.said[0]


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


@pytest.mark.parametrize("interface", ["", "192.0.2.77"])
def test_one_node_listens_on_loopback_only_and_names_an_interface_that_is_not_there(
    context: Context, interface: str
) -> None:
    with open_listener(context.place(0), interface, context.recorder()) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert bool(context.said) == bool(interface)
    assert all("cannot listen on the interface '192.0.2.77'" in line for line in context.said)


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


@pytest.mark.parametrize(
    ("setting", "local", "names", "host"),
    [
        *(("192.0.2.77", local, (), "192.0.2.77") for local in (True, False)),
        *((loopback, local, (), "127.0.0.1") for loopback in ("localhost", "lo") for local in (True, False)),
        ("no-such-interface-at-all", False, (), "no-such-interface-at-all"),
        ("", True, ("192.0.2.77", socket.gethostname()), "127.0.0.1"),
    ],
)
def test_the_setting_wins_as_an_address_a_name_or_an_interface_and_without_it_one_node_takes_loopback(
    setting: str, local: bool, names: tuple[str, ...], host: str
) -> None:
    assert listening_host(setting, local=local, names=names) == host


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def test_the_first_name_that_is_an_address_of_this_machine_is_taken() -> None:
    own = own_address()
    names = ("", "no-such-host.invalid", "203.0.113.5", "localhost", own)
    assert listening_host("", local=False, names=names) == own


def test_without_any_name_the_address_towards_others_is_taken_and_never_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert listening_host("", local=False, names=()) == own_address()
    monkeypatch.setattr(rendezvous_module, "_address_towards_others", lambda: "")
    assert listening_host("", local=False, names=()) == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_an_address_of_this_machine_is_ours(host: str) -> None:
    assert is_ours(host)


@pytest.mark.parametrize("host", ["203.0.113.5", "no-such-host.invalid", "", "x" * 300])
def test_no_other_host_is_ours(host: str) -> None:
    assert not is_ours(host)
