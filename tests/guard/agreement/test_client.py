"""A member's connection to rank 0, and its monitor."""

from __future__ import annotations

import random
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.guard import Decision, Request
from resilience.guard.agreement.address_file import Address
from resilience.guard.agreement.client import GONE_S, LAST_RETRY_S, Client, LinkMonitor
from resilience.guard.agreement.connection import HANDSHAKE_S
from resilience.guard.agreement.member import Member
from resilience.guard.gate import Gate
from tests.guard.agreement.ranks import save, stop
from tests.guard.guarded import Launch, a_launch
from tests.guard.guards import make_run
from tests.lab.waiting import until


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
def test_a_rank_0_that_cannot_be_found_is_searched_for_again_and_is_never_an_error(
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


def test_looking_for_rank_0_draws_no_random_number_from_the_training(selector: selectors.DefaultSelector) -> None:
    client, before = make(selector, lambda: None), random.getstate()
    for now in range(0, 60, 5):
        client.find(now)
    assert random.getstate() == before


def test_a_listener_that_accepts_and_never_greets_is_left_after_a_while(selector: selectors.DefaultSelector) -> None:
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


UP, DOWN = True, False
USR1, KILL = save("SIGUSR1 received"), stop("the kill switch is there")
WAITS = ". Waiting: SIGUSR1 received"


def lost(seconds: int) -> str:
    return f"rank 2 has had no connection to rank 0 for {seconds} s: no decision is possible meanwhile"


# The connection at a time, and what is reported then; or a request of the rank.
REPORTS: dict[str, list[Any]] = {
    "a loss once, after a minute, and its end": [
        *((0, UP), (5, DOWN), (64.9, DOWN), (65, DOWN, lost(60)), (1000, DOWN)),
        *((1005, UP, "rank 2 is connected to rank 0 again, after 1000 s"), (1010, DOWN), (1070, DOWN, lost(60))),
    ],
    "no connection that comes again in time": [(second, second % 100 == 0) for second in range(0, 500, 50)],
    "a request that waits sooner, and by name": [
        *((0, UP), (1, DOWN), USR1, KILL, (3, DOWN), (13, DOWN, f"{lost(12)}{WAITS} (and 1 more)"), (100, DOWN)),
    ],
    "a request that comes long after the loss, too, and once": [
        *((0, UP), (0, DOWN), (60, DOWN, lost(60)), USR1, (7200, DOWN), (7210, DOWN, f"{lost(7210)}{WAITS}")),
        *(KILL, (9000, DOWN)),
    ],
    "a rank 0 that was never there, but not as lost": [
        *((0, DOWN), (60, DOWN, "rank 2 has not found rank 0 for 60 s: no decision is possible meanwhile")),
        (75, UP, "rank 2 has found rank 0, after 75 s"),
    ],
}


class Link:
    """A rank and its monitor."""

    def __init__(self) -> None:
        self.member = Member(Gate(), 2, "an incarnation")
        self.monitor = LinkMonitor(absent_s=60.0, round_s=10.0)

    def check(self, now: float, is_up: bool) -> list[str]:
        """What is reported now. Nothing is reported before its deadline, and no deadline passes without a report."""
        due = self.monitor.next_deadline()
        self.monitor.check(now, is_up, self.member)
        events, self.monitor.events = self.monitor.events, []
        assert [event.kind for event in events] in ([], ["back" if is_up else "lost"])
        assert is_up or bool(events) == (due is not None and now >= due)
        return [event.text for event in events]

    def why_gone(self, now: float, *, is_refused: bool = False) -> str:
        return self.monitor.why_gone(now, self.member, is_refused=is_refused)


@pytest.fixture
def link() -> Link:
    """A rank that has lost rank 0 after a second."""
    link = Link()
    link.check(0.0, UP)
    link.check(1.0, DOWN)
    return link


@pytest.mark.parametrize("title", REPORTS)
def test_people_hear_of(title: str) -> None:
    link = Link()
    for row in REPORTS[title]:
        if isinstance(row, Request):
            link.member.request(row)
        else:
            now, is_up, *reports = row
            assert link.check(float(now), is_up) == reports, row


@pytest.mark.parametrize("how", ["left", "stopped", "alone"])
def test_a_rank_that_expects_nothing_of_rank_0_or_decides_alone_does_not_miss_it(how: str) -> None:
    link = Link()
    link.check(0.0, UP)
    if how == "left":
        link.member.leave()
    elif how == "stopped":
        link.member.stopped = Decision(stop=True)
    else:
        link.monitor.is_alone = True
    assert link.check(1.0, DOWN) == link.check(1000.0, DOWN) == []
    assert link.monitor.next_deadline() is None


def test_rank_0_is_gone_for_good_when_no_process_listens_there_any_more(link: Link) -> None:
    assert link.why_gone(1.0 + GONE_S - 0.1, is_refused=True) == ""
    assert "refused connections" in link.why_gone(1.0 + GONE_S, is_refused=True)


def test_rank_0_that_said_good_bye_is_gone_a_moment_later() -> None:
    link = Link()
    link.check(0.0, UP)
    link.member.receive({"say": "bye"})
    assert link.why_gone(1.0) == "", "the connection still stands"
    link.check(1.0, DOWN)
    assert link.why_gone(1.0) == ""
    assert link.why_gone(1.0 + GONE_S) == "rank 0 has ended"
    link.member.receive({"say": "welcome", "round": 0, "incarnation": "life0", "restarts": 0})
    assert link.why_gone(1.0 + GONE_S) == "", "there is another one"


def test_silence_alone_is_not_the_end_of_rank_0_for_long_and_never_for_a_rank_that_has_promised(link: Link) -> None:
    assert link.why_gone(300.0) == ""
    assert link.why_gone(301.0) == "rank 0 has been unreachable for 300 s"
    link.member.receive({"say": "prepare", "round": 1})
    assert link.why_gone(3000.0) == ""
    assert link.why_gone(3000.0, is_refused=True), "its process is no more"


def test_a_rank_0_that_was_never_met_is_not_gone() -> None:
    link = Link()
    link.check(0.0, DOWN)
    assert link.why_gone(10_000.0, is_refused=True) == ""


# ---- real ranks ----------------------------------------------------------------------------------------------------


def lines(launch: Launch, rank: int, word: str) -> list[str]:
    return [line for line in launch.said(rank) if word in line]


def wait_for_all(launch: Launch, run: Path) -> None:
    """Wait until all ranks have a connection: a save switch is obeyed by all."""
    switch = run / layout.SWITCHES / "save"
    launch.wait_for_steps()
    switch.touch()
    until(lambda: not switch.exists())


def test_ranks_whose_rank_0_was_killed_warn_once_and_that_a_signal_waits(tmp_path: Path) -> None:
    waiting = {"RESIL_GUARD__ON_LEADER_LOST": "wait"}
    with a_launch(tmp_path / "launch", make_run(tmp_path / "run"), 3, absent_s=4.0, **waiting) as launch:
        wait_for_all(launch, tmp_path / "run")
        launch.kill(0)
        launch.signal(2, signal.SIGUSR1)
        until(lambda: lines(launch, 1, "no connection") and lines(launch, 2, "no connection"))
        assert "warning: rank 1 has had no connection to rank 0 for 4 s" in lines(launch, 1, "no connection")[0]
        warning = lines(launch, 2, "no connection")[0]
        assert "no decision is possible meanwhile. Waiting: SIGUSR1 received" in warning
        launch.wait_for_steps()
        assert len(lines(launch, 1, "no connection")) == len(lines(launch, 2, "no connection")) == 1
        launch.start(0)
        until(lambda: lines(launch, 1, "again, after") and lines(launch, 2, "again, after"))
        assert [launch.processes[rank].wait(30) for rank in range(3)] == [75, 75, 75], "the request was not lost"


def test_rank_0_reports_a_lost_rank_as_lost_and_not_as_one_that_never_joined(tmp_path: Path) -> None:
    with a_launch(tmp_path / "launch", make_run(tmp_path / "run"), 3, absent_s=1.0) as launch:
        wait_for_all(launch, tmp_path / "run")
        before = len(lines(launch, 0, "no decision is possible"))  # a rank may join late on a busy machine
        launch.kill(2)
        launch.signal(1, signal.SIGUSR1)
        until(lambda: lines(launch, 0, "no decision is possible")[before:])
        warning = lines(launch, 0, "no decision is possible")[before]
        assert "the connection to rank 2 of 3 is lost" in warning and "did not join" not in warning
