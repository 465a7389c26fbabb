"""The counters shared by two threads: every order of their reads and writes, on the real methods."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilience.guard.agreement.member import Member
from resilience.guard.agreement.messages import PROMISED
from resilience.guard.decision import CONTINUE, Decision
from resilience.guard.gate import NEVER, Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.settings import GuardSettings
from resilience.guard.training_guard import TrainingGuard

LIMITS = {"limit", "poll_limit"}
"""Read by the training thread, written by the other."""
COUNTERS = {"count", "polls", "polled_step"}
"""Written by the training thread, read by the other."""
STEPPING = {"count", "limit"}
POLLING = {"polls", "polled_step", "poll_limit"}


class Turns:
    """Runs two threads one at a time, each until its next shared access, in the order of `choices`, then thread 0."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.made: list[tuple[int, int]] = []  # (choice, number of options)
        self.ready: dict[int, threading.Semaphore] = {}
        self.stopped = threading.Semaphore(0)
        self.names: dict[int, int] = {}

    def point(self) -> None:
        """Wait for the turn; called before each shared access."""
        name = self.names.get(threading.get_ident())
        if name is not None:
            self.stopped.release()
            self.ready[name].acquire()

    def run(self, *programs: Callable[[], None]) -> None:
        alive = set(range(len(programs)))
        errors: list[BaseException] = []

        def body(name: int, program: Callable[[], None]) -> None:
            self.ready[name].acquire()
            self.names[threading.get_ident()] = name
            try:
                program()
            except BaseException as error:
                errors.append(error)
            del self.names[threading.get_ident()]
            alive.discard(name)
            self.stopped.release()

        for name in alive:
            self.ready[name] = threading.Semaphore(0)
        threads = [threading.Thread(target=body, args=(name, program)) for name, program in enumerate(programs)]
        for thread in threads:
            thread.start()
        while alive:
            names = sorted(alive)
            at = len(self.made)
            chosen = min(self.choices[at], len(names) - 1) if at < len(self.choices) else 0
            self.made.append((chosen, len(names)))
            self.ready[names[chosen]].release()
            self.stopped.acquire()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def all_orders(run: Callable[[Turns], None]) -> Iterator[int]:
    """Run in every order; yield the number of each."""
    choices: list[int] = []
    number = 0
    while True:
        turns = Turns(choices)
        run(turns)
        number += 1
        yield number
        made = turns.made
        while made and made[-1][0] + 1 >= made[-1][1]:
            made.pop()
        if not made:
            return
        choices = [chosen for chosen, _ in made[:-1]] + [made[-1][0] + 1]


class WatchedGuard(TrainingGuard):
    """The real `step()` and `poll()`, with a pause before each access to a shared variable."""

    turns: Turns | None = None
    watched: frozenset[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        if name in WatchedGuard.watched:
            WatchedGuard._point(name in LIMITS)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in WatchedGuard.watched:
            WatchedGuard._point(name in COUNTERS)
        super().__setattr__(name, value)

    @staticmethod
    def _point(of_training: bool) -> None:
        turns = WatchedGuard.turns
        # No pause for a read of variables that only this thread writes.
        if turns is not None and (turns.names.get(threading.get_ident()) == 0) == of_training:
            turns.point()

    def _ask(self, loss: Any) -> Decision:
        raise StopIteration

    def _ask_at_poll(self) -> Decision:
        raise StopIteration


def play(turns: Turns, member_class: type[Member], training: str, watched: set[str], polls: int = 0) -> None:
    """One order of a training (`s` a step, `p` a poll) and of a promise; then the training runs to its limit."""
    WatchedGuard.watched = frozenset(watched)
    guard = WatchedGuard(RankInfo(), GuardSettings())
    guard.open()
    guard.count = 7
    guard.polled_step, guard.polls = (7, polls) if polls else (3, 9)
    member = member_class(guard, 1, "life")
    passed: list[tuple[int, int]] = []

    def do(kind: str) -> bool:
        try:
            assert (guard.step() if kind == "s" else guard.poll()) is CONTINUE
        except StopIteration:  # the training calls the agreement, and waits for its lock
            return False
        passed.append((guard.count, guard.polls if guard.polled_step == guard.count else 0))
        return True

    def train() -> None:
        for kind in training:
            if not do(kind):
                return

    def promise() -> None:
        member.receive({"say": "prepare", "round": 1})

    WatchedGuard.turns = turns
    try:
        turns.run(train, promise)
    finally:
        WatchedGuard.turns = None
    assert member.state == PROMISED
    assert max(passed, default=(0, 0)) <= member.promise, f"passed {passed[-1]}, and promised {member.promise}"
    for _ in range(5):
        if not do("s"):
            break
    assert max(passed, default=(0, 0)) <= member.promise, f"went on to {passed[-1]}, and promised {member.promise}"


@pytest.mark.parametrize(
    ("training", "watched", "polls"),
    [("s", STEPPING, 0), ("ss", STEPPING, 0), ("p", POLLING, 0), ("pp", POLLING, 2), ("ps", STEPPING, 2)],
    ids=["a step", "two steps", "the first poll of a step", "two more polls", "a poll and a step"],
)
def test_a_promise_holds_in_every_order_of_reads_and_writes(training: str, watched: set[str], polls: int) -> None:
    orders = sum(1 for _ in all_orders(lambda turns: play(turns, Member, training, watched, polls)))
    print(f"{training}: {orders:,} orders")
    assert orders > 20


def test_a_promise_holds_in_random_orders_of_everything() -> None:
    chance = random.Random(20)
    for _ in range(300):
        choices = [chance.randrange(2) for _ in range(60)]
        play(Turns(choices), Member, chance.choice(["sp", "psp", "sps"]), STEPPING | POLLING, chance.randrange(2))


class NoSecondLook(Member):
    """Uses the position read before the limits were written."""

    def keep(self, number: int) -> bool:
        looked, self._looked = self._looked, (NEVER, 0)
        super().keep(number)
        self.promise = looked
        self.restore()
        return True


class LimitsTooLate(Member):
    """Writes the limits after the second read."""

    def hold(self) -> None:
        pass


@pytest.mark.parametrize("faulty", [NoSecondLook, LimitsTooLate])
def test_the_search_through_all_orders_finds_a_promise_made_carelessly(faulty: type[Member]) -> None:
    with pytest.raises(AssertionError, match="and promised"):
        list(all_orders(lambda turns: play(turns, faulty, "ss", STEPPING)))


def test_a_position_grows_when_the_training_goes_back() -> None:
    gate = Gate()
    gate.count = 1000
    gate.polls, gate.polled_step = 3, 1000
    assert gate.position() == (1000, 3)
    gate.count_from(800)
    assert (gate.count, gate.position()) == (800, (1000, 0))
    gate.count += 1
    assert gate.position() == (1001, 0)
    gate.count_from(900)  # forward: as if these steps had been done
    assert gate.position() == (1100, 0)


def test_a_limit_is_counted_as_the_training_counts() -> None:
    gate = Gate()
    gate.count = 1000
    gate.count_from(800)
    gate.hold(1001, 2)
    assert (gate.limit, gate.poll_limit) == (801, 2)
    gate.hold(NEVER + 5_000, NEVER + 1)
    assert (gate.limit, gate.poll_limit) == (NEVER, NEVER)


def test_polls_of_an_earlier_step_are_not_counted() -> None:
    gate = Gate()
    gate.count, gate.polls, gate.polled_step = 5, 9, 4
    assert gate.position() == (5, 0)


def test_with_a_lock_each_access_waits_for_it() -> None:
    """Free-threaded builds: each read and write of the counters waits for the lock."""
    gate = Gate()
    gate.lock = threading.Lock()
    done: list[str] = []

    def touch(what: str, act: Callable[[], object]) -> threading.Thread:
        def body() -> None:
            act()
            done.append(what)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    with gate.lock:
        threads = [
            touch("position", gate.position),
            touch("hold", lambda: gate.hold(1, 1)),
            touch("count_from", lambda: gate.count_from(3)),
        ]
        for thread in threads:
            thread.join(0.05)
        assert done == []
    for thread in threads:
        thread.join(10)
    assert sorted(done) == ["count_from", "hold", "position"]
