"""The agreement over TCP: one control thread per rank, and on rank 0 the coordinator beside it.

No file is touched here: a dead file system must not stop ranks from agreeing. `locate` tells where rank 0 listens.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import threading
import time

from resilience.errors import AgreementLost
from resilience.guard.agreement import frames
from resilience.guard.agreement.coordinator import Coordinator, Heard
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import check_coordinator_message, check_member_message
from resilience.guard.decision import OBEYED, Decision, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.messages import Message
    from resilience.guard.gate import Gate

HANDSHAKE_S = 10.0
MOST_STRANGERS = 64
"""How many connections may be open that have not proved that they know the token."""
RETRY_S = (0.05, 2.0)
LOST_S = 30.0
"""How long the end waits for a rank that has lost its connection: it may come again."""


class Address:
    """Where rank 0 listens, and the token that proves that one belongs to the run."""

    __slots__ = ("host", "port", "token")

    def __init__(self, host: str, port: int, token: str) -> None:
        self.host = host
        self.port = port
        self.token = token


class _Wire:
    """One connection: what is to be sent, and how far the handshake is."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.socket = sock
        self.decoder = frames.Decoder()
        self.outgoing = bytearray()
        self.since = now
        self.own_word = frames.random_word()
        self.their_word = ""
        self.is_trusted = False
        self.rank: int | None = None


class NetworkAgreement:
    """All ranks of a training, over TCP.

    Raises AgreementLost from `arrive` when a rank has promised to wait and rank 0 says nothing for `lost_s` seconds.
    """

    def __init__(
        self,
        gate: Gate,
        rank: int,
        world: int,
        *,
        locate: Callable[[], Address | None],
        listen: Callable[[], tuple[socket.socket, str]] | None,
        hear: Callable[[Heard], None],
        round_s: float = 10.0,
        lost_s: float = 300.0,
        skew_steps: int = 16,
        absent_s: float = 60.0,
    ) -> None:
        self._gate = gate
        self._rank = rank
        self._world = world
        self._locate = locate
        self._listen = listen
        self._hear = hear
        self._lost_s = lost_s
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._member = Member(gate, rank, frames.random_word())
        self._coordinator: Coordinator | None = None
        if rank == 0:
            self._coordinator = Coordinator(world, round_s=round_s, skew_steps=skew_steps, absent_s=absent_s)
        self._outbox: collections.deque[Message] = collections.deque()  # of the member, while it is not connected
        self._wires: dict[int, _Wire] = {}  # of rank 0, by rank
        self._strangers: set[_Wire] = set()
        self._uplink: _Wire | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        self._token = ""
        self._listener: socket.socket | None = None
        self._connect_at = 0.0
        self._connect_wait_s = RETRY_S[0]
        self._is_telling = False
        self._closing = False
        self._left = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, on rank 0, or to look for rank 0."""
        if self._listen is not None:
            self._listener, self._token = self._listen()
            self._listener.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="resil-agreement", daemon=True)
        self._thread.start()

    def wish(self, request: Request) -> None:
        """Ask all ranks for something. Never waits for the network."""
        with self._lock:
            self._say(self._member.wish(request))
        self._wake()

    def decide_start(self, decision: Decision) -> None:
        """Rank 0 tells all ranks what to do before the first step."""
        with self._lock:
            if self._coordinator is not None:
                self._deliver(self._coordinator.decide_start(decision))
                self._member.start = self._coordinator.start
                self._changed.notify_all()
        self._wake()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """What rank 0 has said about the start, or None if it said nothing in time."""
        with self._lock:
            self._changed.wait_for(lambda: self._member.start is not None, timeout_s)
            return self._member.start

    # ---- training thread --------------------------------------------------------------------------------------

    def arrive(self) -> Decision:
        """The training has done a step that reached the limit. May wait for rank 0, and raise AgreementLost."""
        return self._wait(self._member.arrive)

    def arrive_at_poll(self) -> Decision:
        """The same for a poll."""
        return self._wait(self._member.arrive_at_poll)

    def finish(self, outcome: str, seconds: float) -> None:
        """The last decision has been obeyed: tell rank 0."""
        with self._lock:
            self._say(self._member.finish(outcome, seconds))
            self._member.restore()
        self._wake()

    def restore(self) -> None:
        """Set the limits to what the agreement demands."""
        with self._lock:
            self._member.restore()

    def resumed(self) -> None:
        """The counters were set anew: join again, as one who has promised nothing."""
        with self._lock:
            self._member = Member(self._gate, self._rank, frames.random_word())
            self._gate.open()
            if self._coordinator is not None or self._uplink is not None:
                self._say(self._member.join())
        self._wake()

    def outlast(self, wait_s: float) -> None:
        """Rank 0 stays until every rank has obeyed the last verdict, at most `wait_s` seconds, and hears how it went.

        For a rank whose connection is lost nobody waits longer than `LOST_S`.
        """
        with self._lock:
            if self._coordinator is not None and not self._changed.wait_for(self._is_over, min(wait_s, LOST_S)):
                self._changed.wait_for(lambda: self._is_over(lost_too=False), max(0.0, wait_s - LOST_S))

    def leave(self, wait_s: float) -> None:
        """The training is over. Return when what was said has been sent, after at most `wait_s` seconds.

        After a stop, ranks stay until rank 0 hangs up: launchers (torchrun, `srun --kill-on-bad-exit`) end all ranks
        once the first one has exited with 75, and some may still be saving.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._say(self._member.finish(OBEYED, 0.0))
            self._say([{"say": "leave"}])
            self._left = True
        self._wake()
        with self._lock:
            self._changed.wait_for(self._may_go, wait_s)
            self._closing = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=min(wait_s, LOST_S))

    def forget(self) -> None:
        """In a forked child: the connections are the parent's. Close our copies without a word."""
        for wire in (*self._wires.values(), *self._strangers, self._uplink):
            if wire is not None:
                with contextlib.suppress(OSError):
                    wire.socket.close()
        for end in (self._listener, self._wake_read, self._wake_write):
            if end is not None:
                end.close()
        self._selector.close()

    def _wait(self, arrive: Callable[[], Decision | None]) -> Decision:
        with self._lock:
            deadline = time.monotonic() + self._lost_s
            while True:
                decision = arrive()
                if decision is not None:
                    return decision
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AgreementLost(
                        f"rank {self._rank} waits at step {self._gate.count} and has heard nothing from rank 0 "
                        f"for {self._lost_s:g} s",
                        hint="rank 0 or the network between the nodes is gone; the next job resumes from the last save",
                    )
                self._changed.wait(min(left, 1.0))

    # ---- control thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._selector.register(self._wake_read, selectors.EVENT_READ, None)
            if self._listener is not None:
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            if self._coordinator is not None:
                with self._lock:
                    self._say(self._member.join())
            while True:
                with self._lock:
                    if self._closing:
                        break
                    self._proceed(time.monotonic())
                    timeout = self._timeout(time.monotonic())
                    news = self._take_news()
                self._tell(news)
                for key, mask in self._selector.select(timeout):
                    self._serve(key.fileobj, key.data, mask)
                if self._rank and self._uplink is None and not self._left:
                    self._connect()
            with self._lock:
                news = self._take_news()  # how the very last save went
            self._tell(news)
        except Exception as error:  # the training goes on, without an agreement
            self._hear(Heard("broken", f"the agreement has failed and nothing will be decided: {error!r}"))
        finally:
            self._shut()

    def _take_news(self) -> list[Heard]:
        if self._coordinator is None or not self._coordinator.heard:
            return []
        news, self._coordinator.heard = self._coordinator.heard, []
        self._is_telling = True
        return news

    def _tell(self, news: list[Heard]) -> None:
        for heard in news:
            self._hear(heard)
        if news:
            with self._lock:
                self._is_telling = False
                self._changed.notify_all()

    def _proceed(self, now: float) -> None:
        if self._coordinator is not None:
            self._deliver(self._coordinator.proceed(now))
            for wire in [wire for wire in self._strangers if now - wire.since > HANDSHAKE_S]:
                self._drop(wire)
        self._changed.notify_all()

    def _timeout(self, now: float) -> float:
        if self._rank and self._uplink is None:
            return max(0.0, self._connect_at - now)
        deadline = self._coordinator.next_deadline() if self._coordinator is not None else None
        return max(0.0, min(60.0, deadline - now)) if deadline is not None else 60.0

    def _serve(self, ready: object, wire: _Wire | None, mask: int) -> None:
        if ready is self._wake_read:
            with contextlib.suppress(BlockingIOError):
                while self._wake_read.recv(4096):
                    pass
            with self._lock:
                self._flush_outbox()
        elif ready is self._listener:
            self._accept()
        elif wire is not None:
            with self._lock:
                if mask & selectors.EVENT_WRITE:
                    self._flush(wire)
                if mask & selectors.EVENT_READ and not wire.socket._closed:  # type: ignore[attr-defined]
                    self._read(wire)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        with self._lock:
            if len(self._strangers) >= MOST_STRANGERS + self._world:
                sock.close()
                return
            wire = self._new_wire(sock)
            self._strangers.add(wire)
            self._send(wire, {"word": wire.own_word})

    def _new_wire(self, sock: socket.socket) -> _Wire:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A node that vanished without a word is noticed after about a minute (tcp(7)).
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        wire = _Wire(sock, time.monotonic())
        self._selector.register(sock, selectors.EVENT_READ, wire)
        return wire

    def _connect(self) -> None:
        now = time.monotonic()
        if now < self._connect_at:
            return
        self._connect_at = now + self._connect_wait_s
        self._connect_wait_s = min(2 * self._connect_wait_s, RETRY_S[1])
        address = self._locate()
        if address is None:
            return
        try:
            sock = socket.create_connection((address.host, address.port), timeout=5.0)
        except OSError:
            return
        with self._lock:
            self._token = address.token
            self._uplink = self._new_wire(sock)

    def _read(self, wire: _Wire) -> None:
        try:
            data = wire.socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(wire)
            return
        try:
            for message in wire.decoder.feed(data):
                if wire.is_trusted:
                    self._receive(wire, message)
                elif self._coordinator is not None:
                    self._meet_member(wire, message)
                else:
                    self._meet_coordinator(wire, message)
        except (frames.BadFrame, ValueError, TypeError):
            self._drop(wire)  # not one of us, or broken: the connection ends, and a member of ours comes again

    def _meet_member(self, wire: _Wire, message: Message) -> None:
        word = message.get("word")
        if not isinstance(word, str) or not frames.is_proof(
            message.get("proof"), self._token, "member", wire.own_word, word
        ):
            raise ValueError("no proof")
        wire.is_trusted = True
        self._send(wire, {"proof": frames.proof(self._token, "coordinator", wire.own_word, word)})

    def _meet_coordinator(self, wire: _Wire, message: Message) -> None:
        if not wire.their_word:
            wire.their_word = str(message["word"]) if "word" in message else ""
            answer = frames.proof(self._token, "member", wire.their_word, wire.own_word)
            self._send(wire, {"word": wire.own_word, "proof": answer})
            return
        if not frames.is_proof(message.get("proof"), self._token, "coordinator", wire.their_word, wire.own_word):
            raise ValueError("no proof")
        wire.is_trusted = True
        self._connect_wait_s = RETRY_S[0]
        self._outbox.clear()  # wishes are said again by `join`
        for said in self._member.join():
            self._send(wire, said)
        if self._left:
            self._send(wire, {"say": "leave"})

    def _receive(self, wire: _Wire, message: Message) -> None:
        now = time.monotonic()
        if self._coordinator is None:
            for answer in self._member.receive(check_coordinator_message(message)):
                self._send(wire, answer)
        else:
            checked = check_member_message(message)
            if wire.rank is None:
                if checked["say"] != "join" or not 0 < checked["rank"] < self._world:
                    raise ValueError("a member joins first")
                wire.rank = checked["rank"]
                self._strangers.discard(wire)
                former = self._wires.get(wire.rank)
                self._wires[wire.rank] = wire
                if former is not None:
                    self._drop(former)
            self._deliver(self._coordinator.receive(wire.rank, checked, now))
        self._changed.notify_all()

    # Everything below is called with the lock.

    def _say(self, messages: list[Message]) -> None:
        """What the member of this rank says: to the coordinator beside it, or over the wire."""
        self._outbox.extend(messages)

    def _flush_outbox(self) -> None:
        while self._outbox:
            if self._coordinator is not None:
                self._deliver(self._coordinator.receive(0, self._outbox.popleft(), time.monotonic()))
            elif self._uplink is not None and self._uplink.is_trusted:
                self._send(self._uplink, self._outbox.popleft())
            else:
                break

    def _deliver(self, said: list[tuple[int, Message]]) -> None:
        for rank, message in said:
            if rank == 0:
                self._outbox.extend(self._member.receive(message))
                self._flush_outbox()
            elif rank in self._wires:
                self._send(self._wires[rank], message)
        self._changed.notify_all()

    def _send(self, wire: _Wire, message: Message) -> None:
        wire.outgoing += frames.encode(message)
        self._flush(wire)

    def _flush(self, wire: _Wire) -> None:
        try:
            while wire.outgoing:
                del wire.outgoing[: wire.socket.send(wire.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(wire)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.outgoing else 0)
        with contextlib.suppress(KeyError, ValueError):
            if self._selector.get_key(wire.socket).events != events:
                self._selector.modify(wire.socket, events, wire)

    def _drop(self, wire: _Wire) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(wire.socket)
        wire.socket.close()
        self._strangers.discard(wire)
        if wire is self._uplink:
            self._uplink = None
            self._connect_at = time.monotonic() + self._connect_wait_s
        elif wire.rank is not None and self._wires.get(wire.rank) is wire:
            del self._wires[wire.rank]
            if self._coordinator is not None:
                self._deliver(self._coordinator.lost(wire.rank, time.monotonic()))
        self._changed.notify_all()

    def _is_over(self, lost_too: bool = True) -> bool:
        """On rank 0: whether every rank has obeyed, and our host has heard of it."""
        assert self._coordinator is not None
        return self._coordinator.is_over(lost_too) and not self._coordinator.heard and not self._is_telling

    def _may_go(self) -> bool:
        if self._outbox:
            return False
        if self._coordinator is not None:
            return self._coordinator.is_over() and not any(wire.outgoing for wire in self._wires.values())
        return self._uplink is None or (self._member.stopped is None and not self._uplink.outgoing)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_write.send(b".")

    def _shut(self) -> None:
        with self._lock:
            for wire in (*self._wires.values(), *self._strangers, self._uplink):
                if wire is not None:
                    # First the end of what we say, so that what was said arrives even if more was on its way to us.
                    with contextlib.suppress(OSError):
                        wire.socket.shutdown(socket.SHUT_WR)
                    wire.socket.close()
            for end in (self._listener, self._wake_read, self._wake_write):
                if end is not None:
                    end.close()
            self._selector.close()
            self._changed.notify_all()
