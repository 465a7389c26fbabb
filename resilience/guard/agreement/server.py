"""Rank 0's end of all connections: accepts ranks, and closes all others. Used by the control thread.

Any host that can reach the port may connect; an unauthenticated peer must cost no more than a closed connection: no
exception, no memory, no busy loop, no descriptor that a rank needs.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from resilience.guard.agreement.connection import HANDSHAKE_S, Connection, ConnectionBroken
from resilience.guard.agreement.messages import check_member_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.messages import Message

MOST_UNAUTHENTICATED = 64
"""Unauthenticated connections allowed beyond one per rank; above that, the oldest is closed."""
ACCEPTS_AT_ONCE = 256
NO_DESCRIPTORS_S = 1.0
"""How long to pause accepting when the process has no descriptor left: the listener stays readable meanwhile."""


class Server:
    """The connections of rank 0.

    Args:
        receive: gets each well-formed message of a rank; may raise ValueError if it is invalid.
        lost: called when the connection of a rank has ended.
        note: gets (kind, sentence) for anomalies.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        world: int,
        *,
        receive: Callable[[int, Message], None],
        lost: Callable[[int], None],
        note: Callable[[str, str], None],
    ) -> None:
        self._selector = selector
        self._world = world
        self._receive = receive
        self._lost = lost
        self._note = note
        self._listener: socket.socket | None = None
        self._token = ""
        self._connections: dict[int, Connection] = {}
        self._unauthenticated: dict[Connection, None] = {}  # the oldest first
        self._paused_until = 0.0

    def open(self, listener: socket.socket, token: str) -> None:
        """Accept ranks."""
        listener.setblocking(False)
        self._listener, self._token = listener, token
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def send(self, rank: int, message: Message) -> None:
        """Send to a rank if connected; otherwise the rank receives its state when it joins."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.send_or_drop(message)

    def drop_slow(self, now: float) -> None:
        """Close connections whose handshake takes too long, and accept again after a pause."""
        for connection in [known for known in self._unauthenticated if now >= known.handshake_until]:
            self._drop(connection, f"not authenticated within {HANDSHAKE_S:g} s")
        if self._paused_until and now >= self._paused_until and self._listener is not None:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def next_deadline(self) -> float | None:
        """Return when to call `drop_slow` (monotonic seconds), or None."""
        oldest = next(iter(self._unauthenticated), None)
        deadlines = [oldest.handshake_until] if oldest is not None else []
        if self._paused_until:
            deadlines.append(self._paused_until)
        return min(deadlines, default=None)

    def has_unsent(self) -> bool:
        """Return whether messages to a rank are still queued."""
        return any(connection.outgoing for connection in self._connections.values())

    def close(self) -> None:
        """End all connections after the messages sent."""
        for connection in (*self._connections.values(), *self._unauthenticated):
            connection.end_sending()
            connection.close()
        self._connections.clear()
        self._unauthenticated.clear()
        if self._listener is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def abandon(self) -> None:
        """In a forked child: close these copies without sending anything."""
        for connection in (*self._connections.values(), *self._unauthenticated):
            connection.abandon()
        if self._listener is not None:
            self._listener.close()

    # ---- within -----------------------------------------------------------------------------------------------

    def _accept(self, mask: int) -> None:
        now = time.monotonic()
        for _ in range(ACCEPTS_AT_ONCE):
            if self._listener is None:
                return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(now, error)
                return
            if len(self._unauthenticated) >= MOST_UNAUTHENTICATED + self._world:
                self._drop(next(iter(self._unauthenticated)), "there are too many unauthenticated connections")
            connection = Connection(sock, self._selector, self._token, now, self._take, self._drop)
            self._unauthenticated[connection] = None
            connection.greet()

    def _pause(self, now: float, error: OSError) -> None:
        """Without descriptors or memory (accept(2)): close unauthenticated connections, and accept again later."""
        self._note("door", f"rank 0 cannot accept connections at present: {error}")
        for connection in [known for known in self._unauthenticated if now - known.since >= NO_DESCRIPTORS_S]:
            self._drop(connection, "its descriptor is needed")
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._paused_until = now + NO_DESCRIPTORS_S

    def _take(self, connection: Connection, message: Message) -> None:
        if connection.rank is None:
            rank = connection.authenticate_member(message, self._world)
            self._unauthenticated.pop(connection, None)
            former = self._connections.get(rank)
            self._connections[rank] = connection
            if former is not None:  # half-open, or of a dead process
                self._drop(former, "the rank has connected again")
            return
        try:
            self._receive(connection.rank, check_member_message(message))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._note("nonsense", f"rank {connection.rank} sent an invalid message and must rejoin: {error}")
            raise ConnectionBroken("nonsense") from error

    def _drop(self, connection: Connection, why: str) -> None:
        is_unauthenticated = connection in self._unauthenticated
        self._unauthenticated.pop(connection, None)
        connection.close()
        if is_unauthenticated:
            self._note("stranger", f"closed an unauthenticated connection: {why}")
        elif connection.rank is not None and self._connections.get(connection.rank) is connection:
            del self._connections[connection.rank]
            self._lost(connection.rank)
