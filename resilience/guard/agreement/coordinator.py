"""Rank 0's side of the agreement: collect wishes, ask all ranks for promises, announce one verdict. Pure.

A round is PREPARE, all PROMISEs, COMMIT (or ABORT), all DONEs. The verdict lies at the largest promise, which nobody
has passed. There is never a second round before the first is over, so a rank has at most one promise to keep.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import COMMITTED, PROMISED
from resilience.guard.decision import FAILED, OBEYED, SAVED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from resilience.guard.agreement.messages import Message

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 10.0
KNOWN_WISHES = 10_000
MOST_REQUESTS = 32
"""How many different requests one verdict carries: it goes to every rank."""


class Heard:
    """What the coordinator wants its host to know.

    Attributes:
        kind: `committed`, `outcome` (all ranks have obeyed), `aborted`, `absent`, `skew`, `restarted`.
        text: a sentence for people.
        decision: what was decided, for `committed` and `outcome`.
        requests: what it answers.
        outcome: `saved`, `failed` or `obeyed`: the worst of all ranks.
        seconds: the longest save of all ranks.
    """

    __slots__ = ("decision", "kind", "outcome", "requests", "seconds", "text")

    def __init__(
        self,
        kind: str,
        text: str,
        *,
        decision: Decision | None = None,
        requests: Sequence[Request] = (),
        outcome: str = OBEYED,
        seconds: float = 0.0,
    ) -> None:
        self.kind = kind
        self.text = text
        self.decision = decision
        self.requests = tuple(requests)
        self.outcome = outcome
        self.seconds = seconds


class Coordinator:
    """Everything rank 0 knows of all ranks.

    Attributes:
        world: how many ranks there are.
        round: number of the last round.
        heard: news for the host, which takes them away.
        start: what all ranks are to do before the first step; None while it is not known.
    """

    def __init__(self, world: int, *, round_s: float = 10.0, skew_steps: int = 16, absent_s: float = 60.0) -> None:
        self.world = world
        self.round = 0
        self.heard: list[Heard] = []
        self.start: Decision | None = None
        self._round_s = round_s
        self._skew_steps = skew_steps
        self._absent_s = absent_s
        self._lives: dict[int, str] = {}
        self._gone: set[int] = set()  # lost connections: they may come again
        self._left: set[int] = set()
        self._wishes: dict[str, Request] = {}
        self._answered: dict[str, None] = {}
        self._promises: dict[int, tuple[int, int]] | None = None  # while a round collects
        self._verdict: dict[str, Any] | None = None  # while a round is committed and not over
        self._outcomes: dict[int, tuple[str, float]] = {}
        self._stopped: Decision | None = None
        self._old: dict[int, Message] = {}  # joins that tell of a round of a coordinator before us
        self._deadline = 0.0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._waiting_since: float | None = None
        self._told: set[str] = set()

    # ---- what happens -----------------------------------------------------------------------------------------

    def receive(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        """Given what a rank says at `now` (monotonic seconds), return what to say, and to whom."""
        says = message["say"]
        if says == "join":
            return self._join(rank, message, now)
        if says == "wish":
            self._wish(message["id"], message["request"])
        elif says == "promise":
            if self._promises is not None and message["round"] == self.round:
                self._promises[rank] = (message["steps"], message["polls"])
        elif says == "done":
            if self._verdict is not None and message["round"] == self.round:
                self._outcomes[rank] = (message["outcome"], message["seconds"])
        elif says == "leave":
            self._left.add(rank)
        return self.proceed(now)

    def lost(self, rank: int, now: float) -> list[tuple[int, Message]]:
        """The connection of a rank is gone. What it has promised it still keeps."""
        if rank not in self._left:
            self._gone.add(rank)
        return self.proceed(now)

    def decide_start(self, decision: Decision) -> list[tuple[int, Message]]:
        """What all ranks do before the first step. The first word counts."""
        if self.start is not None:
            return []
        self.start = decision
        return [(rank, self._start_message()) for rank in sorted(self._lives) if rank not in self._gone]

    def proceed(self, now: float) -> list[tuple[int, Message]]:
        """Do whatever can be done at `now`: also to be called when `next_deadline` has come."""
        said: list[tuple[int, Message]] = []
        if self._promises is not None:
            said += self._collect(now)
        if self._verdict is not None:
            self._close()
        if self._is_idle() and self._wishes:
            said += self._begin(now)
        return said

    def next_deadline(self) -> float | None:
        """When `proceed` is to be called although nothing was heard, or None."""
        if self._promises is not None:
            return self._deadline
        if self._is_idle() and self._wishes:
            absent = self._waiting_since is not None and "absent" not in self._told
            return self._waiting_since + self._absent_s if absent and self._waiting_since else self._retry_at
        return None

    def is_over(self, lost_too: bool = True) -> bool:
        """Whether nobody waits for a word of ours: every rank, or every one not lost, has obeyed the last verdict."""
        if self._promises is not None:
            return False
        waited_for = [rank for rank in self._present() if lost_too or rank not in self._gone]
        return self._verdict is None or all(rank in self._outcomes for rank in waited_for)

    def has_all_left(self) -> bool:
        """Whether every rank that ever joined, apart from rank 0, has left or is lost."""
        return all(rank in self._left or rank in self._gone for rank in self._lives if rank)

    # ---- ranks ------------------------------------------------------------------------------------------------

    def _join(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        known = self._lives.get(rank)
        restarted = known is not None and known != message["life"]
        self._lives[rank] = message["life"]
        self._gone.discard(rank)
        self._left.discard(rank)
        said: list[tuple[int, Message]] = [(rank, {"say": "welcome", "round": self.round})]
        if self.start is not None:
            said.append((rank, self._start_message()))
        if restarted:
            self._tell("restarted", f"rank {rank} was restarted", again=True)
            if self._promises is not None:
                self._promises.pop(rank, None)  # its former life promised, not this one
            if self._verdict is not None:
                self._outcomes.setdefault(rank, (FAILED, 0.0))
        number, state = message["round"], message["state"]
        if number > self.round:
            self._old[rank] = message
            said += self._recover()
        elif state == PROMISED and number == self.round and self._promises is not None:
            self._promises[rank] = (message["steps"], message["polls"])
        elif state == PROMISED:
            committed = self._verdict if number == self.round else None
            said.append((rank, self._outcome_message(rank, number, committed)))
        elif self._promises is not None and number < self.round:
            said.append((rank, {"say": "prepare", "round": self.round}))
        elif self._verdict is not None and state != COMMITTED and number == self.round:
            # It has obeyed; its DONE was lost with the connection. The save's outcome is not known.
            self._outcomes.setdefault(rank, (OBEYED, 0.0))
        return said + self.proceed(now)

    def _recover(self) -> list[tuple[int, Message]]:
        """A coordinator before us died in a round. If anybody heard a commit it holds for all; else nobody acted."""
        if len(self._lives) < self.world or self._promises is not None or self._verdict is not None:
            return []
        number = max(message["round"] for message in self._old.values())
        verdict = next((m["verdict"] for m in self._old.values() if m["round"] == number and m["verdict"]), None)
        waiting = [rank for rank, m in self._old.items() if m["state"] == PROMISED]
        self.round = number
        if verdict is not None:
            self._verdict = verdict
            for wish in verdict["wishes"]:
                self._remember(wish)
            held = {rank for rank, m in self._old.items() if m["round"] == number and m["state"] != "free"}
            self._outcomes = {rank: (OBEYED, 0.0) for rank in self._lives if rank not in held}
        said = [(rank, self._outcome_message(rank, self._old[rank]["round"], verdict)) for rank in waiting]
        self._old.clear()
        return said

    def _present(self) -> list[int]:
        """The ranks that still train."""
        return [rank for rank in self._lives if rank not in self._left]

    # ---- rounds -----------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return self._promises is None and self._verdict is None and self._stopped is None

    def _wish(self, name: str, fields: dict[str, Any]) -> None:
        if name not in self._answered:
            self._wishes[name] = Request.from_dict(fields)

    def _begin(self, now: float) -> list[tuple[int, Message]]:
        missing = [rank for rank in range(self.world) if rank not in self._lives or rank in self._gone]
        if missing or self._old:
            if self._waiting_since is None:
                self._waiting_since = now
            if now - self._waiting_since >= self._absent_s:
                self._tell(
                    "absent", f"nothing can be decided: {_ranks(missing)} of {self.world} did not join the guard"
                )
            self._retry_at = max(self._retry_at, now + LAST_RETRY_S)
            return []
        self._waiting_since = None
        self._told.discard("absent")
        if now < self._retry_at and self._retry_s > FIRST_RETRY_S:
            return []
        self.round += 1
        self._promises = {}
        self._deadline = now + self._round_s
        return [(rank, {"say": "prepare", "round": self.round}) for rank in self._present()]

    def _collect(self, now: float) -> list[tuple[int, Message]]:
        assert self._promises is not None
        present = self._present()
        promises = {rank: self._promises[rank] for rank in present if rank in self._promises}
        if len(promises) < len(present):
            if now < self._deadline:
                return []
            silent = [rank for rank in present if rank not in promises]
            return self._abort(now, f"{_ranks(silent)} did not answer in {self._round_s:g} s")
        if not promises:
            return self._abort(now, "every rank has left")
        first, last = min(promises.values()), max(promises.values())
        if self._skew_steps and last[0] - first[0] > self._skew_steps:
            behind = [rank for rank in present if promises[rank] == first]
            text = f"{_ranks(behind)} counts {first[0]} steps where others count {last[0]}"
            self._tell(
                "skew", f"{text}: make the guard before the first step on every rank, or call guard.resumed(step)"
            )
            return self._abort(now, text)
        asked = list(self._wishes.items())
        self._verdict = {
            "steps": last[0],
            "polls": last[1],
            "requests": [request.as_dict() for request in _distinct(request for _, request in asked)],
            "wishes": [name for name, _ in asked],
        }
        for name, _ in asked:
            self._remember(name)
        self._promises = None
        self._outcomes = {}
        self._retry_s = FIRST_RETRY_S
        decision = self._decision()
        self.heard.append(
            Heard("committed", str(decision), decision=decision, requests=[request for _, request in asked])
        )
        return [(rank, self._outcome_message(rank, self.round, self._verdict)) for rank in present]

    def _abort(self, now: float, why: str) -> list[tuple[int, Message]]:
        self._promises = None
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self.heard.append(Heard("aborted", f"no decision yet: {why}; trying again"))
        return [(rank, {"say": "abort", "round": self.round}) for rank in self._present()]

    def _close(self) -> None:
        """The round is over when every rank has obeyed: the worst outcome is that of all."""
        if any(rank not in self._outcomes for rank in self._present()):
            return
        assert self._verdict is not None
        decision = self._decision()
        results = list(self._outcomes.values())
        outcome = next((word for word in (FAILED, SAVED) if any(word == result for result, _ in results)), OBEYED)
        self.heard.append(
            Heard(
                "outcome",
                f"{outcome}: {decision}",
                decision=decision,
                requests=[Request.from_dict(fields) for fields in self._verdict["requests"]],
                outcome=outcome,
                seconds=max((seconds for _, seconds in results), default=0.0),
            )
        )
        self._verdict = None
        if decision.stop:
            self._stopped = decision
            self._wishes.clear()
            self.start = Decision(**{**decision.as_dict(), "save": False})

    def _decision(self) -> Decision:
        assert self._verdict is not None
        requests = [Request.from_dict(fields) for fields in self._verdict["requests"]]
        return merge(requests, self._verdict["steps"] + 1)

    # ---- words ------------------------------------------------------------------------------------------------

    def _start_message(self) -> Message:
        assert self.start is not None
        return {"say": "start", "decision": self.start.as_dict()}

    def _outcome_message(self, rank: int, number: int, verdict: dict[str, Any] | None) -> Message:
        if verdict is None:
            return {"say": "abort", "round": number}
        # A rank hears of its own wishes only: a signal to 4,096 ranks makes as many.
        own = [name for name in verdict["wishes"] if name.startswith(self._lives[rank] + ".")]
        return {"say": "commit", "round": number, "verdict": {**verdict, "wishes": own}}

    def _remember(self, wish: str) -> None:
        self._wishes.pop(wish, None)
        self._answered[wish] = None
        while len(self._answered) > KNOWN_WISHES:
            del self._answered[next(iter(self._answered))]

    def _tell(self, kind: str, text: str, *, again: bool = False) -> None:
        if again or kind not in self._told:
            self._told.add(kind)
            self.heard.append(Heard(kind, text))


def _distinct(requests: Iterable[Request]) -> list[Request]:
    """One of each kind, of the lowest rank that wishes it; the weightiest first, and not more than people read."""
    kinds: dict[tuple[object, ...], Request] = {}
    for request in sorted(requests, key=lambda request: request.rank):
        fields = request.as_dict()
        del fields["rank"]
        kinds.setdefault(tuple(fields.values()), request)
    weighty = sorted(kinds.values(), key=lambda request: (not request.discard, not request.stop, not request.save))
    return weighty[:MOST_REQUESTS]


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
