"""Ranks that form anew: what one gives up is obeyed by none. The pure protocol, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from resilience.guard import Request
from resilience.guard.agreement.coordinator import Coordinator
from resilience.guard.agreement.member import Member
from resilience.guard.gate import NEVER, Gate


class Ranks:
    """Members and a coordinator; messages arrive at once, unless they are held back."""

    def __init__(self, world: int, count: int = 0) -> None:
        """All have joined, and have done `count` steps."""
        self.coordinator = Coordinator(world)
        self.members = [Member(Gate(), rank, f"life{rank}") for rank in range(world)]
        self.held: dict[int, list[dict[str, Any]]] = {}  # by rank, what it is not told yet
        for member in self.members:
            member.gate.open()
            member.gate.count = count
        self.join(*range(world))

    def join(self, *ranks: int) -> None:
        for rank in ranks:
            self.say(rank, self.members[rank].join())

    def say(self, rank: int, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.carry(self.coordinator.receive(rank, message, 0.0))

    def carry(self, said: list[tuple[int, dict[str, Any]]]) -> None:
        for rank, message in said:
            if rank in self.held:
                self.held[rank].append(message)
            else:
                self.say(rank, self.members[rank].receive(message))

    def resume(self, rank: int, step: int) -> None:
        self.members[rank].gate.count_from(step)
        self.say(rank, self.members[rank].resume())

    def request(self, rank: int, why: str = "why") -> None:
        self.say(rank, self.members[rank].request(Request("test", why, stop=False)))

    def step(self, rank: int) -> Any:
        gate = self.members[rank].gate
        gate.count += 1
        return self.members[rank].on_step() if gate.count >= gate.limit else None

    def assert_all_obey_at(self, step: int) -> None:
        assert self.states() == ["committed"] * len(self.members)
        assert [self.step(member.rank).step for member in self.members] == [step] * len(self.members)

    def states(self) -> list[str]:
        return [member.state for member in self.members]

    def count(self, kind: str) -> int:
        """How often rank 0 has reported this."""
        return [event.kind for event in self.coordinator.events].count(kind)


def test_a_promise_of_before_is_asked_for_anew_at_the_step_of_now() -> None:
    ranks = Ranks(3, count=50)
    ranks.held[2] = []  # rank 2 hangs: no verdict
    ranks.request(0)
    assert ranks.states() == ["promised", "promised", "free"]
    for rank in (0, 1):
        ranks.resume(rank, 40)
    held = ranks.held.pop(2)
    ranks.resume(2, 40)
    for message in held:
        ranks.say(2, ranks.members[2].receive(message))
    ranks.assert_all_obey_at(41)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_verdict_that_one_rank_gives_up_is_void_for_those_that_resumed_before_it(last: int) -> None:
    ranks = Ranks(3, count=10)
    for rank in {0, 1, 2} - {last}:
        ranks.resume(rank, 8)
    ranks.request(1)
    assert ranks.states() == ["committed"] * 3  # at step 10, with the promise of a training that is no more
    ranks.resume(last, 8)
    assert ranks.count("void") == 1
    assert not ranks.members[last].is_revoking
    ranks.assert_all_obey_at(9)  # asked anew at once: the request is as true as before


def test_a_rank_that_has_obeyed_does_not_obey_again_and_the_request_is_met_anew() -> None:
    ranks = Ranks(2)
    ranks.request(0)
    assert ranks.step(0).save
    ranks.say(0, ranks.members[0].finish("failed", 0.1))  # rank 1's process hangs before its step, and all form anew
    for rank in (0, 1):
        ranks.resume(rank, 0)
    ranks.assert_all_obey_at(1)


def test_to_resume_with_nothing_promised_takes_nothing_back() -> None:
    member = Member(Gate(), 1, "incarnation")
    member.gate.count_from(100)
    assert member.resume() == [{"say": "resume", "round": 0}]
    assert member.gate.limit == NEVER
    assert member.gate.position() == (100, 0)


def test_ranks_agree_as_soon_as_all_have_resumed_and_not_when_patience_allows() -> None:
    ranks = Ranks(2)
    ranks.members[0].gate.count = 50
    ranks.request(0)  # rank 1 was started again and loads its checkpoint: 50 steps apart
    assert [heard.kind for heard in ranks.coordinator.events] == ["aborted"]
    ranks.resume(0, 40)
    ranks.resume(1, 40)
    ranks.assert_all_obey_at(41)


def test_a_resume_that_was_lost_with_the_connection_is_sent_after_it() -> None:
    ranks = Ranks(2)
    ranks.request(0)
    ranks.carry(ranks.coordinator.lost(1, 0.0))
    ranks.members[1].gate.count_from(5)
    assert ranks.members[1].resume()  # nobody hears it
    assert ranks.members[0].state == "committed"
    ranks.join(1)
    assert ranks.count("void") == 1


def test_a_new_coordinator_does_not_wait_for_a_verdict_that_was_given_up() -> None:
    ranks = Ranks(3)
    ranks.request(1)
    assert ranks.states() == ["committed"] * 3
    ranks.coordinator = Coordinator(3)  # rank 0 died and was started again
    ranks.members[0] = Member(Gate(), 0, "another life")
    ranks.members[0].gate.open()
    ranks.join(1)  # still as it was
    for rank in (1, 2):
        ranks.resume(rank, 0)
    ranks.join(2, 0)
    ranks.request(2, "another")
    ranks.assert_all_obey_at(1)
