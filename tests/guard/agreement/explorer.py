"""An exhaustive search through all that ranks, links and rank 0 may do, on the real Member, Coordinator and Gate.

A world holds them all: the training threads, cut into moves as small as the interleaving of two threads needs; the
control threads, whose promise is three moves; for each rank a connection with a queue in each direction; rank 0's
coordinator; and faults, as many as the case allows. `explore` visits every world that can be reached from the first,
each once, and claims in each:

- every rank returns from a step with the same decision as every other (so those that obey a round obey it at one step);
- no rank returns from a step beyond its promise before it has heard the verdict;
- no rank obeys the same request twice;
- nobody hears that a save was made as long as it is in flight on any rank;
- a save is not made before the step that was wanted, unless a stop comes with it;
- nobody hears that all ranks have reported a phase before every rank has, and no two ranks hear different answers of
  one rank 0;
- where nothing can happen any more, nobody waits, and every request was heard.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Hashable, Iterator
from typing import Any

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import FREE, PROMISED
from resilience.guard.decision import IN_FLIGHT, SAVED, Request
from resilience.guard.gate import Gate
from tests.guard.agreement.states import copied, key_of

# What a training thread does next.
RUNNING, COUNTED, ASKING, SAVING, ENDED, LOST = "running", "counted", "asking", "saving", "ended", "lost"
VOIDING = "voiding"  # waits until what it has given up is taken back from the others, too
# What a control thread does next.
IDLE, LOOKED, HELD = "idle", "looked", "held"

BEFORE = -1
"""A rank has not begun the phases that it reports."""

MOST_ROUNDS = 12
"""More than the requests and faults of any case call for."""

Move = tuple[str, int]


class Violation(AssertionError):
    """A claim does not hold. `trace` is what happened, move by move."""

    def __init__(self, claim: str) -> None:
        super().__init__(claim)
        self.claim = claim
        self.trace: list[Move] = []

    def __str__(self) -> str:
        return f"{self.claim}, after: " + ", ".join(f"{name} {rank}" for name, rank in self.trace)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is searched.

    Attributes:
        ranks: how many.
        steps: how many steps each training has.
        requests: which rank requests what, at any time.
        coupled: whether a rank can do a step only with all others, and save only with all others.
        fine: whether the training thread may be interrupted between its count and its comparison. When it may not,
            that is because the threads of one rank were searched in a case of fewer ranks.
        prompt: whether rank 0 hears at once what ranks say. Then only the way back takes time: for larger cases.
        leaves: whether a training that has done its steps leaves the agreement.
        breaks: how many connections may break, at any moment; each is made again.
        overdue: how often the coordinator may run out of patience, at any moment of a round.
        restarts: how many ranks, not rank 0, may be killed and started again.
        deaths: how often rank 0's process may die. It is started again when `reborn`, with a new coordinator.
        reborn: see `deaths`.
        resumes: after which step all ranks call `guard.resumed`, and with which. For coupled cases.
        leave_early: how many ranks may leave before their last step.
        in_flight: whether saves are in flight when they are obeyed, and durable at any time later.
        phases: keys that each rank reports at any time, each after the answer to the one before.
        fault: which rank reports which phase as failed.
    """

    ranks: int = 3
    steps: int = 3
    requests: tuple[tuple[int, Request], ...] = ()
    coupled: bool = False
    fine: bool = False
    prompt: bool = False
    leaves: bool = False
    breaks: int = 0
    overdue: int = 0
    restarts: int = 0
    deaths: int = 0
    reborn: bool = False
    leave_early: int = 0
    resumes: tuple[int, int] | None = None
    in_flight: bool = False
    phases: tuple[str, ...] = ()
    fault: tuple[int, str] | None = None
    member: type[Member] = Member
    coordinator: type[Coordinator] = Coordinator


class Interned:
    """Numbers for things that are equal, so that worlds are compared quickly."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.things: list[Any] = []

    def number(self, key: Hashable, thing: Any = None) -> int:
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.things)
            self.things.append(thing)
        return number


letters = Interned()
_keys = Interned()


class Rank:
    """One process: its training thread, its control thread, and its end of the connection."""

    __slots__ = ("born", "control", "flying", "linked", "member", "obeyed", "preparing", "training", "unnoticed")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.gate.open()
        self.training = RUNNING
        self.control = IDLE
        self.preparing = 0
        self.linked = True
        self.unnoticed = False  # the connection is gone and the coordinator does not know
        self.born = 0  # the last round before this process was started
        self.obeyed: tuple[str, ...] = ()  # reasons of what it has obeyed
        self.flying: tuple[tuple[int, tuple[str, ...]], ...] = ()  # saves in flight: the round, and its reasons

    @property
    def gate(self) -> Gate:
        return self.member.gate

    def copy(self) -> Rank:
        other = Rank.__new__(Rank)
        for name in Rank.__slots__:
            setattr(other, name, getattr(self, name))
        other.member = copied(self.member)
        return other

    def key(self) -> int:
        own = [getattr(self, name) for name in Rank.__slots__ if name != "member"]
        return _keys.number((*own, key_of(self.member)))


class World:
    """All of it at one moment. A move makes a new one, which shares what has not changed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.ranks = [Rank(case.member(Gate(), rank, f"life{rank}")) for rank in range(case.ranks)]
        self.coordinator: Coordinator | None = self._new_coordinator()
        self.up: list[tuple[int, ...]] = [() for _ in self.ranks]
        self.down: list[tuple[int, ...]] = [() for _ in self.ranks]
        self.now = 0.0
        self.to_request = tuple(range(len(case.requests)))
        self.left = {name: getattr(case, name) for name in ("breaks", "overdue", "restarts", "deaths", "leave_early")}
        self.said: dict[int, tuple[str, frozenset[int]]] = {}  # what came back from each step, and to whom
        self.passed: frozenset[tuple[int, int]] = frozenset()  # (rank, step): went on without a word, after a restart
        self.phase = [BEFORE] * case.ranks  # how many phases each has begun and reported
        self.lives = [0] * case.ranks  # how many processes had been restarted when it was started
        self.begun_at = [0] * case.ranks  # and when it began its phases
        self.silent: frozenset[int] = frozenset()  # ranks that were restarted and take no part
        self.well: frozenset[tuple[int, str]] = frozenset()  # who has reported what without a fault, in any life
        self.answers: dict[str, bool] = {}  # what a rank was told: whether all is well
        self.incarnations = 0
        self._keys = [rank.key() for rank in self.ranks]
        self._coordinator_key = -1
        for number, rank in enumerate(self.ranks):  # all have met; how they meet again is searched with `breaks`
            for message in rank.member.join():
                for to, said in self.open_coordinator().receive(number, message, self.now):
                    self.ranks[to].member.receive(said)

    def _new_coordinator(self) -> Coordinator:
        word = f"rank 0's life {getattr(self, 'incarnations', 0)}"
        return self.case.coordinator(self.case.ranks, skew_steps=0, absent_s=1e9, incarnation=word)

    # ---- copies and keys ----------------------------------------------------------------------------------------

    def copy(self) -> World:
        other = World.__new__(World)
        other.__dict__.update(self.__dict__)
        other.ranks, other.up, other.down = list(self.ranks), list(self.up), list(self.down)
        other._keys = list(self._keys)
        other.phase, other.lives, other.begun_at = list(self.phase), list(self.lives), list(self.begun_at)
        return other

    def open_rank(self, number: int) -> Rank:
        rank = self.ranks[number] = self.ranks[number].copy()
        self._keys[number] = -1
        return rank

    def open_coordinator(self) -> Coordinator:
        assert self.coordinator is not None
        coordinator: Coordinator = copied(self.coordinator)
        self.coordinator = coordinator
        self._coordinator_key = -1
        return coordinator

    def key(self) -> Hashable:
        for number, key in enumerate(self._keys):
            if key < 0:
                self._keys[number] = self.ranks[number].key()
        if self._coordinator_key < 0:
            self._coordinator_key = _keys.number(key_of(self.coordinator, self.now))
        rest = (self.to_request, *self.left.values(), *sorted(self.said.items()), self.passed, self.incarnations)
        if self.case.phases:
            rest = (*rest, *self.phase, *self.lives, *self.begun_at, self.silent, self.well, *self.answers.items())
        return (*self._keys, self._coordinator_key, _keys.number((*self.up, *self.down)), _keys.number(rest))

    # ---- what is said -------------------------------------------------------------------------------------------

    def say(self, number: int, messages: list[dict[str, Any]]) -> None:
        """A rank speaks. Without a connection the words are lost; joining says again what matters."""
        if self.ranks[number].linked:
            self.up[number] += tuple(letters.number(repr(message), message) for message in messages)

    def deliver(self, said: list[tuple[int, dict[str, Any]]]) -> None:
        """The coordinator speaks."""
        for number, message in said:
            if self.ranks[number].linked:
                self.down[number] += (letters.number(repr(message), message),)

    def returns(self, number: int, what: str, round_number: int, reasons: tuple[str, ...] = ()) -> None:
        """A training returns from a step. Everybody returns from it with the same."""
        rank = self.ranks[number]
        step = rank.gate.count
        if what == "go on" and rank.member.state == PROMISED and step > rank.member.promise[0]:
            raise Violation(f"rank {number} went beyond its promise {rank.member.promise[0]} to {step}")
        if set(reasons) & set(rank.obeyed):
            raise Violation(f"rank {number} obeyed the same request twice: {reasons}")
        rank.obeyed = (*rank.obeyed, *reasons)
        others, who = self.said.get(step, ("", frozenset()))
        if what == "go on" and rank.born:
            self.passed |= {(number, step)}
        if who and others != what:
            decided_in = int(others.split()[1]) if others != "go on" else round_number
            if not (what == "go on" and decided_in <= rank.born):
                raise Violation(f"step {step}: rank {number} returned with {what!r}, another with {others!r}")
        elif not (what == "go on" and rank.born):
            self.said = {**self.said, step: (what, who | {number})}
        if what != "go on":
            for passed, at in self.passed:
                if at == step and round_number > self.ranks[passed].born:
                    raise Violation(f"step {step}: rank {passed} went on, rank {number} returned with {what!r}")

    def forget(self, number: int) -> None:
        """What only a dead process has returned with, nobody can contradict any more."""
        kept = {step: (what, who - {number}) for step, (what, who) in self.said.items()}
        self.said = {step: (what, who) for step, (what, who) in kept.items() if who}

    # ---- moves --------------------------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """What may happen now, faults aside."""
        found: list[Move] = [("request", index) for index in self.to_request if self._may_request(index)]
        for number, rank in enumerate(self.ranks):
            if self._may_report(number):
                found.append(("report", number))
                if self.lives[number] and self.phase[number] == BEFORE:
                    found.append(("silent", number))
            if self._may_train(number):
                found.append((rank.training, number))
            if rank.flying and rank.control == IDLE and rank.training != LOST:
                found.append(("durable", number))
            if rank.control != IDLE:
                found.append((rank.control, number))
            elif rank.linked and self.down[number]:
                found.append(("hear", number))
            if self.coordinator is not None:
                if rank.linked and self.up[number]:
                    found.append(("coordinate", number))
                if rank.unnoticed:
                    found.append(("notice", number))
                if not rank.linked and rank.control == IDLE and rank.training != LOST:
                    found.append(("join", number))
        if self.coordinator is None and self.case.reborn:
            found.append(("reborn", 0))
        if not found and self.coordinator is not None and self.coordinator.next_deadline() is not None:
            found.append(("time", 0))  # it passes when nothing else happens
        return found

    def faults(self) -> list[Move]:
        """What may go wrong now."""
        found: list[Move] = []
        left, coordinator = self.left, self.coordinator
        if coordinator is None:
            return found
        if left["overdue"] and coordinator._collecting() is not None:
            found.append(("overdue", 0))
        if left["deaths"]:
            found.append(("die", 0))
        for number, rank in enumerate(self.ranks):
            if rank.linked and number and left["breaks"]:
                found.append(("break", number))
            if number and left["restarts"] and rank.training not in (ENDED, LOST):
                found.append(("restart", number))
            if left["leave_early"] and rank.training == RUNNING and rank.control == IDLE and not rank.flying:
                found.append(("leave", number))
        return found

    def _may_request(self, index: int) -> bool:
        rank = self.ranks[self.case.requests[index][0]]
        return rank.control == IDLE and rank.training not in (ENDED, LOST)

    def _may_report(self, number: int) -> bool:
        rank, done = self.ranks[number], self.phase[number]
        if not self.case.phases or done == len(self.case.phases) or number in self.silent or rank.control != IDLE:
            return False
        before = rank.member.reports.answer(self.case.phases[done - 1]) if done > 0 else None
        is_next = done <= 0 or (before is not None and not before.faults)
        return is_next and not rank.member.has_left and rank.training != LOST

    def _may_train(self, number: int) -> bool:
        rank = self.ranks[number]
        others = [other for index, other in enumerate(self.ranks) if index != number]
        if rank.training == RUNNING:
            if self._resumes_now(rank):
                return rank.control == IDLE
            if rank.gate.count >= self.case.steps:
                return self.case.leaves and rank.control == IDLE and not rank.flying
            # An all-reduce: all others are in this step, too, or beyond it.
            return not self.case.coupled or all(
                other.gate.count > rank.gate.count
                or (other.training == RUNNING and other.gate.count == rank.gate.count)
                for other in others
            )
        if rank.training == COUNTED:
            return True
        if rank.training == VOIDING:
            return not rank.member.is_revoking
        if rank.training == ASKING:  # the lock is held while a promise is made
            return rank.control == IDLE and (rank.copy().member.on_step() is not None or self._is_lost())
        if rank.training == SAVING:  # together
            return rank.control == IDLE and (
                not self.case.coupled
                or all(
                    other.member.round >= rank.member.round and (other.training == SAVING or other.member._done)
                    for other in others
                )
            )
        return False

    def _resumes_now(self, rank: Rank) -> bool:
        return self.case.resumes is not None and rank.gate.count == self.case.resumes[0]

    def _is_lost(self) -> bool:
        return self.coordinator is None and not self.case.reborn

    def after(self, move: Move) -> World:
        """The world after a move."""
        world = self.copy()
        name, number = move
        getattr(world, f"_{name}")(number)
        if world.case.prompt:
            for rank in range(len(world.ranks)):
                while world.up[rank] and world.coordinator is not None:
                    world._coordinate(rank)
        if world.coordinator is not None:
            for heard in world.coordinator.events:
                if heard.kind == "outcome" and heard.outcome == SAVED and heard.decision is not None:
                    world.check_durable(heard.decision.reasons)
            world.coordinator.events = []
            if world.coordinator.round > MOST_ROUNDS:
                raise Violation("rounds without end")
        return world

    def _request(self, index: int) -> None:
        number, request = self.case.requests[index]
        self.to_request = tuple(other for other in self.to_request if other != index)
        self.say(number, self.open_rank(number).member.request(request))

    def _report(self, number: int) -> None:
        rank = self.open_rank(number)
        self.phase[number] += 1
        if self.phase[number] == 0:
            self.begun_at[number] = self.incarnations
            rank.member.reports.begin("a")
            return
        key = self.case.phases[self.phase[number] - 1]
        fault = "disk full" if self.case.fault == (number, key) else ""
        if not fault:
            self.well |= {(number, key)}
        self.say(number, rank.member.reports.add(key, fault, ""))

    def _silent(self, number: int) -> None:
        self.silent |= {number}

    def _running(self, number: int) -> None:
        rank = self.open_rank(number)
        if self._resumes_now(rank):
            assert self.case.resumes is not None
            rank.gate.count_from(self.case.resumes[1])
            self.say(number, rank.member.resume())
            rank.training = VOIDING
            return
        if rank.gate.count >= self.case.steps:
            self._go(number, rank)
            return
        rank.gate.count += 1
        rank.training = COUNTED
        if not self.case.fine and rank.control == IDLE:
            self._compare(number, rank)

    def _go(self, number: int, rank: Rank) -> None:
        rank.training = ENDED
        self.say(number, rank.member.leave())

    def _voiding(self, number: int) -> None:
        self.open_rank(number).training = RUNNING

    def _counted(self, number: int) -> None:
        self._compare(number, self.open_rank(number))

    def _compare(self, number: int, rank: Rank) -> None:
        if rank.gate.count < rank.gate.limit:
            rank.training = RUNNING
            self.returns(number, "go on", 0)
        else:
            rank.training = ASKING

    def _asking(self, number: int) -> None:
        rank = self.open_rank(number)
        decision = rank.member.on_step()
        if decision is None:
            rank.training = LOST
            return
        rank.training = RUNNING
        if not decision:
            self.returns(number, "go on", 0)
            return
        wanted = max(fields["at"] for fields in rank.member.verdict["requests"])
        if rank.gate.position()[0] < wanted and not decision.stop:
            raise Violation(f"rank {number} saves at step {rank.gate.count}, and {wanted} was wanted")
        what = f"round {rank.member.round} {decision.as_dict()}"
        self.returns(number, what, rank.member.round, decision.reasons)
        rank.training = SAVING
        if not decision.save:
            self._finish(number, rank)

    def _saving(self, number: int) -> None:
        rank = self.open_rank(number)
        if self.case.in_flight:
            reasons = tuple(fields["why"] for fields in rank.member.verdict["requests"])
            rank.flying = (*rank.flying, (rank.member.round, reasons))
        self._finish(number, rank)

    def _durable(self, number: int) -> None:
        rank = self.open_rank(number)
        (round_number, _), *rest = rank.flying
        rank.flying = tuple(rest)
        self.say(number, rank.member.saved(round_number, SAVED, 1.0))

    def _finish(self, number: int, rank: Rank) -> None:
        flies = any(flying == rank.member.round for flying, _ in rank.flying)
        self.say(number, rank.member.finish(IN_FLIGHT if flies else SAVED, 1.0))
        rank.training = ENDED if rank.member.stopped is not None else RUNNING

    def _hear(self, number: int) -> None:
        rank = self.open_rank(number)
        head, *rest = self.down[number]
        self.down[number] = tuple(rest)
        message = letters.things[head]
        if message["say"] == "prepare" and rank.member.may_promise(message["round"]):
            rank.member.look()
            rank.control, rank.preparing = LOOKED, message["round"]
        else:
            self.say(number, rank.member.receive(message))
        if message["say"] == "reported":
            self._check_answer(number, message)

    def _check_answer(self, number: int, message: dict[str, Any]) -> None:
        key, is_well = message["key"], not message["faults"]
        missing = [rank for rank in range(len(self.ranks)) if (rank, key) not in self.well]
        if is_well and missing:
            raise Violation(f"rank {number} hears that all have reported {key!r}, and ranks {missing} have not")
        if self.answers.get(key, is_well) != is_well and not self.case.deaths:
            raise Violation(f"rank {number} hears another answer to {key!r} than a rank before")
        self.answers = {**self.answers, key: is_well}

    def _looked(self, number: int) -> None:
        rank = self.open_rank(number)
        rank.member.hold()
        rank.control = HELD

    def _held(self, number: int) -> None:
        rank = self.open_rank(number)
        if not rank.member.keep(rank.preparing):
            rank.member.look()
            rank.control = LOOKED
            return
        rank.control = IDLE
        self.say(number, rank.member.receive({"say": "prepare", "round": rank.preparing}))
        rank.preparing = 0

    def _coordinate(self, number: int) -> None:
        head, *rest = self.up[number]
        self.up[number] = tuple(rest)
        self.deliver(self.open_coordinator().receive(number, letters.things[head], self.now))

    def _notice(self, number: int) -> None:
        self.open_rank(number).unnoticed = False
        self.deliver(self.open_coordinator().lost(number, self.now))

    def _join(self, number: int) -> None:
        rank = self.open_rank(number)
        rank.linked, rank.unnoticed = True, False
        self.say(number, rank.member.join())

    def _time(self, _: int) -> None:
        assert self.coordinator is not None
        deadline = self.coordinator.next_deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.deliver(self.open_coordinator().proceed(self.now))

    def _overdue(self, _: int) -> None:
        self._spend("overdue")
        self._time(0)

    def _spend(self, what: str) -> None:
        self.left = {**self.left, what: self.left[what] - 1}

    def _cut(self, number: int) -> None:
        rank = self.open_rank(number)
        rank.linked, rank.unnoticed = False, True
        self.up[number] = self.down[number] = ()

    def _break(self, number: int) -> None:
        self._spend("breaks")
        self._cut(number)

    def _leave(self, number: int) -> None:
        self._spend("leave_early")
        self._go(number, self.open_rank(number))

    def _restart(self, number: int) -> None:
        self._spend("restarts")
        assert self.coordinator is not None
        self._cut(number)
        self._be_born(number, self.coordinator.round)

    def _be_born(self, number: int, after_round: int) -> None:
        self.incarnations += 1
        self.forget(number)
        former = self.ranks[number]
        rank = Rank(self.case.member(Gate(), number, f"life{number}again{self.incarnations}"))
        rank.gate.count = former.gate.count
        rank.linked, rank.unnoticed, rank.born = False, former.unnoticed, max(after_round, 1)
        rank.obeyed = ()
        self.phase[number], self.lives[number], self.silent = BEFORE, self.incarnations, self.silent - {number}
        self.ranks[number] = rank
        self._keys[number] = -1

    def _die(self, _: int) -> None:
        self._spend("deaths")
        for number in range(len(self.ranks)):
            self._cut(number)
            self.ranks[number].unnoticed = False
        self.coordinator = None
        self._coordinator_key = -1
        self.ranks[0].training = LOST
        self.ranks[0].control = IDLE

    def _reborn(self, _: int) -> None:
        self._be_born(0, max(rank.member.round for rank in self.ranks))
        self.coordinator = self._new_coordinator()
        self._coordinator_key = -1

    # ---- the end ------------------------------------------------------------------------------------------------

    def check_durable(self, reasons: tuple[str, ...]) -> None:
        """Somebody hears that a save was made: it is in flight on no rank."""
        for number, rank in enumerate(self.ranks):
            if any(set(reasons) & set(those) for _, those in rank.flying):
                raise Violation(f"a save was told as made while it is in flight on rank {number}: {reasons}")

    def check_end(self) -> None:
        """Nothing can happen any more: then everybody has obeyed or gone, and every request was heard."""
        if self._is_lost():
            return
        for number, rank in enumerate(self.ranks):
            if rank.training in (COUNTED, ASKING, SAVING, VOIDING):
                raise Violation(f"rank {number} waits for ever: it is {rank.training} at step {rank.gate.count}")
            if rank.training == RUNNING and rank.gate.count < self.case.steps:
                raise Violation(f"rank {number} waits for ever in the collective of step {rank.gate.count + 1}")
            waits = rank.member.reports.is_waiting and rank.training != LOST and not rank.member.has_left
            if waits and not any(self.lives[other] <= self.begun_at[number] for other in self.silent):
                raise Violation(f"rank {number} waits for ever for the answer to its report")
        coordinator = self.coordinator
        assert coordinator is not None
        committed = coordinator._committed()
        for number in committed.pending if committed is not None else ():
            member = self.ranks[number].member
            if member.round == coordinator.round and member.state == FREE:
                raise Violation(f"rank {number} has obeyed, and rank 0 waits for its word for ever")
        # With a verdict that lies beyond the last step the training has simply ended before it.
        if coordinator._stopped is None and committed is None and coordinator._ranks.count_training():
            staying = [rank.member for rank in self.ranks if not rank.member.has_left]
            unheard = [name for member in staying for name in member.requests]
            if unheard or coordinator._requests.open:
                raise Violation(f"requests were never answered: {unheard} {list(coordinator._requests.open)}")
        if coordinator._collecting() is not None:
            raise Violation("a round is never over")
        if coordinator._saves:
            raise Violation(f"nobody ever hears how the saves went of rounds {list(coordinator._saves)}")


@dataclasses.dataclass
class Seen:
    """How much was looked at.

    Attributes:
        states: different worlds.
        moves: ways from one to the next.
        ends: worlds in which nothing can happen any more.
        whole: whether that is all of them.
        obeyed: how many of the ends had at least one round obeyed by every rank: the search is not about nothing.
        told: how many of the ends had an answer to a report.
    """

    states: int = 0
    moves: int = 0
    ends: int = 0
    whole: bool = True
    obeyed: int = 0
    told: int = 0


def wander(case: Case, walks: int, seed: int, fault_share: float = 0.05) -> Seen:
    """Go ways at random from the first world to an end: for cases too large to be searched, and to find a fault soon.

    Raise Violation, with the way there, if a claim is broken.
    """
    chance = random.Random(seed)
    seen = Seen(whole=False)
    for _ in range(walks):
        world = World(case)
        trace: list[Move] = []
        try:
            while moves := world.moves():
                faults = world.faults()
                trace.append(chance.choice(faults if faults and chance.random() < fault_share else moves))
                world = world.after(trace[-1])
                seen.moves += 1
            world.check_end()
        except Violation as violation:
            violation.trace = trace
            raise
        seen.ends += 1
        seen.obeyed += all(rank.obeyed for rank in world.ranks)
    return seen


def explore(case: Case, most_states: int = 1_000_000) -> Seen:
    """Visit every world that can be reached, depth first. Raise Violation, with the way there, if a claim is broken."""
    first = World(case)
    came_from: dict[Hashable, tuple[Hashable, Move] | None] = {first.key(): None}
    stack = [first]
    seen = Seen()
    while stack:
        world = stack.pop()
        key = world.key()
        moves = world.moves()
        try:
            if not moves:
                seen.ends += 1
                seen.obeyed += all(rank.obeyed for rank in world.ranks)
                seen.told += bool(world.answers)
                world.check_end()
            for move in (*moves, *world.faults()):
                seen.moves += 1
                try:
                    following = world.after(move)
                except Violation as violation:
                    violation.trace.append(move)
                    raise
                following_key = following.key()
                if following_key not in came_from:
                    if len(came_from) >= most_states:
                        seen.whole = False
                        continue
                    came_from[following_key] = (key, move)
                    stack.append(following)
        except Violation as violation:
            violation.trace[:0] = list(_way_to(key, came_from))[::-1]
            raise
    seen.states = len(came_from)
    return seen


def _way_to(key: Hashable, came_from: dict[Hashable, tuple[Hashable, Move] | None]) -> Iterator[Move]:
    step = came_from[key]
    while step is not None:
        yield step[1]
        step = came_from[step[0]]
