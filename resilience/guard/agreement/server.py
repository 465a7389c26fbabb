"""Rank 0's end of all connections: accepts ranks, and closes everything else. Used by the control thread.

Whoever can reach the port may connect; nothing that an unauthenticated peer does may cost more than a closed
connection: no exception, no memory, no busy loop, no place that a rank needs.
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
"""Connections that have not proved to be ours, beyond one per rank: when there are more, the oldest is closed."""
ACCEPTS_AT_ONCE = 256
NO_DESCRIPTORS_S = 1.0
"""How long nobody is let in when the process has no descriptor left: the listener stays readable all the while."""


class Server:
    """The connections of rank 0.

    Args:
        receive: gets each message of a rank, checked in form; may raise ValueError if it means nothing.
        lost: called when the connection of a rank has ended.
        note: gets (kind, sentence) for what is odd.
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
        """Let ranks in."""
        listener.setblocking(False)
        self._listener, self._token = listener, token
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def send(self, rank: int, message: Message) -> None:
        """Send to a rank, if it is connected; if not, the rank gets what it needs when it joins."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.send_or_drop(message)

    def drop_slow(self, now: float) -> None:
        """Close connections whose handshake takes too long, and accept again after a pause."""
        for connection in [known for known in self._unauthenticated if now >= known.handshake_until]:
            self._drop(connection, f"it has not proved in {HANDSHAKE_S:g} s that it belongs to the run")
        if self._paused_until and now >= self._paused_until and self._listener is not None:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def next_deadline(self) -> float | None:
        """When `drop_slow` has something to do (monotonic seconds)."""
        oldest = next(iter(self._unauthenticated), None)
        deadlines = [oldest.handshake_until] if oldest is not None else []
        if self._paused_until:
            deadlines.append(self._paused_until)
        return min(deadlines, default=None)

    def has_unsent(self) -> bool:
        """Return whether a rank has not yet been sent all of its messages."""
        return any(connection.outgoing for connection in self._connections.values())

    def close(self) -> None:
        """End all connections; what was sent arrives."""
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
        """In a forked child: close these copies and say nothing."""
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
        """No descriptor, or no memory, for one more (accept(2)): make room, and accept again a little later."""
        self._note("door", f"rank 0 cannot accept connections at the moment: {error}")
        for connection in [known for known in self._unauthenticated if now - known.since >= NO_DESCRIPTORS_S]:
            self._drop(connection, "its place is needed")
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._paused_until = now + NO_DESCRIPTORS_S

    def _take(self, connection: Connection, message: Message) -> None:
        if connection.rank is None:
            rank = connection.authenticate_member(message, self._world)
            self._unauthenticated.pop(connection, None)
            former = self._connections.get(rank)
            self._connections[rank] = connection
            if former is not None:  # it is half-open, or of a process that has died
                self._drop(former, "the rank has connected again")
            return
        try:
            self._receive(connection.rank, check_member_message(message))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._note("nonsense", f"rank {connection.rank} sent an invalid message, and must join again: {error}")
            raise ConnectionBroken("nonsense") from error

    def _drop(self, connection: Connection, why: str) -> None:
        is_unauthenticated = connection in self._unauthenticated
        self._unauthenticated.pop(connection, None)
        connection.close()
        if is_unauthenticated:
            self._note("stranger", f"a connection that is not of this run was closed: {why}")
        elif connection.rank is not None and self._connections.get(connection.rank) is connection:
            del self._connections[connection.rank]
            self._lost(connection.rank)
