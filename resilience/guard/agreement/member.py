"""One rank's side of the agreement: promise where to stop, receive the verdict, apply it at its step. Pure, no locks.

A caller with two threads holds one lock around every method; only the counters of the gate are read and written without
it. docs/explanation/agreement.md has the proof of correctness.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import (
    COMMITTED,
    FREE,
    OBEYING,
    PROMISED,
    WHY_LIMIT,
    read_decision,
    sendable,
)
from resilience.guard.agreement.reports import SentReports
from resilience.guard.decision import CONTINUE, DONE, FAILED, Decision, Request, merge, without_wish
from resilience.guard.gate import NEVER, Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from resilience.guard.agreement.messages import Message

MOST_OPEN = 64
"""From this many unanswered requests on, a request that differs from another only in its reason is not sent."""
MOST_SAVES = 8
"""The outcomes of this many recent saves are repeated on each new connection: as many as may be in flight."""


class Member:
    """The state of one rank in the agreement.

    Attributes:
        gate: the counters it shares with the training thread.
        incarnation: a random word, new for each process: a restarted rank has promised nothing.
        round: number of the last round in which it has made a promise.
        state: `free`; `promised` (no step beyond `promise` before the verdict); `committed` to `verdict`; or
            `obeying`, from the step of the decision until `finish()`.
        promise: the position promised: (steps, polls), as the gate counts them.
        verdict: of `round`, once known, and until the next promise: a new coordinator may need it.
        requests: of this rank, unanswered, by id.
        start: the decision for all ranks before the first step, once known.
        stopped: the stop that the training has received; every later step returns it again.
        is_revoking: whether other ranks may still apply a round that this rank has given up.
        step_s: how long a step takes here, in seconds, as far as known.
        leader_left: whether rank 0 has sent BYE.
        reports: of this rank; sent after the WELCOME.
    """

    def __init__(self, gate: Gate, rank: int, incarnation: str) -> None:
        self.gate = gate
        self.rank = rank
        self.incarnation = incarnation
        self.round = 0
        self.state = FREE
        self.promise = (0, 0)
        self.verdict: dict[str, Any] = {}
        self.requests: dict[str, Request] = {}
        self.start: Decision | None = None
        self.stopped: Decision | None = None
        self.is_revoking = False
        self.step_s = 0.0
        self.leader_left = False
        self.reports = SentReports()
        self._looked = (0, 0)
        self._done: Message | None = None  # outcome of the last round: its message may be lost
        self._saved: dict[int, Message] = {}  # outcomes of saves that were in flight at their DONE
        self._goodbye: Message | None = None
        self._resumed = 0
        self._answered: dict[str, Request] = {}
        self._requested = 0

    # ---- control thread ---------------------------------------------------------------------------------------

    def join(self) -> list[Message]:
        """Return the first messages of a connection: our rank, position, promise, verdict, outcomes and requests."""
        self.reports.disconnected()
        steps, polls = self.promise if self.state == PROMISED else self.gate.position()
        joining: Message = {
            "say": "join",
            "rank": self.rank,
            "incarnation": self.incarnation,
            "steps": steps,
            "polls": polls,
        }
        joining |= {"round": self.round, "state": self.state, "verdict": self.verdict}
        joining["requests"] = {name: request.as_dict() for name, request in self.requests.items()}
        said = [joining]
        if self._done is not None:
            said.append(self._done)
        said += self._saved.values()
        if self._resumed:
            said.append({"say": "resume", "round": self._resumed})
        if self._goodbye is not None:
            said.append(self._goodbye)
        return said

    def request(self, request: Request) -> list[Message]:
        """Submit a request to all ranks. It is repeated on each new connection until a verdict answers it."""
        request = sendable(request, self.rank, self.gate.count)
        if request.at:
            request.at += self.gate.rewound  # the ranks agree on positions
        known = list(self.requests.values())
        if request in known or (len(known) >= MOST_OPEN and any(_asks_the_same(request, other) for other in known)):
            return []  # one answer serves both
        self._requested += 1
        name = f"{self.incarnation}.{self._requested}"
        self.requests[name] = request
        return [_request(name, request)]

    def receive(self, message: Message) -> list[Message]:
        """Handle a message of the coordinator, and return the answers."""
        says = message["say"]
        if says == "start":
            self.start = read_decision(message["decision"])
        elif says == "welcome":
            self.leader_left = False
            return self.reports.welcomed(message["incarnation"], message["restarts"])
        elif says == "prepare":
            return self._prepare(message["round"])
        elif says == "commit":
            self._commit(message["round"], message["verdict"])
        elif says == "abort":
            if message["round"] == self._resumed:  # also when a later round was promised meanwhile
                self.is_revoking = False
            acknowledgement: Message = {"say": "aborted", "round": message["round"]}
            return [acknowledgement, *(self._give_up() if message["round"] == self.round else [])]
        elif says == "bye":
            self.leader_left = True
        elif says == "reported":
            self.reports.receive(message)
        return []

    def may_promise(self, number: int) -> bool:
        """Return whether to promise in this round: it is new, and no decision of another round is pending."""
        return number > self.round and self.state in (FREE, PROMISED)

    # A promise is made in these three moves. The training thread may run before, between and after them, until it
    # reaches a limit; then it waits for the lock that is held meanwhile. So `keep` succeeds at the third try at latest.

    def look(self) -> None:
        """Read the position of the training."""
        self._looked = self.gate.position()

    def hold(self) -> None:
        """Limit the training to the next step and the next poll."""
        steps, polls = self._looked
        self.gate.hold(steps + 1, polls + 1)

    def keep(self, number: int) -> bool:
        """Read the position again. If unchanged, the training compares all further counts with the new limits, and the
        promise holds. If not, the training may have passed the limits: start again."""
        if self.gate.position() > self._looked:
            return False
        self.round = number
        self.state = PROMISED
        self.promise = self._looked
        self.verdict = {}
        self._done = None
        self.restore()
        return True

    def finish(self, outcome: str, seconds: float) -> list[Message]:
        """Return the DONE of the applied decision with the outcome of its save; no message if none is due."""
        if self.state != OBEYING:
            return []
        self.state = FREE
        self._done = {"say": "done", "round": self.round, "outcome": outcome, "seconds": max(0.0, float(seconds))}
        self.restore()
        return [self._done]

    def saved(self, number: int, outcome: str, seconds: float) -> list[Message]:
        """Return the SAVED of round `number`, whose save was in flight at its DONE: `saved` or `failed`."""
        self._saved[number] = {"say": "saved", "round": number, "outcome": outcome, "seconds": max(0.0, float(seconds))}
        while len(self._saved) > MOST_SAVES:
            del self._saved[next(iter(self._saved))]
        return [self._saved[number]]

    def resume(self) -> list[Message]:
        """Revoke earlier promises and verdicts, because the ranks resume at a common step.

        They refer to the steps before, which ranks may have left at different counts, and which a restarted rank does
        not know. So they are void here and, before this training does another step, on every other rank: the
        coordinator revokes them everywhere, and starts a new round.
        """
        self.gate.rewound = 0
        for table in (self.requests, self._answered):
            table |= {name: without_wish(request) for name, request in table.items()}
        if self.state == FREE:
            self.restore()
            return [{"say": "resume", "round": 0}]  # nothing to revoke; but ranks whose counts differed may agree now
        requests = self._give_up()
        self.state = FREE
        self.restore()
        self.is_revoking = True
        self._resumed = self.round
        return [{"say": "resume", "round": self.round}, *requests]

    def leave(self, how: str = DONE, why: str = "") -> list[Message]:
        """Return the LEAVE: a permanent promise to do no further step. `how` is `done`, `stopped` or `failed`, and
        `why` the fault."""
        steps = self.gate.position()[0]
        self._goodbye = {"say": "leave", "steps": steps, "how": how, "why": why[:WHY_LIMIT]}
        return [self._goodbye]

    @property
    def has_left(self) -> bool:
        """Return whether this rank has sent LEAVE."""
        return self._goodbye is not None

    @property
    def has_failed(self) -> bool:
        """Return whether this rank has sent LEAVE because of a fault."""
        return self._goodbye is not None and self._goodbye["how"] == FAILED

    def pending_decision(self) -> Decision | None:
        """Return the agreed decision whose step this rank has not reached yet, or None."""
        return self._decision(self.verdict["steps"] + 1 - self.gate.rewound) if self.state == COMMITTED else None

    def may_hear_more(self) -> bool:
        """Return whether rank 0 can still decide something for this rank, or answer a report: it has neither left nor
        stopped, or waits with its last save for the others."""
        return not self.has_left and (self.stopped is None or self.reports.is_waiting)

    # ---- training thread --------------------------------------------------------------------------------------

    def on_step(self) -> Decision | None:
        """Return the decision after a step that reached the limit, or None: wait for the verdict."""
        steps, _ = self.gate.position()
        if self.state == COMMITTED and steps > self.verdict["steps"]:
            return self._obey()
        if self.state == PROMISED and steps > self.promise[0]:
            return None
        self.restore()
        return self._again() if self.stopped is not None else CONTINUE

    def on_poll(self) -> Decision | None:
        """Return the decision at a poll. A stop is only announced, so that the training ends its current activity; the
        next step applies it."""
        position = self.gate.position()
        if self.state == COMMITTED and position > (self.verdict["steps"], self.verdict["polls"]):
            decision = self._decision(self.verdict["steps"] + 1 - self.gate.rewound)
            return _announce(decision) if decision.stop else CONTINUE
        if self.state == PROMISED and position > self.promise:
            return None
        self.restore()
        return self._again() if self.stopped is not None else CONTINUE

    def restore(self) -> None:
        """Set the gate's limits as the state requires; also after the counters were set."""
        gate = self.gate
        if self.stopped is not None:
            gate.hold(0, 0)
        elif self.state == COMMITTED:
            gate.hold(self.verdict["steps"] + 1, 0)
        elif self.state == PROMISED:
            gate.hold(self.promise[0] + 1, 0)
        elif self.state == OBEYING:
            gate.hold(gate.position()[0] + 1, NEVER)  # the next step reports DONE if nothing has before
        else:
            gate.open()
        if gate.urgent:  # a signal arrived meanwhile: its handler wrote the limits before us
            gate.limit = gate.poll_limit = 0

    # ---- both -------------------------------------------------------------------------------------------------

    def _prepare(self, number: int) -> list[Message]:
        if self.may_promise(number):
            self.look()
            self.hold()
            while not self.keep(number):
                self.look()
                self.hold()
        if self.state != PROMISED or self.round != number:
            return []
        steps, polls = self.promise
        return [{"say": "promise", "round": number, "steps": steps, "polls": polls, "step_s": self.step_s}]

    def _commit(self, number: int, verdict: dict[str, Any]) -> None:
        if self.state != PROMISED or self.round != number:
            return  # a known commit, or one of a round that a former process of this rank has promised
        self.state = COMMITTED
        self.verdict = verdict
        self._answered = {name: self.requests.pop(name) for name in verdict["answers"] if name in self.requests}
        self.restore()

    def _give_up(self) -> list[Message]:
        """Give up an aborted or revoked round, and reopen the requests that its verdict answered."""
        self.is_revoking = False
        again: dict[str, Request] = {}
        if self.state == COMMITTED:
            again, self._answered = self._answered, {}
            self.requests |= again
            self.verdict = {}
        if self.state in (PROMISED, COMMITTED):
            self.state = FREE
            self.restore()
        return [_request(name, request) for name, request in again.items()]

    def _decision(self, step: int) -> Decision:
        return merge([Request.from_dict(fields) for fields in self.verdict["requests"]], step)

    def _obey(self) -> Decision:
        decision = self._decision(self.gate.count)
        self.state = OBEYING
        if decision.stop:
            self.stopped = decision
        self.restore()
        return decision

    def _again(self) -> Decision:
        assert self.stopped is not None
        again = _announce(self.stopped)
        again.step = self.gate.count
        return again


def _announce(decision: Decision) -> Decision:
    """Return a stop without its save, which is returned only once."""
    return Decision(**{**decision.as_dict(), "save": False})


def _request(name: str, request: Request) -> Message:
    return {"say": "request", "id": name, "request": request.as_dict()}


def _asks_the_same(one: Request, other: Request) -> bool:
    fields = one.as_dict() | {"why": other.why, "step": other.step, "since": other.since, "at": other.at}
    return fields == other.as_dict()
