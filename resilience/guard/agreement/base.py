"""The interface of an agreement, its events, and the agreement of a single process. Pure."""

from __future__ import annotations

import collections
import threading

from resilience.guard.agreement.messages import sendable
from resilience.guard.agreement.reports import SentReports, answer
from resilience.guard.decision import (
    CONTINUE,
    FAILED,
    IN_FLIGHT,
    OBEYED,
    Decision,
    Request,
    merge,
    wanted_step,
    without_wish,
)
from resilience.guard.gate import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resilience.guard.agreement.reports import Report
    from resilience.guard.decision import Decision, Request
    from resilience.guard.gate import Gate
    from resilience.guard.rank_info import RankInfo


class AgreementEvent:
    """A report of the agreement to its host.

    Attributes:
        kind: `committed`, `outcome` (all ranks have carried out the decision, and their saves are durable or failed),
            `aborted`, `absent`, `skew`, `behind`, `restarted`, `twins` (two processes with one rank), `failed` (a rank
            has left because of a fault); on other ranks than rank 0 `lost` (no connection to rank 0), `back`, and
            `alone` (rank 0 is permanently gone: this rank decides by itself); `fault`, `broken`.
        text: a sentence for the user.
        decision: for `committed` and `outcome`.
        requests: the requests that the decision answers.
        outcome: `saved`, `failed` or `obeyed`: the worst of all ranks.
        seconds: the longest save of all ranks, until it was durable.
        ranks: the ranks on which the save failed.
    """

    __slots__ = ("decision", "kind", "outcome", "ranks", "requests", "seconds", "text")

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        decision: Decision | None = None,
        requests: Sequence[Request] = (),
        outcome: str = OBEYED,
        seconds: float = 0.0,
        ranks: Sequence[int] = (),
    ) -> None:
        self.kind = kind
        self.text = text
        self.decision = decision
        self.requests = tuple(requests)
        self.outcome = outcome
        self.seconds = seconds
        self.ranks = tuple(ranks)


def never_hurried() -> bool:
    """Return False: no second signal has arrived."""
    return False


class ExitSummary:
    """How the ranks of a training have ended, as far as this one knows.

    Attributes:
        world: how many ranks there are.
        well: how many of them, this one included, have ended cleanly.
        faults: a sentence for each rank that has not.
    """

    __slots__ = ("faults", "well", "world")

    def __init__(self, world: int, well: int, faults: Sequence[str] = ()) -> None:
        self.world = world
        self.well = well
        self.faults = tuple(faults)


class Agreement:
    """The interface between a guard and its agreement. This base class serves ranks without a rendezvous: it decides
    nothing and never waits, because a rank that acted by itself would deadlock the others.

    Any thread may call `request`, `pending_decision`, `saved`, `report` and `reported`; the rest is for the training
    thread.

    Attributes:
        carries_reports: whether `report` reaches the other ranks. Here this rank alone answers, at once.
    """

    world = 1
    carries_reports = False

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._reports = SentReports()

    def start(self) -> None:
        """Connect the ranks."""

    def request(self, request: Request) -> None:
        """Submit a request to all ranks. Never waits."""

    def decide_start(self, decision: Decision) -> None:
        """On rank 0: set the decision for the time before the first step. The first call counts."""

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """Return the decision about the start; None on timeout."""
        return CONTINUE

    def pending_decision(self) -> Decision | None:
        """Return the decision whose step this rank has not reached yet, or None."""
        return None

    def on_step(self) -> Decision:
        """Return the decision after a step that reached the limit."""
        self.restore()
        return CONTINUE

    def on_poll(self) -> Decision:
        """Return the decision at a poll between steps: announces a stop, which the next step returns again."""
        self.restore()
        return CONTINUE

    def finish(self, outcome: str, seconds: float) -> int:
        """Report the outcome of the last decision: `saved`, `failed`, `obeyed`, or `in_flight`. Return the number by
        which `saved` later reports the end of a save in flight."""
        return 0

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """Report that the save in flight with this number is durable on this rank (`saved`), or has `failed`."""

    def begin(self, name: str) -> None:
        """Take part in what `name` stands for in the keys of reports: a restart of a rank is a fault from now on."""
        self._reports.begin(name)

    def report(self, key: str, *, fault: str = "", text: str = "") -> None:
        """Report to all ranks that this one has done its part of `key`, or failed: once for each key. Never waits."""
        self._reports.add(key, fault, text)
        self._reports.receive(answer(key, [f"rank 0: {fault}"] if fault else [], text))

    def reported(self, key: str) -> Report | None:
        """Return the answer once all ranks have reported `key`, or one has failed or left; None before."""
        return self._reports.answer(key)

    def wait_for_report(self, key: str, timeout_s: float) -> Report | None:
        """Return the answer to `key`, waiting for it; None on timeout."""
        return self.reported(key)

    def restore(self) -> None:
        """Set the gate's limits as the agreement requires."""
        self._gate.open()
        if self._gate.urgent:
            self._gate.limit = self._gate.poll_limit = 0

    def resumed(self) -> None:
        """Adapt to counters that `guard.resumed()` has set."""
        self.restore()

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = never_hurried
    ) -> ExitSummary:
        """Announce how this rank ends: `done`, `stopped` or `failed`. Rank 0 waits until all ranks have ended and their
        saves are durable, at most `wait_s` seconds, or until `is_hurried`."""
        return ExitSummary(self.world, int(how != FAILED))

    def leave(self, wait_s: float, is_hurried: Callable[[], bool] = never_hurried) -> None:
        """End the agreement. After a stop ranks stay until rank 0 disconnects, at most `wait_s` seconds."""

    def after_fork_in_child(self) -> None:
        """In a forked child: close the parent's resources without sending anything."""


class SingleProcess(Agreement):
    """The agreement of a training with one process, which decides at its next step: no socket, no thread of its own."""

    def __init__(self, gate: Gate, on_event: Callable[[AgreementEvent], None], place: RankInfo | None = None) -> None:
        super().__init__(gate)
        self._on_event = on_event
        self._requests: collections.deque[Request] = collections.deque()  # its methods are atomic, also without a GIL
        self._obeying: tuple[Decision, list[Request]] | None = None
        self._in_flight: dict[int, tuple[Decision, list[Request]]] = {}
        self._finished = 0
        self._stopped: Decision | None = None
        self._start: Decision | None = None
        self._started = threading.Event()

    @property
    def has_stopped(self) -> bool:
        """Return whether a stop was decided."""
        return self._stopped is not None

    def request(self, request: Request) -> None:
        """Queue a request for the next step."""
        self._requests.append(sendable(request, 0, self._gate.count))
        self._gate.limit = self._gate.poll_limit = 0

    def decide_start(self, decision: Decision) -> None:
        """See `Agreement`."""
        if self._start is None:
            self._start = decision
            self._started.set()

    def wait_for_start(self, timeout_s: float) -> Decision | None:
        """See `Agreement`."""
        self._started.wait(timeout_s)
        return self._start

    def pending_decision(self) -> Decision | None:
        """Return the decision of the next step, or None."""
        asked = self._requests.copy()
        return merge(asked, max(self._gate.count + 1, wanted_step(asked))) if asked else None

    def on_step(self) -> Decision:
        """Merge all requests into one decision."""
        if self._stopped is not None:
            return Decision(**{**self._stopped.as_dict(), "save": False, "step": self._gate.count})
        if self._next_step() > self._gate.count:
            self.restore()
            return CONTINUE
        asked = []
        while self._requests:  # one by one: a concurrent request is taken now or next time, and never lost
            asked.append(self._requests.popleft())
        decision = merge(asked, self._gate.count)
        self._obeying = decision, asked
        if decision.stop:
            self._stopped = decision
        self._on_event(AgreementEvent("committed", str(decision), decision=decision, requests=asked))
        self.restore()
        return decision

    def on_poll(self) -> Decision:
        """Announce a stop, which the next step returns again."""
        asked = self._requests.copy()
        if self._stopped is None and not any(request.stop for request in asked):
            self.restore()
            return CONTINUE
        decision = self._stopped or merge(asked, self._gate.count)
        return Decision(**{**decision.as_dict(), "save": False})

    def finish(self, outcome: str, seconds: float) -> int:
        """See `Agreement`."""
        if self._obeying is None:
            return 0
        obeyed, self._obeying = self._obeying, None
        self._finished += 1
        self._in_flight[self._finished] = obeyed
        if outcome != IN_FLIGHT:
            self.saved(self._finished, outcome, seconds)
        self.restore()
        return self._finished

    def saved(self, number: int, outcome: str, seconds: float) -> None:
        """See `Agreement`."""
        if number in self._in_flight:
            decision, asked = self._in_flight.pop(number)
            text = f"{outcome}: {decision}"
            ranks = [0] if outcome == FAILED else []
            self._on_event(
                AgreementEvent(
                    "outcome", text, decision=decision, requests=asked, outcome=outcome, seconds=seconds, ranks=ranks
                )
            )

    def restore(self) -> None:
        """Let the training run, unless a request, an outcome or a stop is pending."""
        gate = self._gate
        if self._obeying is not None:
            gate.limit = gate.count + 1
        else:
            gate.open()
        gate.limit = min(gate.limit, self._next_step())
        # After the write: a request that has come meanwhile must not be overwritten.
        if self._next_step() <= gate.count or self._stopped is not None or gate.urgent:
            gate.limit = gate.poll_limit = 0

    def resumed(self) -> None:
        """See `Agreement`. Wanted steps were of the count before."""
        for _ in range(len(self._requests)):
            self._requests.append(without_wish(self._requests.popleft()))
        super().resumed()

    def _next_step(self) -> int:
        """Return the step after which to decide: 0 now, NEVER without a request."""
        asked = self._requests.copy()
        return wanted_step(asked) if asked else NEVER

    def announce_exit(
        self, how: str, why: str, wait_s: float, is_hurried: Callable[[], bool] = never_hurried
    ) -> ExitSummary:
        """See `Agreement`."""
        self.finish(OBEYED, 0.0)
        return super().announce_exit(how, why, wait_s, is_hurried)


Alone = SingleProcess
"""The name until November 2026."""
