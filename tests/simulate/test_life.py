"""Lives of simulated runs: where the time goes, the closed forms of the literature, and the breaker's decisions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.attempts.failure import FailureClass
from resilience.cadence import AUTO, Costs, Every, daly_s, known_mtbf, loss_of, young_s
from resilience.cadence import decide as decide_cadence
from resilience.settings.sections import ActSettings
from resilience.simulate.failures import bundled
from resilience.simulate.life import LONGEST, MOST_S, Life, live
from resilience.simulate.outcome import meta_ettr
from resilience.simulate.scenario import DAY_S, Failure, Rate, Rates, Scenario, Trace, random_waits

HOUR = 3600.0
COSTS = Costs(stall_s=20.0, durable_s=20.0, restart_s=300.0)
NO_BREAKER = ActSettings(failures=0, neutral=0, keep_queued=1)
BREAKER = ActSettings(enabled=True, keep_queued=1)
KINDS = [one for one in FailureClass if one not in (FailureClass.FINISHED, FailureClass.STOPPED, FailureClass.WALLTIME)]


def at_random(mtbf_s: float, nodes: int = 4) -> Rates:
    return Rates((Rate(FailureClass.NODE_FAILURE, DAY_S / mtbf_s / nodes),))


def parts(life: Life) -> list[float]:
    return [life.trained_s, life.redone_s, life.restart_s, life.save_s, life.queue_s, life.held_s]


def trace(*failures: Failure, length_s: float = 1000 * DAY_S) -> Trace:
    return Trace(failures, length_s, is_from_start=True)


# ---- without failures, everything is known --------------------------------------------------------------------------


def test_a_life_without_failures_takes_what_can_be_counted() -> None:
    scenario = Scenario(work_s=DAY_S, costs=COSTS, every=Every(seconds=1820.0), queue_s=(HOUR,))
    saves = math.ceil(DAY_S / 1800) - 1  # the last save is that of the end
    expected = Life(
        trained_s=DAY_S, restart_s=300.0, save_s=saves * 20.0 + 20.0, queue_s=HOUR,
        wall_s=DAY_S + 300 + saves * 20 + 20 + HOUR, attempts=1, jobs=1, is_finished=True,
    )  # fmt: skip
    found = live(scenario, "1")
    assert parts(found) == pytest.approx(parts(expected)) and found.wall_s == pytest.approx(expected.wall_s)
    assert (found.attempts, found.jobs, found.burnt, found.is_finished) == (1, 1, 0, True)


def test_a_time_limit_costs_a_save_a_wait_and_a_restart_and_no_step() -> None:
    scenario = Scenario(
        work_s=10 * DAY_S, costs=COSTS, every=Every(seconds=1820.0), queue_s=(HOUR,), walltime_s=DAY_S,
        policy=ActSettings(keep_queued=1),
    )  # fmt: skip
    found = live(scenario, "1")
    assert found.redone_s == 0 and found.burnt == 0 and found.is_finished
    assert found.jobs == found.attempts == 11 and found.queue_s == pytest.approx(11 * HOUR)
    assert found.restart_s == pytest.approx(11 * 300)


def test_a_time_limit_that_leaves_no_time_to_train_opens_the_breaker_again_and_again() -> None:
    scenario = Scenario(
        work_s=DAY_S, costs=replace(COSTS, durable_s=3400.0), walltime_s=HOUR, person_s=DAY_S, policy=BREAKER
    )
    found = live(scenario, "1")
    assert not found.is_finished and found.trained_s == 0 and found.burnt == found.jobs
    assert found.held_s > found.wall_s / 2
    assert found.jobs / (found.held_s / DAY_S) == pytest.approx(BREAKER.neutral, rel=0.1)


def test_a_life_that_cannot_finish_is_given_up() -> None:
    costs = replace(COSTS, restart_s=20_000.0)
    scenario = Scenario(work_s=DAY_S, nodes=4, costs=costs, source=at_random(2000.0), policy=BREAKER)
    found = live(scenario, "1")
    assert not found.is_finished and found.wall_s <= LONGEST * DAY_S + MOST_S


# ---- a single failure -----------------------------------------------------------------------------------------------

EVERY = Every(seconds=1820.0)


def test_a_failure_destroys_what_was_not_durable() -> None:
    costs = replace(COSTS, durable_s=120.0)
    begun = 300 + 3 * 1820 - 20  # the third save
    scenario = Scenario(work_s=DAY_S, nodes=4, costs=costs, every=EVERY, policy=BREAKER)
    for after_s, durable in ((119.0, 2), (121.0, 3)):
        hit = replace(scenario, source=trace(Failure(begun + after_s, FailureClass.NODE_FAILURE)))
        trained_s = 3 * 1800 + after_s - 20
        assert live(hit, "1").redone_s == pytest.approx(trained_s - durable * 1800)


def test_a_failure_during_a_restart_or_without_a_job_destroys_no_step() -> None:
    scenario = Scenario(work_s=DAY_S, nodes=4, costs=COSTS, every=EVERY, queue_s=(HOUR,), policy=BREAKER)
    waiting = live(replace(scenario, source=trace(Failure(HOUR / 2, FailureClass.NETWORK))), "1")
    assert (waiting.attempts, waiting.redone_s) == (1, 0.0)
    starting = live(replace(scenario, source=trace(Failure(HOUR + 100, FailureClass.NETWORK))), "1")
    assert (starting.attempts, starting.redone_s, starting.burnt) == (2, 0.0, 1)
    assert starting.restart_s == pytest.approx(400.0)


@pytest.mark.parametrize(
    ("last_save", "redone_s"),
    [
        (300 + 3 * 1820 + 500, 500.0),  # 500 s of steps after the third save
        (300 + 3 * 1820 - 10, 0.0),  # in the stall of the third save, which is durable in time
    ],
)
def test_a_failure_while_the_last_save_of_a_job_is_not_durable(last_save: float, redone_s: float) -> None:
    scenario = Scenario(
        work_s=DAY_S, nodes=4, costs=replace(COSTS, durable_s=120.0), every=EVERY, walltime_s=last_save + 120,
        policy=BREAKER, source=trace(Failure(last_save + 115, FailureClass.NODE_FAILURE)),
    )  # fmt: skip
    assert live(scenario, "1", until_s=last_save + 116).redone_s == pytest.approx(redone_s)


def test_a_spare_replaces_a_node_without_another_wait_and_no_other_failure() -> None:
    scenario = Scenario(
        work_s=DAY_S, nodes=4, costs=COSTS, every=EVERY, queue_s=(HOUR,), spares=1, policy=BREAKER,
        source=trace(Failure(10 * HOUR, FailureClass.NODE_FAILURE, "n2")),
    )  # fmt: skip
    found = live(scenario, "1")
    assert (found.attempts, found.jobs, found.queue_s) == (2, 1, HOUR)
    twice = [Failure(10 * HOUR, FailureClass.GPU_FAULT, "n2"), Failure(15 * HOUR, FailureClass.GPU_FAULT, "n3")]
    assert live(replace(scenario, source=trace(*twice)), "1").jobs == 2  # there is one only
    assert live(replace(scenario, source=trace(Failure(10 * HOUR, FailureClass.EXCEPTION))), "1").jobs == 2


def test_an_array_that_is_used_up_waits_for_a_person_unless_jobs_are_kept_queued() -> None:
    failures = trace(*(Failure(number * 2 * HOUR, FailureClass.NODE_FAILURE) for number in range(1, 8)))
    scenario = Scenario(
        work_s=DAY_S, nodes=4, costs=COSTS, every=EVERY, source=failures, array=4, person_s=9 * HOUR,
        policy=ActSettings(),
    )  # fmt: skip
    dry = live(scenario, "1")
    assert dry.held_s == pytest.approx(9 * HOUR)
    assert live(replace(scenario, policy=ActSettings(keep_queued=1)), "1").held_s == 0.0


# ---- causes that last, and the breaker ------------------------------------------------------------------------------


def crash_loop(kind: FailureClass, policy: ActSettings, node: str = "", lasts_s: float = DAY_S) -> Life:
    """A cause that lasts, after six hours of training; a person acts at once."""
    source = trace(Failure(6 * HOUR, kind, node, lasts_s))
    scenario = Scenario(
        work_s=DAY_S, nodes=4, costs=COSTS, every=EVERY, source=source, policy=policy, person_s=0.0, array=10**6
    )
    return live(scenario, "1")


@pytest.mark.parametrize("failures", [1, 2, 3, 5, 10])
def test_the_breaker_limits_the_tasks_that_a_lasting_cause_burns(failures: int) -> None:
    policy = ActSettings(enabled=True, failures=failures)
    assert crash_loop(FailureClass.KILLED, policy).burnt == failures
    assert crash_loop(FailureClass.DISK_FULL, policy).burnt == 1, "no restart heals it"
    assert crash_loop(FailureClass.EXCEPTION, policy).burnt == min(failures, 2), "the same cause twice"
    healing = crash_loop(FailureClass.NETWORK, policy).burnt
    assert failures <= healing <= failures + policy.half_open + 1


def test_without_a_breaker_the_whole_time_burns_tasks() -> None:
    found = crash_loop(FailureClass.DISK_FULL, NO_BREAKER)
    assert found.burnt == pytest.approx(DAY_S / COSTS.restart_s, rel=0.02) and found.held_s == 0


def test_a_bad_node_is_left_out_after_two_witnesses_and_not_without_a_breaker() -> None:
    with_breaker = crash_loop(FailureClass.GPU_FAULT, BREAKER, "n2", lasts_s=20 * HOUR)
    assert with_breaker.burnt == 1, "the second witness made no progress; the third attempt has another node"
    assert crash_loop(FailureClass.GPU_FAULT, NO_BREAKER, "n2", lasts_s=20 * HOUR).burnt > 100


def test_a_node_that_two_failures_name_within_a_day_is_left_out_until_an_attempt_ends_a_day_later() -> None:
    of_node = [Failure(hour * HOUR, FailureClass.GPU_FAULT, "n2") for hour in (3, 6, 8, 40, 43)]
    others = [Failure(hour * HOUR, FailureClass.NETWORK) for hour in (5, 41)]
    scenario = Scenario(
        work_s=60 * HOUR, nodes=4, costs=COSTS, every=EVERY, source=trace(*sorted(of_node + others)), policy=BREAKER
    )
    for is_always_asked in (False, True):
        found = live(scenario, "1", is_always_asked=is_always_asked)
        assert found.attempts == 6, "hit at 3, 5, 6, 41 and 43: at 8 and 40 it runs elsewhere"
    far = trace(*(Failure(hour * HOUR, FailureClass.GPU_FAULT, "n2") for hour in (3, 30, 32)))
    assert live(replace(scenario, source=far), "1").attempts == 4


def test_what_the_scheduler_knows_is_waited_for_and_burns_nothing() -> None:
    preempted = crash_loop(FailureClass.PREEMPTED, NO_BREAKER)
    assert preempted.burnt == 0 and preempted.queue_s == pytest.approx(DAY_S)
    lost = crash_loop(FailureClass.NODE_FAILURE, NO_BREAKER, "n2")
    assert lost.burnt == 0 and lost.queue_s == 0 and lost.attempts == 2


def test_a_run_that_the_scheduler_never_starts_waits_until_it_is_given_up() -> None:
    always = Trace((Failure(0.0, FailureClass.PREEMPTED, lasts_s=9 * DAY_S),), 5 * DAY_S, is_from_start=True)
    found = live(Scenario(work_s=DAY_S, nodes=4, costs=COSTS, source=always, policy=BREAKER, queue_s=(1.0,)), "1")
    assert not found.is_finished and found.attempts == 0
    assert found.queue_s == found.wall_s == LONGEST * DAY_S + MOST_S


# ---- the closed forms -----------------------------------------------------------------------------------------------


def simulated(interval_s: float, costs: Costs, mtbf_s: float, every: Every | None = None, lives: int = 3) -> float:
    """ETTR without a queue, over some 1,500 failures in each life."""
    scenario = Scenario(
        work_s=1500 * mtbf_s, nodes=4, costs=costs, every=every or Every(seconds=interval_s), source=at_random(mtbf_s),
        policy=NO_BREAKER,
    )  # fmt: skip
    found = [live(scenario, f"closed {number}") for number in range(lives)]
    assert all(one.is_finished for one in found)
    return sum(one.trained_s for one in found) / sum(one.wall_s for one in found)


@pytest.mark.parametrize("mtbf_s", [2 * HOUR, 12 * HOUR, 10 * DAY_S])
@pytest.mark.parametrize("interval_s", [600.0, 3600.0])
@pytest.mark.parametrize(
    "costs", [COSTS, replace(COSTS, durable_s=200.0), replace(COSTS, stall_s=60.0, durable_s=60.0)]
)
def test_dalys_complete_model_is_met_within_a_percent(costs: Costs, interval_s: float, mtbf_s: float) -> None:
    expected = 1 - loss_of(interval_s, costs, mtbf_s).lost
    lives = 12 if mtbf_s < DAY_S / 4 else 3  # the more is lost, the more samples it takes
    assert simulated(interval_s, costs, mtbf_s, lives=lives) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("mtbf_s", [12 * HOUR, 3 * DAY_S, 10 * DAY_S])
def test_metas_ettr_is_met_within_a_percent_where_losses_are_small(mtbf_s: float) -> None:
    for interval_s in (900.0, 1800.0, 3600.0):
        assert simulated(interval_s, COSTS, mtbf_s) == pytest.approx(meta_ettr(interval_s, COSTS, mtbf_s), rel=0.01)


@pytest.mark.parametrize("mtbf_s", [12 * HOUR, 3 * DAY_S])
def test_the_optima_of_young_and_daly_are_those_of_the_simulation(mtbf_s: float) -> None:
    """Young's minimum of what is lost is the root of 2 delta / M; Daly's first order optimum contains the restart."""
    stall_s, restart_s = COSTS.stall_s, COSTS.restart_s
    young = young_s(stall_s, mtbf_s)
    assert 1 - simulated(young + stall_s, COSTS, mtbf_s) == pytest.approx(
        math.sqrt(2 * stall_s / mtbf_s) + restart_s / mtbf_s, abs=0.01
    )
    first_order = math.sqrt(2 * stall_s * (mtbf_s + restart_s)) - stall_s
    optima = {simulated(train_s + stall_s, COSTS, mtbf_s) for train_s in (young, first_order, daly_s(stall_s, mtbf_s))}
    others = {simulated(factor * young, COSTS, mtbf_s) for factor in (0.25, 0.5, 0.7, 1.4, 2.0, 4.0)}
    assert min(optima) >= 0.99 * max(others)
    assert min(others) < min(optima) - 0.005, "the comparison could not fail"


def test_where_failures_are_frequent_only_the_higher_order_is_good() -> None:
    costs, mtbf_s = Costs(stall_s=300.0, durable_s=300.0, restart_s=300.0), 900.0
    higher, young = daly_s(300.0, mtbf_s), young_s(300.0, mtbf_s)
    best = max(simulated(factor * higher + 300.0, costs, mtbf_s) for factor in (0.6, 0.8, 1.25, 1.6))
    assert simulated(higher + 300.0, costs, mtbf_s) >= 0.99 * best
    assert simulated(young + 300.0, costs, mtbf_s) < simulated(higher + 300.0, costs, mtbf_s)


@pytest.mark.parametrize("mtbf_s", [2 * HOUR, DAY_S])
def test_auto_comes_close_to_the_best_interval_without_knowing_how_often_failures_come(mtbf_s: float) -> None:
    best = decide_cadence(COSTS, known_mtbf(mtbf_s)).interval_s
    assert simulated(0.0, COSTS, mtbf_s, AUTO) >= 0.995 * simulated(best, COSTS, mtbf_s)


def test_saves_come_no_faster_than_the_file_system_takes_them() -> None:
    costs = Costs(stall_s=5.0, durable_s=600.0, in_flight=2)
    scenario = Scenario(work_s=DAY_S, costs=costs, every=Every(seconds=60.0))
    assert live(scenario, "1").save_s == pytest.approx(DAY_S / 295 * 5 + 600, rel=0.02)


# ---- properties -----------------------------------------------------------------------------------------------------


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    seconds = st.one_of(st.just(0.0), st.floats(0.01, 1e5))
    stall_s = draw(seconds)
    costs = Costs(
        stall_s=stall_s, durable_s=stall_s + draw(seconds), restart_s=draw(seconds), in_flight=draw(st.integers(1, 3))
    )
    nodes = draw(st.sampled_from([1, 2, 3, 50]))
    kinds = st.sampled_from(KINDS)
    lasts = st.one_of(st.just(0.0), st.floats(1.0, 3 * DAY_S))
    if draw(st.booleans()):
        rates = st.builds(Rate, kinds, st.floats(1e-3, 4.0).map(lambda rate: rate / nodes), lasts)
        source: Rates | Trace = Rates(tuple(draw(st.lists(rates, max_size=4))))
    else:
        names = st.sampled_from(["", "n0", "n1", "gpu7"])
        failures = st.builds(Failure, st.floats(0, 5 * DAY_S), kinds, names, lasts, st.sampled_from([1.0, 0.5]))
        source = Trace(tuple(sorted(draw(st.lists(failures, max_size=12)))), 5 * DAY_S, draw(st.booleans()))
    return Scenario(
        work_s=draw(st.floats(1.0, 10 * DAY_S)), nodes=nodes, costs=costs, source=source,
        every=draw(st.one_of(st.just(AUTO), st.builds(lambda s: Every(seconds=s), st.floats(1.0, 1e5)))),
        redo_max_s=draw(st.sampled_from([0.0, 3600.0])),
        queue_s=draw(st.sampled_from([(0.0,), (60.0,), random_waits(3 * HOUR)])),
        walltime_s=draw(st.sampled_from([math.inf, DAY_S, 2 * HOUR])),
        spares=draw(st.integers(0, 2)), array=draw(st.integers(1, 20)), person_s=draw(st.sampled_from([0.0, DAY_S])),
        policy=ActSettings(
            enabled=True, failures=draw(st.integers(0, 4)), neutral=draw(st.sampled_from([0, 5, 20])),
            half_open=draw(st.integers(0, 6)), keep_queued=draw(st.integers(0, 1)),
        ),
    )  # fmt: skip


@given(scenarios(), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_time_is_partitioned_and_nothing_is_negative(scenario: Scenario, seed: int) -> None:
    life = live(scenario, str(seed), until_s=5 * DAY_S)
    assert sum(parts(life)) == pytest.approx(life.wall_s, rel=1e-9, abs=1e-3)
    assert all(part >= -1e-6 for part in parts(life)), life
    assert life.trained_s <= scenario.work_s * (1 + 1e-9)
    assert life.is_finished == (life.trained_s >= scenario.work_s * (1 - 1e-9)) or not life.is_finished
    assert 0 <= life.burnt <= life.jobs <= life.attempts
    assert live(scenario, str(seed), until_s=5 * DAY_S) == life, "the same seed gives the same life"


@given(scenarios(), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_where_the_breaker_is_not_asked_it_would_have_said_that_all_may_run(scenario: Scenario, seed: int) -> None:
    until_s = 5 * DAY_S
    assert live(scenario, str(seed), until_s=until_s) == live(
        scenario, str(seed), until_s=until_s, is_always_asked=True
    )


@given(scenarios(), st.integers(0, 10**6), st.floats(1.0, 3.0))
@settings(max_examples=20, deadline=None)
def test_more_work_never_takes_less_time(scenario: Scenario, seed: int, factor: float) -> None:
    until_s = 5 * DAY_S
    less, more = (
        live(replace(scenario, work_s=work_s), str(seed), until_s=until_s)
        for work_s in (scenario.work_s, factor * scenario.work_s)
    )
    assert not less.is_finished or more.wall_s >= less.wall_s * (1 - 1e-9)


def test_on_average_it_takes_longer_with_more_failures_dearer_saves_longer_waits_and_fewer_spares() -> None:
    base = Scenario(
        work_s=20 * DAY_S, nodes=256, costs=COSTS, every=EVERY, source=bundled("rsc-2"), queue_s=random_waits(HOUR),
        walltime_s=2 * DAY_S, policy=BREAKER,
    )  # fmt: skip

    def wall_s(scenario: Scenario) -> float:
        return sum(live(scenario, f"mono {number}").wall_s for number in range(30))

    ladders = [
        [base, replace(base, source=bundled("llama3")), replace(base, source=bundled("rsc-1"))],
        [replace(base, costs=replace(COSTS, stall_s=one, durable_s=one)) for one in (5.0, 60.0, 300.0)],
        [replace(base, costs=replace(COSTS, restart_s=one)) for one in (60.0, 600.0, 3600.0)],
        [replace(base, queue_s=random_waits(one * HOUR)) for one in (0.0, 1.0, 8.0)],
        [replace(base, spares=one, walltime_s=20 * DAY_S) for one in (8, 1, 0)],
    ]
    for ladder in ladders:
        walls = [wall_s(one) for one in ladder]
        assert walls == sorted(walls), walls
