"""A night is a function of its seed, and 200 of them have every kind of fault."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.lab.chaos.acts import ACTS
from tests.lab.chaos.plan import HEALED, KINDS, LASTING, SAVE_EVERY, plan
from tests.lab.chaos.training import WORLD, Faults, alone

NIGHTS = [plan(seed) for seed in range(1, 201)]


def test_the_same_seed_is_the_same_night() -> None:
    assert [plan(seed) for seed in range(1, 201)] == NIGHTS
    assert len({night.faults for night in NIGHTS}) == 200


def test_each_kind_of_fault_occurs() -> None:
    times = Counter(fault.kind for night in NIGHTS for fault in night.faults)
    assert set(times) == set(KINDS) and min(times.values()) >= 15, times


def test_two_faults_are_further_apart_than_two_saves() -> None:
    for night in NIGHTS:
        steps = [0, *(fault.step for fault in night.faults), night.steps]
        assert min(after - before for before, after in pairwise(steps)) > SAVE_EVERY, night


def test_between_two_faults_a_save_is_durable() -> None:
    for night in NIGHTS:
        before = [0, *(fault.step for fault in night.faults)]
        for step, fault in zip(before, night.faults, strict=False):
            assert step <= fault.saved < fault.step and fault.saved % SAVE_EVERY == 0 < fault.saved, night


def test_what_no_restart_heals_comes_last_and_only_in_some_nights() -> None:
    assert sum(night.lasting is not None for night in NIGHTS) == 50
    assert all(night.lasting in (None, night.faults[-1]) for night in NIGHTS)
    assert all(2 <= len(night.faults) <= 5 or night.lasting is not None for night in NIGHTS)


def test_each_fault_is_done_by_the_training_or_from_outside() -> None:
    assert {kind for kind in (*HEALED, *LASTING) if not hasattr(Faults, kind)} == set(ACTS)


def test_ranks_other_than_the_first_meet_faults() -> None:
    assert {fault.rank for night in NIGHTS for fault in night.faults} == set(range(WORLD))


def test_the_end_depends_on_each_step() -> None:
    assert len({alone(steps) for steps in range(20, 60)}) == 40
