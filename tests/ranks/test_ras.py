"""RAS reports as NVIDIA documents them; a server that speaks its protocol; a signal only where two looks agree."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from resilience.ranks import ras
from resilience.ranks.ras import Count, Member, RasSignal, ask_ras, compare, look_twice, parse_ras

RECORDED = Path(__file__).parents[1] / "recorded" / "ras"
STOPPED = Member(-1, "172.16.64.213", 3487984)


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def report(*launched: int, operation: str = "AllReduce", missing: str = "") -> str:
    """JSON as NCCL writes it, of ranks with these counts; `missing` is the status of a last rank."""
    table = json.loads(recorded("incomplete.json"))
    one = table["communicators"][0]
    (rank,), (lost,) = one["ranks"], one["missing_ranks"]
    one["ranks"] = [
        {
            **rank,
            "rank": number,
            "pid": 100 + number,
            "collective_counts": rank["collective_counts"] | {operation: count},
        }
        for number, count in enumerate(launched)
    ]
    status = {"unresponsive": False, "considered_dead": False} | ({missing: True} if missing else {})
    one["missing_ranks"] = [{**lost, "rank": len(launched), "status": status}] if missing else []
    return json.dumps(table, indent=2)


def test_the_documented_reports_are_read() -> None:
    found = parse_ras(recorded("incomplete.json"))
    assert (found.version, found.unresponsive, found.dead) == ("2.29.1", (Member(1, "172.16.64.245", 1524345),), ())
    assert parse_ras(recorded("incomplete.txt")).unresponsive == (STOPPED,)
    assert parse_ras(recorded("dead.txt")).dead == (STOPPED,)
    (most, least) = parse_ras(recorded("mismatch.txt")).communicators[0].counts
    assert most == Count("collective", 6650, 26)
    assert (least.launched, least.ranks, [one.rank for one in least.members]) == (6649, 6, [0, 2, 3, 4, 5, 7])
    found = parse_ras(recorded("issue_1911.txt"))
    assert (found.version, found.communicators[0].name) == ("2.26.2", "fa93daea854b060b")
    assert [(one.operation, one.launched, one.ranks) for one in found.communicators[0].counts] == [
        ("AllGather", 640, 30),
        ("AllGather", 641, 2),
    ]


NEWER = """
Communicators... (0.00s)
=============

#0-0 (00000000000000aa) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

#0-0 (00000000000000aa) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 9 has status FINALIZE -- GPU 1 managed by process 9 on node 10.0.0.1
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 12
  Rank 9 has not launched any operations -- GPU 1 managed by process 9 on node 10.0.0.1
"""


def test_single_ranks_of_a_text_are_read_and_a_status_is_no_count() -> None:
    text = "INCOMPLETE\n  Process 3487984 on node 172.16.64.213 managing GPU 5\n" + NEWER
    found = parse_ras(text)
    assert found.unresponsive == (Member(21, "172.16.64.213", 3487984),)
    assert found.communicators[0].counts == (
        Count("AllReduce", 12, 30),
        Count("AllReduce", 0, 1, (Member(9, "10.0.0.1", 9),)),
    )


@pytest.mark.parametrize("text", ["", "HTTP/1.1 400", "{", '{"a": 1}', '{"communicators": 3}', "{}\n", "OK\n[" * 9000])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_ras(text)


def test_a_signal_needs_two_looks_that_agree() -> None:
    behind = parse_ras(report(640, 639, 640))
    (signal,) = compare(behind, behind, 4.0)
    assert signal == RasSignal(
        "launched 639 AllReduce, 2 others 640, unchanged for 4 s", 1, (Member(1, "172.16.64.245", 101),)
    )
    assert compare(behind, parse_ras(report(641, 640, 641)), 4.0) == (), "it goes on"
    assert compare(behind, parse_ras(report(640, 640, 640)), 4.0) == (), "the last one came"
    assert compare(parse_ras(report(640, 640)), parse_ras(report(640, 640)), 4.0) == (), "equal counts prove nothing"
    lost, dead = parse_ras(report(1, missing="unresponsive")), parse_ras(report(1, missing="considered_dead"))
    assert [one.text for one in compare(lost, dead, 4.0)] == ["does not answer NCCL's RAS"]
    assert [one.text for one in compare(dead, dead, 4.0)] == ["is considered dead by NCCL"]
    assert compare(lost, parse_ras(report(1)), 4.0) == compare(parse_ras(report(1)), lost, 4.0) == ()
    left = parse_ras(report(1, missing="other"))
    assert compare(left, left, 4.0) == (), "a rank that has left a communicator is not lost"


Handler = Callable[[socket.socket], None]


@contextmanager
def server(*handlers: Handler) -> Iterator[str]:
    """A stand-in for NCCL: each connection gets the next handler."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for handle in handlers:
                connection, _ = listener.accept()
                with connection:
                    handle(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"


def nccl(body: str, *, has_json: bool = True) -> Handler:
    """Answer line by line as rasClientEventLoop does."""

    def handle(connection: socket.socket) -> None:
        received = b""
        while not received.lower().endswith(b"verbose status\n"):
            received += connection.recv(1000)
        for line in received.decode().splitlines()[:-1]:
            known = line.startswith("TIMEOUT ") or (has_json and line.startswith("SET FORMAT "))
            connection.sendall(b"OK\n" if known else f"ERROR: Unknown command {line}\n".encode())
        connection.sendall(body.encode())

    return handle


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "LOOKS_S", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_server_is_asked_twice_for_json_or_text() -> None:
    with server(nccl(report(5, 4)), nccl(report(5, 4))) as address:
        signals, note = look_twice(address, 5.0)
        assert ([one.members[0].rank for one in signals], note) == ([1], "")
    with server(*[nccl(recorded("incomplete.txt"), has_json=False)] * 2) as address:
        assert look_twice(address, 5.0) == ((RasSignal("does not answer NCCL's RAS", 1, (STOPPED,)),), "")
    with server(nccl(report(5, 4)), nccl(report(6, 6))) as address:
        assert look_twice(address, 5.0) == ((), f"NCCL 2.29.1: counts differ but change (RAS at {address})")
    with server(nccl(report(5, 5))) as address:
        assert look_twice(address, 5.0) == ((), f"NCCL 2.29.1: no rank is behind or missing (RAS at {address})")


def endless(connection: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection.sendall(b"x" * 2**16)


def silent(connection: socket.socket) -> None:
    connection.recv(1000)
    time.sleep(1.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (endless, "sends more than 0 MiB"),
        (silent, "timed out"),
        (lambda connection: None, "(Connection reset|not a RAS report)"),
        (nccl("nonsense\n"), "not a RAS report"),
    ],
)
def test_a_strange_server_is_no_signal(handler: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "MOST_BYTES", 2**18)
    began = time.monotonic()
    with server(handler) as address:
        signals, note = look_twice(address, 0.3)
    assert signals == ()
    assert note.startswith(f"the RAS service of NCCL at {address} gives no answer: ")
    assert re.search(said, note), note
    assert time.monotonic() - began < 2.0


def test_nothing_listening_and_a_bad_address_are_said_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    assert look_twice(address, 1.0) == ((), f"no RAS service of NCCL listens at {address}")
    assert "gives no answer" in look_twice("localhost:none", 1.0)[1]
    with pytest.raises(OSError):
        ask_ras("[::1]:1", 1.0)
