"""Agreement with nobody: one process decides at its next step."""

from __future__ import annotations

import collections
import threading

from resilience.guard.agreement.heard import Heard
from resilience.guard.agreement.messages import sendable
from resilience.guard.decision import CONTINUE, OBEYED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from resilience.guard.gate import Gate
    from resilience.guard.place import Place


class Alone:
    """The agreement of a training with one process: no socket, no thread of its own.

    Any thread may call `wish`; the others are for the training thread.
    """

    def __init__(self, gate: Gate, hear: Callable[[Heard], None], place: Place | None = None) -> None:
        self._gate = gate
        self._hear = hear
        self._wishes: collections.deque[Request] = collections.deque()  # its methods are atomic, also without a GIL
        self._obeying: tuple[Decision, list[Request]] | None = None
        self._stopped: Decision | None = None
        self._start: Decision | None = None
        self._started = threading.Event()

    def start(self) -> None:
        """Nothing to be started."""

    def wish(self, request: Request) -> None:
        """Ask for something; the next step decides."""
        self._wishes.append(sendable(request, 0))
        self._gate.limit = self._gate.poll_limit = 0

    def decide_start(self, decision: Decision) -> None:
        """What to do before the first step. The first word counts."""
        if self._start is None:
            self._start = decision
            self._started.set()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """What was decided about the start, or None if nothing was in time."""
        self._started.wait(timeout_s)
        return self._start

    def awaited(self) -> Decision | None:
        """What the next step will decide, or None. Any thread may ask."""
        asked = self._wishes.copy()
        return merge(asked, self._gate.count + 1) if asked else None

    def arrive(self) -> Decision:
        """The training has done a step: merge what is wished into one decision."""
        if self._stopped is not None:
            return Decision(**{**self._stopped.as_dict(), "save": False, "step": self._gate.count})
        if not self._wishes:
            self.restore()
            return CONTINUE
        asked = []
        while self._wishes:  # one by one: what is wished meanwhile is taken now or next time, and never lost
            asked.append(self._wishes.popleft())
        decision = merge(asked, self._gate.count)
        self._obeying = decision, asked
        if decision.stop:
            self._stopped = decision
        self._hear(Heard("committed", str(decision), decision=decision, requests=asked))
        self.restore()
        return decision

    def arrive_at_poll(self) -> Decision:
        """In the middle of something: announce a stop, which the next step will order."""
        asked = self._wishes.copy()
        if self._stopped is None and not any(request.stop for request in asked):
            self.restore()
            return CONTINUE
        decision = self._stopped or merge(asked, self._gate.count)
        return Decision(**{**decision.as_dict(), "save": False})

    def finish(self, outcome: str, seconds: float) -> None:
        """The last decision has been obeyed."""
        if self._obeying is None:
            return
        (decision, asked), self._obeying = self._obeying, None
        text = f"{outcome}: {decision}"
        self._hear(Heard("outcome", text, decision=decision, requests=asked, outcome=outcome, seconds=seconds))
        self.restore()

    def restore(self) -> None:
        """Let the training run, unless something is wished, owed or decided."""
        gate = self._gate
        if self._obeying is not None:
            gate.limit = gate.count + 1
        else:
            gate.open()
        if self._wishes or self._stopped is not None or gate.urgent:
            gate.limit = gate.poll_limit = 0

    def resumed(self) -> None:
        """The counters were set anew."""
        self.restore()

    def leave(self, wait_s: float) -> None:
        """The training is over."""
        self.finish(OBEYED, 0.0)

    def forget(self) -> None:
        """In a forked child: nothing to close."""
