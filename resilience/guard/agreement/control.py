"""The control thread of a rank: carries messages between this rank's member, rank 0's coordinator and the wires.

One lock is around the protocol's state. It is held for microseconds, never while something blocks, and never while
the host hears news. Sockets are touched by the control thread alone. No file is touched here: a dead file system must
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
from resilience.guard.agreement.base import Heard
from resilience.guard.agreement.client import Contact, Uplink
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.server import Hub

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.messages import Message
    from resilience.guard.gate import Gate


class Wakeup:
    """Becomes readable when somebody rings.

    Attributes:
        ear: what to wait for.
    """

    def __init__(self) -> None:
        self.ear, self._bell = socket.socketpair()
        for end in (self.ear, self._bell):
            end.setblocking(False)

    def ring(self) -> None:
        """Wake the thread. Safe from every thread, and when it is over."""
        with contextlib.suppress(OSError):  # full: it will wake; closed: nobody is there
            self._bell.send(b".")

    def heard(self) -> None:
        """Make it quiet again."""
        with contextlib.suppress(BlockingIOError):
            while self.ear.recv(4096):
                pass

    def close(self) -> None:
        """Nobody rings any more."""
        self.ear.close()
        self._bell.close()


LAST_WORDS_S = 1.0
LONGEST_SLEEP_S = 60.0
MOST_FAULTS = 3
FAULT_PAUSE_S = 0.2


class Control:
    """The thread, the protocol's state and the connections of one rank.

    Methods whose description says "locked" are to be called with `changed` held.

    Attributes:
        changed: the lock around all of this, and what is told when something changed.
        member: this rank's side of the protocol.
        coordinator: rank 0's; None on the others.
        uplink: a member's connection to rank 0; None on rank 0.
        contact: what people hear of that connection; of no use on rank 0.
        outbox: what the member says and nobody has heard yet, oldest first.
        starts_told: ranks that were told what to do before the first step.
        closing: set to end the thread.
    """

    def __init__(
        self,
        gate: Gate,
        rank: int,
        *,
        coordinator: Coordinator | None,
        contact: Contact,
        world: int,
        locate: Callable[[], Address | None],
        listen: Callable[[], tuple[socket.socket, str]] | None,
        hear: Callable[[Heard], None],
        step_s: Callable[[], float],
        leader_gone: Callable[[str], bool],
        leader_back: Callable[[], None],
    ) -> None:
        """`leader_gone` is called, locked, when rank 0 is gone for good, and returns whether this rank goes on by
        itself; `leader_back` when there is one again."""
        self.changed = threading.Condition(threading.Lock())
        self.member = Member(gate, rank, frames.random_word())
        self.coordinator = coordinator
        self.contact = contact
        self.uplink: Uplink | None = None
        self.outbox: collections.deque[Message] = collections.deque()
        self.starts_told: set[int] = set()
        self.closing = False
        self._listen = listen
        self._hear = hear
        self._step_s = step_s
        self._leader_gone = leader_gone
        self._leader_back = leader_back
        self._letters: collections.deque[tuple[int, Message]] = collections.deque()  # of the coordinator
        self._is_delivering = False
        self._news: list[Heard] = []
        self._is_telling = False
        self._noted: set[str] = set()
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        self._hub: Hub | None = None
        self._side: Hub | Uplink
        if coordinator is not None:
            hub = Hub(self._selector, world, receive=self._heard_rank, lost=self._lost_rank, note=self._note)
            self._side = self._hub = hub
        else:
            uplink = Uplink(self._selector, rank, locate, self._joining, self._heard_coordinator, self._note)
            self._side = self.uplink = uplink

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Nothing here waits for the network or a file."""
        thread = threading.Thread(target=self._run, name="resil-agreement", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be had: the training goes on without decisions
            self._shut()
            self._tell([Heard("broken", f"nothing can be decided: the guard's thread did not start: {error}")])
        else:
            self._thread = thread

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """There is something to be said."""
        self._wakeup.ring()

    def end(self) -> None:
        """Wait until the thread has said its last words; not for long, since it may hang in looking for rank 0."""
        if self._thread is None:
            self._shut()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * LAST_WORDS_S)

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's. Close our copies without a word, and take no lock."""
        self._side.abandon()
        self._wakeup.close()
        self._selector.close()

    def is_over(self, *, lost_too: bool = True) -> bool:
        """Locked. On rank 0: whether every rank has obeyed, or every one not lost, and our host has heard of it."""
        if self.coordinator is None or not self.is_alive():
            return True
        is_untold = self.coordinator.heard or self._is_telling or any(said["say"] == "done" for said in self.outbox)
        return self.coordinator.is_over(lost_too) and not is_untold

    def has_said_all(self) -> bool:
        """Locked. Whether the kernel has taken everything that was to be said here."""
        return not self.outbox and not self._letters and not self._side.has_unsent()

    def send_later(self, said: list[tuple[int, Message]]) -> None:
        """Locked. What the coordinator says to ranks: the thread sends it when it is woken."""
        self._letters.extend(said)

    # ---- control thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        faults = 0
        try:
            self._open()
            while True:
                try:
                    if not self._turn():
                        break
                except Exception as error:
                    faults += 1
                    if faults == MOST_FAULTS:
                        raise
                    self._tell([Heard("fault", f"the agreement has failed and goes on: {error!r}")])
                    time.sleep(FAULT_PAUSE_S)
        except Exception as error:  # the training goes on, without an agreement
            self._tell([Heard("broken", f"the agreement has failed and nothing will be decided: {error!r}")])
        finally:
            with self.changed:
                if self.coordinator is not None:
                    with contextlib.suppress(Exception):  # the last words, whatever has failed
                        self._deliver(self.coordinator.end())
                news = self._take_news()  # how the very last save went
            self._tell(news)
            if self.uplink is not None:
                self.uplink.end(LAST_WORDS_S)
            self._shut()

    def _open(self) -> None:
        self._selector.register(self._wakeup.ear, selectors.EVENT_READ, None)
        if self.coordinator is None:
            return
        with self.changed:
            for said in self._joining():
                self._deliver(self.coordinator.receive(0, said, time.monotonic()))
        if self._listen is not None and self._hub is not None:
            try:
                self._hub.open(*self._listen())
            except OSError as error:
                self._tell([Heard("broken", f"nothing can be decided: rank 0 cannot listen: {error}")])

    def _turn(self) -> bool:
        """One look at everything. Return whether there is to be another."""
        now = time.monotonic()
        with self.changed:
            if self.closing:
                return False
            if self.coordinator is not None:
                self._deliver(self.coordinator.proceed(now))
            self._side.sweep(now)
            self._flush_outbox()
            self.changed.notify_all()
            if self.uplink is not None:
                self._look_for_leader(now, self.uplink)
            deadlines = [self._side.next_deadline(), (self.coordinator or self.contact).next_deadline()]
            news = self._take_news()
        self._tell(news)
        wait_s = min((deadline - now for deadline in deadlines if deadline is not None), default=LONGEST_SLEEP_S)
        for key, mask in self._selector.select(max(0.0, min(wait_s, LONGEST_SLEEP_S))):
            self._serve(key, mask)
        if self.uplink is not None:
            found = self.uplink.find(time.monotonic())
            if found is not None:
                with self.changed:
                    self.uplink.adopt(*found, time.monotonic())
        return True

    def _look_for_leader(self, now: float, uplink: Uplink) -> None:
        self.contact.look(now, uplink.is_up(), self.member)
        if self.contact.is_alone:
            self.contact.is_alone = not uplink.is_up()
            if not self.contact.is_alone:
                self._leader_back()
        elif why := self.contact.gone(now, self.member, is_refused=uplink.is_refused):
            self.contact.is_alone = self._leader_gone(why)
            if self.contact.is_alone:
                self._news.append(Heard("alone", why))

    def _serve(self, key: selectors.SelectorKey, mask: int) -> None:
        with self.changed:
            if key.data is None:
                self._wakeup.heard()
                self._flush_outbox()
            elif self._hub is not None:
                self._hub.serve(None if key.data is self._hub else key.data, mask, time.monotonic())
            elif self.uplink is not None:
                self.uplink.serve(key.data, mask)
            self.changed.notify_all()

    def _tell(self, news: list[Heard]) -> None:
        for heard in news:
            with contextlib.suppress(Exception):  # the host's own fault, which must not end the agreement
                self._hear(heard)
        if self._is_telling:
            with self.changed:
                self._is_telling = False
                self.changed.notify_all()

    def _shut(self) -> None:
        with self.changed:
            if self._hub is not None:
                self._hub.close()
            if self.uplink is not None:
                self.uplink.drop()
            self._wakeup.close()
            self._selector.close()
            self.changed.notify_all()

    # ---- locked -----------------------------------------------------------------------------------------------

    def _joining(self) -> list[Message]:
        """What is said first on a new connection: everything that was to be said is said again by `join`."""
        self.outbox.clear()
        return self.member.join()

    def _flush_outbox(self) -> None:
        self._deliver([])
        while self.outbox:
            if self.coordinator is not None:
                self._deliver(self.coordinator.receive(0, self.outbox.popleft(), time.monotonic()))
            elif self.uplink is not None and self.uplink.is_up():
                self.uplink.say(self.outbox.popleft())
            else:
                break

    def _deliver(self, said: list[tuple[int, Message]]) -> None:
        """Send what the coordinator says, in its order: what it says meanwhile, because a wire breaks, comes after."""
        self._letters.extend(said)
        if self._is_delivering or self.coordinator is None or self._hub is None:
            return
        self._is_delivering = True
        try:
            while self._letters:
                rank, message = self._letters.popleft()
                if rank == 0:
                    for answer in self._received(message):
                        self._letters.extend(self.coordinator.receive(0, answer, time.monotonic()))
                else:
                    self._hub.say(rank, message)
                    if message["say"] == "start":
                        self.starts_told.add(rank)
        finally:
            self._is_delivering = False

    def _heard_rank(self, rank: int, message: Message) -> None:
        assert self.coordinator is not None
        self._deliver(self.coordinator.receive(rank, message, time.monotonic()))

    def _lost_rank(self, rank: int) -> None:
        assert self.coordinator is not None
        self._deliver(self.coordinator.lost(rank, time.monotonic()))

    def _heard_coordinator(self, message: Message) -> None:
        assert self.uplink is not None
        for answer in self._received(message):
            self.uplink.say(answer)

    def _received(self, message: Message) -> list[Message]:
        if message["say"] == "prepare":
            self.member.step_s = self._step_s()
        return self.member.receive(message)

    def _note(self, kind: str, text: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            self._news.append(Heard(kind, text[:300]))

    def _take_news(self) -> list[Heard]:
        news, self._news = self._news, []
        teller = self.coordinator or self.contact
        news += teller.heard
        teller.heard = []
        self._is_telling = bool(news)
        return news
