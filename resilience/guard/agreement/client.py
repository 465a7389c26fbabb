"""A member's end of its connection to rank 0, and the monitor that reports when that connection is lost."""

from __future__ import annotations

import random
import selectors
import socket

from resilience.guard.agreement.base import Heard
from resilience.guard.agreement.connection import HANDSHAKE_S, Wire, WireBroken
from resilience.guard.agreement.messages import PROMISED, check_coordinator_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.member import Member
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


GONE_S = 5.0
"""When nobody has listened for so long where rank 0 did, its process is no more. torchrun sends SIGTERM when a rank
dies, and SIGKILL 30 s later: there must be time for a save in between. A rank that still trains so long after rank 0
has said good-bye is on its own as well; most end in the same moment."""


class Contact:
    """A rank's connection to rank 0, as people see it. All times are monotonic seconds.

    Each time that the connection is lost they hear of it once, and once more when a wish comes later and waits.

    Args:
        absent_s: after how long without rank 0 people are told.
        round_s: after how long when something is wished here, which nobody hears.
        lost_s: after how long without a word rank 0 is given up although nothing tells what has become of it.

    Attributes:
        heard: news for the host, which takes them away.
        is_alone: whether this rank does without rank 0 now.
    """

    def __init__(self, absent_s: float, round_s: float, lost_s: float = 300.0) -> None:
        self.heard: list[Heard] = []
        self.is_alone = False
        self._absent_s = absent_s
        self._lost_s = lost_s
        self._round_s = min(round_s, absent_s)
        self._was_up = False
        self._since: float | None = None  # rank 0 is missing since then
        self._wishing_since: float | None = None
        self._is_told = False
        self._is_wish_told = False

    def look(self, now: float, is_up: bool, member: Member) -> None:
        """Whether the connection is there at `now`, and what the rank waits for."""
        if is_up or not member.may_hear_more():
            if is_up and self._is_told and self._since is not None:
                found = "is connected to rank 0 again" if self._was_up else "has found rank 0"
                self.heard.append(Heard("back", f"rank {member.rank} {found}, after {now - self._since:.0f} s"))
            self._was_up = self._was_up or is_up
            self._since = self._wishing_since = None
            self._is_told = self._is_wish_told = False
            return
        if self._since is None:
            self._since = now
        if not member.wishes:
            self._wishing_since = None
        elif self._wishing_since is None:
            self._wishing_since = now
        due = self.next_deadline()
        if due is not None and now >= due and not self.is_alone:
            self._tell(member, now - self._since)

    def gone(self, now: float, member: Member, *, is_refused: bool) -> str:
        """Why rank 0 is gone for good, as a sentence; empty while it may come again. To be asked after `look`.

        `is_refused`: its node answers, and says that nobody listens. Silence alone tells nothing for a long time: the
        network between the nodes may be down, and a rank that has promised to wait keeps its promise then.
        """
        lost_s = 0.0 if self._since is None else now - self._since
        if self._since is None or not self._was_up:
            return ""
        if member.leader_left:
            return "rank 0 has ended" if lost_s >= GONE_S else ""
        if is_refused and lost_s >= GONE_S:
            return f"rank 0 is gone: nobody has listened there for {lost_s:.0f} s"
        if lost_s >= self._lost_s and member.state != PROMISED:
            return f"rank 0 has not been reached for {lost_s:.0f} s"
        return ""

    def next_deadline(self) -> float | None:
        """When `look` may have something to say, or None."""
        if self._since is None or self._is_wish_told or self.is_alone:
            return None
        due = [] if self._is_told else [self._since + self._absent_s]
        if self._wishing_since is not None:
            due.append(self._wishing_since + self._round_s)
        return min(due, default=None)

    def _tell(self, member: Member, lost_s: float) -> None:
        self._is_told = True
        self._is_wish_told = bool(member.wishes)
        what = "has had no connection to rank 0" if self._was_up else "has not found rank 0"
        text = f"rank {member.rank} {what} for {lost_s:.0f} s: nothing can be decided until it is "
        text += "back" if self._was_up else "there"
        whys = [request.why for request in member.wishes.values()]
        if whys:
            text += f". This waits: {whys[0]}" + (f" (and {len(whys) - 1} more)" if len(whys) > 1 else "")
        self.heard.append(Heard("lost", text))
