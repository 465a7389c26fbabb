"""What the agreement tells its host: news of decisions, and of what keeps them from being made. Pure."""

from __future__ import annotations

from resilience.guard.decision import OBEYED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from resilience.guard.decision import Decision, Request


class Heard:
    """What the agreement wants its host to know.

    Attributes:
        kind: `committed`, `outcome` (all ranks have obeyed, and what they saved is durable or failed), `aborted`,
            `absent`, `skew`, `behind`, `restarted`, `twins`, `failed` (a rank has left because of a fault);
            of a rank that is not the first, `lost` (it has no connection to rank 0), `back`, and `alone` (rank 0 is
            gone for good: this rank decides by itself); `fault`, `broken`.
        text: a sentence for people.
        decision: what was decided, for `committed` and `outcome`.
        requests: what it answers.
        outcome: `saved`, `failed` or `obeyed`: the worst of all ranks.
        seconds: the longest save of all ranks, until it was durable.
        ranks: those on which it failed.
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
