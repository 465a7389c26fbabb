"""A member's end of its connection to rank 0, and the monitor that reports when that connection is lost."""

from __future__ import annotations

import os
import selectors
import socket

from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.agreement.connection import Connection, ConnectionBroken
from resilience.guard.agreement.messages import PROMISED, check_coordinator_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.member import Member
    from resilience.guard.agreement.messages import Message

FIRST_RETRY_S, LAST_RETRY_S = 0.05, 2.0
CONNECT_S = 5.0
GONE_S = 5.0
"""After connections to rank 0's port have been refused for this long, its process is gone. torchrun sends SIGTERM when
a rank dies, and SIGKILL 30 s later: a save must fit in between. A rank that still trains this long after rank 0's BYE
is on its own as well; most end at the same moment."""


class Client:
    """The connection of one rank to rank 0.

    Args:
        locate: returns the address of rank 0, or None while unknown. May block and may fail.
        join: returns the first messages of each new connection.
        receive: gets each well-formed message of rank 0; may raise ValueError if it is invalid.
        note: gets (kind, sentence) for anomalies.

    Attributes:
        is_refused: whether rank 0's node refused the last connection.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        rank: int,
        locate: Callable[[], Address | None],
        join: Callable[[], Iterable[Message]],
        receive: Callable[[Message], None],
        note: Callable[[str, str], None],
    ) -> None:
        self._selector = selector
        self._rank = rank
        self._locate = locate
        self._join = join
        self._receive = receive
        self._note = note
        self.is_refused = False
        self._connection: Connection | None = None
        self._address: Address | None = None
        self._known: Address | None = None  # the last working address: the file may be gone meanwhile
        self._connect_at = 0.0
        self._wait_s = FIRST_RETRY_S

    def is_up(self) -> bool:
        """Return whether a message can be sent to rank 0 now."""
        return self._connection is not None and self._connection.rank is not None

    def find(self, now: float) -> tuple[socket.socket, Address] | None:
        """Connect to rank 0 if that is due, and return what `adopt` gets. Blocks: to be called without any lock."""
        if self._connection is not None or now < self._connect_at:
            return None
        # Jitter, so that thousands of ranks do not connect at the same moment. Not from `random`: its state is the
        # training's, whose figures must not depend on when rank 0 was found.
        self._connect_at = now + self._wait_s * (0.5 + os.urandom(1)[0] / 510)
        self._wait_s = min(2 * self._wait_s, LAST_RETRY_S)
        try:
            address = self._locate() or self._known
            if address is None:
                return None
            found = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
        except (OSError, ValueError, OverflowError) as error:  # rank 0 does not listen yet, or the address is malformed
            self.is_refused = isinstance(error, ConnectionRefusedError)
            return None
        self.is_refused = False
        return found, address

    def adopt(self, sock: socket.socket, address: Address, now: float) -> None:
        """Use this connection from now on."""
        self._connection = Connection(
            sock, self._selector, address.token, now, self._take, lambda connection, why: self.close()
        )
        self._address = address

    def send(self, message: Message) -> None:
        """Send to rank 0."""
        if self._connection is not None:
            self._connection.send_or_drop(message)

    def drop_slow(self, now: float) -> None:
        """Close a connection whose handshake takes too long: to another program on an old port, or a stopped rank 0."""
        deadline = self.next_deadline()
        if self._connection is not None and deadline is not None and now >= deadline:
            self.close()

    def next_deadline(self) -> float | None:
        """Return when to call `find` or `drop_slow` (monotonic seconds)."""
        if self._connection is None:
            return self._connect_at
        return self._connection.handshake_until if self._connection.rank is None else None

    def has_unsent(self) -> bool:
        """Return whether rank 0 has not yet been sent all messages."""
        return self._connection is not None and bool(self._connection.outgoing)

    def end(self, wait_s: float) -> None:
        """Stop sending, and wait until rank 0 has read everything and closes: closing earlier could lose messages.

        Blocks: to be called without any lock.
        """
        if self._connection is not None:
            self._connection.end_sending()
            self._connection.drain(wait_s)

    def close(self) -> None:
        """End the connection; `find` makes another one later."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abandon(self) -> None:
        """In a forked child: close this copy without sending anything."""
        if self._connection is not None:
            self._connection.abandon()

    def _drop(self, connection: Connection, why: str) -> None:
        self.close()

    def _take(self, connection: Connection, message: Message) -> None:
        if connection.rank is None:
            if connection.authenticate_coordinator(message, self._rank):
                for said in self._join():
                    connection.send(said)
            return
        try:
            self._receive(check_coordinator_message(message))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._note("nonsense", f"rank 0 sent an invalid message; rank {self._rank} reconnects: {error}")
            raise ConnectionBroken("nonsense") from error
        self._known = self._address
        self._wait_s = FIRST_RETRY_S  # the handshake succeeded, and the message is valid


class LinkMonitor:
    """Reports when a rank has lost rank 0. All times are monotonic seconds.

    Each loss is reported once, and once more when a later request has to wait.

    Args:
        absent_s: report a loss after this long without rank 0.
        round_s: the same while a request of this rank waits.
        lost_s: give rank 0 up after this long without a message, even if its node does not refuse connections.

    Attributes:
        events: for the host, which removes them.
        is_alone: whether this rank now decides without rank 0.
    """

    def __init__(self, absent_s: float, round_s: float, lost_s: float = 300.0) -> None:
        self.events: list[AgreementEvent] = []
        self.is_alone = False
        self._absent_s = absent_s
        self._lost_s = lost_s
        self._round_s = min(round_s, absent_s)
        self._was_up = False
        self._since: float | None = None  # rank 0 is missing since then
        self._requested_since: float | None = None
        self._is_reported = False
        self._is_request_reported = False

    def check(self, now: float, is_up: bool, member: Member) -> None:
        """Given whether the connection is up at `now`, report a loss that lasts, and the end of a reported one."""
        if is_up or not member.may_hear_more():
            if is_up and self._is_reported and self._since is not None:
                found = "is connected to rank 0 again" if self._was_up else "has found rank 0"
                self.events.append(
                    AgreementEvent("back", f"rank {member.rank} {found}, after {now - self._since:.0f} s")
                )
            self._was_up = self._was_up or is_up
            self._since = self._requested_since = None
            self._is_reported = self._is_request_reported = False
            return
        if self._since is None:
            self._since = now
        if not member.requests:
            self._requested_since = None
        elif self._requested_since is None:
            self._requested_since = now
        due = self.next_deadline()
        if due is not None and now >= due and not self.is_alone:
            self._report(member, now - self._since)

    def why_gone(self, now: float, member: Member, *, is_refused: bool) -> str:
        """Return why rank 0 is permanently gone, as a sentence; empty while it may return. Call `check` before.

        `is_refused`: the node of rank 0 refuses connections. Silence alone proves nothing for a long time: the network
        between the nodes may be down, and a rank that has promised to wait then keeps its promise.
        """
        lost_s = 0.0 if self._since is None else now - self._since
        if self._since is None or not self._was_up:
            return ""
        if member.leader_left:
            return "rank 0 has ended" if lost_s >= GONE_S else ""
        if is_refused and lost_s >= GONE_S:
            return f"rank 0 is gone: its node has refused connections for {lost_s:.0f} s"
        if lost_s >= self._lost_s and member.state != PROMISED:
            return f"rank 0 has been unreachable for {lost_s:.0f} s"
        return ""

    def next_deadline(self) -> float | None:
        """Return when `check` may have something to report, or None."""
        if self._since is None or self._is_request_reported or self.is_alone:
            return None
        due = [] if self._is_reported else [self._since + self._absent_s]
        if self._requested_since is not None:
            due.append(self._requested_since + self._round_s)
        return min(due, default=None)

    def _report(self, member: Member, lost_s: float) -> None:
        self._is_reported = True
        self._is_request_reported = bool(member.requests)
        state = "has had no connection to rank 0" if self._was_up else "has not found rank 0"
        text = f"rank {member.rank} {state} for {lost_s:.0f} s: no decision is possible meanwhile"
        whys = [request.why for request in member.requests.values()]
        if whys:
            text += f". Waiting: {whys[0]}" + (f" (and {len(whys) - 1} more)" if len(whys) > 1 else "")
        self.events.append(AgreementEvent("lost", text))
