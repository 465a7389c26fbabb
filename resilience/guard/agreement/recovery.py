"""How a new coordinator goes on where the one before it has ended, from the JOINs of all ranks. Pure.

A commit that any rank knows holds for all, because a rank may have obeyed it already. If no rank knows one, none has
acted, and all may be released. Therefore the new coordinator must have heard every rank.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import COMMITTED, FREE, OBEYING, PROMISED, read_request
from resilience.guard.agreement.rounds import OpenRound, effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from resilience.guard.agreement.messages import Message


class EarlierRounds:
    """Rounds of a coordinator before this one, as ranks reported them when they joined.

    Attributes:
        joins: the JOIN of each rank that has, as it stands now.
    """

    def __init__(self) -> None:
        self.joins: dict[int, Message] = {}

    def joined(self, rank: int, join: Message) -> None:
        """A rank knows of such a round."""
        self.joins[rank] = join

    def restarted(self, rank: int) -> None:
        """Its process was started again and knows of nothing; what the former one had heard is still true."""
        self._change(rank, state=FREE, requests={})

    def resumed(self, rank: int) -> None:
        """It goes on from another step: nobody may wait for it to obey what it has given up."""
        self._change(rank, state=FREE, verdict={}, requests={})

    def obeyed(self, rank: int, number: int, outcome: str, seconds: float) -> None:
        """It has obeyed the verdict of round `number` and says how; or how the save went that was in flight then."""
        if rank in self.joins and self.joins[rank]["round"] == number:
            self._change(rank, state=FREE, done=(outcome, seconds))

    def _change(self, rank: int, **fields: Any) -> None:
        if rank in self.joins:
            self.joins[rank] = {**self.joins[rank], **fields}


class Recovered:
    """The last round of the coordinator before this one.

    Attributes:
        number: of the round.
        decided: the round as it stands, if any rank knows a verdict; else None.
        is_held: whether a rank has not reported yet how it obeyed the verdict.
        waiting: the ranks that have promised and heard nothing since, each with the round of its promise.
        answered: all requests that the verdict answers.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.decided: OpenRound | None = None
        self.is_held = False
        self.waiting: list[tuple[int, int]] = []
        self.answered: list[str] = []


def recover(joins: Mapping[int, Message], *, left: Iterable[int] = (), by_time: bool = False) -> Recovered:
    """Given the JOINs, by rank, of all ranks that know of earlier rounds, return how the last of these stands.

    The JOIN of a rank that has reported its outcome since is `free` and has it as `done`. `left`: the ranks that do no
    step any more. `by_time`: each rank obeys where it has promised to wait.
    """
    found = Recovered(max(join["round"] for join in joins.values()))
    last = {rank: join for rank, join in joins.items() if join["round"] == found.number}
    found.waiting = [(rank, join["round"]) for rank, join in joins.items() if join["state"] == PROMISED]
    verdict = next((join["verdict"] for join in last.values() if join["verdict"]), None)
    if verdict is None:
        return found
    known = found.decided = OpenRound(0.0)
    known.verdict = {**verdict, "answers": []}
    effects = {effect(read_request(fields)) for fields in verdict["requests"]}
    for rank, join in last.items():
        found.answered += join["verdict"].get("answers", [])
        if join["state"] in (PROMISED, COMMITTED, OBEYING):
            found.is_held = True
            known.pending.add(rank)
        elif "done" in join:
            known.pending.add(rank)
            known.obeyed(rank, *join["done"])
        if join["state"] == PROMISED:
            if by_time:
                known.places[rank] = (join["steps"], join["polls"])
            # Its commit was lost, and with it the names of its requests that were answered.
            known.answers[rank] = [
                name for name, fields in join["requests"].items() if effect(read_request(fields)) in effects
            ]
            found.answered += known.answers[rank]
    for rank in left:
        known.forget(rank)
    return found
