"""The agreement over TCP: a thread that carries messages between a rank's member, rank 0's coordinator and the network.

There is a class for each role: `LeaderAgreement` on rank 0, `FollowerAgreement` on every other rank.

One lock protects the protocol's state. It is held for microseconds, never while something blocks, and never while the
host handles events. Sockets are touched by the control thread alone. No file is touched here: a dead file system must
not stop ranks from agreeing.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import threading
import time

from resilience.base.processes import name_thread
from resilience.errors import AgreementLost
from resilience.guard.agreement import frames
from resilience.guard.agreement.base import Agreement, AgreementEvent, ExitSummary, SingleProcess, never_hurried
from resilience.guard.agreement.client import Client, LinkMonitor
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import COMMITTED, OBEYING, PROMISED
from resilience.guard.agreement.server import Server
from resilience.guard.decision import FAILED, OBEYED, Decision, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.messages import Message
    from resilience.guard.agreement.reports import Report
    from resilience.guard.gate import Gate
    from resilience.guard.settings import GuardSettings

LAST_WORDS_S = 1.0
LONGEST_SLEEP_S = 60.0
MOST_FAULTS = 3
FAULT_PAUSE_S = 0.2
LOST_S = 6.0
"""How long the end waits for a rank that has lost its connection: a live one reconnects within 3 s."""
UNREPORTED_S = 5.0
"""How long an ending rank tries to reconnect to rank 0 to report its last save."""
ABSENT_S = 60.0
"""After how long rank 0 reports missing ranks, and another rank reports a missing rank 0."""
REVOKE_S = 3.0
"""How long a rank that resumes at another step waits until the others have given up the open round."""
HURRY_S = 0.1
"""How often a rank that waits at the end checks for a second signal."""


class NetworkAgreement(Agreement):
    """The agreement of all ranks over TCP: the common part of both roles.

    `on_step` raises AgreementLost if this rank has promised to wait and receives nothing from rank 0 for
    `agreement_timeout_s`.

    Args:
        on_event: gets events, from the control thread, with no lock held.
        step_s: returns how long a step takes on this rank, in seconds; 0 if unknown.

    Attributes:
        changed: the lock around all of this, and the condition that is notified of each change.
        member: this rank's side of the protocol.
    """

    carries_reports = True

    _link: Server | Client

    def __init__(
        self,
        gate: Gate,
        rank: int,
        world: int,
        settings: GuardSettings,
        on_event: Callable[[AgreementEvent], None],
        step_s: Callable[[], float],
    ) -> None:
        super().__init__(gate)
        self.world = world
        self.changed = threading.Condition(threading.Lock())
        self.member = Member(gate, rank, frames.random_word())
        self._on_event = on_event
        self._lost_s = settings.agreement_timeout_s
        self._step_s = step_s
        self._outbox: collections.deque[Message] = collections.deque()  # messages of the member not sent yet
        self._events: list[AgreementEvent] = []
        self._is_reporting = False
        self._noted: set[str] = set()
        self._has_stepped = False
        self._leaving_since = 0.0
        self._is_closing = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()  # other threads wake the control thread by writing
        for end in (self._reader, self._writer):
            end.setblocking(False)

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the control thread: rank 0 listens, the others connect to it. Waits for neither network nor file."""
        thread = threading.Thread(target=self._run, name="resil-agreement", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread: the training continues without decisions
            self._shut()
            self._report(
                [AgreementEvent("broken", f"no decision is possible: the guard's thread did not start: {error}")]
            )
        else:
            self._thread = thread

    def request(self, request: Request) -> None:
        """Submit a request to all ranks. Never waits for the network."""
        with self.changed:
            self._request(request)
        self._wake()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """Return rank 0's decision about the start, or None on timeout."""
        with self.changed:
            self.changed.wait_for(lambda: self.member.start is not None, timeout_s)
            return self.member.start

    def pending_decision(self) -> Decision | None:
        """Return the agreed decision whose step this rank has not reached yet, or None."""
        with self.changed:
            return self.member.pending_decision()

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`."""
        with self.changed:
            self._outbox.extend(self.member.saved(number, outcome, seconds))
        self._wake()

    def begin(self, name: str) -> None:
        """See `Agreement`."""
        with self.changed:
            self.member.reports.begin(name)

    def report(self, key: str, *, fault: str = "", text: str = "") -> None:
        """See `Agreement`. Never waits for the network."""
        with self.changed:
            self._outbox.extend(self.member.reports.add(key, fault, text))
        self._wake()

    def reported(self, key: str) -> Report | None:
        """See `Agreement`. Once rank 0 is gone for good every open report ends as a fault."""
        with self.changed:
            return self.member.reports.answer(key)

    # ---- training thread --------------------------------------------------------------------------------------

    def wait_for_report(self, key: str, timeout_s: float) -> Report | None:
        """See `Agreement`."""
        with self.changed:
            self.changed.wait_for(lambda: self.member.reports.answer(key) is not None, timeout_s)
            return self.member.reports.answer(key)

    def on_step(self) -> Decision:
        """Return the decision after a step that reached the limit. May wait for rank 0, and raise AgreementLost."""
        self._has_stepped = True
        return self._wait_for_verdict(self.member.on_step)

    def on_poll(self) -> Decision:
        """Return the decision at a poll; as `on_step`."""
        return self._wait_for_verdict(self.member.on_poll)

    def finish(self, outcome: str, seconds: float) -> int:
        """Report the outcome of the last decision to rank 0."""
        with self.changed:
            number = self._finish(outcome, seconds)
            self._restore()
        self._wake()
        return number

    def restore(self) -> None:
        """Set the gate's limits as the agreement requires."""
        with self.changed:
            self._restore()

    def resumed(self) -> None:
        """Void earlier promises and verdicts, because the counters were set on all ranks.

        Return when rank 0 has revoked them on the other ranks, or after `REVOKE_S`: no rank can complete a step before
        all have called this, so none carries out a decision that another has given up. Requests stay open.
        """
        with self.changed:
            self._outbox.extend(self.member.resume())
            self._gate.limit = min(self._gate.limit, self._gate.count + 1)  # the first step confirms the resume
            self.changed.notify_all()
        self._wake()
        with self.changed:
            self.changed.wait_for(lambda: not self.member.is_revoking or not self._is_in_contact(), REVOKE_S)

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = never_hurried
    ) -> ExitSummary:
        """Send this rank's LEAVE."""
        with self.changed:
            self._say_goodbye(how, why)
        self._wake()
        return super().announce_exit(how, why, wait_s)

    def leave(self, wait_s: float, is_hurried: Callable[[], bool] = never_hurried) -> None:
        """End the agreement. Return when all messages have been sent, after at most `wait_s` seconds.

        After a stop, ranks stay until rank 0 disconnects: launchers (torchrun, `srun --kill-on-bad-exit`) end all ranks
        once the first one has exited with 75, and some may still be saving.
        """
        if os.getpid() != self._pid or self._is_closing:
            return
        with self.changed:
            if not self.member.has_left:
                self._say_goodbye()
        self._wake()
        with self.changed:
            self._wait_until(lambda: not self._is_in_contact() or self._may_leave(), wait_s, is_hurried)
            self._is_closing = True
        self._wake()
        if self._thread is None:
            self._shut()
        elif self._thread is not threading.current_thread():  # briefly: it may hang in connecting to rank 0
            self._thread.join(timeout=2 * LAST_WORDS_S)

    def after_fork_in_child(self) -> None:
        """In a forked child: close the copies of the parent's connections; send nothing and take no lock."""
        self._link.abandon()
        self._close_wakeup()

    def _wait_for_verdict(self, ask: Callable[[], Decision | None]) -> Decision:
        with self.changed:
            deadline = time.monotonic() + self._lost_s
            while True:
                decision = ask()
                if decision is not None:
                    return decision
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AgreementLost(
                        f"rank {self.member.rank} waits at step {self._gate.count} and has received nothing from rank "
                        f"0 for {self._lost_s:g} s",
                        hint="rank 0 or the network between the nodes is gone; the next job resumes from the last save",
                    )
                self.changed.wait(min(left, 1.0))

    # ---- control thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        name_thread()
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
                    self._report([AgreementEvent("fault", f"internal error in the agreement, continuing: {error!r}")])
                    time.sleep(FAULT_PAUSE_S)
        except Exception as error:  # the training continues, without an agreement
            text = f"the agreement has failed; no more decisions will be made: {error!r}"
            self._report([AgreementEvent("broken", text)])
        finally:
            with self.changed:
                with contextlib.suppress(Exception):  # try to send the final messages after any failure
                    self._send_final()
                events = self._take_events()  # the outcome of the last save
            self._report(events)
            self._shut()

    def _turn(self) -> bool:
        """Do everything due and wait for the next message. Return whether to continue."""
        now = time.monotonic()
        with self.changed:
            if self._is_closing:
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

    def _open(self) -> None:
        """On rank 0: listen."""

    def _connect(self) -> None:
        """On other ranks: connect to rank 0, if due."""

    def _woken(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass
        self._send_outbox()

    def _report(self, events: list[AgreementEvent]) -> None:
        for event in events:
            with contextlib.suppress(Exception):  # a fault of the host must not end the agreement
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

    # ---- with the lock ----------------------------------------------------------------------------------------

    def _proceed(self, now: float) -> float | None:
        """Do everything due at `now`; return the time of the next deadline, or None."""
        raise NotImplementedError  # implemented by leader and followers, here and below

    def _send_outbox(self) -> None:
        """Send as many messages as possible."""
        raise NotImplementedError

    def _may_leave(self) -> bool:
        """Return whether this rank may end after its LEAVE."""
        raise NotImplementedError

    def _send_final(self) -> None:
        """Send the final messages."""

    def _take_events(self) -> list[AgreementEvent]:
        """Return the events to report now."""
        events, self._events = self._events, []
        self._is_reporting = bool(events)
        return events

    def _is_in_contact(self) -> bool:
        """Return whether the control thread runs: without it no message is sent."""
        return self._thread is not None and self._thread.is_alive()

    def _has_sent_all(self) -> bool:
        """Return whether the kernel has accepted all outgoing messages."""
        return not self._outbox and not self._link.has_unsent()

    def _is_outcome_unsent(self) -> bool:
        return any(said["say"] == "done" for said in self._outbox)

    def _is_stopped(self) -> bool:
        """Return whether this training was stopped, in its loop or before it."""
        start = self.member.start
        return self.member.stopped is not None or (start is not None and start.stop and not self._has_stepped)

    def _request(self, request: Request) -> None:
        self._outbox.extend(self.member.request(request))

    def _restore(self) -> None:
        self.member.restore()

    def _finish(self, outcome: str, seconds: float) -> int:
        self._outbox.extend(self.member.finish(outcome, seconds))
        return self.member.round

    def _say_goodbye(self, *words: str) -> None:
        self._finish(OBEYED, 0.0)
        self._outbox.extend(self.member.leave(*words))
        self._leaving_since = time.monotonic()

    def _wait_until(self, is_true: Callable[[], bool], wait_s: float, is_hurried: Callable[[], bool]) -> bool:
        until = time.monotonic() + wait_s
        while not is_true():
            left = until - time.monotonic()
            if left <= 0 or is_hurried():
                return False
            self.changed.wait(min(left, HURRY_S))
        return True

    def _join(self) -> list[Message]:
        """Return the first messages of a new connection: `join` repeats every message not yet sent."""
        self._outbox.clear()
        return self.member.join()

    def _receive(self, message: Message) -> list[Message]:
        if message["say"] == "prepare":
            self.member.step_s = self._step_s()
        return self.member.receive(message)

    def _note(self, kind: str, text: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            self._events.append(AgreementEvent(kind, text[:300]))

    def _wake(self) -> None:
        """Wake the control thread to send messages. Safe from every thread, also after the control thread's end."""
        with contextlib.suppress(OSError):  # full: the thread wakes anyway; closed: the thread has ended
            self._writer.send(b".")


class LeaderAgreement(NetworkAgreement):
    """Rank 0's agreement: listens, and runs the coordinator. Its own member needs no connection.

    Args:
        listen: makes the listening socket and the token; called by the control thread.
        withdraw: called at the end of `leave`, after the socket is closed.
    """

    def __init__(
        self,
        gate: Gate,
        world: int,
        settings: GuardSettings,
        on_event: Callable[[AgreementEvent], None],
        step_s: Callable[[], float] = float,
        *,
        listen: Callable[[], tuple[socket.socket, str]],
        withdraw: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(gate, 0, world, settings, on_event, step_s)
        self._coordinator = Coordinator(
            world,
            round_s=settings.round_s,
            skew_steps=settings.skew_steps,
            absent_s=ABSENT_S,
            by_time=settings.decide_by == "time",
            incarnation=self.member.incarnation,
        )
        self._listen = listen
        self._withdraw = withdraw
        self._to_send: collections.deque[tuple[int, Message]] = collections.deque()
        self._is_delivering = False
        self._starts_sent: set[int] = set()  # ranks that were sent the decision about the start
        self._link = self._server = Server(
            self._selector, world, receive=self._receive_of_rank, lost=self._lost_rank, note=self._note
        )

    def decide_start(self, decision: Decision) -> None:
        """Send the decision about the start to all ranks."""
        with self.changed:
            self._to_send.extend(self._coordinator.decide_start(decision))
            self.member.start = self._coordinator.start
            self.changed.notify_all()
        self._wake()

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = never_hurried
    ) -> ExitSummary:
        """Send LEAVE, and wait until every rank has sent it and all saves are durable.

        Wait at most `LOST_S` for a rank whose connection is lost, which may reconnect. After a training that ran to its
        own end (`done`), do not wait for the LEAVE of others.
        """
        super().announce_exit(how, why, wait_s)
        coordinator = self._coordinator

        def is_complete(lost_too: bool) -> bool:
            if not self._is_in_contact():
                return True
            apart = set() if lost_too else coordinator.lost_ranks()
            missing = set(coordinator.missing()) if self._is_stopped() else set()
            return self._is_over(lost_too=lost_too) and missing <= apart

        with self.changed:
            if not self._wait_until(lambda: is_complete(True), min(wait_s, LOST_S), is_hurried):
                self._wait_until(lambda: is_complete(False), max(0.0, wait_s - LOST_S), is_hurried)
            missing = [rank for rank in coordinator.missing() if rank]
            faults = {rank: f"rank {rank} left with {fault}" for rank, fault in coordinator.faults().items() if rank}
            if self._is_stopped():
                faults |= {rank: f"rank {rank} did not report its end" for rank in missing}
            well = self.world - 1 - len({*missing, *faults}) + int(how != FAILED)
            return ExitSummary(self.world, well, list(faults.values()))

    def leave(self, wait_s: float, is_hurried: Callable[[], bool] = never_hurried) -> None:
        """See `NetworkAgreement`."""
        if os.getpid() == self._pid and not self._is_closing:
            super().leave(wait_s, is_hurried)
            self._withdraw()

    def _open(self) -> None:
        with self.changed:
            for said in self._join():
                self._deliver(self._coordinator.receive(0, said, time.monotonic()))
        try:
            self._server.open(*self._listen())
        except OSError as error:
            self._report([AgreementEvent("broken", f"no decision is possible: rank 0 cannot listen: {error}")])

    # ---- with the lock ----------------------------------------------------------------------------------------

    def _proceed(self, now: float) -> float | None:
        self._deliver(self._coordinator.proceed(now))
        self._server.drop_slow(now)
        self._send_outbox()
        return self._coordinator.next_deadline()

    def _send_outbox(self) -> None:
        self._deliver([])
        while self._outbox:
            self._deliver(self._coordinator.receive(0, self._outbox.popleft(), time.monotonic()))

    def _may_leave(self) -> bool:
        is_soon = time.monotonic() - self._leaving_since < LOST_S
        if not self._has_sent_all() or self._to_send or not self._coordinator.is_over(lost_too=is_soon):
            return False
        # Stopped before the first step, or already done: only rank 0 can inform ranks that connect late.
        return self._has_stepped or len(self._starts_sent) >= self.world - 1

    def _send_final(self) -> None:
        self._deliver(self._coordinator.end())

    def _take_events(self) -> list[AgreementEvent]:
        self._events += self._coordinator.events
        self._coordinator.events = []
        return super()._take_events()

    def _is_over(self, *, lost_too: bool = True) -> bool:
        """Return whether every rank, or every one not lost, has reported, and the host has handled the outcome."""
        is_reported = not self._coordinator.events and not self._is_reporting and not self._is_outcome_unsent()
        return not self._is_in_contact() or (self._coordinator.is_over(lost_too) and is_reported)

    def _deliver(self, said: list[tuple[int, Message]]) -> None:
        """Send the coordinator's messages in order; those it adds meanwhile, because a connection breaks, follow."""
        self._to_send.extend(said)
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._to_send:
                rank, message = self._to_send.popleft()
                if rank == 0:
                    for answer in self._receive(message):
                        self._to_send.extend(self._coordinator.receive(0, answer, time.monotonic()))
                else:
                    self._server.send(rank, message)
                    if message["say"] == "start":
                        self._starts_sent.add(rank)
        finally:
            self._is_delivering = False

    def _receive_of_rank(self, rank: int, message: Message) -> None:
        self._deliver(self._coordinator.receive(rank, message, time.monotonic()))

    def _lost_rank(self, rank: int) -> None:
        self._deliver(self._coordinator.lost(rank, time.monotonic()))


class FollowerAgreement(NetworkAgreement):
    """The agreement of the other ranks: stays connected to rank 0, and decides alone once rank 0 is permanently gone.

    Args:
        locate: returns the address of rank 0, or None while unknown; called by the control thread.
    """

    def __init__(
        self,
        gate: Gate,
        rank: int,
        world: int,
        settings: GuardSettings,
        on_event: Callable[[AgreementEvent], None],
        step_s: Callable[[], float] = float,
        *,
        locate: Callable[[], Address | None],
    ) -> None:
        super().__init__(gate, rank, world, settings, on_event, step_s)
        self._on_leader_lost = settings.on_leader_lost
        self._alone: SingleProcess | None = None
        self._why_gone = ""
        self._monitor = LinkMonitor(ABSENT_S, settings.round_s, self._lost_s)
        self._link = self._client = Client(
            self._selector, rank, locate, self._join, self._receive_of_coordinator, self._note
        )

    def pending_decision(self) -> Decision | None:
        """See `NetworkAgreement`."""
        with self.changed:
            return (self._alone or self.member).pending_decision()

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`. The numbers of saves that this rank decided alone are negative."""
        if number > 0:
            super().saved(number, outcome, seconds)
            return
        with self.changed:
            if self._alone is not None:
                self._alone.saved(-number, outcome, seconds)

    def on_step(self) -> Decision:
        """See `NetworkAgreement`."""
        self._has_stepped = True
        return self._wait_for_verdict(lambda: (self._decider() or self.member).on_step())

    def on_poll(self) -> Decision:
        """See `NetworkAgreement`."""
        return self._wait_for_verdict(lambda: (self._decider() or self.member).on_poll())

    def _connect(self) -> None:
        found = self._client.find(time.monotonic())
        if found is not None:
            with self.changed:
                self._client.adopt(*found, time.monotonic())

    def _shut(self) -> None:
        self._client.end(LAST_WORDS_S)
        super()._shut()

    # ---- with the lock ----------------------------------------------------------------------------------------

    def _proceed(self, now: float) -> float | None:
        self._client.drop_slow(now)
        self._send_outbox()
        monitor = self._monitor
        monitor.check(now, self._client.is_up(), self.member)
        if monitor.is_alone:
            monitor.is_alone = not self._client.is_up()
            if not monitor.is_alone:
                self._leader_back()
        elif why := monitor.why_gone(now, self.member, is_refused=self._client.is_refused):
            self._why_gone = why
            monitor.is_alone = self.member.stopped is None and self._leader_gone(why)
            if monitor.is_alone:
                self._events.append(AgreementEvent("alone", why))
        if self._why_gone and not self._client.is_up():
            self.member.reports.give_up(self._why_gone)
        return monitor.next_deadline()

    def _send_outbox(self) -> None:
        while self._outbox and self._client.is_up():
            self._client.send(self._outbox.popleft())

    def _may_leave(self) -> bool:
        if self._client.is_up():
            return self._has_sent_all() and (self.member.has_failed or not self._is_stopped())
        return not self._is_outcome_unsent() or time.monotonic() - self._leaving_since >= UNREPORTED_S

    def _take_events(self) -> list[AgreementEvent]:
        self._events += self._monitor.events
        self._monitor.events = []
        return super()._take_events()

    def _is_in_contact(self) -> bool:
        return self._alone is None and super()._is_in_contact()

    def _receive_of_coordinator(self, message: Message) -> None:
        for answer in self._receive(message):
            self._client.send(answer)

    def _leader_gone(self, why: str) -> bool:
        """Decide stops alone from now on, unless `on_leader_lost` is `wait`. Return whether this rank does."""
        if self._on_leader_lost == "wait":
            return False
        member = self.member
        self._alone = SingleProcess(self._gate, self._on_event)
        for name in [name for name, request in member.requests.items() if request.stop]:
            self._alone.request(member.requests.pop(name))
        if member.state == PROMISED:  # no verdict can follow
            member.receive({"say": "abort", "round": member.round})
        if self._on_leader_lost == "stop":
            self._alone.request(Request("leader_lost", f"{why}, and on_leader_lost is stop", rank=member.rank))
        self._restore()
        return True

    def _leader_back(self) -> None:
        """Follow rank 0 again, unless this rank has stopped meanwhile."""
        if self._alone is not None and not self._alone.has_stopped:
            self._alone = None
            self.member.restore()

    def _decider(self) -> SingleProcess | None:
        """Return the agreement that decides alone, unless a decision of rank 0 is still to be carried out: other ranks
        may carry it out at the same step."""
        is_free = self.member.state not in (COMMITTED, OBEYING) and self.member.stopped is None
        return self._alone if is_free else None

    def _request(self, request: Request) -> None:
        # A save without a stop needs all ranks: one rank that saves by itself may deadlock the others.
        if self._alone is not None and request.stop:
            self._alone.request(request)
        else:
            super()._request(request)

    def _restore(self) -> None:
        (self._decider() or self.member).restore()

    def _finish(self, outcome: str, seconds: float) -> int:
        alone = self._decider()
        return super()._finish(outcome, seconds) if alone is None else -alone.finish(outcome, seconds)
