"""Rank 0's side of the agreement: collect requests, ask all ranks for promises, announce one verdict. Pure.

A round, with three ranks (rank 0's own member takes part like the others, without a connection):

    rank 1                rank 0                rank 2
      |  REQUEST id         |                     |     rank 1's signal asks for a save
      | ------------------> |                     |     (`RequestQueue`)
      |        PREPARE 7    |    PREPARE 7        |     round 7 begins (`OpenRound`), once all ranks are
      | <------------------ | ------------------> |     there (`RankRegistry`) and it is time (`RetryTimer`)
      |  PROMISE 7, p=41    |    PROMISE 7, p=43  |     no return from a step after p before the verdict
      | ------------------> | <------------------ |
      |   COMMIT 7, S=43    |   COMMIT 7, S=43    |     the verdict lies at the largest promise, which nobody
      | <------------------ | ------------------> |     has passed: each rank obeys after step 44. If a request
      |                     |                     |     wants a later step, the verdict lies there
      |  DONE 7, saved      |  DONE 7, in flight  |     the next round may begin
      | ------------------> | <------------------ |
      |                     |  SAVED 7, saved     |     the outcome is that of the worst rank
      |                     | <------------------ |
      |  LEAVE stopped      |  LEAVE stopped      |     at the end; BYE says that nothing more follows
      | ------------------> | <------------------ |
      |        BYE          |        BYE          |
      | <------------------ | ------------------> |

Beside the rounds, ranks report how far their saves are: REPORT of each rank, then REPORTED to all (`ReportRegistry`).

When a rank does not promise within `round_s`, rank 0 says ABORT 7, and round 8 follows after a pause. On each new
connection a member first says JOIN, with all that it promised and heard; a new coordinator decides nothing before all
have joined (`EarlierRounds`, `recover`). RESUME revokes the open round (`RevokedRound`): a rank goes on from another
step, and waits until all ranks have acknowledged the ABORT.

There is never a second round before the first is over, so a rank has at most one promise to keep.
"""

from __future__ import annotations

from resilience.guard.agreement.base import AgreementEvent as AgreementEvent
from resilience.guard.agreement.messages import COMMITTED, PROMISED
from resilience.guard.agreement.ranks import RankRegistry, name_ranks
from resilience.guard.agreement.recovery import EarlierRounds, recover
from resilience.guard.agreement.reports import ReportRegistry
from resilience.guard.agreement.rounds import OpenRound, RequestQueue, RetryTimer, RevokedRound
from resilience.guard.decision import FAILED, Decision
from resilience.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from resilience.guard.agreement.messages import Message

BEHIND_S = 10.0
"""Report a rank that makes the others wait longer than this at the step of a decision."""


class Coordinator:
    """Rank 0's state of all ranks.

    Attributes:
        round: number of the last round.
        events: for the host, which removes them.
        start: the decision for all ranks before the first step; None while undecided.
    """

    def __init__(
        self,
        world: int,
        *,
        round_s: float = 10.0,
        skew_steps: int = 16,
        absent_s: float = 60.0,
        by_time: bool = False,
        incarnation: str = "",
    ) -> None:
        """With `by_time`, all ranks act at the same moment instead of after the same step. See `GuardSettings`.
        `incarnation`: a random word, by which ranks know a new coordinator."""
        self.round = 0
        self.events: list[AgreementEvent] = []
        self.start: Decision | None = None
        self._round_s = round_s
        self._skew_steps = 0 if by_time else skew_steps
        self._by_time = by_time
        self._incarnation, self._restarts = incarnation, 0
        self._ranks = RankRegistry(world)
        self._requests = RequestQueue()
        self._reports = ReportRegistry(world)
        self._open: OpenRound | None = None
        self._saves: dict[int, OpenRound] = {}
        self._stopped: Decision | None = None
        self._revoked = RevokedRound()
        self._earlier = EarlierRounds()
        self._retry = RetryTimer(absent_s)
        self._reported: set[str] = set()
        self._has_ended = False

    # ---- input ------------------------------------------------------------------------------------------------

    def receive(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        """Given a message of a rank at `now` (monotonic seconds), return the messages to send, and to whom."""
        says = message["say"]
        if says == "join":
            return self._join(rank, message, now)
        if says == "request":
            self._requests.add(rank, message["id"], message["request"])
        elif says == "promise":
            collecting = self._collecting()
            if collecting is not None and message["round"] == self.round and rank not in self._ranks.left:
                collecting.promise(rank, message["steps"], message["polls"], message["step_s"])
        elif says == "done":
            if message["round"] != self.round:
                self._earlier.obeyed(rank, message["round"], message["outcome"], message["seconds"])
            elif self._open is not None:
                self._open.obeyed(rank, message["outcome"], message["seconds"])
        elif says == "saved":
            self._saved(rank, message["round"], message["outcome"], message["seconds"])
        elif says == "leave":
            self._leave(rank, message)
        elif says == "report":
            return self._reports.add(rank, message) + self.proceed(now)
        elif says == "resume":
            return self._resume(rank, message["round"], now)
        elif says == "aborted" and message["round"] == self._revoked.number:
            self._revoked.acknowledge(rank)
        return self.proceed(now)

    def lost(self, rank: int, now: float) -> list[tuple[int, Message]]:
        """Handle a lost connection. The rank still keeps its promise."""
        self._ranks.lost(rank)
        return self.proceed(now)

    def decide_start(self, decision: Decision) -> list[tuple[int, Message]]:
        """Set the decision about the start, and return the messages that send it. The first decision counts."""
        if self.start is not None:
            return []
        self.start = decision
        return self._start_messages(rank for rank in sorted(self._ranks.incarnations) if rank not in self._ranks.gone)

    def proceed(self, now: float) -> list[tuple[int, Message]]:
        """Do everything possible at `now`; also to be called at `next_deadline`."""
        said: list[tuple[int, Message]] = []
        if self._earlier.joins and self._open is None and self._ranks.has_everybody_joined():
            said += self._recover()
        said += [(rank, {"say": "abort", "round": self._revoked.number}) for rank in self._revoked.release()]
        if (collecting := self._collecting()) is not None:
            said += self._collect(collecting, now)
        if (committed := self._committed()) is not None:
            self._close(committed)
        self._settle_saves()
        for answer in self._reports.due({rank: self._ranks.failed.get(rank, "") for rank in self._ranks.left}):
            said += self._to_all(answer)
        if self._is_wanted():
            said += self._begin(now)
        return said

    def next_deadline(self) -> float | None:
        """Return when to call `proceed` without a message, or None."""
        if (collecting := self._collecting()) is not None:
            return collecting.deadline
        if not self._is_wanted():
            return None
        if self._retry.is_anybody_missing() and "absent" in self._reported:
            return None  # a JOIN will wake us
        return self._retry.next_check()

    def end(self) -> list[tuple[int, Message]]:
        """End rank 0's part: begin no round, release all ranks that wait for a verdict, and send BYE to all. A save not
        reported as durable by now counts as failed."""
        self._has_ended = True
        said = self._abort(0.0, "rank 0 ends") if self._collecting() is not None else []
        for settled in self._saves.values():
            for rank in list(settled.in_flight):
                settled.saved(rank, FAILED, 0.0)
        self._settle_saves()
        return said + [(rank, {"say": "bye"}) for rank in self._ranks.incarnations if rank]

    def is_over(self, lost_too: bool = True) -> bool:
        """Return whether every rank, or every one not lost, has carried out the last verdict and reported its saves."""
        apart = set() if lost_too else self._ranks.gone
        return all(one.is_settled(apart) for one in (*self._saves.values(), *filter(None, [self._open])))

    def missing(self) -> list[int]:
        """Return the ranks that have not sent LEAVE."""
        return [rank for rank in range(self._ranks.world) if rank not in self._ranks.left]

    def lost_ranks(self) -> set[int]:
        """Return the ranks whose connection is lost."""
        return self._ranks.gone

    def faults(self) -> dict[int, str]:
        """Return the ranks that have left because of a fault, and the fault of each."""
        return self._ranks.failed

    # ---- ranks ------------------------------------------------------------------------------------------------

    def _join(self, rank: int, message: Message, now: float) -> list[tuple[int, Message]]:
        is_another = self._ranks.join(rank, message["incarnation"])
        said = self._restarted(rank) if is_another else []
        said += [(rank, self._welcome()), *self._start_messages([rank])]
        for name, fields in message["requests"].items():
            self._requests.add(rank, name, fields)
        number, state, collecting = message["round"], message["state"], self._collecting()
        if number > self.round:
            self._earlier.joined(rank, message)
        elif rank in self._earlier.joins:
            self._earlier.restarted(rank)
        elif state == PROMISED and number == self.round and collecting is not None:
            collecting.promise(rank, message["steps"], message["polls"])
        else:
            if state not in (PROMISED, COMMITTED) or number != self._revoked.number:
                self._revoked.acknowledge(rank)
            # A commitment to a round that is not open any more was revoked while the connection was broken.
            if state == PROMISED or (state == COMMITTED and self._committed() is None):
                said.append((rank, self._outcome_message(rank, number)))
            if collecting is not None:
                said.append((rank, {"say": "prepare", "round": self.round}))
        return said + self.proceed(now)

    def _restarted(self, rank: int) -> list[tuple[int, Message]]:
        """Drop the promise of a rank's former process, and the decision that it had to carry out.

        Return the messages from which the others know that what they had begun to report has failed.
        """
        if self._ranks.is_duplicate(rank):
            self._report("twins", f"duplicate rank: two processes claim to be rank {rank}; no decision is possible")
        else:
            self._report("restarted", f"rank {rank} was restarted", again=True)
        self._forget(rank)
        self._restarts += 1
        return [(other, self._welcome()) for other in self._ranks.training() if other != rank]

    def _resume(self, rank: int, number: int, now: float) -> list[tuple[int, Message]]:
        """Revoke the promise of a rank that resumes at another step, and the verdict based on that promise.

        The rank waits, and no other round begins, until every rank has acknowledged: a rank that knows the verdict, but
        not its revocation, would carry it out while this one continues.
        """
        said: list[tuple[int, Message]] = []
        self._earlier.resumed(rank)
        is_open = number == self.round and self._open is not None
        if is_open:
            self._revoked.begin(number, self._ranks.training())
            said = [one for one in self._revoke(rank, now) if one[0] != rank]
        self._requests.drop_wishes()
        if number and number == self._revoked.number and (is_open or self._revoked.is_open):
            self._revoked.wait(rank)
        elif number:
            said.append((rank, {"say": "abort", "round": number}))
        self._retry.reset()
        return said + self.proceed(now)

    def _revoke(self, rank: int, now: float) -> list[tuple[int, Message]]:
        """Revoke the open round, and reopen the requests that it would have answered."""
        why = f"rank {rank} resumes at another step"
        committed = self._committed()
        if committed is None:
            return self._abort(now, why)
        self._requests.reopen(committed.decided)
        self._open = None
        self.events.append(AgreementEvent("void", f"{why}: the decision is made again"))
        return self._to_all({"say": "abort", "round": self.round})

    def _leave(self, rank: int, message: Message) -> None:
        """Note that the training of a rank has ended. Report a fault immediately."""
        fault = (message["why"] or "a fault") if message["how"] == FAILED else ""
        if fault and rank not in self._ranks.left:
            self.events.append(
                AgreementEvent("failed", f"rank {rank} left at step {message['steps']}: {fault}", ranks=[rank])
            )
        self._ranks.leave(rank, message["steps"], fault)
        self._forget(rank)

    def _forget(self, rank: int) -> None:
        """Stop waiting for this rank."""
        self._revoked.forget(rank)
        for one in (*self._saves.values(), *filter(None, [self._open])):
            one.forget(rank)

    def _saved(self, rank: int, number: int, outcome: str, seconds: float) -> None:
        """Note the end of a save in flight, of round `number`."""
        self._earlier.obeyed(rank, number, outcome, seconds)
        saving = self._open if number == self.round and self._open is not None else self._saves.get(number)
        if saving is not None:
            saving.saved(rank, outcome, seconds)

    def _settle_saves(self) -> None:
        """Report the outcome of the saves for which every rank has sent SAVED."""
        for number in [number for number, saving in self._saves.items() if not saving.in_flight]:
            self.events.append(self._saves.pop(number).end())

    def _recover(self) -> list[tuple[int, Message]]:
        """Continue where the previous coordinator ended, once all ranks have joined."""
        found = recover(self._earlier.joins, left=self._ranks.left, by_time=self._by_time)
        self._earlier.joins.clear()
        self.round = found.number
        self._requests.answer(found.answered)
        if found.decided is not None:
            if found.is_held:
                self._open = found.decided
            elif found.decided.in_flight:
                self._saves[self.round] = found.decided
            if not found.is_held and found.decided.decision.stop:
                self._stop(found.decided.decision)
        return [(rank, self._outcome_message(rank, number)) for rank, number in found.waiting]

    # ---- rounds -----------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        """Return whether a round is to begin as soon as it can."""
        is_over = self._stopped is not None or self._has_ended or not self._ranks.count_training()
        return bool(self._requests.open) and self._open is None and not self._revoked.is_open and not is_over

    def _collecting(self) -> OpenRound | None:
        """The round that waits for promises, if there is one."""
        return None if self._open is None or self._open.is_committed else self._open

    def _committed(self) -> OpenRound | None:
        """The round that waits to be obeyed, if there is one."""
        return self._open if self._open is not None and self._open.is_committed else None

    def _begin(self, now: float) -> list[tuple[int, Message]]:
        if self._earlier.joins or not self._ranks.are_all_there():
            if self._retry.is_missing_long(now):
                self._report("absent", f"no decision is possible: {self._ranks.name_missing()}")
            return []
        self._retry.all_are_there()
        self._reported.discard("absent")
        if now < self._retry.retry_at:
            return []
        self.round += 1
        self._open = OpenRound(now + self._round_s)
        return self._to_all({"say": "prepare", "round": self.round})

    def _collect(self, collecting: OpenRound, now: float) -> list[tuple[int, Message]]:
        if not self._ranks.count_training():
            return self._abort(now, "every rank has left")
        if not self._has_all_promises(collecting):
            if now < collecting.deadline:
                return []
            silent = [rank for rank in self._ranks.training() if rank not in collecting.promises]
            return self._abort(now, f"{name_ranks(silent)} did not respond within {self._round_s:g} s")
        skew = collecting.skew(self._skew_steps) if self._skew_steps else ""
        if skew and self._retry.is_skewed_long(now):
            self._report(
                "skew",
                f"no decision is possible: {skew}, more than skew_steps = {self._skew_steps}. If ranks do not "
                'synchronise in every step (local SGD), set decide_by = "time" in [guard]; else create the guard '
                "before the first step on every rank, or call guard.resumed(step)",
            )
        return self._abort(now, skew) if skew else self._commit(collecting)

    def _has_all_promises(self, collecting: OpenRound) -> bool:
        return len(collecting.promises) == self._ranks.count_training()

    def _place_verdict(self, collecting: OpenRound) -> tuple[int, int]:
        """Return the largest promise. A rank that has left has promised never to do another step."""
        return max(*collecting.promises.values(), *((steps, 0) for steps in self._ranks.left.values()), (0, 0))

    def _commit(self, collecting: OpenRound) -> list[tuple[int, Message]]:
        place = self._place_verdict(collecting)
        rank, steps, wait_s = collecting.behind(place)
        if not self._by_time and steps > 1 and wait_s > BEHIND_S:
            self._report(
                "behind",
                f"rank {rank} is {steps:,} steps behind, at {wait_s / steps:.2g} s per step: the other ranks will wait "
                f"for about {format_duration(round(wait_s))} at the step of this decision. If ranks do not synchronise "
                'in every step, set decide_by = "time" in [guard]',
                again=True,
            )
        if not self._by_time:
            place = max(place, (self._requests.wanted_step() - 1, 0))
        self.events.append(collecting.commit(place, self._requests, by_time=self._by_time))
        self._retry.succeeded()
        return [(rank, self._outcome_message(rank, self.round)) for rank in collecting.pending]

    def _abort(self, now: float, why: str) -> list[tuple[int, Message]]:
        self._open = None
        self._retry.failed(now)
        self.events.append(AgreementEvent("aborted", f"{why}; retrying the decision"))
        return self._to_all({"say": "abort", "round": self.round})

    def _close(self, committed: OpenRound) -> None:
        """End the round when every rank has carried out its verdict. Saves may still be in flight."""
        if committed.is_obeyed():
            self._open = None
            self._saves[self.round] = committed
            if committed.decision.stop:
                self._stop(committed.decision)

    def _stop(self, decision: Decision) -> None:
        """Decide nothing after a stop. A rank that starts now receives the stop before its first step."""
        self._stopped = decision
        self._requests.clear()
        self.start = Decision(**{**decision.as_dict(), "save": False})

    # ---- messages ---------------------------------------------------------------------------------------------

    def _welcome(self) -> Message:
        return {"say": "welcome", "round": self.round, "incarnation": self._incarnation, "restarts": self._restarts}

    def _start_messages(self, ranks: Iterable[int]) -> list[tuple[int, Message]]:
        start = self.start
        return [] if start is None else [(rank, {"say": "start", "decision": start.as_dict()}) for rank in ranks]

    def _outcome_message(self, rank: int, number: int) -> Message:
        committed = self._committed()
        if committed is None or number != self.round:
            return {"say": "abort", "round": number}
        return {"say": "commit", "round": number, "verdict": committed.verdict_for(rank)}

    def _to_all(self, message: Message) -> list[tuple[int, Message]]:
        return [(rank, message) for rank in self._ranks.training()]

    def _report(self, kind: str, text: str, *, again: bool = False) -> None:
        if again or kind not in self._reported:
            self._reported.add(kind)
            self.events.append(AgreementEvent(kind, text))
