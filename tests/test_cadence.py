"""When to save: the closed forms against the numbers of their papers, the bounds, and a simulation of failures."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from resilience.cadence import (
    FIRST_S,
    HYSTERESIS,
    OVERHEAD,
    Costs,
    Every,
    Mtbf,
    chi2_quantile,
    daly_s,
    decide,
    known_mtbf,
    loss_of,
    measured_mtbf,
    mtbf_of_nodes,
    parse_every,
    young_s,
)
from resilience.errors import QuantityError

HOUR, DAY = 3600.0, 86400.0
NONE_YET = measured_mtbf(0, 0.0)


def costs(stall_s: float, durable_s: float = 0.0, **more: float) -> Costs:
    return Costs(stall_s=stall_s, durable_s=max(stall_s, durable_s), **more)  # type: ignore[arg-type]


# ---- what the user sets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("", Every()),
        (" Auto ", Every(is_auto=True)),
        ("500 steps", Every(steps=500)),
        ("1step", Every(steps=1)),
        ("30 min", Every(seconds=1800.0)),
        ("1h30m", Every(seconds=5400.0)),
    ],
)
def test_every_is_steps_or_a_time_or_auto(text: str, every: Every) -> None:
    assert parse_every(text) == every


@pytest.mark.parametrize(
    "text", ["500", "0 steps", "-5 steps", "1.5 steps", "0 s", "200 ms", "often", "99999999999 steps"]
)
def test_any_other_interval_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_every(text)
    assert "500 steps" in (caught.value.hint or "")


# ---- closed forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mtbf_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (0.25 * HOUR, 9.1)])
def test_the_optimum_is_that_of_dalys_figures_3_to_5(mtbf_s: float, minutes: float) -> None:
    assert daly_s(300.0, mtbf_s) / 60 == pytest.approx(minutes, rel=0.01)


def test_youngs_optimum_and_dalys_where_saves_are_as_rare_as_failures() -> None:
    assert young_s(2.0, 100.0) == 20.0
    assert daly_s(200.0, 100.0) == 100.0
    assert daly_s(1e-6, DAY) == pytest.approx(young_s(1e-6, DAY), rel=1e-4)
    assert daly_s(60.0, math.inf) == math.inf


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [  # Abramowitz and Stegun, table 26.8
        (0.025, 2, 0.0506356),
        (0.975, 2, 7.37776),
        (0.025, 6, 1.237344),
        (0.975, 8, 17.53455),
        (0.025, 20, 9.590777),
        (0.975, 22, 36.7807),
        (0.025, 100, 74.2219),
        (0.975, 100, 129.561),
    ],
)
def test_the_quantiles_are_those_of_the_table(probability: float, degrees: int, quantile: float) -> None:
    assert chi2_quantile(probability, degrees // 2) == pytest.approx(quantile, rel=2e-6)


def test_the_approximation_for_many_failures_continues_the_exact_quantile() -> None:
    for probability in (0.025, 0.975):
        exact, approximate = chi2_quantile(probability, 99), chi2_quantile(probability, 100)
        assert approximate - exact == pytest.approx(exact - chi2_quantile(probability, 98), rel=0.02)


@pytest.mark.parametrize(("failures", "low", "high"), [(3, 0.59, 2.21), (10, 0.74, 1.45)])
def test_few_failures_bound_the_interval_only_widely(failures: int, low: float, high: float) -> None:
    mtbf = measured_mtbf(failures, 100 * HOUR)
    assert mtbf.estimate_s == pytest.approx(100 * HOUR / failures)
    assert math.sqrt(mtbf.low_s / mtbf.likely_s) == pytest.approx(low, abs=0.01)
    assert math.sqrt(mtbf.high_s / mtbf.likely_s) == pytest.approx(high, abs=0.01)


def test_without_a_failure_there_is_a_lower_bound_and_no_number() -> None:
    mtbf = measured_mtbf(0, 100 * HOUR)
    assert (mtbf.estimate_s, mtbf.high_s) == (None, math.inf)
    assert mtbf.low_s == pytest.approx(100 * HOUR / 3.689, rel=1e-3)  # -ln(0.025)
    assert "no failure in 4 d 4 h" in str(mtbf) and "at most one in 1 d 3 h" in str(mtbf)


def test_the_rate_of_nodes_is_that_of_the_job() -> None:
    assert mtbf_of_nodes(128, 6.5e-3).likely_s == pytest.approx(DAY / (128 * 6.5e-3))  # RSC-1: 1.2 days
    assert mtbf_of_nodes(4, 0.0).likely_s == math.inf


# ---- the bounds ----------------------------------------------------------------------------------------------------


def test_before_any_save_is_measured_the_first_one_comes_early() -> None:
    assert decide(None, NONE_YET).interval_s == FIRST_S
    assert decide(None, NONE_YET).bound == "unmeasured"
    assert decide(None, NONE_YET, redo_max_s=120.0).interval_s == 120.0


def test_without_a_failure_saves_take_what_the_overhead_allows() -> None:
    cadence = decide(costs(7.0), NONE_YET)
    assert cadence.bound == "overhead"
    assert (cadence.interval_s - 7.0) * OVERHEAD == pytest.approx(7.0)
    assert "3.5 %" in cadence.reason and "failures are unknown" in cadence.reason


def test_a_long_time_without_a_failure_makes_saves_rarer_than_the_overhead_allows() -> None:
    cadence = decide(costs(7.0), measured_mtbf(0, 30 * DAY))
    assert cadence.bound == "optimum" and cadence.interval_s > 3 * 7.0 / OVERHEAD


def test_failures_that_prove_it_override_the_overhead() -> None:
    one, many = decide(costs(60.0), measured_mtbf(1, HOUR)), decide(costs(60.0), measured_mtbf(40, 40 * HOUR))
    assert one.bound == "overhead" and one.interval_s == pytest.approx(60 / OVERHEAD + 60)
    assert many.interval_s < 0.6 * one.interval_s


def test_saves_wait_for_the_file_system() -> None:
    one = decide(costs(0.1, 300.0), NONE_YET)
    four = decide(costs(0.1, 300.0, in_flight=4), NONE_YET)
    assert one.bound == four.bound == "in_flight"
    assert one.interval_s == pytest.approx(300 / (1 + OVERHEAD)) == pytest.approx(4 * four.interval_s)


@pytest.mark.parametrize(
    ("redo_max_s", "interval_s", "bound"),
    [(900.0, 840.0, "redo_max"), (120.0, 60.0, "redo_max"), (119.0, 60.0, "half"), (70.0, 60.0, "half")],
)
def test_the_work_that_a_failure_may_destroy_is_kept_as_far_as_the_file_system_allows(
    redo_max_s: float, interval_s: float, bound: str
) -> None:
    cadence = decide(costs(30.0, 60.0), known_mtbf(30 * DAY), redo_max_s=redo_max_s)
    assert cadence.bound == bound and cadence.interval_s == pytest.approx(interval_s)
    assert ("cannot be kept" in cadence.reason) == (bound != "redo_max")
    slow = decide(costs(1.0, 60.0), known_mtbf(30 * DAY), redo_max_s=redo_max_s / 2)
    assert slow.bound == ("in_flight" if redo_max_s < 240 else "redo_max")
    if bound == "redo_max":
        assert loss_of(cadence.interval_s, costs(30.0, 60.0), DAY).most_redo_s <= redo_max_s


@pytest.mark.parametrize(
    ("cost", "redo_max_s", "steps", "bound"),
    [
        (costs(1.0, step_s=10.0), 0.0, 3, "overhead"),  # 28.6 s: up, or the overhead is exceeded
        (costs(0.0, 100.0, step_s=10.0), 0.0, 10, "in_flight"),  # 96.6 s: up
        (costs(1.0, step_s=10.0), 28.0, 2, "redo_max"),  # 26 s: down
        (costs(0.0, step_s=10.0), 0.0, 1, "step"),
        (costs(60.0, step_s=2.0), 100.0, 30, "half"),  # one at each step would take 97 % of the time
    ],
)
def test_intervals_are_whole_steps_on_the_safe_side(cost: Costs, redo_max_s: float, steps: int, bound: str) -> None:
    cadence = decide(cost, NONE_YET, redo_max_s=redo_max_s)
    assert (cadence.steps, cadence.bound) == (steps, bound)
    assert cadence.interval_s == steps * cost.step_s + cost.stall_s


def test_the_interval_follows_the_cost_both_ways_and_ignores_noise() -> None:
    current = decide(costs(10.0), NONE_YET).interval_s
    for factor in (1 / 1.15, 1.15):
        assert decide(costs(10.0 * factor), NONE_YET, current_s=current).interval_s == current
    for factor in (1 / 1.3, 1.3):
        moved = decide(costs(10.0 * factor), NONE_YET, current_s=current).interval_s
        assert moved == pytest.approx(current * factor)


def test_an_interval_that_is_no_longer_possible_does_not_stay() -> None:
    slower = costs(0.1, 110.0)
    assert decide(slower, NONE_YET, current_s=100 / 1.035).interval_s == pytest.approx(110 / 1.035)
    assert decide(costs(1.0), known_mtbf(DAY), redo_max_s=300.0, current_s=310.0).interval_s == pytest.approx(299.0)


# ---- a simulation --------------------------------------------------------------------------------------------------


class Failures:
    """Seeded times between failures: every interval meets the same ones."""

    def __init__(self, mtbf_s: float, seed: int) -> None:
        self._random, self._mtbf_s, self.times = random.Random(seed), mtbf_s, [0.0]

    def after(self, now: float) -> float:
        while self.times[-1] <= now:
            self.times.append(self.times[-1] + self._random.expovariate(1 / self._mtbf_s))
        return self.times[-1]


def train(cost: Costs, failures: Failures, work_s: float, interval_s: float | None) -> float:
    """Return how long the training takes; without an interval, it decides as the guard does, after each save."""
    now, done, failed, seen_s = 0.0, 0.0, 0, 0.0
    cadence_s = interval_s
    while done < work_s:
        failure, begun = failures.after(now), now
        now += cost.restart_s
        reached, in_flight = done, []  # (durable at, its work)
        while reached < work_s and now < failure:
            if interval_s is None:
                mtbf = measured_mtbf(failed, seen_s + now - begun)
                cadence_s = decide(cost, mtbf, current_s=cadence_s).interval_s
            assert cadence_s is not None
            piece = min(cadence_s - cost.stall_s, work_s - reached)
            now, reached = now + piece + cost.stall_s, reached + piece
            in_flight.append((now + cost.lag_s, reached))
        ended = min(now, failure)
        done = max([done, *(work for at, work in in_flight if at <= failure)])
        if reached >= work_s and now < failure:
            return now
        failed, seen_s, now = failed + 1, seen_s + ended - begun, failure
    return now


CASES = [
    (costs(60.0, restart_s=300.0), 6 * HOUR),
    (costs(300.0, restart_s=600.0), 8 * HOUR),
    (costs(5.0, 120.0, restart_s=300.0), 12 * HOUR),
    (costs(1.0, 30.0, restart_s=60.0), 3 * HOUR),
    (costs(20.0, restart_s=120.0), 48 * HOUR),
]


def slowdown(cost: Costs, mtbf_s: float, mtbfs: int, interval_s: float | None, seeds: int = 1) -> float:
    """Return how many times longer a training over `mtbfs` MTBFs takes than its work alone."""
    work_s = mtbfs * mtbf_s
    return sum(train(cost, Failures(mtbf_s, seed), work_s, interval_s) for seed in range(seeds)) / (seeds * work_s)


@pytest.mark.parametrize(("mtbfs", "seeds"), [(40, 1), (4, 20)])
@pytest.mark.parametrize(("cost", "mtbf_s"), CASES)
def test_auto_is_as_good_as_the_best_fixed_interval_also_while_it_learns(
    cost: Costs, mtbf_s: float, mtbfs: int, seeds: int
) -> None:
    middle = daly_s(cost.stall_s, mtbf_s)
    fixed = [
        slowdown(cost, mtbf_s, mtbfs, cost.stall_s + factor * middle, seeds)
        for factor in (0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0)
    ]
    auto = slowdown(cost, mtbf_s, mtbfs, None, seeds)
    assert auto <= 1.05 * min(fixed)
    assert auto - 1 <= 1.3 * (min(fixed) - 1) < max(fixed) - 1, (auto, fixed)


@pytest.mark.parametrize(("cost", "mtbf_s"), CASES)
def test_the_loss_of_an_interval_is_that_of_the_simulation(cost: Costs, mtbf_s: float) -> None:
    for factor in (0.5, 1.0, 2.0):
        interval_s = factor * decide(cost, known_mtbf(mtbf_s)).interval_s
        work_s = 1000 * mtbf_s
        lost = 1 - work_s / train(cost, Failures(mtbf_s, 2), work_s, interval_s)
        assert loss_of(interval_s, cost, mtbf_s).lost == pytest.approx(lost, abs=0.02)


def test_a_training_that_fails_before_each_save_gets_nothing_done() -> None:
    assert loss_of(DAY, costs(60.0), 60.0).lost == pytest.approx(1.0)
    assert loss_of(DAY, costs(864.0), math.inf).lost == pytest.approx(0.01)


def test_the_decision_exists_for_every_combination() -> None:
    stalls, lags = (0.0, 1e-3, 1.0, 1e5), (0.0, 1.0, 1e5)
    mtbfs: list[Mtbf] = [
        NONE_YET,
        measured_mtbf(0, DAY),
        measured_mtbf(500, DAY),
        known_mtbf(math.inf),
        known_mtbf(1.0),
    ]
    for stall_s, lag_s, step_s, mtbf, redo_max_s in itertools.product(
        stalls, lags, (0.0, 0.3, 1e4), mtbfs, (0.0, 1.0, HOUR)
    ):
        cost = costs(stall_s, stall_s + lag_s, step_s=step_s)
        cadence = decide(cost, mtbf, redo_max_s=redo_max_s)
        assert 0 < cadence.interval_s < math.inf and cadence.interval_s >= cost.durable_s / (1 + OVERHEAD) - 1e-6
        assert decide(cost, mtbf, redo_max_s=redo_max_s, current_s=cadence.interval_s) == cadence
        assert 0 <= loss_of(cadence.interval_s, cost, mtbf.likely_s or 1.0).lost <= 1
    assert HYSTERESIS == 0.2
