"""Rank 0's end of all connections: who may come in, who is who, and who is thrown out. Used by the control thread.

Whoever can reach the port may connect; nothing that a stranger does may cost more than a closed connection: no
exception, no memory, no busy loop, no place that a rank needs.
"""

from __future__ import annotations

import contextlib
import selectors
import socket

from resilience.guard.agreement.connection import HANDSHAKE_S, Wire, WireBroken
from resilience.guard.agreement.messages import check_member_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.messages import Message

SPARE_STRANGERS = 64
"""Connections that have not proved to be ours, beyond one per rank: when there are more, the oldest goes."""
ACCEPTS_AT_ONCE = 256
NO_DESCRIPTORS_S = 1.0
"""How long nobody is let in when the process has no descriptor left: the listener stays readable all the while."""


class Hub:
    """The connections of rank 0.

    Args:
        receive: gets each message of a rank, checked in form; may raise ValueError if it means nothing.
        lost: hears that the connection of a rank has ended.
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
        self._wires: dict[int, Wire] = {}
        self._strangers: dict[Wire, None] = {}  # the oldest first
        self._closed_until = 0.0

    def open(self, listener: socket.socket, token: str) -> None:
        """Let ranks in."""
        listener.setblocking(False)
        self._listener, self._token = listener, token
        self._selector.register(listener, selectors.EVENT_READ, self)

    def serve(self, wire: Wire | None, mask: int, now: float) -> None:
        """Something can be read or written: on a wire, or, without one, at the door."""
        if wire is None:
            self._accept(now)
            return
        if not wire.is_open:
            return  # closed since the selector looked
        try:
            if mask & selectors.EVENT_WRITE:
                wire.flush()
            if mask & selectors.EVENT_READ:
                for message in wire.read():
                    self._take(wire, message)
        except WireBroken as error:
            self._drop(wire, str(error))
        except Exception:  # a fault of our own: what else came with that message is lost, so the rank joins again
            self._drop(wire, "a fault")
            raise

    def say(self, rank: int, message: Message) -> None:
        """Send to a rank, if it is there; if not it will hear what it needs when it joins."""
        wire = self._wires.get(rank)
        if wire is None:
            return
        try:
            wire.send(message)
        except WireBroken as error:
            self._drop(wire, str(error))

    def sweep(self, now: float) -> None:
        """Drop who greets too slowly, and open the door again."""
        for wire in [wire for wire in self._strangers if now - wire.since >= HANDSHAKE_S]:
            self._drop(wire, f"it has not proved in {HANDSHAKE_S:g} s that it belongs to the run")
        if self._closed_until and now >= self._closed_until and self._listener is not None:
            self._closed_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ, self)

    def next_deadline(self) -> float | None:
        """When `sweep` has something to do (monotonic seconds)."""
        oldest = next(iter(self._strangers), None)
        deadlines = [oldest.since + HANDSHAKE_S] if oldest is not None else []
        if self._closed_until:
            deadlines.append(self._closed_until)
        return min(deadlines, default=None)

    def has_unsent(self) -> bool:
        """Whether somebody has not yet been sent what was said."""
        return any(wire.outgoing for wire in self._wires.values())

    def close(self) -> None:
        """End all connections; what was sent arrives."""
        for wire in (*self._wires.values(), *self._strangers):
            wire.end_sending()
            wire.close()
        self._wires.clear()
        self._strangers.clear()
        if self._listener is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def abandon(self) -> None:
        """In a forked child: close these copies and say nothing."""
        for wire in (*self._wires.values(), *self._strangers):
            wire.abandon()
        if self._listener is not None:
            self._listener.close()

    # ---- within -----------------------------------------------------------------------------------------------

    def _accept(self, now: float) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self._listener is None:
                return
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._close_door(now, error)
                return
            if len(self._strangers) >= SPARE_STRANGERS + self._world:
                self._drop(next(iter(self._strangers)), "there are too many strangers")
            wire = Wire(sock, self._selector, self._token, now)
            self._strangers[wire] = None
            try:
                wire.greet()
            except WireBroken as error:
                self._drop(wire, str(error))

    def _close_door(self, now: float, error: OSError) -> None:
        """No descriptor, or no memory, for one more (accept(2)): make room, and look again a little later."""
        self._note("door", f"rank 0 can let nobody in at the moment: {error}")
        for wire in [wire for wire in self._strangers if now - wire.since >= NO_DESCRIPTORS_S]:
            self._drop(wire, "its place is needed")
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._closed_until = now + NO_DESCRIPTORS_S

    def _take(self, wire: Wire, message: Message) -> None:
        if not wire.is_open:
            return  # what came before this message has ended the connection
        if not wire.is_trusted:
            wire.meet_member(message, self._world)
            self._strangers.pop(wire, None)
            rank = wire.rank
            assert rank is not None
            former = self._wires.get(rank)
            self._wires[rank] = wire  # a rank that comes again: the former connection is half-open or of a dead life
            if former is not None:
                self._drop(former, "the rank has come again")
            return
        assert wire.rank is not None
        try:
            self._receive(wire.rank, check_member_message(message))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            self._note("nonsense", f"rank {wire.rank} says what no rank says, and must join again: {error}")
            raise WireBroken("nonsense") from error

    def _drop(self, wire: Wire, why: str) -> None:
        is_stranger = wire in self._strangers
        self._strangers.pop(wire, None)
        wire.close()
        if is_stranger:
            self._note("stranger", f"a connection that is not of this run was closed: {why}")
        elif wire.rank is not None and self._wires.get(wire.rank) is wire:
            del self._wires[wire.rank]
            self._lost(wire.rank)
