"""One deadline for a whole exchange with a server: name resolution, connection, TLS and transfer.

A socket's timeout applies to one read: a server that sends a byte per second never exceeds it. Here a timer shuts down
the sockets at the deadline, which ends all blocked calls.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from resilience.base.background import BackgroundCall

T = TypeVar("T")

CONNECT_S = 3.05
"""Timeout of a connection to one address: a little over TCP's first retransmission, after 3 s (RFC 6298, 2.1; and
https://requests.readthedocs.io/en/latest/user/advanced/#timeouts)."""


class TimeLimit:
    """A context manager that shuts down its sockets at the deadline.

    Attributes:
        seconds: time limit of the exchange.
        is_over: whether the deadline passed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = False
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> TimeLimit:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        with self._lock:
            for copy in self._sockets:
                copy.close()
            self._sockets.clear()

    def left_s(self) -> float:
        """Return the seconds left; 0 after the deadline."""
        return max(0.0, self._deadline - time.monotonic())

    def connect(self, host: str, port: int) -> socket.socket:
        """Return a socket connected to the first of the host's addresses that accepts.

        Raise OSError: socket.gaierror if the name cannot be resolved, TimeoutError after the deadline.
        """
        addresses = within(self.left_s(), lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        problem: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in addresses:
            if not self.left_s():
                break
            try:
                return self._connected(family, kind, protocol, address)
            except OSError as error:
                problem = error
        raise problem

    def _connected(self, family: int, kind: int, protocol: int, address: Any) -> socket.socket:
        connection = socket.socket(family, kind, protocol)
        try:
            self._watch(connection)
            connection.settimeout(max(0.001, min(CONNECT_S, self.left_s())))
            connection.connect(address)
            # Slightly more than the time left, so that the timer ends the connection and sets `is_over`.
            connection.settimeout(self.left_s() + 1)
        except BaseException:
            connection.close()
            raise
        return connection

    def _watch(self, connection: socket.socket) -> None:
        # A duplicate, because TLS detaches the wrapped socket; shutdown works on any duplicate.
        with self._lock:
            if self.is_over:
                raise TimeoutError("the deadline has passed")
            self._sockets.append(connection.dup())

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            for copy in self._sockets:
                with contextlib.suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Call a function and return its value; raise TimeoutError after `seconds`.

    The function runs in a thread, which is abandoned at the timeout. For network calls that cannot be interrupted (the
    C library's name resolution has no timeout); the function must not access a file system that may hang.
    """
    return BackgroundCall(work, "resil-within").result(seconds)
