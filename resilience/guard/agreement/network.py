"""The agreement over TCP, as the training and the triggers see it; `control.py` is the thread behind it."""

from __future__ import annotations

import os
import time

from resilience.errors import AgreementLost
from resilience.guard.agreement.contact import Contact
from resilience.guard.agreement.control import Control
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.wire import Address as Address
from resilience.guard.decision import OBEYED, Decision, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from resilience.guard.agreement.heard import Heard
    from resilience.guard.gate import Gate

LOST_S = 30.0
"""How long the end waits for a rank that has lost its connection: it may come again."""
VOID_S = 3.0
UNHEARD_S = 5.0
"""How long a rank that leaves tries to find rank 0 again, when that was not told yet how the last save went."""


class NetworkAgreement:
    """All ranks of a training, over TCP.

    Raises AgreementLost from `arrive` when a rank has promised to wait and rank 0 says nothing for `lost_s` seconds.

    Args:
        locate: tells a member where rank 0 listens, or None while that is not known; called by the control thread.
        listen: on rank 0, makes the listening socket and the token; called by the control thread.
        hear: gets news, from the control thread, with no lock held.
        withdraw: on rank 0, called at the end of `leave`: nobody listens any more.
        round_s: see `GuardSettings`; `skew_steps` likewise.
        absent_s: after how long a rank that is missing is named on rank 0, and rank 0 on another.
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
        withdraw: Callable[[], None] | None = None,
        round_s: float = 10.0,
        lost_s: float = 300.0,
        skew_steps: int = 16,
        absent_s: float = 60.0,
    ) -> None:
        self._gate = gate
        self._rank = rank
        self._world = world
        self._withdraw = withdraw
        self._lost_s = lost_s
        self._has_stepped = False
        self._leaving_since = 0.0
        self._pid = os.getpid()
        coordinator = None
        if rank == 0:
            coordinator = Coordinator(world, round_s=round_s, skew_steps=skew_steps, absent_s=absent_s)
        contact = Contact(absent_s, round_s)
        self._control = Control(
            gate, rank, coordinator=coordinator, contact=contact, world=world, locate=locate, listen=listen, hear=hear
        )
        self._changed = self._control.changed

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, on rank 0, or to look for rank 0. Nothing here waits for the network or a file."""
        self._control.start()

    def wish(self, request: Request) -> None:
        """Ask all ranks for something. Never waits for the network."""
        control = self._control
        with self._changed:
            control.outbox.extend(control.member.wish(request))
        control.wake()

    def decide_start(self, decision: Decision) -> None:
        """Rank 0 tells all ranks what to do before the first step."""
        control = self._control
        with self._changed:
            if control.coordinator is not None:
                control.send_later(control.coordinator.decide_start(decision))
                control.member.start = control.coordinator.start
                self._changed.notify_all()
        control.wake()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """What rank 0 has said about the start, or None if it said nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._control.member.start is not None, timeout_s)
            return self._control.member.start

    def awaited(self) -> Decision | None:
        """The decision that all ranks have agreed upon and that this one has not come to yet, or None."""
        with self._changed:
            return self._control.member.awaited()

    # ---- training thread --------------------------------------------------------------------------------------

    def arrive(self) -> Decision:
        """The training has done a step that reached the limit. May wait for rank 0, and raise AgreementLost."""
        self._has_stepped = True
        return self._wait(lambda: self._control.member.arrive())

    def arrive_at_poll(self) -> Decision:
        """The same for a poll."""
        return self._wait(lambda: self._control.member.arrive_at_poll())

    def finish(self, outcome: str, seconds: float) -> None:
        """The last decision has been obeyed: tell rank 0."""
        with self._changed:
            self._finish(outcome, seconds)
            self._control.member.restore()
        self._control.wake()

    def restore(self) -> None:
        """Set the limits to what the agreement demands."""
        with self._changed:
            self._control.member.restore()

    def resumed(self) -> None:
        """The counters were set anew, here and on every other rank: what was promised or decided before is void.

        Returns when rank 0 has taken it back from the others, or after `VOID_S`: no rank can complete a step before
        all have come here, so none obeys what another has given up. Wishes stay.
        """
        control = self._control
        with self._changed:
            control.outbox.extend(control.member.resume())
            self._gate.limit = min(self._gate.limit, self._gate.count + 1)  # the first step tells that it is done
            self._changed.notify_all()
        control.wake()
        with self._changed:
            self._changed.wait_for(lambda: not control.member.is_voiding or not control.is_alive(), VOID_S)

    def outlast(self, wait_s: float) -> None:
        """Rank 0 stays until every rank has obeyed the last verdict, at most `wait_s` seconds, and hears how it went.

        For a rank whose connection is lost nobody waits longer than `LOST_S`: it may come again.
        """
        control = self._control
        with self._changed:
            if not self._changed.wait_for(control.is_over, min(wait_s, LOST_S)):
                self._changed.wait_for(lambda: control.is_over(lost_too=False), max(0.0, wait_s - LOST_S))

    def leave(self, wait_s: float) -> None:
        """The training is over. Return when what was said has been sent, after at most `wait_s` seconds.

        After a stop, ranks stay until rank 0 hangs up: launchers (torchrun, `srun --kill-on-bad-exit`) end all ranks
        once the first one has exited with 75, and some may still be saving.
        """
        control = self._control
        if os.getpid() != self._pid or control.closing:
            return
        with self._changed:
            self._finish(OBEYED, 0.0)
            control.outbox.extend(control.member.leave())
            self._leaving_since = time.monotonic()
        control.wake()
        with self._changed:
            self._changed.wait_for(self._may_go, wait_s)
            control.closing = True
        control.wake()
        control.end()
        if self._withdraw is not None:
            self._withdraw()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's. Close our copies without a word."""
        self._control.abandon()

    def _wait(self, arrive: Callable[[], Decision | None]) -> Decision:
        with self._changed:
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

    # ---- with the lock ----------------------------------------------------------------------------------------

    def _finish(self, outcome: str, seconds: float) -> None:
        self._control.outbox.extend(self._control.member.finish(outcome, seconds))

    def _may_go(self) -> bool:
        control = self._control
        if not control.is_alive():
            return True
        if control.uplink is not None:
            if control.uplink.is_up():
                return control.has_said_all() and control.member.stopped is None
            owes = any(said["say"] == "done" for said in control.outbox)
            return not owes or time.monotonic() - self._leaving_since >= UNHEARD_S
        assert control.coordinator is not None
        if not control.has_said_all() or not control.coordinator.is_over():
            return False
        # Stopped before the first step: whoever comes late hears it from nobody else.
        start = control.coordinator.start
        stopped_at_once = start is not None and start.stop and not self._has_stepped
        return not stopped_at_once or len(control.starts_told) >= self._world - 1
