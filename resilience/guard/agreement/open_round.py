"""A round: what ranks have promised, what was decided, who has not obeyed it yet, and whose save is in flight. Pure.

Normally all ranks obey after the same step, the largest promise. Decided by time, each obeys after its own promise: at
the same moment, for ranks that nothing holds together in every step.
"""

from __future__ import annotations

from resilience.guard.agreement.attendance import name_ranks
from resilience.guard.agreement.heard import Heard
from resilience.guard.agreement.messages import read_request
from resilience.guard.agreement.selection import select
from resilience.guard.decision import FAILED, IN_FLIGHT, OBEYED, SAVED, Decision, Request, merge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Set
    from typing import Any

    from resilience.guard.agreement.recovery import Recovered
    from resilience.guard.agreement.wishes import Wishes


class OpenRound:
    """A round from its PREPARE to the last DONE: first it collects promises, then it is committed to a verdict.

    Attributes:
        deadline: until when it collects, in monotonic seconds.
        promises: the position (steps, polls) that each rank has promised not to pass; empty once it is committed.
        step_s: how long a step takes on each rank that knows, in seconds.
        places: decided by time, where each rank obeys; else empty.
        verdict: where all ranks are to do what, as it travels, save for the wishes; empty while the round collects.
        answers: which wishes of which rank the verdict answers.
        decided: these wishes themselves, in case that it becomes void.
        awaited: the ranks that have not obeyed it yet.
        in_flight: the ranks that have obeyed it, and whose save is not durable yet.
        outcome: how the others fared, the worst of them: `failed`, `saved` or `obeyed`.
        failed_on: the ranks on which the save failed.
        seconds: their longest save.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.promises: dict[int, tuple[int, int]] = {}
        self.step_s: dict[int, float] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.verdict: dict[str, Any] = {}
        self.answers: dict[int, list[str]] = {}
        self.decided: dict[str, tuple[int, Request]] = {}
        self.awaited: set[int] = set()
        self.in_flight: set[int] = set()
        self.outcome = OBEYED
        self.failed_on: list[int] = []
        self.seconds = 0.0

    @classmethod
    def of_verdict(cls, verdict: dict[str, Any], found: Recovered, left: Iterable[int]) -> OpenRound:
        """A round that a coordinator before us has committed to `verdict`; what else was found of it, and who left."""
        known = cls(0.0)
        known.verdict = verdict
        known.answers = found.answers
        known.places = found.places
        known.awaited = {*found.holding, *found.outcomes}
        for rank, (outcome, seconds) in found.outcomes.items():
            known.obeyed(rank, outcome, seconds)
        for rank in left:
            known.forget(rank)
        return known

    # ---- promises ---------------------------------------------------------------------------------------------

    def promise(self, rank: int, steps: int, polls: int, step_s: float = 0.0) -> None:
        """A rank has promised not to pass this position before it has heard the verdict."""
        self.promises[rank] = (steps, polls)
        self.step_s[rank] = step_s

    def skew(self, most_steps: int) -> str:
        """Say which ranks count more than `most_steps` differently from others; empty when all count alike."""
        first, last = min(self.promises.values())[0], max(self.promises.values())[0]
        if last - first <= most_steps:
            return ""
        behind = [rank for rank, promise in self.promises.items() if promise[0] == first]
        verb = "counts" if len(behind) == 1 else "count"
        return f"{name_ranks(behind)} {verb} {first:,} steps where others count {last:,}"

    def behind(self, place: tuple[int, int]) -> tuple[int, int, float]:
        """The rank that needs longest to come to `place`: how many steps that is, and how many seconds it takes.

        Zero seconds when none knows how long its steps take.
        """
        ways = [(rank, place[0] - steps) for rank, (steps, _) in self.promises.items()]
        rank, steps = max(ways, key=lambda way: way[1] * self.step_s.get(way[0], 0.0))
        return rank, steps, steps * self.step_s.get(rank, 0.0)

    # ---- the verdict ------------------------------------------------------------------------------------------

    def commit(self, place: tuple[int, int], wishes: Wishes, *, by_time: bool = False) -> Heard:
        """All who have promised are to obey all open wishes at this position, or, `by_time`, each where it has promised
        to wait. Return the news of it."""
        steps, polls = place
        if by_time:
            self.places = self.promises
        wished = [request for _, request in wishes.open.values()]
        requests = [request.as_dict() for request in select(wished)]
        self.verdict = {"steps": steps, "polls": polls, "requests": requests, "wishes": []}
        self.decided = dict(wishes.open)
        for name, (rank, _) in self.decided.items():
            self.answers.setdefault(rank, []).append(name)
        wishes.answer(self.decided)
        self.awaited = set(self.promises)
        self.promises = {}
        decision = self.decision
        return Heard("committed", str(decision), decision=decision, requests=wished)

    @property
    def is_committed(self) -> bool:
        """Whether there is a verdict."""
        return bool(self.verdict)

    @property
    def requests(self) -> list[Request]:
        """What the verdict carries to every rank."""
        return [read_request(fields) for fields in self.verdict["requests"]]

    @property
    def decision(self) -> Decision:
        """What all ranks do, after the step that follows the position."""
        return merge(self.requests, self.verdict["steps"] + 1)

    def verdict_for(self, rank: int) -> dict[str, Any]:
        """The verdict as it travels. A rank hears of its own wishes only: a signal to 4,096 ranks makes as many."""
        steps, polls = self.places.get(rank, (self.verdict["steps"], self.verdict["polls"]))
        return {**self.verdict, "steps": steps, "polls": polls, "wishes": self.answers.get(rank, [])}

    def is_obeyed(self, apart_from: Set[int] = frozenset()) -> bool:
        """Whether every rank, apart from these, has obeyed the verdict."""
        return self.is_committed and self.awaited <= apart_from

    def is_settled(self, apart_from: Set[int] = frozenset()) -> bool:
        """Whether every rank, apart from these, has obeyed, and has told whether what it saved is durable."""
        return self.is_obeyed(apart_from) and self.in_flight <= apart_from

    def obeyed(self, rank: int, outcome: str, seconds: float) -> None:
        """A rank has obeyed: it says how, and how long its save took. Only its first word counts."""
        if rank in self.awaited:
            self.awaited.discard(rank)
            if outcome == IN_FLIGHT:
                self.in_flight.add(rank)
            else:
                self._count(rank, outcome, seconds)

    def saved(self, rank: int, outcome: str, seconds: float) -> None:
        """What was in flight on this rank is durable, or failed. Only its first word counts."""
        if rank in self.in_flight:
            self.in_flight.discard(rank)
            self._count(rank, outcome, seconds)

    def forget(self, rank: int) -> None:
        """A rank has left, or its process is another one: its promise binds nobody, and nobody waits for it.

        If it was to save, or still saved, nobody may say that all have saved.
        """
        self.promises.pop(rank, None)
        if rank in self.awaited:
            self.obeyed(rank, FAILED if self.decision.save else OBEYED, 0.0)
        self.saved(rank, FAILED, 0.0)

    def end(self) -> Heard:
        """The news how it went, once every rank has told: the worst outcome is that of all. It is rank 0 that hears it:
        the decision is of the step after which that has obeyed."""
        decision = merge(self.requests, self.verdict_for(0)["steps"] + 1)
        on = f" on {name_ranks(sorted(self.failed_on))}" if self.failed_on else ""
        return Heard(
            "outcome",
            f"{self.outcome}{on}: {decision}",
            decision=decision,
            requests=self.requests,
            outcome=self.outcome,
            seconds=self.seconds,
            ranks=sorted(self.failed_on),
        )

    def _count(self, rank: int, outcome: str, seconds: float) -> None:
        if outcome == FAILED:
            self.failed_on.append(rank)
        self.outcome = next((word for word in (FAILED, SAVED) if word in (self.outcome, outcome)), OBEYED)
        self.seconds = max(self.seconds, seconds)
