"""The control thread of a rank: carries messages between its member, rank 0's coordinator and the connections.

There is a class for each role: `LeaderControl` on rank 0, `FollowerControl` on every other rank.

One lock protects the protocol's state. It is held for microseconds, never while something blocks, and never while the
host handles events. Sockets are touched by the control thread alone. No file is touched here: a dead file system must
not stop ranks from agreeing.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import threading
import time

from resilience.guard.agreement import frames
from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.agreement.client import Client, LinkMonitor
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.coordinator import Coordinator
    from resilience.guard.agreement.messages import Message
    from resilience.guard.gate import Gate

LAST_WORDS_S = 1.0
LONGEST_SLEEP_S = 60.0
LOST_S = 6.0
"""How long the end waits for a rank that has lost its connection: one that lives comes again within 3 s."""
UNREPORTED_S = 5.0
"""How long a rank that leaves tries to find rank 0 again, to which it has not reported its last save yet."""
MOST_FAULTS = 3
FAULT_PAUSE_S = 0.2


class Control:
    """The thread, the protocol's state and the connections of one rank, as far as they are alike in both roles.

    Methods whose description says "locked" are to be called with `changed` held.

    Args:
        on_event: gets events, from the control thread, with no lock held.
        step_s: returns how long a step takes here, in seconds.

    Attributes:
        changed: the lock around all of this, and the condition that is notified of each change.
        member: this rank's side of the protocol.
        outbox: messages of the member that were not sent yet, oldest first.
        closing: set to end the thread.
    """

    _link: Server | Client

    def __init__(
        self, gate: Gate, rank: int, on_event: Callable[[AgreementEvent], None], step_s: Callable[[], float]
    ) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.member = Member(gate, rank, frames.random_word())
        self.outbox: collections.deque[Message] = collections.deque()
        self.closing = False
        self._on_event = on_event
        self._step_s = step_s
        self._events: list[AgreementEvent] = []
        self._is_reporting = False
        self._noted: set[str] = set()
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()  # other threads wake the control thread by writing
        for end in (self._reader, self._writer):
            end.setblocking(False)

    # ---- the role ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin to listen, on rank 0."""

    def _proceed(self, now: float) -> float | None:
        """Locked. Do all that is due at `now` except for sending; return when something else is due, or None."""
        raise NotImplementedError

    def _send_outbox(self) -> None:
        """Locked. Send what can be sent."""
        raise NotImplementedError

    def _connect(self) -> None:
        """Look for rank 0, on other ranks, if it is time to."""

    def _take_events(self) -> list[AgreementEvent]:
        """Locked. The events to report now."""
        events, self._events = self._events, []
        self._is_reporting = bool(events)
        return events

    def _say_last_words(self) -> None:
        """Locked. Send what is said at the end."""

    def may_leave(self, leaving_s: float, *, is_stopped: bool, has_stepped: bool) -> bool:
        """Locked. Whether this rank may go, `leaving_s` seconds after it has said that it leaves."""
        raise NotImplementedError

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Nothing here waits for the network or a file."""
        thread = threading.Thread(target=self._run, name="resil-agreement", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be had: the training goes on without decisions
            self._shut()
            self._report(
                [AgreementEvent("broken", f"nothing can be decided: the guard's thread did not start: {error}")]
            )
        else:
            self._thread = thread

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Have the thread send what is to be sent. Safe from every thread, and when the thread has ended."""
        with contextlib.suppress(OSError):  # full: the thread will wake; closed: the thread has ended
            self._writer.send(b".")

    def end(self) -> None:
        """Wait until the thread has said its last words; not for long, since it may hang in looking for rank 0."""
        if self._thread is None:
            self._shut()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * LAST_WORDS_S)

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's. Close our copies without a word, and take no lock."""
        self._link.abandon()
        self._close_wakeup()

    def has_sent_all(self) -> bool:
        """Locked. Whether the kernel has taken everything that was to be sent here."""
        return not self.outbox and not self._link.has_unsent()

    # ---- control thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        faults = 0
        try:
            self._selector.register(self._reader, selectors.EVENT_READ, self._woken)
            self._open()
            while True:
                try:
                    if not self._turn():
                        break
                except Exception as error:
                    faults += 1
                    if faults == MOST_FAULTS:
                        raise
                    self._report([AgreementEvent("fault", f"the agreement has failed and goes on: {error!r}")])
                    time.sleep(FAULT_PAUSE_S)
        except Exception as error:  # the training goes on, without an agreement
            text = f"the agreement has failed and nothing will be decided: {error!r}"
            self._report([AgreementEvent("broken", text)])
        finally:
            with self.changed:
                with contextlib.suppress(Exception):  # the last words, whatever has failed
                    self._say_last_words()
                events = self._take_events()  # how the very last save went
            self._report(events)
            self._shut()

    def _turn(self) -> bool:
        """Do what is due and wait for the next message. Return whether there is to be another turn."""
        now = time.monotonic()
        with self.changed:
            if self.closing:
                return False
            deadlines = [self._proceed(now), self._link.next_deadline()]
            self.changed.notify_all()
            events = self._take_events()
        self._report(events)
        wait_s = min((deadline - now for deadline in deadlines if deadline is not None), default=LONGEST_SLEEP_S)
        for key, mask in self._selector.select(max(0.0, min(wait_s, LONGEST_SLEEP_S))):
            with self.changed:
                key.data(mask)
                self.changed.notify_all()
        self._connect()
        return True

    def _woken(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        self._send_outbox()

    def _report(self, events: list[AgreementEvent]) -> None:
        for event in events:
            with contextlib.suppress(Exception):  # the host's own fault, which must not end the agreement
                self._on_event(event)
        if self._is_reporting:
            with self.changed:
                self._is_reporting = False
                self.changed.notify_all()

    def _shut(self) -> None:
        with self.changed:
            self._link.close()
            self._close_wakeup()
            self.changed.notify_all()

    def _close_wakeup(self) -> None:
        self._reader.close()
        self._writer.close()
        self._selector.close()

    # ---- locked -----------------------------------------------------------------------------------------------

    def _join(self) -> list[Message]:
        """What is said first on a new connection: everything that was to be said is said again by `join`."""
        self.outbox.clear()
        return self.member.join()

    def _receive(self, message: Message) -> list[Message]:
        if message["say"] == "prepare":
            self.member.step_s = self._step_s()
        return self.member.receive(message)

    def _note(self, kind: str, text: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            self._events.append(AgreementEvent(kind, text[:300]))


class LeaderControl(Control):
    """Rank 0: listens, and runs the coordinator. Its own member needs no connection.

    Attributes:
        starts_sent: ranks that were sent what to do before the first step.
    """

    def __init__(
        self,
        gate: Gate,
        coordinator: Coordinator,
        world: int,
        *,
        listen: Callable[[], tuple[socket.socket, str]] | None,
        on_event: Callable[[AgreementEvent], None],
        step_s: Callable[[], float],
    ) -> None:
        super().__init__(gate, 0, on_event, step_s)
        self.coordinator = coordinator
        self.starts_sent: set[int] = set()
        self._world = world
        self._listen = listen
        self._to_send: collections.deque[tuple[int, Message]] = collections.deque()
        self._is_delivering = False
        self._link = self.server = Server(
            self._selector, world, receive=self._receive_of_rank, lost=self._lost_rank, note=self._note
        )

    def is_over(self, *, lost_too: bool = True) -> bool:
        """Locked. Whether every rank has obeyed, or every one not lost, and our host has handled the outcome."""
        if not self.is_alive():
            return True
        is_pending = self.coordinator.events or self._is_reporting or any(said["say"] == "done" for said in self.outbox)
        return self.coordinator.is_over(lost_too) and not is_pending

    def has_sent_all(self) -> bool:
        """See `Control`."""
        return not self._to_send and super().has_sent_all()

    def may_leave(self, leaving_s: float, *, is_stopped: bool, has_stepped: bool) -> bool:
        """See `Control`. Before the first step rank 0 stays until all ranks are told what to do: late ones ask it."""
        if not self.has_sent_all() or not self.coordinator.is_over(lost_too=leaving_s < LOST_S):
            return False
        return has_stepped or len(self.starts_sent) >= self._world - 1

    def send_later(self, said: list[tuple[int, Message]]) -> None:
        """Locked. Messages of the coordinator: the thread sends them when it is woken."""
        self._to_send.extend(said)

    def _open(self) -> None:
        with self.changed:
            for said in self._join():
                self._deliver(self.coordinator.receive(0, said, time.monotonic()))
        if self._listen is not None:
            try:
                self.server.open(*self._listen())
            except OSError as error:
                self._report([AgreementEvent("broken", f"nothing can be decided: rank 0 cannot listen: {error}")])

    def _proceed(self, now: float) -> float | None:
        self._deliver(self.coordinator.proceed(now))
        self.server.drop_slow(now)
        self._send_outbox()
        return self.coordinator.next_deadline()

    def _send_outbox(self) -> None:
        self._deliver([])
        while self.outbox:
            self._deliver(self.coordinator.receive(0, self.outbox.popleft(), time.monotonic()))

    def _take_events(self) -> list[AgreementEvent]:
        self._events += self.coordinator.events
        self.coordinator.events = []
        return super()._take_events()

    def _say_last_words(self) -> None:
        self._deliver(self.coordinator.end())

    def _deliver(self, said: list[tuple[int, Message]]) -> None:
        """Send what the coordinator says, in its order: what it says meanwhile, because a connection breaks, comes
        after."""
        self._to_send.extend(said)
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._to_send:
                rank, message = self._to_send.popleft()
                if rank == 0:
                    for answer in self._receive(message):
                        self._to_send.extend(self.coordinator.receive(0, answer, time.monotonic()))
                else:
                    self.server.send(rank, message)
                    if message["say"] == "start":
                        self.starts_sent.add(rank)
        finally:
            self._is_delivering = False

    def _receive_of_rank(self, rank: int, message: Message) -> None:
        self._deliver(self.coordinator.receive(rank, message, time.monotonic()))

    def _lost_rank(self, rank: int) -> None:
        self._deliver(self.coordinator.lost(rank, time.monotonic()))


class FollowerControl(Control):
    """Every other rank: keeps a connection to rank 0, and notices when rank 0 is gone for good.

    Args:
        leader_gone: called, locked, when rank 0 is gone for good; returns whether this rank goes on by itself.
        leader_back: called, locked, when there is a rank 0 again.
    """

    def __init__(
        self,
        gate: Gate,
        rank: int,
        monitor: LinkMonitor,
        *,
        locate: Callable[[], Address | None],
        on_event: Callable[[AgreementEvent], None],
        step_s: Callable[[], float],
        leader_gone: Callable[[str], bool],
        leader_back: Callable[[], None],
    ) -> None:
        super().__init__(gate, rank, on_event, step_s)
        self._monitor = monitor
        self._leader_gone = leader_gone
        self._leader_back = leader_back
        self._link = self.client = Client(
            self._selector, rank, locate, self._join, self._receive_of_coordinator, self._note
        )

    def may_leave(self, leaving_s: float, *, is_stopped: bool, has_stepped: bool) -> bool:
        """See `Control`. After a stop ranks stay until rank 0 hangs up, unless they have failed."""
        if self.client.is_up():
            return self.has_sent_all() and (self.member.has_failed or not is_stopped)
        return leaving_s >= UNREPORTED_S or not any(said["say"] == "done" for said in self.outbox)

    def _proceed(self, now: float) -> float | None:
        self.client.drop_slow(now)
        self._send_outbox()
        monitor = self._monitor
        monitor.check(now, self.client.is_up(), self.member)
        if monitor.is_alone:
            monitor.is_alone = not self.client.is_up()
            if not monitor.is_alone:
                self._leader_back()
        elif why := monitor.why_gone(now, self.member, is_refused=self.client.is_refused):
            monitor.is_alone = self._leader_gone(why)
            if monitor.is_alone:
                self._events.append(AgreementEvent("alone", why))
        return monitor.next_deadline()

    def _send_outbox(self) -> None:
        while self.outbox and self.client.is_up():
            self.client.send(self.outbox.popleft())

    def _connect(self) -> None:
        found = self.client.find(time.monotonic())
        if found is not None:
            with self.changed:
                self.client.adopt(*found, time.monotonic())

    def _shut(self) -> None:
        self.client.end(LAST_WORDS_S)
        super()._shut()

    def _take_events(self) -> list[AgreementEvent]:
        self._events += self._monitor.events
        self._monitor.events = []
        return super()._take_events()

    def _receive_of_coordinator(self, message: Message) -> None:
        for answer in self._receive(message):
            self.client.send(answer)
