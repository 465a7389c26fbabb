"""The real protocol of 2 to 4,096 ranks in simulated time: same step everywhere, how many messages, and how long."""

from __future__ import annotations

import functools
import heapq
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.decision import SAVED, Decision, Request
from resilience.guard.gate import Gate
from tests.guard.agreement.sample_messages import STOP


class Training:
    """Ranks that step, a network that takes its time, and a clock that is only moved on.

    Args:
        step_s: how long a step takes each time it is asked, in seconds.
        delay_s: how long a message takes. Messages of one connection stay in order.
        coupled: whether a step ends for everybody when it ends for the last: an all-reduce.
    """

    def __init__(self, world: int, *, step_s: Callable[[], float], delay_s: Callable[[], float], coupled: bool) -> None:
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.step_s, self.delay_s, self.coupled = step_s, delay_s, coupled
        self.coordinator = Coordinator(world, round_s=600.0, skew_steps=0)
        self.members = [Member(Gate(), rank, f"life{rank}") for rank in range(world)]
        self.arrives_at: dict[tuple[int, bool], float] = {}
        self.obeyed: list[list[tuple[int, Decision]]] = [[] for _ in range(world)]
        self.waiting: dict[int, float] = {}
        self.waited_s = 0.0
        self.in_step = 0
        self.messages: Counter[str] = Counter()
        self.committed_at: list[float] = []
        for rank, member in enumerate(self.members):
            member.gate.open()
            for message in member.join():
                self.deliver(self.coordinator.receive(rank, message, 0.0))
        if coupled:
            self.at(self.step_s(), self.step_together)
        else:
            for rank in range(world):
                self.at(self.step_s(), functools.partial(self.step, rank))

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.events, (self.now + delay_s, self.order, act))

    def run(self, until: Callable[[], bool], at_most: int = 3_000_000) -> None:
        for _ in range(at_most):
            if until():
                return
            self.now, _, act = heapq.heappop(self.events)
            act()
        raise AssertionError(f"no end after {at_most} events, at {self.now} s")

    def send(self, rank: int, up: bool, act: Callable[[], None]) -> None:
        """In order, on the connection of this rank."""
        arrival = max(self.now + (self.delay_s() if rank else 0.0), self.arrives_at.get((rank, up), 0.0))
        self.arrives_at[rank, up] = arrival
        self.at(arrival - self.now, act)

    def say(self, rank: int, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            if rank:
                self.messages[message["say"]] += 1
            self.send(rank, True, functools.partial(self.coordinate, rank, message))

    def coordinate(self, rank: int, message: dict[str, Any]) -> None:
        self.deliver(self.coordinator.receive(rank, message, self.now))
        self.committed_at += [self.now for heard in self.coordinator.events if heard.kind == "committed"]
        self.coordinator.events = []

    def deliver(self, said: list[tuple[int, dict[str, Any]]]) -> None:
        for rank, message in said:
            if rank and message["say"] != "welcome":
                self.messages[message["say"]] += 1
            self.send(rank, False, functools.partial(self.hear, rank, message))

    def hear(self, rank: int, message: dict[str, Any]) -> None:
        self.say(rank, self.members[rank].receive(message))
        if rank in self.waiting and self.ask(rank):
            self.waited_s += self.now - self.waiting.pop(rank)
            self.next(rank)

    def step(self, rank: int) -> None:
        gate = self.members[rank].gate
        gate.count += 1
        if gate.count < gate.limit or self.ask(rank):
            self.next(rank)
        else:
            self.waiting[rank] = self.now

    def step_together(self) -> None:
        self.in_step = len(self.members)
        for rank in range(len(self.members)):
            self.step(rank)

    def next(self, rank: int) -> None:
        if self.members[rank].stopped is not None:
            return
        if not self.coupled:
            self.at(self.step_s(), lambda: self.step(rank))
            return
        self.in_step -= 1
        if self.in_step == 0:
            self.at(max(self.step_s() for _ in range(4)), self.step_together)

    def ask(self, rank: int) -> bool:
        """The training thread asks; whether it may go on."""
        member = self.members[rank]
        decision = member.on_step()
        if decision is None:
            return False
        if decision:
            self.obeyed[rank].append((member.gate.count, decision))
            self.say(rank, member.finish(SAVED, 1.0))
        return True

    def request(self, rank: int, request: Request) -> None:
        self.say(rank, self.members[rank].request(request))

    def all_have_stopped(self) -> bool:
        return all(member.stopped is not None for member in self.members)

    def check(self) -> None:
        """Everybody has obeyed the same decisions at the same steps."""
        first = self.obeyed[0]
        assert first
        for rank, obeyed in enumerate(self.obeyed):
            assert obeyed == first, f"rank {rank}: {obeyed}, rank 0: {first}"


@settings(max_examples=150, deadline=None)
@given(
    world=st.integers(2, 24),
    seed=st.integers(0, 2**32),
    coupled=st.booleans(),
    step_ms=st.sampled_from([0.1, 1.0, 20.0, 1000.0]),
    jitter=st.floats(0.0, 2.0),
    delay_ms=st.sampled_from([0.01, 0.5, 50.0]),
    saves=st.integers(0, 3),
)
def test_every_rank_obeys_the_same_at_the_same_step(
    world: int, seed: int, coupled: bool, step_ms: float, jitter: float, delay_ms: float, saves: int
) -> None:
    chance = random.Random(seed)
    training = Training(
        world,
        step_s=lambda: step_ms / 1000 * (1 + jitter * chance.random() + 20 * (chance.random() < 0.01)),  # stragglers
        delay_s=lambda: delay_ms / 1000 * chance.expovariate(1.0),
        coupled=coupled,
    )
    for number in range(saves):
        wisher, label = chance.randrange(world), f"label{number}"
        save = Request("save switch", f"save {number}", stop=False, label=label)
        training.at(chance.random() * 20 * step_ms / 1000, functools.partial(training.request, wisher, save))
    last_s = (25 * step_ms + 30 * delay_ms) / 1000  # what is still on its way when all stop is answered by nobody
    training.at(last_s, lambda: training.request(chance.randrange(world), STOP))
    training.run(training.all_have_stopped)
    training.check()
    reasons = [reason for _, decision in training.obeyed[0] for reason in decision.reasons]
    assert len(reasons) == len(set(reasons)) == saves + 1, "each request is answered once, and none is lost"


SIZES = [2, 8, 64, 512, 4096]
ROWS: list[str] = []


@pytest.mark.parametrize("wishers", ["one", "all"])
@pytest.mark.parametrize("world", SIZES)
def test_a_decision_costs_four_messages_a_rank(world: int, wishers: str) -> None:
    """0.1 ms on the way, 250 ms a step: what of the time is the protocol's, and how many messages."""
    chance = random.Random(world)
    training = Training(
        world,
        step_s=lambda: 0.25 * (0.95 + 0.1 * chance.random()),
        delay_s=lambda: 1e-4 * (0.5 + chance.expovariate(1.0)),
        coupled=True,
    )
    training.run(lambda: training.now > 1.1)
    asked_s = training.now
    for rank in range(world) if wishers == "all" else [world - 1]:
        training.request(rank, STOP)
    training.run(lambda: training.all_have_stopped() and training.coordinator.is_over())
    training.check()
    counted = training.messages
    others = world - 1
    assert {name: counted[name] for name in ("prepare", "promise", "commit", "done")} == dict.fromkeys(
        ("prepare", "promise", "commit", "done"), others
    )
    assert counted["request"] == (others if wishers == "all" else 1)
    commit_s = training.committed_at[0] - asked_s
    waited_s = training.waited_s / world
    ROWS.append(f"| {world:,} | {wishers} | {sum(counted.values()):,} | {commit_s * 1e3:.2f} | {waited_s * 1e3:.2f} |")
    print("ranks, who requests, messages, request to commit in ms, time a rank waited in ms")
    print("\n".join(ROWS))
    assert commit_s < 0.25, "the commit is there before the step is over"


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("RESIL_SOAK") != "1", reason="a long campaign: set RESIL_SOAK=1")
@pytest.mark.parametrize("seed", range(20))
def test_uncoupled_ranks_in_large_worlds(seed: int) -> None:
    chance = random.Random(seed)
    world = chance.choice([256, 1024, 4096])
    training = Training(
        world, step_s=lambda: 0.1 * chance.uniform(0.5, 1.5), delay_s=lambda: chance.expovariate(1000), coupled=False
    )
    for number in range(3):
        save = Request("save switch", f"save {number}", stop=False)
        training.at(chance.random(), functools.partial(training.request, chance.randrange(world), save))
    training.at(1.5, lambda: training.request(chance.randrange(world), STOP))
    training.run(training.all_have_stopped)
    training.check()
