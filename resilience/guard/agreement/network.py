"""The agreement over TCP, as the training and the triggers see it; `control.py` is the thread behind it."""

from __future__ import annotations

import os
import time

from resilience.errors import AgreementLost
from resilience.guard.agreement.base import Agreement, Alone, ExitSummary, unhurried
from resilience.guard.agreement.client import LinkMonitor
from resilience.guard.agreement.control import LOST_S, Control, FollowerControl, LeaderControl
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.messages import COMMITTED, OBEYING, PROMISED
from resilience.guard.decision import FAILED, OBEYED, Decision, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from resilience.guard.agreement.address_file import Address
    from resilience.guard.agreement.base import AgreementEvent
    from resilience.guard.gate import Gate

REVOKE_S = 3.0
"""How long a rank that goes on from another step waits until the others have given up the open round."""
HURRY_S = 0.1
"""How often a rank that waits at the end checks whether it is hurried."""

SAVE_ALONE, STOP, WAIT = "save_alone", "stop", "wait"
"""What a rank does once rank 0 is gone for good: `on_leader_lost` of the settings."""


class NetworkAgreement(Agreement):
    """All ranks of a training, over TCP.

    Raises AgreementLost from `arrive` when a rank has promised to wait and rank 0 says nothing for `lost_s` seconds.

    Args:
        locate: returns where rank 0 listens, or None while that is not known; called by the control thread.
        listen: on rank 0, makes the listening socket and the token; called by the control thread.
        on_event: gets events, from the control thread, with no lock held.
        withdraw: on rank 0, called at the end of `leave`, when nobody listens any more.
        round_s: see `GuardSettings`; `skew_steps`, `by_time` (decide_by) and `on_leader_lost` likewise.
        absent_s: after how long a rank that is missing is named on rank 0, and rank 0 on another.
        step_s: returns how long a step takes on this rank, in seconds; 0 while that is not known.
    """

    def __init__(
        self,
        gate: Gate,
        rank: int,
        world: int,
        *,
        locate: Callable[[], Address | None],
        listen: Callable[[], tuple[socket.socket, str]] | None,
        on_event: Callable[[AgreementEvent], None],
        withdraw: Callable[[], None] | None = None,
        round_s: float = 10.0,
        lost_s: float = 300.0,
        skew_steps: int = 16,
        by_time: bool = False,
        on_leader_lost: str = SAVE_ALONE,
        absent_s: float = 60.0,
        step_s: Callable[[], float] = float,
    ) -> None:
        super().__init__(gate)
        self.world = world
        self._rank = rank
        self._on_event = on_event
        self._withdraw = withdraw
        self._lost_s = lost_s
        self._on_leader_lost = on_leader_lost
        self._alone: Alone | None = None
        self._has_stepped = False
        self._leaving_since = 0.0
        self._pid = os.getpid()
        self._leader: LeaderControl | None = None
        self._control: Control
        if rank == 0:
            coordinator = Coordinator(world, round_s=round_s, skew_steps=skew_steps, absent_s=absent_s, by_time=by_time)
            self._control = self._leader = LeaderControl(
                gate, coordinator, world, listen=listen, on_event=on_event, step_s=step_s
            )
        else:
            monitor = LinkMonitor(absent_s, round_s, lost_s)
            self._control = FollowerControl(
                gate, rank, monitor, locate=locate, on_event=on_event, step_s=step_s,
                leader_gone=self._leader_gone, leader_back=self._leader_back,
            )  # fmt: skip
        self._changed = self._control.changed

    # ---- any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen, on rank 0, or to look for rank 0. Nothing here waits for the network or a file."""
        self._control.start()

    def request(self, request: Request) -> None:
        """Ask all ranks for something. Never waits for the network."""
        control = self._control
        with self._changed:
            # A save alone is requested of all or of nobody: one rank that saves by itself may deadlock the others.
            if self._alone is not None and request.stop:
                self._alone.request(request)
            else:
                control.outbox.extend(control.member.request(request))
        control.wake()

    def decide_start(self, decision: Decision) -> None:
        """Rank 0 tells all ranks what to do before the first step."""
        leader = self._leader
        if leader is not None:
            with self._changed:
                leader.send_later(leader.coordinator.decide_start(decision))
                leader.member.start = leader.coordinator.start
                self._changed.notify_all()
            leader.wake()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """What rank 0 has said about the start, or None if it said nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._control.member.start is not None, timeout_s)
            return self._control.member.start

    def pending_decision(self) -> Decision | None:
        """The decision that all ranks have agreed upon and that this one has not come to yet, or None."""
        with self._changed:
            return self._control.member.pending_decision() if self._alone is None else self._alone.pending_decision()

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`."""
        control = self._control
        with self._changed:
            if number > 0:
                control.outbox.extend(control.member.saved(number, outcome, seconds))
            elif self._alone is not None:
                self._alone.saved(-number, outcome, seconds)
        control.wake()

    # ---- training thread --------------------------------------------------------------------------------------

    def on_step(self) -> Decision:
        """The training has done a step that reached the limit. May wait for rank 0, and raise AgreementLost."""
        self._has_stepped = True
        return self._wait(self._control.member.on_step, Alone.on_step)

    def on_poll(self) -> Decision:
        """The same for a poll."""
        return self._wait(self._control.member.on_poll, Alone.on_poll)

    def finish(self, outcome: str, seconds: float) -> int:
        """The last decision has been obeyed: tell rank 0."""
        with self._changed:
            number = self._finish(outcome, seconds)
            self._restore()
        self._control.wake()
        return number

    def restore(self) -> None:
        """Set the limits to what the agreement demands."""
        with self._changed:
            self._restore()

    def resumed(self) -> None:
        """The counters were set anew, here and on every other rank: what was promised or decided before is void.

        Returns when rank 0 has taken it back from the others, or after `REVOKE_S`: no rank can complete a step before
        all have come here, so none obeys what another has given up. Requests stay open.
        """
        control = self._control
        with self._changed:
            control.outbox.extend(control.member.resume())
            self._gate.limit = min(self._gate.limit, self._gate.count + 1)  # the first step tells that it is done
            self._changed.notify_all()
        control.wake()
        with self._changed:
            self._changed.wait_for(
                lambda: not control.member.is_revoking or not control.is_alive() or self._alone is not None, REVOKE_S
            )

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = unhurried
    ) -> ExitSummary:
        """Say good-bye. Rank 0 waits until every rank has said it, and what was saved is durable everywhere.

        For a rank whose connection is lost nobody waits longer than `LOST_S`: it may come again. After a training that
        ran to its own end (`done`) good-byes are not waited for.
        """
        control = self._control
        with self._changed:
            self._finish(OBEYED, 0.0)
            control.outbox.extend(control.member.leave(how, why))
            self._leaving_since = time.monotonic()
        control.wake()
        leader = self._leader
        if leader is None:
            return super().announce_exit(how, why, wait_s)

        coordinator = leader.coordinator

        def is_complete(lost_too: bool) -> bool:
            if not leader.is_alive():
                return True
            apart = set() if lost_too else coordinator.lost_ranks()
            missing = set(coordinator.missing()) if self._is_stopped() else set()
            return leader.is_over(lost_too=lost_too) and missing <= apart

        with self._changed:
            if not self._wait_for(lambda: is_complete(True), min(wait_s, LOST_S), is_hurried):
                self._wait_for(lambda: is_complete(False), max(0.0, wait_s - LOST_S), is_hurried)
            missing = [rank for rank in coordinator.missing() if rank]
            faults = {rank: f"rank {rank} left with {fault}" for rank, fault in coordinator.faults().items() if rank}
            if self._is_stopped():
                faults |= {rank: f"rank {rank} has not said good-bye" for rank in missing}
            well = self.world - 1 - len({*missing, *faults}) + int(how != FAILED)
            return ExitSummary(self.world, well, list(faults.values()))

    def leave(self, wait_s: float, is_hurried: Callable[[], bool] = unhurried) -> None:
        """The training is over. Return when what was said has been sent, after at most `wait_s` seconds.

        After a stop, ranks stay until rank 0 hangs up: launchers (torchrun, `srun --kill-on-bad-exit`) end all ranks
        once the first one has exited with 75, and some may still be saving.
        """
        control = self._control
        if os.getpid() != self._pid or control.closing:
            return
        with self._changed:
            if not control.member.has_left:
                self._finish(OBEYED, 0.0)
                control.outbox.extend(control.member.leave())
                self._leaving_since = time.monotonic()
        control.wake()
        with self._changed:
            self._wait_for(self._may_go, wait_s, is_hurried)
            control.closing = True
        control.wake()
        control.end()
        if self._withdraw is not None:
            self._withdraw()

    def after_fork_in_child(self) -> None:
        """In a forked child: the connections are the parent's. Close our copies without a word."""
        self._control.abandon()

    def _wait(self, ask: Callable[[], Decision | None], ask_alone: Callable[[Alone], Decision]) -> Decision:
        with self._changed:
            deadline = time.monotonic() + self._lost_s
            while True:
                decision = ask_alone(self._alone) if self._alone and self._is_free() else ask()
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

    def _leader_gone(self, why: str) -> bool:
        """Rank 0 is gone for good: from now on this rank decides by itself when to stop. Return whether it does."""
        if self._on_leader_lost == WAIT or self._rank == 0:
            return False
        member = self._control.member
        self._alone = Alone(self._gate, self._on_event)
        for name in [name for name, request in member.requests.items() if request.stop]:
            self._alone.request(member.requests.pop(name))
        if member.state == PROMISED:  # to nobody
            member.receive({"say": "abort", "round": member.round})
        if self._on_leader_lost == STOP:
            self._alone.request(Request("leader_lost", f"{why}, and on_leader_lost is stop", rank=self._rank))
        self._restore()
        return True

    def _leader_back(self) -> None:
        """There is a rank 0 again, unless this rank has stopped meanwhile."""
        if self._alone is not None and not self._alone.has_stopped:
            self._alone = None
            self._control.member.restore()

    def _is_free(self) -> bool:
        """Whether nothing is left to be done of what rank 0 has decided: others may do it as well, at the same step."""
        member = self._control.member
        return member.state not in (COMMITTED, OBEYING) and member.stopped is None

    def _restore(self) -> None:
        if self._alone is not None and self._is_free():
            self._alone.restore()
        else:
            self._control.member.restore()

    def _finish(self, outcome: str, seconds: float) -> int:
        member = self._control.member
        if self._alone is not None and self._is_free():
            return -self._alone.finish(outcome, seconds)
        self._control.outbox.extend(member.finish(outcome, seconds))
        return member.round

    def _is_stopped(self) -> bool:
        """Whether this training was stopped, in its loop or before it."""
        member = self._control.member
        return member.stopped is not None or (member.start is not None and member.start.stop and not self._has_stepped)

    def _wait_for(self, is_true: Callable[[], bool], wait_s: float, is_hurried: Callable[[], bool]) -> bool:
        until = time.monotonic() + wait_s
        while not is_true():
            left = until - time.monotonic()
            if left <= 0 or is_hurried():
                return False
            self._changed.wait(min(left, HURRY_S))
        return True

    def _may_go(self) -> bool:
        if not self._control.is_alive() or self._alone is not None:
            return True
        leaving_s = time.monotonic() - self._leaving_since
        return self._control.may_leave(leaving_s, is_stopped=self._is_stopped(), has_stepped=self._has_stepped)
