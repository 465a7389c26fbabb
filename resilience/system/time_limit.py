"""One deadline over a whole conversation with a server: name look-up, connecting, TLS, and every byte after that.

A socket's timeout is for one read: a server that drips a byte a second never meets it. Here a timer shuts the sockets
down when the time is over, which ends whatever waits on them.
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
"""How long one address may take to accept: a little over TCP's first retransmission, after 3 s (RFC 6298, 2.1; and
https://requests.readthedocs.io/en/latest/user/advanced/#timeouts)."""


class TimeLimit:
    """A context: sockets connected through it are shut down at the deadline.

    Attributes:
        seconds: how long the conversation may take.
        is_over: whether the time was over before the conversation was.
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
        """Seconds that are left; 0 when it is over."""
        return max(0.0, self._deadline - time.monotonic())

    def connect(self, host: str, port: int) -> socket.socket:
        """A connected socket, to the first of the host's addresses that accepts.

        Raise OSError: socket.gaierror when the name is not known, TimeoutError when the time is over.
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
            # A little more than is left: it is the timer that ends it, and says so.
            connection.settimeout(self.left_s() + 1)
        except BaseException:
            connection.close()
            raise
        return connection

    def _watch(self, connection: socket.socket) -> None:
        # A copy: TLS takes the descriptor away from the socket that it wraps, and shutting down works on any copy.
        with self._lock:
            if self.is_over:
                raise TimeoutError("the time is over")
            self._sockets.append(connection.dup())

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            for copy in self._sockets:
                with contextlib.suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what a function returns, or raise what it raises; TimeoutError when it takes longer than that.

    It runs in a thread that is left behind then: for what waits on the network and cannot be ended (the C library's
    name look-up has no deadline). It must not touch a file system that may hang.
    """
    return BackgroundCall(work, "resil-within").result(seconds)
