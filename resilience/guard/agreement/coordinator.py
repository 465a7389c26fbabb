"""Rank 0's side of the agreement: collect wishes, ask all ranks for promises, announce one verdict. Pure.

A round is PREPARE, all PROMISEs, COMMIT (or ABORT), all DONEs. The verdict lies at the largest promise, which nobody
has passed. There is never a second round before the first is over, so a rank has at most one promise to keep.
"""

from __future__ import annotations

from resilience.guard.agreement import recovery
from resilience.guard.agreement.heard import Heard as Heard
from resilience.guard.agreement.messages import COMMITTED, FREE, PROMISED, read_request
from resilience.guard.agreement.selection import select
from resilience.guard.agreement.void import VoidRound
from resilience.guard.decision import FAILED, OBEYED, SAVED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from resilience.guard.agreement.messages import Message

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 10.0
KNOWN_WISHES = 10_000
LONG_AGO = float("-inf")


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
        self._dead_lives: set[str] = set()
        self._gone: set[int] = set()  # lost connections: they may come again
        self._left: dict[int, int] = {}  # ranks that do no step any more, and how many they have done
        self._wishes: dict[str, tuple[int, Request]] = {}
        self._answered: dict[str, None] = {}
        self._promises: dict[int, tuple[int, int]] | None = None  # while a round collects
        self._verdict: dict[str, Any] | None = None  # while a round is committed and not over
        self._answers: dict[int, list[str]] = {}  # which wishes of which rank the verdict answers
        self._decided: dict[str, tuple[int, Request]] = {}  # the same, in case that the verdict becomes void
        self._awaited: set[int] = set()  # who has not obeyed it yet
        self._outcomes: list[tuple[str, float]] = []
        self._stopped: Decision | None = None
        self._void = VoidRound()
        self._old: dict[int, Message] = {}  # joins that tell of rounds of a coordinator before us
        self._deadline = 0.0
        self._retry_at = LONG_AGO
        self._retry_s = FIRST_RETRY_S
        self._missing_since: float | None = None
        self._skewed_since: float | None = None
        self._told: set[str] = set()
        self._has_ended = False

    # ---- what happens -----------------------------------------------------------------------------------------

    def receive(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        """Given what a rank says at `now` (monotonic seconds), return what to say, and to whom."""
        says = message["say"]
        if says == "join":
            return self._join(rank, message, now)
        if says == "wish":
            self._wish(rank, message["id"], message["request"])
        elif says == "promise":
            if self._promises is not None and message["round"] == self.round and rank not in self._left:
                self._promises[rank] = (message["steps"], message["polls"])
        elif says == "done":
            if message["round"] == self.round:
                self._obeyed(rank, message["outcome"], message["seconds"])
            elif rank in self._old and message["round"] == self._old[rank]["round"]:
                done = (message["outcome"], message["seconds"])
                self._old[rank] = {**self._old[rank], "state": FREE, "done": done}
        elif says == "leave":
            self._leave(rank, message["steps"])
        elif says == "resume":
            return self._resume(rank, message["round"], now)
        elif says == "aborted" and message["round"] == self._void.number:
            self._void.heard(rank)
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
        if self._old and self._promises is None and self._verdict is None and len(self._lives) == self.world:
            said += self._recover()
        said += [(rank, {"say": "abort", "round": self._void.number}) for rank in self._void.release()]
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
        if not (self._is_idle() and self._wishes and self._present()):
            return None
        if self._missing_since is None:
            return self._retry_at
        return None if "absent" in self._told else self._missing_since + self._absent_s

    def end(self) -> list[tuple[int, Message]]:
        """Rank 0 goes away: nothing is begun any more, and who waits for a verdict that will not come is set free."""
        self._has_ended = True
        return self._abort(0.0, "rank 0 ends") if self._promises is not None else []

    def is_over(self, lost_too: bool = True) -> bool:
        """Whether nobody waits for a word of ours: every rank, or every one not lost, has obeyed the last verdict."""
        return self._promises is None and not (self._awaited if lost_too else self._awaited - self._gone)

    def has_all_left(self) -> bool:
        """Whether every rank that ever joined, apart from rank 0, has left or is lost."""
        return all(rank in self._left or rank in self._gone for rank in self._lives if rank)

    # ---- ranks ------------------------------------------------------------------------------------------------

    def _join(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        former, life = self._lives.get(rank), message["life"]
        self._lives[rank] = life
        self._gone.discard(rank)
        self._left.pop(rank, None)
        said: list[tuple[int, Message]] = [(rank, {"say": "welcome", "round": self.round})]
        if self.start is not None:
            said.append((rank, self._start_message()))
        if former is not None and former != life:
            self._restarted(rank, former, life)
        for name, fields in message["wishes"].items():
            self._wish(rank, name, fields)
        number, state = message["round"], message["state"]
        if number > self.round:
            self._old[rank] = message
        elif rank in self._old:  # its process was started again; what the former one had heard is still true
            self._old[rank] = {**self._old[rank], "state": FREE, "wishes": {}}
        elif state == PROMISED and number == self.round and self._promises is not None:
            self._promises[rank] = (message["steps"], message["polls"])
        else:
            if state not in (PROMISED, COMMITTED) or number != self._void.number:
                self._void.heard(rank)
            # Committed to what is not open any more: it became void while its connection was broken.
            if state == PROMISED or (state == COMMITTED and self._verdict is None):
                said.append((rank, self._outcome_message(rank, number)))
            if self._promises is not None:
                said.append((rank, {"say": "prepare", "round": self.round}))
        return said + self.proceed(now)

    def _restarted(self, rank: int, former: str, life: str) -> None:
        """What the former life of a rank promised does not bind this one, and what it had to obey nobody obeys."""
        if life in self._dead_lives:
            self._tell("twins", f"two processes say that they are rank {rank}: nothing can be decided")
        else:
            self._tell("restarted", f"rank {rank} was restarted", again=True)
        self._dead_lives.add(former)
        self._void.forget(rank)
        if self._promises is not None:
            self._promises.pop(rank, None)
        self._not_obeyed(rank)

    def _resume(self, rank: int, number: int, now: float) -> list[tuple[int, Message]]:
        """A rank goes on from another step: what it promised, and what was decided with that promise, is void.

        It waits, and no other round begins, until every rank has said that it has given up the round: one that has
        heard of the verdict, and not that it is void, would obey it while this one goes on.
        """
        said: list[tuple[int, Message]] = []
        if rank in self._old:  # it knew of a round of a coordinator before us, and nobody may wait for it to obey that
            self._old[rank] = {**self._old[rank], "state": FREE, "verdict": {}, "wishes": {}}
        is_open = number == self.round and (self._promises is not None or self._verdict is not None)
        if is_open:
            self._void.begin(number, (other for other in self._lives if other not in self._left))
            said = [letter for letter in self._make_void(rank, now) if letter[0] != rank]
        if number and number == self._void.number and (is_open or self._void.is_open):
            self._void.wait(rank)
        elif number:
            said.append((rank, {"say": "abort", "round": number}))
        self._retry_at, self._retry_s = LONG_AGO, FIRST_RETRY_S  # what kept them from agreeing may be over
        return said + self.proceed(now)

    def _make_void(self, rank: int, now: float) -> list[tuple[int, Message]]:
        """Take back the open round, and ask anew for what it would have answered."""
        why = f"rank {rank} goes on from another step"
        if self._promises is not None:
            return self._abort(now, why)
        self._wishes |= self._decided
        for name in self._decided:
            self._answered.pop(name, None)
        self._verdict = None
        self._awaited = set()
        self.heard.append(Heard("void", f"{why}: what was decided is asked anew"))
        return self._to_all({"say": "abort", "round": self.round})

    def _leave(self, rank: int, steps: int) -> None:
        self._left[rank] = steps
        self._void.forget(rank)
        self._gone.discard(rank)
        if self._promises is not None:
            self._promises.pop(rank, None)
        self._not_obeyed(rank)

    def _recover(self) -> list[tuple[int, Message]]:
        """All ranks have joined that a coordinator before us may have told something."""
        found = recovery.recover(self._old)
        self._old.clear()
        self.round = found.round
        for name in found.answered:
            self._remember(name)
        if found.verdict is not None:
            self._answers, self._decided = found.answers, {}
            decision = _decision(found.verdict)
            if found.holding:
                self._verdict = found.verdict
                self._awaited = {rank for rank in found.holding if rank not in self._left}
                self._outcomes = [(_missed(decision), 0.0)] * (len(found.holding) - len(self._awaited)) + found.outcomes
            elif decision.stop:
                self._stop(decision)
        return [(rank, self._outcome_message(rank, number)) for rank, number in found.waiting]

    def _present(self) -> bool:
        """Whether any rank still trains."""
        return len(self._left) < len(self._lives)

    # ---- rounds -----------------------------------------------------------------------------------------------

    def _is_idle(self) -> bool:
        is_open = self._promises is not None or self._verdict is not None or self._void.is_open
        return not is_open and self._stopped is None and not self._has_ended

    def _wish(self, rank: int, name: str, fields: dict[str, Any]) -> None:
        if name not in self._answered:
            self._wishes[name] = rank, read_request(fields)

    def _begin(self, now: float) -> list[tuple[int, Message]]:
        if not self._present():
            return []
        if len(self._lives) < self.world or self._gone or self._old:
            if self._missing_since is None:
                self._missing_since = now
            if now - self._missing_since >= self._absent_s:
                missing = [rank for rank in range(self.world) if rank not in self._lives or rank in self._gone]
                self._tell(
                    "absent", f"nothing can be decided: {_ranks(missing)} of {self.world} did not join the guard"
                )
            return []
        self._missing_since = None
        self._told.discard("absent")
        if now < self._retry_at:
            return []
        self.round += 1
        self._promises = {}
        self._deadline = now + self._round_s
        return self._to_all({"say": "prepare", "round": self.round})

    def _collect(self, now: float) -> list[tuple[int, Message]]:
        assert self._promises is not None
        if not self._present():
            return self._abort(now, "every rank has left")
        if not self._has_all_promises():
            if now < self._deadline:
                return []
            silent = [rank for rank in self._lives if rank not in self._left and rank not in self._promises]
            return self._abort(now, f"{_ranks(silent)} did not answer in {self._round_s:g} s")
        first, last = min(self._promises.values())[0], max(self._promises.values())[0]
        if self._skew_steps and last - first > self._skew_steps:
            behind = [rank for rank, promise in self._promises.items() if promise[0] == first]
            text = f"{_ranks(behind)} counts {first} steps where others count {last}"
            if self._skewed_since is None:
                self._skewed_since = now
            if now - self._skewed_since >= LAST_RETRY_S:  # not while checkpoints are loaded, one rank after the other
                advice = "make the guard before the first step on every rank, or call guard.resumed(step)"
                self._tell("skew", f"{text}: {advice}")
            return self._abort(now, text)
        return self._commit()

    def _has_all_promises(self) -> bool:
        assert self._promises is not None
        return len(self._promises) == len(self._lives) - len(self._left)

    def _place_verdict(self, promises: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        """The largest promise. A rank that has left promised never to do another step."""
        return max(*promises.values(), *((steps, 0) for steps in self._left.values()), (0, 0))

    def _commit(self) -> list[tuple[int, Message]]:
        assert self._promises is not None
        steps, polls = self._place_verdict(self._promises)
        requests = [request for _, request in self._wishes.values()]
        self._verdict = {
            "steps": steps,
            "polls": polls,
            "requests": [request.as_dict() for request in select(requests)],
            "wishes": [],
        }
        self._answers = {}
        self._decided = dict(self._wishes)
        for name, (rank, _) in list(self._wishes.items()):
            self._answers.setdefault(rank, []).append(name)
            self._remember(name)
        self._awaited = set(self._promises)
        self._outcomes = []
        self._promises = None
        self._retry_at, self._retry_s = LONG_AGO, FIRST_RETRY_S
        self._skewed_since = None
        decision = _decision(self._verdict)
        self.heard.append(Heard("committed", str(decision), decision=decision, requests=requests))
        return [(rank, self._outcome_message(rank, self.round)) for rank in self._awaited]

    def _abort(self, now: float, why: str) -> list[tuple[int, Message]]:
        self._promises = None
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self.heard.append(Heard("aborted", f"no decision yet: {why}; trying again"))
        return self._to_all({"say": "abort", "round": self.round})

    def _obeyed(self, rank: int, outcome: str, seconds: float) -> None:
        if rank in self._awaited:
            self._awaited.discard(rank)
            self._outcomes.append((outcome, seconds))

    def _not_obeyed(self, rank: int) -> None:
        """It has left, or its process is another one. If it was to save, nobody may say that all have saved."""
        if self._verdict is not None:
            self._obeyed(rank, _missed(_decision(self._verdict)), 0.0)

    def _close(self) -> None:
        """The round is over when every rank has obeyed: the worst outcome is that of all."""
        if self._awaited:
            return
        assert self._verdict is not None
        decision = _decision(self._verdict)
        words = {word for word, _ in self._outcomes}
        outcome = next((word for word in (FAILED, SAVED) if word in words), OBEYED)
        self.heard.append(
            Heard(
                "outcome",
                f"{outcome}: {decision}",
                decision=decision,
                requests=[Request.from_dict(fields) for fields in self._verdict["requests"]],
                outcome=outcome,
                seconds=max((seconds for _, seconds in self._outcomes), default=0.0),
            )
        )
        self._verdict = None
        if decision.stop:
            self._stop(decision)

    def _stop(self, decision: Decision) -> None:
        """Nothing is decided after a stop. Who starts now hears of it before its first step."""
        self._stopped = decision
        self._wishes.clear()
        self.start = Decision(**{**decision.as_dict(), "save": False})

    # ---- words ------------------------------------------------------------------------------------------------

    def _start_message(self) -> Message:
        assert self.start is not None
        return {"say": "start", "decision": self.start.as_dict()}

    def _outcome_message(self, rank: int, number: int) -> Message:
        if self._verdict is None or number != self.round:
            return {"say": "abort", "round": number}
        # A rank hears of its own wishes only: a signal to 4,096 ranks makes as many.
        return {"say": "commit", "round": number, "verdict": {**self._verdict, "wishes": self._answers.get(rank, [])}}

    def _to_all(self, message: Message) -> list[tuple[int, Message]]:
        return [(rank, message) for rank in self._lives if rank not in self._left]

    def _remember(self, wish: str) -> None:
        self._wishes.pop(wish, None)
        self._answered[wish] = None
        while len(self._answered) > KNOWN_WISHES:
            del self._answered[next(iter(self._answered))]

    def _tell(self, kind: str, text: str, *, again: bool = False) -> None:
        if again or kind not in self._told:
            self._told.add(kind)
            self.heard.append(Heard(kind, text))


def _decision(verdict: Mapping[str, Any]) -> Decision:
    return merge([Request.from_dict(fields) for fields in verdict["requests"]], verdict["steps"] + 1)


def _missed(decision: Decision) -> str:
    return FAILED if decision.save else OBEYED


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
