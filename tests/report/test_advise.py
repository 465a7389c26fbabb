"""What to change: each advice has its figures, and is not given where nothing would have been saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from resilience.report.advise import advise
from resilience.report.contents import AttemptLine, CheckpointLine, NodeLine, Outcome, Plan, Report, Saves
from resilience.report.goodput import AttemptTime, Category, Goodput, Span

HOUR_S = 3600.0


def attempt(number: int, start_s: float, seconds: float, **fields: Any) -> AttemptLine:
    known: dict[str, Any] = {"outcome": Outcome.FAILED, "failure": "exception", "queue_s": 60.0} | fields
    start = start_s
    return AttemptLine(
        attempt=number, job=str(number), host="n1", nodes="n1", start_time=start, end_time=start + seconds, **known
    )


def run(attempts: list[AttemptLine], *, start_up_s: float = 60.0, **fields: Any) -> Report:
    end_s = attempts[-1].end_time or 0.0
    times = tuple(
        AttemptTime(
            attempt=one.attempt,
            job=one.job,
            ended=one.failure,
            start_ms=round(1000 * one.start_time),
            end_ms=round(1000 * (one.end_time or 0.0)),
            ms={Category.START_UP: round(1000 * start_up_s), Category.REDONE: 600_000},
        )
        for one in attempts
    )
    time = Goodput(run="gpt", start_ms=0, end_ms=round(1000 * end_s), by_attempt=times, ms=fields.pop("ms", {}))
    return Report(run="gpt", made_at=end_s, state="finished", attempts=tuple(attempts), time=time, **fields)


FAILING = [attempt(n, 10 * HOUR_S * (n - 1), 10 * HOUR_S - 60, redone_steps=100) for n in range(1, 11)]
"""Ten hours each, and work is lost each time."""
SAVES = Saves(count=10, stall_s=10.0, durable_s=30.0, interval_s=4 * HOUR_S)


def subjects(report: Report, spans: tuple[Span, ...] = ()) -> list[str]:
    return [one.subject for one in advise(report, spans)]


def test_an_interval_that_loses_hours_is_named_with_a_better_one() -> None:
    (found,) = advise(run(FAILING, saves=SAVES))
    assert found.subject == "interval" and "instead of every 4 h" in found.say
    assert found.saves_s is not None and 10 * HOUR_S < found.saves_s < 25 * HOUR_S, "2 of each 10 h are redone"
    assert "10 in 4 d 3 h" in found.because and "Daly's optimum" in found.because


@pytest.mark.parametrize(
    "fields",
    [
        {"saves": replace(SAVES, interval_s=None)},
        {"saves": replace(SAVES, stall_s=None)},
        {"saves": replace(SAVES, interval_s=900.0)},
        {"saves": SAVES, "plan": Plan(every="auto")},
    ],
)
def test_an_interval_that_is_unknown_or_good_is_no_subject(fields: dict[str, Any]) -> None:
    assert subjects(run(FAILING, **fields)) == []


def test_a_run_without_failures_is_not_told_to_save_more_often() -> None:
    calm = [replace(one, redone_steps=0, outcome=Outcome.OUTSIDE) for one in FAILING]
    assert subjects(run(calm, saves=SAVES)) == []


def limited(queue_s: float, start_up_s: float) -> Report:
    lines = [
        attempt(n, n * 2 * HOUR_S, 2 * HOUR_S - 30, outcome=Outcome.OUTSIDE, failure="walltime", queue_s=queue_s)
        for n in range(10)
    ]
    return run(lines, start_up_s=start_up_s, plan=Plan(walltime_s=2 * HOUR_S))


def test_restarts_at_a_short_limit_ask_for_a_longer_one() -> None:
    (found,) = advise(limited(1200.0, 300.0))
    assert found.subject == "walltime" and "04:00:00 instead of 02:00:00" in found.say
    assert found.saves_s == 5 * 1500.0 and "10 jobs ended at the time limit" in found.because
    assert subjects(limited(10.0, 10.0)) == [], "they cost nothing"


def test_a_limit_that_no_job_needs_is_named_where_the_run_waits_in_the_queue() -> None:
    lines = [attempt(n, n * 5 * HOUR_S, HOUR_S, queue_s=4 * HOUR_S) for n in range(5)]
    waits = {Category.QUEUE: round(16 * HOUR_S * 1000)}
    (found,) = advise(run(lines, plan=Plan(walltime_s=24 * HOUR_S), ms=waits))
    assert found.subject == "walltime" and found.say.startswith("Ask for less than 1-00:00:00")
    assert subjects(run(lines, plan=Plan(walltime_s=24 * HOUR_S))) == [], "it does not wait"


def test_a_run_that_had_nothing_queued_is_told_to_keep_jobs_queued() -> None:
    lines = [attempt(n, n * 5 * HOUR_S, HOUR_S) for n in range(3)]
    hour = round(1000 * HOUR_S)
    gaps = tuple(Span(None, Category.HELD, (5 * n + 1) * hour, (5 * n + 5) * hour) for n in range(2))
    after = Span(None, Category.HELD, 11 * hour, 99 * hour)
    (found,) = advise(run(lines), (*gaps, after))
    assert (found.subject, found.saves_s) == ("keep_queued", 8 * HOUR_S), "not what came after the last attempt"
    assert "2 times, for 8 h in all" in found.because
    assert subjects(run(lines, plan=Plan(keep_queued=2)), gaps) == []


def nodes(*failures: int, attempts: int = 5) -> tuple[NodeLine, ...]:
    return tuple(
        NodeLine(node=f"n{number}", attempts=attempts, failures=count, seconds=HOUR_S)
        for number, count in enumerate(failures, 1)
    )


@pytest.mark.parametrize(
    ("failures", "expected"),
    [((4, 0, 1), ["n1"]), ((1, 0, 0), []), ((2, 2, 2), []), ((2,), ["n1"]), ((0, 0), [])],
)
def test_a_node_is_named_where_failures_name_it_and_not_the_others(
    failures: tuple[int, ...], expected: list[str]
) -> None:
    lines = [attempt(n, n * HOUR_S, HOUR_S - 60, blamed="n1") for n in range(1, 6)]
    found = advise(run(lines, nodes=nodes(*failures)))
    assert [one.say.removeprefix("Keep the jobs away from ").rstrip(".") for one in found] == expected
    assert all(one.how == "resil nodes exclude n1 --for 3d" and one.saves_s == 5 * 600.0 for one in found)


def test_a_node_that_is_excluded_already_is_no_subject() -> None:
    (bad, *rest) = nodes(4, 0, 0)
    assert subjects(run([attempt(1, 0.0, 60.0)], nodes=(replace(bad, state="excluded"), *rest))) == []


def test_checkpoints_that_were_never_read_again_are_named() -> None:
    lines = tuple(CheckpointLine(name=f"step-{n}", step=n, state="not verified") for n in range(2))
    (found,) = advise(run([attempt(1, 0.0, 60.0)], checkpoints=lines))
    assert found.subject == "checkpoints" and "none of 2 checkpoints" in found.because
    one_good = (replace(lines[0], state="verified"), lines[1])
    assert subjects(run([attempt(1, 0.0, 60.0)], checkpoints=one_good)) == []


@pytest.mark.parametrize(
    ("ms", "expected"),
    [
        ({Category.START_UP: 0.3, Category.HANG: 0.2}, ["start_up"]),
        ({Category.HANG: 0.2, Category.QUEUE: 0.7}, ["hang"]),
        ({Category.UNKNOWN: 0.11}, ["unknown"]),
        ({Category.TAIL: 0.09, Category.PRODUCTIVE: 0.9}, []),
    ],
)
def test_the_largest_time_that_is_no_training_is_named(ms: dict[Category, float], expected: list[str]) -> None:
    lines = [attempt(1, 0.0, HOUR_S)]
    found = advise(run(lines, ms={one: round(1000 * HOUR_S * share) for one, share in ms.items()}))
    assert [one.subject for one in found] == expected and all(one.saves_s is None for one in found)


def test_what_saves_most_comes_first() -> None:
    report = run(FAILING, saves=SAVES, nodes=nodes(4, 0, 0), checkpoints=())
    saved = [one.saves_s or 0.0 for one in advise(report)]
    assert len(saved) == 2 and saved == sorted(saved, reverse=True)


def test_a_report_without_anything_has_no_advice() -> None:
    assert advise(Report(run="gpt", made_at=1.0, state="not started")) == ()
