"""One connection between a rank and rank 0: a handshake, then messages. Never blocks; validates all input.

In the handshake rank 0 sends a random word. The member answers with a word of its own, its rank, and the proof that it
knows the run's token; rank 0 proves the same. Neither accepts messages of the other earlier (`frames.py`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from resilience.guard.agreement import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.messages import Message

HANDSHAKE_S = 10.0
"""Connections whose handshake takes longer are closed."""
MOST_UNSENT = 4 * 2**20
"""Bytes queued for a peer that does not read; above that the connection is closed, and a live peer reconnects."""
SILENCE_MS = 60_000
READ_SIZE = 65536


class ConnectionBroken(Exception):
    """The connection has ended, or the peer has sent invalid data; the text is the reason."""


class Connection:
    """One connection, registered with a selector while open.

    Args:
        take: gets each received message; may raise ConnectionBroken.
        drop: called when the connection breaks, with the reason.

    Attributes:
        rank: of the peer, once authenticated; None before.
        since: when the connection was made (monotonic seconds).
        handshake_until: deadline of the handshake.
        outgoing: bytes that the kernel has not taken yet.
        is_open: False once `close` was called.
    """

    def __init__(
        self,
        sock: socket.socket,
        selector: selectors.BaseSelector,
        token: str,
        now: float,
        take: Callable[[Connection, Message], None],
        drop: Callable[[Connection, str], None],
    ) -> None:
        self.since = now
        self.handshake_until = now + HANDSHAKE_S
        self.rank: int | None = None
        self.is_open = True
        self.outgoing = bytearray()
        self._socket = sock
        self._selector = selector
        self._token = token
        self._decoder = frames.Decoder(frames.LARGEST_GREETING)
        self._own_word = frames.random_word()
        self._their_word = ""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            _tune(sock)
        self._events = selectors.EVENT_READ
        self._take = take
        self._drop = drop
        selector.register(sock, self._events, self.serve)

    def serve(self, mask: int) -> None:
        """Send and receive, as the selector's `mask` allows."""
        if not self.is_open:
            return  # closed since the selector reported it
        try:
            if mask & selectors.EVENT_WRITE:
                self.flush()
            if mask & selectors.EVENT_READ:
                for message in self.read():
                    if self.is_open:
                        self._take(self, message)
        except ConnectionBroken as error:
            self._drop(self, str(error))
        except Exception:  # an internal error: messages after that one are lost, so the rank must rejoin
            self._drop(self, "internal error")
            raise

    def send_or_drop(self, message: Message) -> None:
        """Send a message as `send` does; drop a broken connection."""
        try:
            self.send(message)
        except ConnectionBroken as error:
            self._drop(self, str(error))

    def read(self) -> list[Message]:
        """Return the complete received messages. Raise ConnectionBroken at the end of the connection."""
        try:
            data = self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionBroken(f"the connection was lost: {error}") from None
        if not data:
            raise ConnectionBroken("the other end has closed the connection")
        return self._decode(data)

    def _decode(self, data: bytes) -> list[Message]:
        try:
            return self._decoder.feed(data)
        except frames.BadFrame as error:
            raise ConnectionBroken(f"the peer sent {error}") from None

    def send(self, message: Message) -> None:
        """Send as much of a message as the kernel accepts; `flush` sends the rest. Raise ConnectionBroken."""
        self.outgoing += frames.encode(message)
        self.flush()

    def flush(self) -> None:
        """Send queued bytes. Raise ConnectionBroken."""
        try:
            while self.outgoing:
                del self.outgoing[: self._socket.send(self.outgoing)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise ConnectionBroken(f"the connection was lost: {error}") from None
        if len(self.outgoing) > MOST_UNSENT:
            raise ConnectionBroken("the peer does not read")
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)
        if events != self._events:
            self._selector.modify(self._socket, events, self.serve)
            self._events = events

    def end_sending(self) -> None:
        """Shut down the sending side."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def drain(self, wait_s: float) -> None:
        """Read and discard until the peer closes: closing with unread bytes would reset the connection."""
        deadline = time.monotonic() + wait_s
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(READ_SIZE):
                    return

    def close(self) -> None:
        """End the connection."""
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._socket)
            self._socket.close()

    def abandon(self) -> None:
        """In a forked child: close this copy; send nothing, and leave the parent's selector alone."""
        self.is_open = False
        self._socket.close()

    # ---- the handshake ----------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Begin the handshake, as rank 0."""
        self.send_or_drop({"word": self._own_word})

    def authenticate_member(self, message: Message, world: int) -> int:
        """On rank 0: authenticate a member, and return its rank. Raise ConnectionBroken."""
        word, rank = message.get("word"), message.get("rank")
        proved = isinstance(word, str) and frames.is_proof(
            message.get("proof"), self._token, f"member {rank}", self._own_word, word
        )
        if not proved:
            raise ConnectionBroken("the peer does not know the token")
        if type(rank) is not int or not 0 < rank < world:
            raise ConnectionBroken(f"the peer claims to be rank {rank!r} of {world}")
        self._accept(rank)
        self.send({"proof": frames.proof(self._token, "coordinator", self._own_word, str(word))})
        return rank

    def authenticate_coordinator(self, message: Message, rank: int) -> bool:
        """On a member: send the proof, then check rank 0's. Return whether both are done. Raise ConnectionBroken."""
        if not self._their_word:
            word = message.get("word")
            if not isinstance(word, str) or not word:
                raise ConnectionBroken("the peer sent no valid greeting")
            self._their_word = word
            answer = frames.proof(self._token, f"member {rank}", word, self._own_word)
            self.send({"word": self._own_word, "rank": rank, "proof": answer})
            return False
        if not frames.is_proof(message.get("proof"), self._token, "coordinator", self._their_word, self._own_word):
            raise ConnectionBroken("the peer does not know the token")
        self._accept(0)
        return True

    def _accept(self, rank: int) -> None:
        self.rank = rank
        self._decoder.largest = frames.LARGEST_FRAME


def _tune(sock: socket.socket) -> None:
    """Send small messages immediately, and detect a dead node after a minute (tcp(7))."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
