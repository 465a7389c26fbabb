"""A member's end of its connection to rank 0: found, greeted, lost and found again. Used by the control thread."""

from __future__ import annotations

import random
import selectors
import socket

from resilience.guard.agreement.messages import check_coordinator_message
from resilience.guard.agreement.wire import HANDSHAKE_S, Address, Wire, WireBroken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resilience.guard.agreement.messages import Message

FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
CONNECT_S = 5.0


class Uplink:
    """The connection of one rank to rank 0.

    Args:
        locate: tells where rank 0 listens, or None while nobody knows. May block and may fail.
        joining: what to say first on each new connection.
        receive: gets each message of rank 0, checked in form; may raise ValueError if it means nothing.
        note: gets (kind, sentence) for what is odd.

    Attributes:
        is_refused: whether rank 0's node said at the last try that nobody listens there.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        rank: int,
        locate: Callable[[], Address | None],
        joining: Callable[[], Iterable[Message]],
        receive: Callable[[Message], None],
        note: Callable[[str, str], None],
    ) -> None:
        self._selector = selector
        self._rank = rank
        self._locate = locate
        self._joining = joining
        self._receive = receive
        self._note = note
        self.is_refused = False
        self._wire: Wire | None = None
        self._address: Address | None = None
        self._known: Address | None = None  # where rank 0 was last met: the file may be gone meanwhile
        self._connect_at = 0.0
        self._wait_s = FIRST_RETRY_S

    def is_up(self) -> bool:
        """Whether rank 0 hears what is said now."""
        return self._wire is not None and self._wire.is_trusted

    def is_connected(self) -> bool:
        """Whether there is a connection, greeted or not."""
        return self._wire is not None

    def find(self, now: float) -> tuple[socket.socket, Address] | None:
        """Look for rank 0 if it is time to. Blocks: to be called without any lock; then `adopt` what it gives."""
        if self._wire is not None or now < self._connect_at:
            return None
        # Half of the wait is by chance, so that thousands of ranks do not come again in the same moment.
        self._connect_at = now + self._wait_s * random.uniform(0.5, 1.0)
        self._wait_s = min(2 * self._wait_s, LAST_RETRY_S)
        try:
            address = self._locate() or self._known
            if address is None:
                return None
            found = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        except (OSError, ValueError, OverflowError) as error:  # nobody there yet; or an address that is none
            self.is_refused = isinstance(error, ConnectionRefusedError)
            return None
        self.is_refused = False
        return found, address

    def adopt(self, sock: socket.socket, address: Address, now: float) -> None:
        """This is the connection from now on."""
        self._wire = Wire(sock, self._selector, address.token, now)
        self._address = address

    def serve(self, wire: Wire, mask: int) -> None:
        """Something can be read or written."""
        if wire is not self._wire:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                wire.flush()
            if mask & selectors.EVENT_READ:
                for message in wire.read():
                    self._take(wire, message)
        except WireBroken:
            self.drop()
        except Exception:  # a fault of our own: what else came with that message is lost, so we join again
            self.drop()
            raise

    def say(self, message: Message) -> None:
        """Send to rank 0."""
        if self._wire is None:
            return
        try:
            self._wire.send(message)
        except WireBroken:
            self.drop()

    def sweep(self, now: float) -> None:
        """Give up on somebody who greets too slowly: a stranger on an old port, or a rank 0 that is stopped."""
        if self._wire is not None and not self._wire.is_trusted and now - self._wire.since >= HANDSHAKE_S:
            self.drop()

    def next_deadline(self) -> float | None:
        """When `find` or `sweep` has something to do (monotonic seconds)."""
        if self._wire is None:
            return self._connect_at
        return None if self._wire.is_trusted else self._wire.since + HANDSHAKE_S

    def has_unsent(self) -> bool:
        """Whether rank 0 has not yet been sent what was said."""
        return self._wire is not None and bool(self._wire.outgoing)

    def end(self, wait_s: float) -> None:
        """Say no more, and wait until rank 0 has read everything and closes: a close before that could lose it.

        Blocks: to be called without any lock.
        """
        if self._wire is not None:
            self._wire.end_sending()
            self._wire.drain(wait_s)

    def drop(self) -> None:
        """End the connection; another is made after a while."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def abandon(self) -> None:
        """In a forked child: close this copy and say nothing."""
        if self._wire is not None:
            self._wire.abandon()

    def _take(self, wire: Wire, message: Message) -> None:
        if not wire.is_trusted:
            if wire.meet_coordinator(message, self._rank):
                for said in self._joining():
                    wire.send(said)
            return
        try:
            self._receive(check_coordinator_message(message))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._note("nonsense", f"rank 0 says what no rank 0 says; rank {self._rank} connects again: {error}")
            raise WireBroken("nonsense") from error
        self._known = self._address
        self._wait_s = FIRST_RETRY_S  # it is one of us, and it understands us
