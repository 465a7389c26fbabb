"""One connection between a rank and rank 0: greeted, proved, then messages. Never blocks; never trusts what it reads.

The greeting: rank 0 sends a random word. The member answers with a word of its own, its rank, and the proof that it
knows the run's token; rank 0 proves the same. Only then does either believe what the other says (`frames.py`).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from resilience.guard.agreement import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.guard.agreement.messages import Message

HANDSHAKE_S = 10.0
"""Who has not proved in this time that it is one of us is dropped."""
MOST_UNSENT = 4 * 2**20
"""Bytes that may wait for a peer that does not read; then the connection ends, and a living peer comes again."""
SILENCE_MS = 60_000
READ_SIZE = 65536


class WireBroken(Exception):
    """The connection has ended, or what arrived is nothing that one of us says; the text says which."""


class Wire:
    """One connection, registered with a selector as long as it is open.

    Attributes:
        rank: who is at the other end: the member's rank, as the greeting tells; None before that.
        is_trusted: whether the other end has proved that it knows the token.
        since: when the connection was made (monotonic seconds).
        outgoing: bytes that the kernel has not taken yet.
        is_open: False once `close` was called.
    """

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, token: str, now: float) -> None:
        self.since = now
        self.rank: int | None = None
        self.is_trusted = False
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
        selector.register(sock, self._events, self)

    def read(self) -> list[Message]:
        """What has arrived, complete messages only. Raise WireBroken at the end of the connection."""
        try:
            data = self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise WireBroken(f"the connection was lost: {error}") from None
        if not data:
            raise WireBroken("the other end has closed the connection")
        return self._decode(data)

    def _decode(self, data: bytes) -> list[Message]:
        try:
            return self._decoder.feed(data)
        except frames.BadFrame as error:
            raise WireBroken(f"it said {error}") from None

    def send(self, message: Message) -> None:
        """Send a message, or what of it the kernel takes; `flush` sends the rest. Raise WireBroken."""
        self.outgoing += frames.encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what has waited. Raise WireBroken."""
        try:
            while self.outgoing:
                del self.outgoing[: self._socket.send(self.outgoing)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise WireBroken(f"the connection was lost: {error}") from None
        if len(self.outgoing) > MOST_UNSENT:
            raise WireBroken("it does not read what it is told")
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)
        if events != self._events:
            self._selector.modify(self._socket, events, self)
            self._events = events

    def end_sending(self) -> None:
        """Nothing more will be said: the other end hears the end of it after all that was sent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def drain(self, wait_s: float) -> None:
        """Read, and forget, until the other end closes: to close with unread bytes resets the connection."""
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
        """In a forked child: close this copy without a word to the other end, or to the parent's selector."""
        self.is_open = False
        self._socket.close()

    # ---- the greeting -----------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Rank 0 begins. Raise WireBroken."""
        self.send({"word": self._own_word})

    def meet_member(self, message: Message, world: int) -> None:
        """On rank 0: believe a member that proves to be one. Raise WireBroken."""
        word, rank = message.get("word"), message.get("rank")
        proved = isinstance(word, str) and frames.is_proof(
            message.get("proof"), self._token, f"member {rank}", self._own_word, word
        )
        if not proved:
            raise WireBroken("it does not know the token")
        if type(rank) is not int or not 0 < rank < world:
            raise WireBroken(f"it says that it is rank {rank!r} of {world}")
        self.rank = rank
        self._trust()
        self.send({"proof": frames.proof(self._token, "coordinator", self._own_word, str(word))})

    def meet_coordinator(self, message: Message, rank: int) -> bool:
        """On a member: prove who we are, then believe rank 0. Return whether it is trusted now. Raise WireBroken."""
        if not self._their_word:
            word = message.get("word")
            if not isinstance(word, str) or not word:
                raise WireBroken("it does not greet as rank 0 does")
            self._their_word = word
            answer = frames.proof(self._token, f"member {rank}", word, self._own_word)
            self.send({"word": self._own_word, "rank": rank, "proof": answer})
            return False
        if not frames.is_proof(message.get("proof"), self._token, "coordinator", self._their_word, self._own_word):
            raise WireBroken("it does not know the token")
        self.rank = 0
        self._trust()
        return True

    def _trust(self) -> None:
        self.is_trusted = True
        self._decoder.largest = frames.LARGEST_FRAME


def _tune(sock: socket.socket) -> None:
    """Small messages at once; and a node that vanished without a word is noticed after a minute (tcp(7))."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
