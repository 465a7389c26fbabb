"""One connection: both ends prove that they know the token, and messages arrive whole or the connection ends."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from resilience.guard.agreement import connection, frames
from resilience.guard.agreement.connection import Connection, ConnectionBroken

TOKEN = "the run's token"


def unused(connection: Connection, said: object) -> None:
    """For messages that a selector reports, and for a connection that breaks then."""


class Pair:
    """Both ends of one connection."""

    def __init__(self, member_token: str = TOKEN) -> None:
        self.selector = selectors.DefaultSelector()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
        self.coordinator = Connection(near, self.selector, TOKEN, 0.0, unused, unused)
        self.member = Connection(far, self.selector, member_token, 0.0, unused, unused)

    def read(self, connection: Connection, count: int = 1) -> list[dict[str, object]]:
        """So many messages, in time."""
        got: list[dict[str, object]] = []
        end = time.monotonic() + 10
        while len(got) < count:
            assert time.monotonic() < end
            got += connection.read()
        return got

    def proof(self) -> dict[str, object]:
        """The coordinator greets; return the answer of rank 3, which proves that it knows the token."""
        self.coordinator.greet()
        assert not self.member.authenticate_coordinator(self.read(self.member)[0], 3)
        return self.read(self.coordinator)[0]

    def greet(self) -> None:
        self.coordinator.authenticate_member(self.proof(), 8)
        assert self.member.authenticate_coordinator(self.read(self.member)[0], 3)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.coordinator.close()
        self.member.close()
        self.selector.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


def test_after_the_greeting_both_ends_know_who_the_other_is(pair: Pair) -> None:
    pair.greet()
    assert (pair.coordinator.rank, pair.member.rank) == (3, 0)


def test_neither_end_believes_one_that_does_not_know_the_token() -> None:
    with Pair(member_token="another") as pair:
        with pytest.raises(ConnectionBroken, match="token"):
            pair.coordinator.authenticate_member(pair.proof(), 8)
        with pytest.raises(ConnectionBroken, match="token"):
            pair.member.authenticate_coordinator({"proof": frames.proof(TOKEN, "coordinator", "x", "y")}, 3)
        assert pair.member.rank is None


def test_a_proof_that_was_overheard_fits_neither_another_greeting_nor_another_rank(pair: Pair) -> None:
    overheard = pair.proof()
    with Pair() as other:
        other.coordinator.greet()
        for end, proof in ((other.coordinator, overheard), (pair.coordinator, {**overheard, "rank": 4})):
            with pytest.raises(ConnectionBroken, match="token"):
                end.authenticate_member(proof, 8)


def test_large_messages_pass_only_after_the_greeting(pair: Pair) -> None:
    large = {"text": "x" * 100_000}
    pair.greet()
    pair.member.send(large)
    assert pair.read(pair.coordinator) == [large]
    with Pair() as stranger, pytest.raises(ConnectionBroken, match="frame of"):
        stranger.member.send(large)
        stranger.read(stranger.coordinator)


def test_messages_that_the_kernel_does_not_take_at_once_wait_and_arrive_whole(pair: Pair) -> None:
    pair.greet()
    pair.coordinator._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
    pair.member._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
    sent = [{"number": number, "text": "x" * 50_000} for number in range(60)]
    for message in sent:
        pair.coordinator.send(message)
    assert pair.coordinator.outgoing
    assert pair.selector.get_map()[pair.coordinator._socket].events & selectors.EVENT_WRITE
    got: list[dict[str, object]] = []
    end = time.monotonic() + 20
    while len(got) < len(sent) and time.monotonic() < end:
        pair.coordinator.flush()
        got += pair.member.read()
    assert got == sent
    assert pair.selector.get_map()[pair.coordinator._socket].events == selectors.EVENT_READ


def test_a_peer_that_never_reads_is_given_up_before_memory_grows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_UNSENT", 200_000)
    with pytest.raises(ConnectionBroken, match="does not read"):
        for _ in range(1000):
            pair.coordinator.send({"text": "x" * 100_000})
    assert len(pair.coordinator.outgoing) < 500_000


def test_the_last_message_arrives_although_more_was_on_its_way_back(pair: Pair) -> None:
    pair.greet()
    pair.coordinator.send({"unread": "by the member"})
    pair.member.send({"last": "word"})
    pair.member.end_sending()
    pair.member.drain(0.2)
    pair.member.close()
    assert pair.read(pair.coordinator) == [{"last": "word"}]
    with pytest.raises(ConnectionBroken):
        pair.read(pair.coordinator)


def test_a_drain_ends_in_time_although_the_other_end_stays(pair: Pair) -> None:
    begin = time.monotonic()
    pair.member.end_sending()
    pair.member.drain(0.2)
    assert time.monotonic() - begin < 30


def test_a_lost_connection_is_reported_once_and_closing_twice_is_nothing(pair: Pair) -> None:
    pair.member.close()
    pair.member.close()
    with pytest.raises(ConnectionBroken, match="closed the connection"):
        pair.read(pair.coordinator)
