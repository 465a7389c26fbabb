"""A member's connection to rank 0, and its monitor."""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.guard.agreement.address_file import Address
from resilience.guard.agreement.client import GONE_S, LAST_RETRY_S, Client, LinkMonitor
from resilience.guard.agreement.connection import HANDSHAKE_S
from resilience.guard.agreement.member import Member
from resilience.guard.gate import Gate
from tests.guard.agreement.ranks import save, stop
from tests.guard.guarded import Launch, a_launch
from tests.guard.guards import make_run, wait_until


@pytest.fixture
def selector() -> Iterator[selectors.DefaultSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def make(selector: selectors.DefaultSelector, locate: Callable[[], Any]) -> Client:
    return Client(selector, 1, locate, list, lambda message: None, lambda kind, text: None)


def unreadable() -> Address:
    raise OSError("stale file handle")


@pytest.mark.parametrize(
    "locate",
    [
        lambda: None,
        unreadable,
        lambda: Address("127.0.0.1", 1, "x"),
        lambda: Address("no-such-host.invalid", 4711, "x"),
        lambda: Address("x" * 300, 4711, "x"),
        lambda: Address("127.0.0.1", 99_999, "x"),
        lambda: Address("", 0, "x"),
    ],
    ids=["nobody knows", "no file system", "nobody there", "no host", "no name", "no port", "nothing"],
)
def test_who_cannot_be_found_is_looked_for_again_and_never_an_error(
    selector: selectors.DefaultSelector, locate: Callable[[], Any]
) -> None:
    client = make(selector, locate)
    now = 0.0
    waits = []
    for _ in range(12):
        assert client.find(now) is None
        deadline = client.next_deadline()
        assert deadline is not None
        assert client.find((now + deadline) / 2) is None  # not before
        waits.append(deadline - now)
        now = deadline
    assert waits[0] < 0.1
    assert LAST_RETRY_S / 2 <= waits[-1] <= LAST_RETRY_S


def test_one_that_accepts_and_never_greets_is_left_after_a_while(selector: selectors.DefaultSelector) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = make(selector, lambda: Address("127.0.0.1", silent.getsockname()[1], "x"))
        found = client.find(100.0)
        assert found is not None
        client.adopt(*found, 100.0)
        assert client.next_deadline() == 100.0 + HANDSHAKE_S
        client.drop_slow(100.0 + HANDSHAKE_S - 0.1)
        assert selector.get_map(), "it may still greet"
        client.drop_slow(100.0 + HANDSHAKE_S)
    assert not client.is_up()
    assert not selector.get_map()


@pytest.fixture
def member() -> Member:
    return Member(Gate(), 2, "a life")


@pytest.fixture
def monitor() -> LinkMonitor:
    return LinkMonitor(absent_s=60.0, round_s=10.0)


def told(monitor: LinkMonitor) -> list[tuple[str, str]]:
    news, monitor.events = monitor.events, []
    return [(heard.kind, heard.text) for heard in news]


def test_a_lost_rank_0_is_told_once_after_a_minute_and_so_is_its_return(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    assert monitor.next_deadline() is None
    monitor.check(5.0, False, member)
    assert monitor.next_deadline() == 65.0
    monitor.check(64.9, False, member)
    assert told(monitor) == []
    monitor.check(65.0, False, member)
    said = "rank 2 has had no connection to rank 0 for 60 s: nothing can be decided until it is back"
    assert told(monitor) == [("lost", said)]
    assert monitor.next_deadline() is None
    monitor.check(1000.0, False, member)
    assert told(monitor) == []
    monitor.check(1005.0, True, member)
    assert told(monitor) == [("back", "rank 2 is connected to rank 0 again, after 1000 s")]
    monitor.check(1010.0, False, member)
    monitor.check(1070.0, False, member)
    assert [kind for kind, _ in told(monitor)] == ["lost"], "another loss"


def test_a_connection_that_comes_again_in_time_is_no_news(monitor: LinkMonitor, member: Member) -> None:
    for second in range(0, 500, 50):
        monitor.check(float(second), second % 100 == 0, member)
    assert told(monitor) == []


def test_a_request_that_waits_is_told_sooner_and_named(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    monitor.check(1.0, False, member)
    member.request(save("SIGUSR1 came"))
    member.request(stop("the kill switch is there"))
    monitor.check(3.0, False, member)
    assert monitor.next_deadline() == 13.0
    monitor.check(13.0, False, member)
    ((kind, text),) = told(monitor)
    assert kind == "lost" and "for 12 s: nothing can be decided until it is back. " in text
    assert text.endswith("This waits: SIGUSR1 came (and 1 more)")
    monitor.check(100.0, False, member)
    assert told(monitor) == [], "once"


def test_a_request_that_comes_long_after_the_loss_was_told_is_told_too(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    monitor.check(0.0, False, member)
    monitor.check(60.0, False, member)
    assert len(told(monitor)) == 1
    member.request(save("SIGUSR1 came"))
    monitor.check(7200.0, False, member)
    assert told(monitor) == [] and monitor.next_deadline() == 7210.0
    monitor.check(7210.0, False, member)
    ((_, text),) = told(monitor)
    assert "for 7210 s" in text and text.endswith("This waits: SIGUSR1 came")
    member.request(stop("again"))
    monitor.check(9000.0, False, member)
    assert told(monitor) == []


def test_a_rank_0_that_was_never_there_is_not_called_lost(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, False, member)
    monitor.check(60.0, False, member)
    ((_, text),) = told(monitor)
    assert text == "rank 2 has not found rank 0 for 60 s: nothing can be decided until it is there"
    monitor.check(75.0, True, member)
    assert told(monitor) == [("back", "rank 2 has found rank 0, after 75 s")]


@pytest.mark.parametrize("how", ["left", "stopped"])
def test_who_expects_nothing_of_rank_0_misses_it_not(monitor: LinkMonitor, member: Member, how: str) -> None:
    monitor.check(0.0, True, member)
    if how == "left":
        member.leave()
    else:
        member.stopped = object()  # type: ignore[assignment]
    monitor.check(1.0, False, member)
    monitor.check(1000.0, False, member)
    assert told(monitor) == [] and monitor.next_deadline() is None


def test_rank_0_is_gone_for_good_when_nobody_listens_there_any_more(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    monitor.check(1.0, False, member)
    assert monitor.why_gone(1.0 + GONE_S - 0.1, member, is_refused=True) == ""
    assert "nobody has listened there" in monitor.why_gone(1.0 + GONE_S, member, is_refused=True)


def test_rank_0_that_said_good_bye_is_gone_a_moment_later(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    member.receive({"say": "bye"})
    assert monitor.why_gone(1.0, member, is_refused=False) == "", "the connection still stands"
    monitor.check(1.0, False, member)
    assert monitor.why_gone(1.0, member, is_refused=False) == ""
    assert monitor.why_gone(1.0 + GONE_S, member, is_refused=False) == "rank 0 has ended"
    member.receive({"say": "welcome", "round": 0})
    assert monitor.why_gone(1.0 + GONE_S, member, is_refused=False) == "", "there is another one"


def test_silence_alone_is_not_the_end_of_rank_0_for_long_and_never_for_who_has_promised(
    monitor: LinkMonitor, member: Member
) -> None:
    monitor.check(0.0, True, member)
    monitor.check(1.0, False, member)
    assert monitor.why_gone(300.0, member, is_refused=False) == ""
    assert monitor.why_gone(301.0, member, is_refused=False) == "rank 0 has not been reached for 300 s"
    member.receive({"say": "prepare", "round": 1})
    assert monitor.why_gone(3000.0, member, is_refused=False) == ""
    assert monitor.why_gone(3000.0, member, is_refused=True), "its process is no more"


def test_a_rank_0_that_was_never_met_is_not_gone(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, False, member)
    assert monitor.why_gone(10_000.0, member, is_refused=True) == ""


def test_a_rank_on_its_own_does_not_say_that_nothing_can_be_decided(monitor: LinkMonitor, member: Member) -> None:
    monitor.check(0.0, True, member)
    monitor.is_alone = True
    monitor.check(1.0, False, member)
    monitor.check(1000.0, False, member)
    assert told(monitor) == [] and monitor.next_deadline() is None


# ---- real ranks ----------------------------------------------------------------------------------------------------


def lines(launch: Launch, rank: int, word: str) -> list[str]:
    return [line for line in launch.said(rank) if word in line]


def wait_for_all(launch: Launch, run: Path) -> None:
    """Wait until all ranks have a connection: a save switch is obeyed by all."""
    switch = run / layout.SWITCHES / "save"
    launch.wait_for_steps()
    switch.touch()
    wait_until(lambda: not switch.exists())


def test_ranks_whose_rank_0_was_killed_say_so_once_and_that_a_signal_waits(tmp_path: Path) -> None:
    waiting = {"RESIL_GUARD__ON_LEADER_LOST": "wait"}
    with a_launch(tmp_path / "launch", make_run(tmp_path / "run"), 3, absent_s=4.0, **waiting) as launch:
        wait_for_all(launch, tmp_path / "run")
        launch.kill(0)
        launch.signal(2, signal.SIGUSR1)
        wait_until(lambda: lines(launch, 1, "no connection") and lines(launch, 2, "no connection"))
        assert "warning: rank 1 has had no connection to rank 0 for 4 s" in lines(launch, 1, "no connection")[0]
        told = lines(launch, 2, "no connection")[0]
        assert "nothing can be decided until it is back. This waits: SIGUSR1 came" in told
        launch.wait_for_steps()
        assert len(lines(launch, 1, "no connection")) == len(lines(launch, 2, "no connection")) == 1
        launch.start(0)
        wait_until(lambda: lines(launch, 1, "again, after") and lines(launch, 2, "again, after"))
        assert [launch.processes[rank].wait(30) for rank in range(3)] == [75, 75, 75], "the request was not lost"


def test_rank_0_tells_a_rank_that_was_lost_from_one_that_never_came(tmp_path: Path) -> None:
    with a_launch(tmp_path / "launch", make_run(tmp_path / "run"), 3, absent_s=1.0) as launch:
        wait_for_all(launch, tmp_path / "run")
        launch.kill(2)
        launch.signal(1, signal.SIGUSR1)
        wait_until(lambda: lines(launch, 0, "nothing can be decided"))
        assert "the connection to rank 2 of 3 is lost" in lines(launch, 0, "nothing can be decided")[0]
        assert "did not join" not in lines(launch, 0, "nothing can be decided")[0]
