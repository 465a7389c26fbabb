"""What many lives have in common, sweeps and their picture, and PCcheck's formula beside a replay."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from resilience.attempts.failure import FailureClass
from resilience.cadence import AUTO, Costs, Every
from resilience.settings.sections import ActSettings
from resilience.simulate.chart import render
from resilience.simulate.failures import Capacity, bundled
from resilience.simulate.life import Life
from resilience.simulate.outcome import (
    PARTS,
    Point,
    choices,
    formulas_of,
    is_at_random,
    lives_of,
    outcome_of,
    pccheck_share,
    replay_of,
)
from resilience.simulate.scenario import DAY_S, Rate, Rates, Scenario, random_waits
from tests.simulate.test_failures import published

HOUR = 3600.0
COSTS = Costs(stall_s=5.0, durable_s=60.0, restart_s=300.0)
SCENARIO = Scenario(
    work_s=10 * DAY_S, nodes=128, costs=COSTS, source=bundled("rsc-1"), queue_s=random_waits(HOUR), spares=1,
    policy=ActSettings(enabled=True, keep_queued=1), walltime_s=DAY_S,
)  # fmt: skip


def test_what_lives_have_in_common_is_counted_by_hand() -> None:
    scenario = Scenario(work_s=HOUR, nodes=2, gpus_per_node=4, spares=1, costs=COSTS)
    lives = [
        Life(trained_s=HOUR, queue_s=HOUR, wall_s=2 * HOUR, jobs=1, attempts=1, is_finished=True),
        Life(trained_s=HOUR, redone_s=HOUR, held_s=2 * HOUR, wall_s=4 * HOUR, jobs=3, burnt=2, is_finished=True),
        Life(restart_s=2 * HOUR, wall_s=2 * HOUR, jobs=2, burnt=2),
    ]
    found = outcome_of(scenario, lives)
    assert found.ettr.mean == pytest.approx(2 / 8) and found.ettr.median == pytest.approx(1 / 4)
    assert found.ettr_running.mean == pytest.approx(2 / 5)
    assert found.days.low == pytest.approx((2 + 2 * 0.2) / 24) and found.days.high == math.inf
    assert found.finished == pytest.approx(2 / 3)
    assert found.lost_gpu_hours.mean == pytest.approx((4 + (24 - 8) + 24) / 3), "the spare is not free"
    assert found.shares == pytest.approx(
        {"trained": 2 / 8, "redone": 1 / 8, "restart": 2 / 8, "save": 0.0, "queue": 1 / 8, "held": 2 / 8}
    )
    assert found.burnt.mean == pytest.approx(4 / 3)


def test_the_same_seed_gives_the_same_lives_and_another_one_others() -> None:
    first, again, other = (lives_of(SCENARIO, 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    found = outcome_of(SCENARIO, first)
    assert sum(found.shares.values()) == pytest.approx(1.0) and [*found.shares] == [*PARTS]
    for band in (found.ettr, found.days, found.lost_gpu_hours, found.jobs):
        assert band.low <= band.median <= band.high and band.low < band.high


def test_a_sweep_has_auto_and_intervals_around_the_optimum() -> None:
    found = list(choices(SCENARIO, "interval"))
    assert found[0][0] == "auto" and found[0][2].every == AUTO
    intervals = [interval_s for _, interval_s, _ in found[1:]]
    assert intervals == sorted(intervals) and intervals[-1] == pytest.approx(64 * intervals[0])
    assert formulas_of(SCENARIO).interval_s == pytest.approx(intervals[len(intervals) // 2])
    assert [one.spares for _, _, one in choices(SCENARIO, "spares")] == [0, 1, 2, 4, 8]
    assert [one.policy.failures for _, _, one in choices(SCENARIO, "breaker")] == [0, 1, 2, 3, 5, 10]


def test_the_picture_says_in_words_what_it_draws() -> None:
    for what, axis in (("interval", "from one save to the next"), ("spares", "spare nodes")):
        points = [
            Point(name, interval_s, outcome_of(one, lives_of(one, 3, 1)))
            for name, interval_s, one in choices(SCENARIO, what)
        ]
        root = ElementTree.fromstring(render("a < b", axis, points))
        texts = ["".join(one.itertext()) for one in root.iter() if one.tag.endswith(("title", "text", "desc"))]
        assert "a < b" in texts and axis in texts and any(text.startswith("best: ") for text in texts)
        assert sum(": ETTR " in text for text in texts) == len(points)
        numbers = [
            float(value)
            for one in root.iter()
            for name, value in one.attrib.items()
            if name in ("cx", "cy", "x1", "y1", "x", "y")
        ]
        assert all(0 <= number <= 900 for number in numbers)


def test_one_point_and_lives_without_any_training_can_be_drawn() -> None:
    lost = outcome_of(SCENARIO, [Life(restart_s=5.0, wall_s=5.0)])
    assert "nan" not in render("x", "y", [Point("0", math.nan, lost)])
    assert "nan" not in render("x", "y", [Point("auto", math.nan, lost), Point("1", 60.0, lost)])


def test_formulas_are_for_failures_at_random_that_a_restart_heals() -> None:
    assert is_at_random(SCENARIO)
    lasting = Rates((Rate(FailureClass.EXCEPTION, 0.1, 60.0),))
    assert not is_at_random(replace(SCENARIO, source=lasting)) and not is_at_random(replace(SCENARIO, source=Rates()))


# ---- PCcheck --------------------------------------------------------------------------------------------------------


def pccheck_goodput(
    points: list[tuple[float, int]], f: int, t: float, load: float, t_w: float, n: int, iter_: float
) -> float:
    """As artifact_evaluation/evaluation/throughput/run_goodput_model.py computes it, in iterations per second."""
    failures, before = 0, 0
    for _, gpus in points:
        failures += abs(gpus - before) // 4
        before = gpus
    total = points[-1][0] - points[0][0]
    redo = load + f * t / 2 + t * min(t_w / t, f * n) / 2
    return max(0.0, (total - redo * failures) / iter_ / total)


def test_pcchecks_formula_is_that_of_its_artefact() -> None:
    capacity = published("pccheck.csv")
    for f, t, stall, t_w, n in ((10, 1.5, 0.6, 9.0, 2), (100, 0.3, 2.0, 80.0, 2), (25, 1.0, 0.0, 90.0, 4)):
        costs = Costs(stall_s=stall, durable_s=t_w, restart_s=40.0, in_flight=n)
        share, failures = pccheck_share(capacity, f * t + stall, costs)
        expected = pccheck_goodput(list(capacity.points), f, t, 40.0, t_w, n, t + stall / f)
        assert share / t == pytest.approx(expected, rel=1e-9)
        assert failures == 51, "of which 14 are the GPUs of the first row"


def test_a_replay_counts_the_time_without_enough_gpus_which_the_formula_does_not() -> None:
    """Ten hours, two of them without enough GPUs. By the formula, GPUs that come are failures as well."""
    capacity = Capacity(((0.0, 8), (4 * HOUR, 4), (6 * HOUR, 8), (10 * HOUR, 8)))
    scenario = Scenario(work_s=1.0, nodes=2, gpus_per_node=4, costs=COSTS, every=Every(seconds=605.0))
    found = replay_of(scenario, capacity, 5, 1)
    assert found.failures == 4 and found.length_s == 10 * HOUR
    assert 0.7 < found.simulated < 0.8 < found.formula
    assert found.attempts == 2.0
