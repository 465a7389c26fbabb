"""Recovery: a new coordinator continues where the previous one ended, from the JOINs of all ranks. Pure.

A commit that any rank knows is valid for all, because a rank may have applied it already. If no rank knows one, none
has acted, and all may be released. Therefore the new coordinator needs the JOIN of every rank.
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
        joins: the JOIN of each rank that knows earlier rounds, updated since.
    """

    def __init__(self) -> None:
        self.joins: dict[int, Message] = {}

    def joined(self, rank: int, join: Message) -> None:
        """Add the JOIN of a rank that knows such a round."""
        self.joins[rank] = join

    def restarted(self, rank: int) -> None:
        """Handle a restarted process, which knows no round; the verdict known to the former process stays valid."""
        self._change(rank, state=FREE, requests={})

    def resumed(self, rank: int) -> None:
        """Handle a rank that resumes at another step: it will not apply the round that it has given up."""
        self._change(rank, state=FREE, verdict={}, requests={})

    def obeyed(self, rank: int, number: int, outcome: str, seconds: float) -> None:
        """Store the outcome of round `number` on a rank, or of its save that was in flight then."""
        if rank in self.joins and self.joins[rank]["round"] == number:
            self._change(rank, state=FREE, done=(outcome, seconds))

    def _change(self, rank: int, **fields: Any) -> None:
        if rank in self.joins:
            self.joins[rank] = {**self.joins[rank], **fields}


class Recovered:
    """The last round of the previous coordinator.

    Attributes:
        number: of the round.
        decided: the state of the round, if any rank knows a verdict; else None.
        is_held: whether a rank has not reported its outcome of the verdict yet.
        waiting: the ranks that have promised and received no verdict, each with the round of its promise.
        answered: all requests that the verdict answers.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.decided: OpenRound | None = None
        self.is_held = False
        self.waiting: list[tuple[int, int]] = []
        self.answered: list[str] = []


def recover(joins: Mapping[int, Message], *, left: Iterable[int] = (), by_time: bool = False) -> Recovered:
    """Given the JOINs, by rank, of all ranks that know earlier rounds, return the state of the last of these.

    The JOIN of a rank that has reported its outcome since is `free` and has it as `done`. `left`: the ranks that do no
    further step. `by_time`: each rank acts at the position of its promise.
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
