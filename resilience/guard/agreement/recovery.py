"""How a new coordinator goes on where the one before it has ended, from the JOINs of all ranks. Pure.

If anybody has heard a commit it holds for all, because somebody may have obeyed it already. If nobody has, nobody has
acted, and everybody may be set free. Therefore it must have heard every rank.
"""

from __future__ import annotations

from resilience.guard.agreement.messages import COMMITTED, FREE, OBEYING, PROMISED, read_request
from resilience.guard.agreement.rounds import effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
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
        round: its number.
        verdict: what was decided, or None if nothing that anybody has heard of.
        holding: the ranks that have not told yet how they obeyed it.
        outcomes: how those that have told obeyed it, by rank: the word and the seconds of the save.
        places: where each of the others obeys it; the ranks may decide by time.
        waiting: the ranks that have promised and heard nothing since, each with the round of its promise.
        answers: for each of these, which of its requests the verdict answers.
        answered: all requests that the verdict answers.
    """

    def __init__(self, number: int, verdict: dict[str, Any] | None) -> None:
        self.round = number
        self.verdict = verdict
        self.holding: list[int] = []
        self.outcomes: dict[int, tuple[str, float]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.waiting: list[tuple[int, int]] = []
        self.answers: dict[int, list[str]] = {}
        self.answered: list[str] = []


def recover(joins: Mapping[int, Message], *, by_time: bool = False) -> Recovered:
    """Given the JOINs, by rank, of all ranks that know of earlier rounds, return how the last of these stands.

    The JOIN of a rank that has told its outcome since is `free` and has it as `done`. `by_time`: each rank obeys where
    it has promised to wait.
    """
    number = max(join["round"] for join in joins.values())
    last = {rank: join for rank, join in joins.items() if join["round"] == number}
    verdict = next((join["verdict"] for join in last.values() if join["verdict"]), None)
    found = Recovered(number, {**verdict, "answers": []} if verdict is not None else None)
    found.waiting = [(rank, join["round"]) for rank, join in joins.items() if join["state"] == PROMISED]
    if verdict is None:
        return found
    effects = {effect(read_request(fields)) for fields in verdict["requests"]}
    for rank, join in last.items():
        found.answered += join["verdict"].get("answers", [])
        if join["state"] in (PROMISED, COMMITTED, OBEYING):
            found.holding.append(rank)
        elif "done" in join:
            found.outcomes[rank] = join["done"]
        if join["state"] == PROMISED:
            if by_time:
                found.places[rank] = (join["steps"], join["polls"])
            # Its commit was lost, and with it the word which of its requests were answered.
            own = [name for name, fields in join["requests"].items() if effect(read_request(fields)) in effects]
            found.answers[rank] = own
            found.answered += own
    return found
