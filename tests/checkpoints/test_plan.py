"""What saving costs, and whether there is room for it: tables."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from resilience.cadence import AUTO, Costs, Every, known_mtbf, measured_mtbf
from resilience.checkpoints.plan import DAY_S, Known, Measured, Room, plan, read_measured
from resilience.checkpoints.retention import Best, Policy

HOUR = 3600.0
GIB = 2.0**30


def known(**more: Any) -> Known:
    costs = Costs(stall_s=10.0, durable_s=60.0, step_s=2.0, restart_s=120.0)
    return Known(**{"costs": costs, "mtbf": known_mtbf(HOUR * 24), "size": {}, **more})


@pytest.mark.parametrize(
    ("every", "interval_s", "steps"),
    [(Every(seconds=1800.0), 1800.0, 895), (Every(steps=500), 1010.0, 500), (AUTO, 1318.0, 654)],
)
def test_the_chosen_interval_is_that_of_the_setting_and_stands_among_others(
    every: Every, interval_s: float, steps: int
) -> None:
    report = plan(known(every=every))
    assert report.interval_s == pytest.approx(interval_s)
    (chosen,) = [one for one in report.choices if one.is_chosen]
    assert (chosen.interval_s, chosen.steps) == (report.interval_s, steps)
    assert [one.interval_s / interval_s for one in report.choices] == pytest.approx([0.25, 0.5, 1, 2, 4])
    assert [one.loss.overhead for one in report.choices] == sorted(
        (one.loss.overhead for one in report.choices), reverse=True
    )
    assert [one.loss.redo_s for one in report.choices] == sorted(one.loss.redo_s for one in report.choices)


def test_auto_loses_least_and_the_bounds_of_the_failures_are_bounds_of_the_loss() -> None:
    report = plan(known(mtbf=measured_mtbf(3, 72 * HOUR)))
    chosen = next(one for one in report.choices if one.is_chosen)
    assert all(chosen.loss.lost <= one.loss.lost for one in report.choices)
    assert all(one.best.lost < one.loss.lost < one.worst.lost for one in report.choices)


def test_intervals_that_are_not_possible_are_left_out() -> None:
    report = plan(known(costs=Costs(stall_s=1.0, durable_s=600.0), mtbf=known_mtbf(HOUR)))
    assert [one.interval_s / report.interval_s for one in report.choices] == pytest.approx([1, 2, 4])


def test_without_any_knowledge_of_failures_the_loss_is_unknown() -> None:
    assert all(math.isnan(one.loss.lost) for one in plan(known(mtbf=measured_mtbf(0, 0.0))).choices)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (None, 20),
        (Policy(latest=3), 3),
        (Policy(latest=2, every_steps=5000), 5),  # steps 895 apart: at or after 5,000, 10,000, 15,000; and the newest
        (Policy(latest=1, best=Best("loss")), 3),  # the newest two verified, and one
    ],
)
def test_the_space_until_the_end_is_what_retention_keeps_and_the_saves_in_flight(
    policy: Policy | None, kept: int
) -> None:
    rooms = (Room(name="quota of user ada", kind="bytes", free=7 * GIB), Room(name="/s", kind="inodes", free=1e6))
    report = plan(
        known(
            every=Every(seconds=1800.0),
            left_s=10.2 * HOUR,
            policy=policy,
            size={"bytes": GIB, "inodes": 9.0},
            rooms=rooms,
        )
    )
    assert (report.saves, report.kept, report.horizon_s) == (20, kept, 10.2 * HOUR)
    assert report.more == {"bytes": (kept + 1) * GIB, "inodes": (kept + 1) * 9.0}
    quota, inodes = report.fits
    assert quota.next_fits and inodes.fits and quota.fits == (kept + 1 <= 7)


def test_more_saves_than_are_predicted_one_by_one_are_kept_alike() -> None:
    report = plan(known(every=Every(seconds=70.0), left_s=70.0 * 40_000, policy=Policy(latest=2, within_s=1e9)))
    assert report.saves == report.kept == 40_000


def test_a_save_that_the_time_limit_cuts_off_is_told() -> None:
    settings: dict[str, Any] = {"every": Every(seconds=1800.0), "since_save_s": 1500.0}
    assert plan(known(**settings, left_s=361.0)).is_late is False
    late = plan(known(**settings, left_s=359.0))
    assert late.is_late is True and late.next_s == 300.0
    assert plan(known(**settings)).is_late is None and plan(known(**settings)).horizon_s == DAY_S
    assert plan(known(**settings, left_s=200.0)).saves == 0


def test_the_measurements_of_the_guard_are_read() -> None:
    pace = {"gaps": [], "saves": [60.0, 90.0, 61.0], "stalls": [5.0, 40.0, 6.0]}
    text = json.dumps({"version": 1, "pace": pace, "cadence": {"step_s": 1.5, "restart_s": 80.0}})
    assert read_measured(text) == Measured(stall_s=6.0, durable_s=90.0, saves=3, step_s=1.5, restart_s=80.0)
    empty: dict[str, list[float]] = {"gaps": [], "saves": [], "stalls": []}
    assert read_measured(json.dumps({"pace": empty})) == Measured()


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"pace": 3}', b'{"pace": {"saves": [-1], "stalls": []}}', b"\xff", b"[" * 9999]
)
def test_a_damaged_file_has_no_measurements(text: bytes) -> None:
    assert read_measured(text) == Measured()
