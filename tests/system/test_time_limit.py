"""One deadline over a whole conversation, the look-up of the name included."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from resilience.system.time_limit import TimeLimit, within
from tests.alerts.channels.servers import (
    HAS_OPENSSL,
    NO_OPENSSL,
    drips,
    free_port,
    make_certificate,
    serving,
    silent,
    takes_at_most,
)


def test_a_read_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    with serving(silent) as port, takes_at_most(5), TimeLimit(0.2) as limit:
        connection = limit.connect("127.0.0.1", port)
        with connection:
            assert connection.recv(1) == b""
    assert limit.is_over


@pytest.mark.skipif(not HAS_OPENSSL, reason=NO_OPENSSL)
def test_a_drip_through_tls_is_ended(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate.file))
    with (
        serving(drips(b"x", 0.01), certificate.server_context()) as port,
        takes_at_most(5),
        TimeLimit(0.3) as limit,
        trusting.wrap_socket(limit.connect("127.0.0.1", port), server_hostname="localhost") as connection,
    ):
        received = 0
        with pytest.raises((OSError, EOFError)):
            while chunk := connection.recv(100):
                received += len(chunk)
            raise EOFError
    assert limit.is_over and received > 1


def test_in_time_nothing_is_ended_and_no_thread_stays() -> None:
    before = threading.active_count()
    with serving(drips(b"x")) as port:
        with TimeLimit(30) as limit, limit.connect("localhost", port) as connection:
            assert connection.recv(1) == b"x"
        assert not limit.is_over and limit.left_s() > 25
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_name_look_up_that_hangs_costs_no_more_than_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(20))
    with takes_at_most(5), TimeLimit(0.2) as limit, pytest.raises(TimeoutError):
        limit.connect("slow.example", 25)
    release.set()


def test_the_next_address_is_tried_when_one_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(drips(b"x")) as port:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in (free_port(), port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with TimeLimit(5) as limit, limit.connect("two.example", 1) as connection:
            assert connection.recv(1) == b"x"


def test_a_port_that_nobody_listens_at_is_told() -> None:
    with TimeLimit(5) as limit, pytest.raises(ConnectionRefusedError):
        limit.connect("127.0.0.1", free_port())


def test_within_gives_back_what_came_of_it() -> None:
    assert within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 / 0)
    assert within(5, lambda: None) is None
