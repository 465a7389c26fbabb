"""One rank's side of the agreement: promise where to stop, hear the verdict, obey it at its step. Pure, no locks.

Whoever uses this from two threads holds one lock around every method; only the counters of the gate are read and
written without it. The argument for it all is in docs/explanation/agreement.md.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import COMMITTED, FREE, PROMISED
from resilience.guard.decision import CONTINUE, Decision, Request, merge
from resilience.guard.gate import NEVER, Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from resilience.guard.agreement.messages import Message

QUICK_TRIES = 4
"""How often a promise is tried at the training's own heels before it is given some steps ahead."""


class Member:
    """What one rank knows of the agreement.

    Attributes:
        gate: the counters it shares with the training thread.
        life: a random word, new with each process: a rank that was restarted has promised nothing.
        round: number of the round it last heard of.
        state: `free`, `promised` (no step beyond `promise` before the verdict), or `committed` to `verdict`.
        promise: the position promised: (steps, polls).
        wishes: what this rank wishes and no verdict has answered, by id.
        start: what all ranks do before the first step, once it is known.
        stopped: the decision to stop that was given to the training; every later step gives it again.
        owed: the round of a decision whose outcome the coordinator has not been told; 0 when there is none.
    """

    def __init__(self, gate: Gate, rank: int, life: str) -> None:
        self.gate = gate
        self.rank = rank
        self.life = life
        self.round = 0
        self.state = FREE
        self.promise = (0, 0)
        self.verdict: dict[str, Any] = {}
        self.wishes: dict[str, Request] = {}
        self.start: Decision | None = None
        self.stopped: Decision | None = None
        self.owed = 0
        self._wished = 0

    # ---- control thread ---------------------------------------------------------------------------------------

    def join(self) -> list[Message]:
        """What to say on every new connection: who we are, where we are, and what we have promised or heard."""
        steps, polls = self.promise if self.state == PROMISED else self.gate.position()
        joining: Message = {"say": "join", "rank": self.rank, "life": self.life, "steps": steps, "polls": polls}
        joining |= {"round": self.round, "state": self.state}
        joining["verdict"] = self.verdict if self.state == COMMITTED else {}
        return [joining, *(_wish(name, request) for name, request in self.wishes.items())]

    def wish(self, request: Request) -> list[Message]:
        """Ask all ranks for something. It is kept, and said again after a reconnection, until a verdict answers it."""
        self._wished += 1
        name = f"{self.life}.{self._wished}"
        request.rank = self.rank
        self.wishes[name] = request
        return [_wish(name, request)]

    def receive(self, message: Message) -> list[Message]:
        """Given what the coordinator says, do it and return what to answer."""
        says = message["say"]
        if says == "start":
            self.start = Decision(**message["decision"])
        elif says == "prepare":
            for _ in self.promise_moves(message["round"]):
                pass
            if self.state == PROMISED and self.round == message["round"]:
                return [self._promised()]
        elif says == "commit":
            self._commit(message["round"], message["verdict"])
        elif says == "abort" and self.state == PROMISED and self.round == message["round"]:
            self.state = FREE
            self.restore()
        return []

    def promise_moves(self, number: int) -> Iterator[str]:
        """Promise not to pass the present position; each `yield` is a moment at which the training thread may run.

        First the limits are written, then the position is read again: if it is unchanged, whatever the training
        writes from now on it compares with the new limits. If it has moved it may have passed: try again, and after a
        few times leave it some room.
        """
        # A round of the past. Or a commit of the last one not yet obeyed: the coordinator does not start the next
        # one before that, so this is a message of another coordinator.
        if number <= self.round or self.state == COMMITTED:
            return
        gate = self.gate
        tries = 0
        while True:
            steps, polls = gate.position()
            if tries >= QUICK_TRIES:
                steps, polls = steps + (1 << (tries - QUICK_TRIES)), NEVER
            gate.hold(steps + 1, min(polls + 1, NEVER))
            yield "limits written"
            if gate.position() <= (steps, polls):
                break
            tries += 1
            yield "the training has moved"
        self.round = number
        self.state = PROMISED
        self.promise = (steps, 0 if polls == NEVER else polls)
        if gate.urgent:
            gate.limit = gate.poll_limit = 0

    def finish(self, outcome: str, seconds: float) -> list[Message]:
        """The decision has been obeyed: tell how its save went. Nothing when nothing is owed."""
        number, self.owed = self.owed, 0
        if not number:
            return []
        return [{"say": "done", "round": number, "outcome": outcome, "seconds": float(seconds)}]

    # ---- training thread --------------------------------------------------------------------------------------

    def arrive(self) -> Decision | None:
        """The training has done a step that reached the limit. Return what to do, or None: wait for the verdict."""
        steps = self.gate.count
        if self.state == COMMITTED and steps > self.verdict["steps"]:
            return self._obey(steps)
        if self.state == PROMISED and steps > self.promise[0]:
            return None
        self.restore()
        return self._again(steps) if self.stopped is not None else CONTINUE

    def arrive_at_poll(self) -> Decision | None:
        """The same for a poll. A stop is only announced: the training leaves what it does, and the next step obeys."""
        position = self.gate.position()
        if self.state == COMMITTED and position >= (self.verdict["steps"], self.verdict["polls"]):
            decision = self._decision()
            return _announce(decision) if decision.stop else CONTINUE
        if self.state == PROMISED and position > self.promise:
            return None
        self.restore()
        return self._again(position[0]) if self.stopped is not None else CONTINUE

    def restore(self) -> None:
        """Set the limits to what the state demands."""
        gate = self.gate
        if self.stopped is not None:
            gate.limit = gate.poll_limit = 0
        elif self.state == COMMITTED:
            gate.limit = self.verdict["steps"] + 1
            gate.poll_limit = 0
        elif self.state == PROMISED:
            gate.limit = self.promise[0] + 1
            gate.poll_limit = 0
        elif self.owed:
            gate.limit = gate.count + 1
            gate.poll_limit = NEVER
        else:
            gate.open()
        if gate.urgent:  # a signal came meanwhile: its handler wrote the limits before us
            gate.limit = gate.poll_limit = 0

    # ---- both -------------------------------------------------------------------------------------------------

    def _commit(self, number: int, verdict: dict[str, Any]) -> None:
        if self.state != PROMISED or self.round != number:
            return  # a commit that we know, or of a round that a former life of this rank promised
        self.state = COMMITTED
        self.verdict = verdict
        for name in verdict["wishes"]:
            self.wishes.pop(name, None)
        self.restore()

    def _decision(self) -> Decision:
        requests = [Request.from_dict(fields) for fields in self.verdict["requests"]]
        return merge(requests, self.verdict["steps"] + 1)

    def _obey(self, steps: int) -> Decision:
        decision = self._decision()
        self.state = FREE
        self.verdict = {}
        self.owed = self.round
        if decision.stop:
            self.stopped = decision
        self.restore()
        return decision

    def _again(self, steps: int) -> Decision:
        assert self.stopped is not None
        again = _announce(self.stopped)
        again.step = steps
        return again

    def _promised(self) -> Message:
        return {"say": "promise", "round": self.round, "steps": self.promise[0], "polls": self.promise[1]}


def _announce(decision: Decision) -> Decision:
    """A stop without its save: that is given once."""
    return Decision(**{**decision.as_dict(), "save": False})


def _wish(name: str, request: Request) -> Message:
    return {"say": "wish", "id": name, "request": request.as_dict()}
