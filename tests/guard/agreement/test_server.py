"""What strangers, and members that have gone mad, can do to rank 0: nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilience.guard.agreement import connection, frames, server
from tests.guard.agreement.ranks import TOKEN, Impostor, Meeting, is_hung_up, meeting, save
from tests.guard.agreement.sample_messages import done, goodbye, join, promise
from tests.lab.waiting import until


@pytest.fixture
def ranks() -> Iterator[Meeting]:
    with meeting(3) as ranks:
        until(lambda: all(ranks.client(rank).is_up() for rank in (1, 2)))
        yield ranks


def assert_they_agree(ranks: Meeting) -> None:
    before = len(ranks.heard("outcome"))
    ranks.agree(save(f"after all that {before}"), by=2)
    ranks.wait_for("outcome", before + 1)
    assert not ranks.heard("broken")
    assert not ranks.heard("fault")


GARBAGE = {
    "a browser": b"GET / HTTP/1.1\r\nHost: n17\r\n\r\n",
    "an oversized frame": struct.pack(">I", frames.LARGEST_GREETING + 1) + b"{}",
    "a frame of 4 GiB": b"\xff" * 64,
    "no JSON": struct.pack(">I", 4) + b"{{{{",
    "a list": frames.encode({})[:3] + b"\x02[]",
    "an empty table": frames.encode({}),
    "a message of a member": frames.encode(goodbye(0)),
    "a rank that is no number": frames.encode({"word": "mine", "rank": [1], "proof": "x" * 64}),
    "no proof": frames.encode({"word": "mine", "rank": 1}),
    "a proof that is no text": frames.encode({"word": "mine", "rank": 1, "proof": 17}),
    "deep JSON": struct.pack(">I", 1000) + b"[" * 1000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_a_stranger_that_talks_nonsense_is_hung_up_on(ranks: Meeting, garbage: bytes) -> None:
    with ranks.knock() as sock:
        sock.sendall(garbage)
        assert is_hung_up(sock)
    assert_they_agree(ranks)
    assert len(ranks.heard("stranger")) == 1


@pytest.mark.parametrize("rank", [1, 0, 3, -1, "1", None, 2**70, True])
def test_no_process_gets_in_with_a_wrong_token_or_a_rank_that_does_not_exist(ranks: Meeting, rank: object) -> None:
    impostor = Impostor(ranks, rank, "another run's token" if rank == 1 and rank is not True else TOKEN)
    with impostor.socket:
        assert is_hung_up(impostor.socket)
    assert_they_agree(ranks)


def test_a_stranger_that_sends_nothing_or_one_byte_at_a_time_is_dropped_in_time(
    ranks: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.5)
    with ranks.knock() as silent, ranks.knock() as slow:
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            for byte in frames.encode({"word": "mine", "rank": 1, "proof": "x" * 200}):
                slow.sendall(bytes([byte]))
                time.sleep(0.01)
        assert is_hung_up(silent)
        assert is_hung_up(slow)
        assert time.monotonic() - begin < 30
    assert_they_agree(ranks)


def test_thousands_of_connections_cost_no_memory_and_no_rank_its_place(ranks: Meeting) -> None:
    held: list[socket.socket] = []
    try:
        for number in range(3000):
            with contextlib.suppress(OSError):
                held.append(ranks.knock())
                held[-1].sendall(struct.pack(">I", 900) + b"x" * 800)  # a greeting that is never complete
            if number % 500 == 0:
                assert len(ranks.leader._server._unauthenticated) <= server.MOST_UNAUTHENTICATED + 3
            if len(held) > 300:
                held.pop(0).close()
        assert_they_agree(ranks)  # while they are all there
    finally:
        for sock in held:
            sock.close()
    assert len(ranks.heard("stranger")) == 1  # said once, not three thousand times


def test_a_rank_whose_connection_was_lost_comes_in_through_a_crowd(ranks: Meeting) -> None:
    crowd = [ranks.knock() for _ in range(100)]
    client = ranks.client(1)
    with ranks.ranks[1].changed:
        client.close()
    ranks.ranks[1]._wake()
    until(client.is_up)
    assert_they_agree(ranks)
    for sock in crowd:
        sock.close()


NONSENSE = [
    {"say": "nothing we know"},
    {"say": ["join"]},
    {"no": "say"},
    {**promise(1), "round": "one"},
    promise(-1),
    {"say": "request", "id": "x", "request": {}},
    {"say": "request", "id": "x", "request": {"save": 1}},
    done("eaten"),
    done(seconds=float("nan")),
    {name: value for name, value in join(2, state="committed").items() if name != "requests"},
]


@pytest.mark.parametrize("message", NONSENSE, ids=str)
def test_a_true_member_that_says_nonsense_is_dropped_and_may_come_again(
    ranks: Meeting, message: dict[str, object]
) -> None:
    for _ in range(20):
        impostor = Impostor(ranks, 2)
        with impostor.socket:
            assert set(impostor.hear()) == {"proof"}
            impostor.say(message)
            assert is_hung_up(impostor.socket)
        if ranks.heard("nonsense"):  # else the true rank 2 came again before we spoke: the machine is busy
            break
    assert_they_agree(ranks)  # the true rank 2, whose place was taken, has come again
    assert len(ranks.heard("nonsense")) == 1


def test_a_member_that_never_reads_is_dropped_before_memory_grows(
    ranks: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST_UNSENT", 10_000)
    impostor = Impostor(ranks, 2)
    with impostor.socket:
        assert set(impostor.hear()) == {"proof"}
        leader = ranks.leader
        opened = leader._server._connections[2]
        with leader.changed:
            for number in range(10**6):
                leader._server.send(2, {"say": "abort", "round": number, "padding": "x" * 10_000})
                if not opened.is_open:
                    break
        assert not opened.is_open
        assert len(opened.outgoing) < 50_000
    assert_they_agree(ranks)


def test_without_a_free_descriptor_rank_0_waits_and_does_not_spin(ranks: Meeting) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(3)]
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    address = ranks.true_address
    assert address is not None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no new one, whatever is free
        assert used >= 3
        for sock in waiting:
            sock.connect((address.host, address.port))
        begin = time.process_time()
        ranks.wait_for("door")
        time.sleep(0.5)
        assert time.process_time() - begin < 0.3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for sock in waiting:
        sock.settimeout(10)
        assert sock.recv(100)  # greeted, as soon as there is room
        sock.close()
    assert_they_agree(ranks)
