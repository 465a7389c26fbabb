from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilience.guard.agreement.uplink import LAST_RETRY_S, Uplink
from resilience.guard.agreement.wire import HANDSHAKE_S, Address


@pytest.fixture
def selector() -> Iterator[selectors.DefaultSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


def make(selector: selectors.DefaultSelector, locate: Callable[[], Any]) -> Uplink:
    return Uplink(selector, 1, locate, list, lambda message: None, lambda kind, text: None)


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
    uplink = make(selector, locate)
    now = 0.0
    waits = []
    for _ in range(12):
        assert uplink.find(now) is None
        deadline = uplink.next_deadline()
        assert deadline is not None
        assert uplink.find((now + deadline) / 2) is None  # not before
        waits.append(deadline - now)
        now = deadline
    assert waits[0] < 0.1
    assert LAST_RETRY_S / 2 <= waits[-1] <= LAST_RETRY_S


def test_one_that_accepts_and_never_greets_is_left_after_a_while(selector: selectors.DefaultSelector) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uplink = make(selector, lambda: Address("127.0.0.1", silent.getsockname()[1], "x"))
        found = uplink.find(100.0)
        assert found is not None
        uplink.adopt(*found, 100.0)
        assert uplink.next_deadline() == 100.0 + HANDSHAKE_S
        uplink.sweep(100.0 + HANDSHAKE_S - 0.1)
        assert uplink.is_connected()
        uplink.sweep(100.0 + HANDSHAKE_S)
    assert not uplink.is_connected()
    assert not uplink.is_up()
    assert not selector.get_map()
