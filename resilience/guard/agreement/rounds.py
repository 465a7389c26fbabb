"""Requests, the rounds that decide them, and the timing of retries. Pure.

Normally all ranks act after the same step, the largest promise. Decided by time, each acts after its own promise: at
the same moment, for ranks that do not synchronise in every step.
"""

from __future__ import annotations

from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.agreement.messages import read_request
from resilience.guard.agreement.ranks import name_ranks
from resilience.guard.decision import (
    FAILED,
    IN_FLIGHT,
    OBEYED,
    SAVED,
    Decision,
    Request,
    merge,
    wanted_step,
    without_wish,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set
    from typing import Any

MOST_ANSWERED = 10_000
"""How many answered requests are remembered: more than ranks can have repeated since."""
MOST_REQUESTS = 16
"""How many different requests one verdict carries: every rank receives it, and users read its reasons."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 10.0
"""Each round that fails doubles the pause before the next, from the first to the last."""
LONG_AGO = float("-inf")


class RequestQueue:
    """The requests of all ranks.

    Attributes:
        open: the unanswered ones, by their names, oldest first: the rank and the request.
    """

    def __init__(self) -> None:
        self.open: dict[str, tuple[int, Request]] = {}
        self._answered: dict[str, None] = {}  # oldest first

    def add(self, rank: int, name: str, fields: dict[str, Any]) -> None:
        """Add a request of a rank, which may be a repetition. Raise ValueError if malformed."""
        if name not in self._answered:
            self.open[name] = rank, read_request(fields)

    def answer(self, names: Iterable[str]) -> None:
        """Mark these as answered by a verdict."""
        for name in list(names):
            self.open.pop(name, None)
            self._answered[name] = None
        while len(self._answered) > MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]

    def reopen(self, requests: Mapping[str, tuple[int, Request]]) -> None:
        """Reopen the requests of a void verdict."""
        self.open |= requests
        for name in requests:
            self._answered.pop(name, None)

    def wanted_step(self) -> int:
        """Return the step before which the open requests are not to be decided; 0: now."""
        return wanted_step(request for _, request in self.open.values())

    def drop_wishes(self) -> None:
        """Decide the open requests as soon as possible: a rank goes on from another step."""
        self.open = {name: (rank, without_wish(request)) for name, (rank, request) in self.open.items()}

    def clear(self) -> None:
        """Drop all requests: no further decision follows."""
        self.open.clear()


def select(requests: Iterable[Request]) -> list[Request]:
    """Return one request of each kind, of the lowest rank that has it, and at most `MOST_REQUESTS`.

    `merge` makes the same decision from the result as from all requests, except for the reasons and names of triggers
    left out.
    """
    kinds: dict[tuple[object, ...], Request] = {}
    for request in sorted(requests, key=lambda request: (request.rank, request.trigger, request.why)):
        fields = request.as_dict()
        del fields["rank"]
        kinds.setdefault(tuple(fields.values()), request)
    different = list(kinds.values())
    if len(different) <= MOST_REQUESTS:
        return different
    code = merge(different, 0).exit_code
    decisive: list[Callable[[Request], bool]] = [
        lambda request: request.discard,
        lambda request: request.stop and request.exit_code == code,
        lambda request: request.stop,
        lambda request: bool(request.label),
        lambda request: request.save,
    ]
    first = [next((request for request in different if decides(request)), None) for decides in decisive]
    weighty = sorted(different, key=lambda request: (not request.discard, not request.stop, not request.save))
    chosen: list[Request] = []
    for wanted in (*first, *weighty):
        if wanted is not None and not any(wanted is other for other in chosen):
            chosen.append(wanted)
    return chosen[:MOST_REQUESTS]


def effect(request: Request) -> tuple[object, ...]:
    """Return the effect of a request, without its rank and its reason."""
    return (request.trigger, request.save, request.stop, request.label, request.discard, request.exit_code)


class RetryTimer:
    """Pauses between failed rounds. All times are monotonic seconds.

    Attributes:
        retry_at: when the next round may begin.
        retry_s: the pause after the next failed round.
    """

    def __init__(self, absent_s: float) -> None:
        self.retry_at = LONG_AGO
        self.retry_s = FIRST_RETRY_S
        self._absent_s = absent_s
        self._missing_since: float | None = None
        self._skewed_since: float | None = None

    def failed(self, now: float) -> None:
        """Schedule a retry of a failed round."""
        self.retry_at = now + self.retry_s
        self.retry_s = min(2 * self.retry_s, LAST_RETRY_S)

    def reset(self) -> None:
        """Retry immediately: the reason for failing may be gone."""
        self.retry_at, self.retry_s = LONG_AGO, FIRST_RETRY_S

    def succeeded(self) -> None:
        """Note that a round was committed."""
        self.reset()
        self._skewed_since = None

    def is_missing_long(self, now: float) -> bool:
        """Return whether ranks have been missing for `absent_s` while a decision is pending."""
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._absent_s

    def all_are_there(self) -> None:
        """Note that all ranks are connected."""
        self._missing_since = None

    def is_skewed_long(self, now: float) -> bool:
        """Return whether the counts have differed for longer than ranks take to load a checkpoint one by one."""
        if self._skewed_since is None:
            self._skewed_since = now
        return now - self._skewed_since >= LAST_RETRY_S

    def next_check(self) -> float:
        """Return when to retry, or to report missing ranks."""
        return self.retry_at if self._missing_since is None else self._missing_since + self._absent_s

    def is_anybody_missing(self) -> bool:
        """Return whether ranks are known to be missing."""
        return self._missing_since is not None


class RevokedRound:
    """The last round that was revoked.

    A rank that knows the verdict, but not yet its revocation, would apply it while others continue. So a rank that
    resumes at another step waits until no such rank is left, and no round begins before.

    Attributes:
        number: of the round; 0 if there was none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._waiting: set[int] = set()
        self._unacknowledged: set[int] = set()

    @property
    def is_open(self) -> bool:
        """Return whether a rank waits."""
        return bool(self._waiting)

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Revoke a round; these ranks may not know it yet."""
        self.number = number
        self._waiting = set()
        self._unacknowledged = set(ranks)

    def wait(self, rank: int) -> None:
        """Note that a rank has given up the round itself, and waits for the others."""
        self._waiting.add(rank)
        self._unacknowledged.discard(rank)

    def acknowledge(self, rank: int) -> None:
        """Note that a rank knows the revocation."""
        self._unacknowledged.discard(rank)

    def forget(self, rank: int) -> None:
        """Drop a rank that has left or restarted: it neither applies the round nor waits."""
        self._unacknowledged.discard(rank)
        self._waiting.discard(rank)

    def release(self) -> list[int]:
        """Return the ranks that need no longer wait: all, once every rank has acknowledged. Each is returned once."""
        if self._unacknowledged:
            return []
        released, self._waiting = sorted(self._waiting), set()
        return released


class OpenRound:
    """A round from its PREPARE to the last DONE: first it collects promises, then it is committed to a verdict.

    Attributes:
        deadline: until when it collects, in monotonic seconds.
        promises: the position (steps, polls) that each rank has promised not to pass; empty once committed.
        step_s: how long a step takes on each rank, in seconds, where known.
        places: if decided by time, the position at which each rank acts; else empty.
        verdict: position and requests as sent, with empty `answers`; empty while the round collects.
        answers: the names of each rank's requests that the verdict answers.
        decided: these requests themselves, in case the verdict becomes void.
        pending: the ranks that have not applied the verdict yet.
        in_flight: the ranks that have applied the verdict, with a save that is not durable yet.
        outcome: the worst outcome of the others: `failed`, `saved` or `obeyed`.
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
        self.pending: set[int] = set()
        self.in_flight: set[int] = set()
        self.outcome = OBEYED
        self.failed_on: list[int] = []
        self.seconds = 0.0

    # ---- promises ---------------------------------------------------------------------------------------------

    def promise(self, rank: int, steps: int, polls: int, step_s: float = 0.0) -> None:
        """Store a rank's promise not to pass this position before it has received the verdict."""
        self.promises[rank] = (steps, polls)
        self.step_s[rank] = step_s

    def skew(self, most_steps: int) -> str:
        """Return which ranks' counts differ by more than `most_steps`, as text; empty if none."""
        first, last = min(self.promises.values())[0], max(self.promises.values())[0]
        if last - first <= most_steps:
            return ""
        behind = [rank for rank, promise in self.promises.items() if promise[0] == first]
        verb = "counts" if len(behind) == 1 else "count"
        return f"{name_ranks(behind)} {verb} {first:,} steps where others count {last:,}"

    def behind(self, place: tuple[int, int]) -> tuple[int, int, float]:
        """Return the rank that needs longest to reach `place`, with the steps and the seconds that it needs.

        Zero seconds if no rank knows how long its steps take.
        """
        ways = [(rank, place[0] - steps) for rank, (steps, _) in self.promises.items()]
        rank, steps = max(ways, key=lambda way: way[1] * self.step_s.get(way[0], 0.0))
        return rank, steps, steps * self.step_s.get(rank, 0.0)

    # ---- the verdict ------------------------------------------------------------------------------------------

    def commit(self, place: tuple[int, int], queue: RequestQueue, *, by_time: bool = False) -> AgreementEvent:
        """Commit all open requests at this position for all ranks that have promised, or, `by_time`, each at the
        position of its promise. Return the event that reports the decision."""
        steps, polls = place
        if by_time:
            self.places = self.promises
        asked = [request for _, request in queue.open.values()]
        requests = [request.as_dict() for request in select(asked)]
        self.verdict = {"steps": steps, "polls": polls, "requests": requests, "answers": []}
        self.decided = dict(queue.open)
        for name, (rank, _) in self.decided.items():
            self.answers.setdefault(rank, []).append(name)
        queue.answer(self.decided)
        self.pending = set(self.promises)
        self.promises = {}
        decision = self.decision
        return AgreementEvent("committed", str(decision), decision=decision, requests=asked)

    @property
    def is_committed(self) -> bool:
        """Return whether there is a verdict."""
        return bool(self.verdict)

    @property
    def requests(self) -> list[Request]:
        """Return the requests that the verdict carries to every rank."""
        return [read_request(fields) for fields in self.verdict["requests"]]

    @property
    def decision(self) -> Decision:
        """Return the decision for all ranks, after the step that follows the position."""
        return merge(self.requests, self.verdict["steps"] + 1)

    def verdict_for(self, rank: int) -> dict[str, Any]:
        """Return the verdict to send to a rank, with the names of its own requests only: a signal to 4,096 ranks makes
        as many requests."""
        steps, polls = self.places.get(rank, (self.verdict["steps"], self.verdict["polls"]))
        return {**self.verdict, "steps": steps, "polls": polls, "answers": self.answers.get(rank, [])}

    def is_obeyed(self, apart_from: Set[int] = frozenset()) -> bool:
        """Return whether every rank, apart from these, has applied the verdict."""
        return self.is_committed and self.pending <= apart_from

    def is_settled(self, apart_from: Set[int] = frozenset()) -> bool:
        """Return whether every rank, apart from these, has applied the verdict and reported the end of its save."""
        return self.is_obeyed(apart_from) and self.in_flight <= apart_from

    def obeyed(self, rank: int, outcome: str, seconds: float) -> None:
        """Store a rank's DONE: the outcome, and how long its save took. Only the first report counts."""
        if rank in self.pending:
            self.pending.discard(rank)
            if outcome == IN_FLIGHT:
                self.in_flight.add(rank)
            else:
                self._count(rank, outcome, seconds)

    def saved(self, rank: int, outcome: str, seconds: float) -> None:
        """Store a rank's SAVED: its save in flight is durable, or has failed. Only the first report counts."""
        if rank in self.in_flight:
            self.in_flight.discard(rank)
            self._count(rank, outcome, seconds)

    def forget(self, rank: int) -> None:
        """Drop a rank that has left or restarted, with its promise; wait for it no longer.

        If it had to save, or its save was in flight, its save counts as failed.
        """
        self.promises.pop(rank, None)
        if rank in self.pending:
            self.obeyed(rank, FAILED if self.decision.save else OBEYED, 0.0)
        self.saved(rank, FAILED, 0.0)

    def end(self) -> AgreementEvent:
        """Return the event with the worst outcome of all ranks, once every rank has reported. Its decision has the step
        after which rank 0 has acted."""
        decision = merge(self.requests, self.verdict_for(0)["steps"] + 1)
        on = f" on {name_ranks(sorted(self.failed_on))}" if self.failed_on else ""
        return AgreementEvent(
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
