"""Real trainings of 2, 4 and 8 processes, with gloo all-reduces, switches, signals, pauses, deaths and evaluations."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.guard.agreement.campaign import ROOT, Event, Plan, Pool, assert_nothing_was_trained, draw, need_torch

RUNS = 8
MOST_RANKS = 4
"""Of the runs that are not a soak: eight processes more take longer to start than all of them to run."""
SOAK_RUNS = 1000
MOST_FAILURES = 3


def run_seeds(directory: Path, seeds: list[int]) -> None:
    """Run them all; fail with the first few that went wrong, and how to run just these."""
    need_torch()
    failures: dict[int, str] = {}
    begin = time.monotonic()
    seen: Counter[str] = Counter()
    with Pool(directory) as pool:
        plans = {seed: draw(seed) for seed in seeds}
        pool.prepare(max(plan.world for plan in plans.values()) + 1)  # one takes the place of a rank that dies
        for seed, plan in plans.items():
            seen.update([f"{plan.world} ranks", *(event.kind for event in plan.events)])
            try:
                pool.train(plan)
            except (AssertionError, TimeoutError) as error:
                failures[seed] = f"{error}\n{plan}"
            if len(failures) == MOST_FAILURES:
                break
    print(f"{len(seeds)} runs in {time.monotonic() - begin:.0f} s: {dict(sorted(seen.items()))}")
    file = Path(__file__).relative_to(ROOT)
    again = f"RESIL_CAMPAIGN_SEEDS={','.join(map(str, failures))} python -m pytest {file} -k seeded"
    assert not failures, "\n".join([*(f"seed {seed}: {why}" for seed, why in failures.items()), f"again: {again}"])


@pytest.mark.timeout(1800)
def test_in_seeded_runs_all_ranks_stop_at_the_same_step_and_none_hangs(tmp_path: Path) -> None:
    asked = os.environ.get("RESIL_CAMPAIGN_SEEDS")
    small = [seed for seed in range(RUNS) if draw(seed).world <= MOST_RANKS]
    run_seeds(tmp_path, [int(seed) for seed in asked.split(",")] if asked else small)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_in_1000_runs_as_well(tmp_path: Path) -> None:
    run_seeds(tmp_path, list(range(SOAK_RUNS)))


@pytest.mark.soak
def test_a_kill_switch_that_is_set_keeps_every_rank_from_its_first_step(pool: Pool) -> None:
    plan = Plan("early", 4, asks_early=True, late_s=[0.0, 0.0, 0.3, 0.0])
    assert_nothing_was_trained(pool.run(plan, before=["kill"]))


def test_rank_0_stopped_for_5_seconds_never_leads_to_different_decisions(pool: Pool) -> None:
    plan = Plan("stopped", 4, pauses=[(0, 0.3, 5.0)], step_ms=(5.0, 10.0), settings={"round_s": 2.0})
    plan.events = [Event("memory", rank, step, why=f"rank {rank}") for rank, step in ((1, 10), (2, 40), (3, 80))]
    pool.train(plan)


def test_any_rank_stopped_in_the_middle_of_a_round_only_delays_it(pool: Pool) -> None:
    plan = Plan("delayed", 2, pauses=[(1, 0.2, 2.5)], step_ms=(1.0, 1.0), settings={"round_s": 0.5})
    plan.events = [Event("save", 0, step, why="again") for step in range(5, 100, 5)] + [Event("signal", 0, 120)]
    pool.train(plan)


@pytest.mark.soak
def test_ranks_that_poll_unequally_often_stop_at_the_same_step(pool: Pool) -> None:
    plan = Plan("unequal", 4, evaluates_every=5, polls=[0, 3, 40, 200], settings={"poll_s": 0.01})
    plan.events = [Event("memory", 3, 25), Event("kill", 1, 26)]
    pool.train(plan)


def test_a_stop_is_announced_at_the_same_poll_where_ranks_poll_alike(pool: Pool) -> None:
    for attempt in range(10):
        plan = Plan(f"alike{attempt}", 4, evaluates_every=10, polls=[50_000] * 4, settings={"poll_s": 0.01})
        plan.events = [Event("memory", 2, 10)]  # seen by its trigger while all evaluate
        results = pool.train(plan)
        announced = results[0]["announced"]
        if announced:  # else the machine was so busy that the round was over before the evaluation began
            break
    assert len(announced) == 1
    assert announced[0][1] < 50_000  # long enough for a busy machine; left as soon as a stop is announced
    assert all(result["announced"] == announced for result in results)
    assert results[0]["decisions"][-1]["step"] == announced[0][0] + 1  # the evaluation was left, one step was done


def test_ranks_say_that_the_agreement_is_lost_when_rank_0_dies_between_promise_and_verdict(pool: Pool) -> None:
    plan = Plan("lost", 3, is_free=True, raises=True, steps=10**6, step_ms=(1.0, 1.0))
    plan.settings = {"agreement_timeout_s": 3.0, "skew_steps": 0}
    plan.events = [Event("die_at_commit", 0, 5), Event("memory", 2, 20)]
    begin = time.monotonic()
    results = pool.run(plan)
    assert [result["code"] for result in results] == [-9, 1, 1]
    assert time.monotonic() - begin < 300  # not for ever, on a busy machine either
    assert pool.log().count("AgreementLost: rank") == 2


def test_ranks_that_ask_their_node_s_mirror_find_a_rank_0_that_was_started_again(pool: Pool) -> None:
    plan = Plan("mirror", 3, resume=8, settings={"mirror": "process"})
    plan.events = [Event("die", 0, 10), Event("memory", 1, 20, generation=1, why="only here")]
    pool.train(plan)
