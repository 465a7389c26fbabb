"""Histories of runs with known answers, and any history at all: the categories always sum to the wall clock."""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.report.compose import Life, compose
from resilience.report.fold import AttemptFold, Durations
from resilience.report.goodput import Category as C
from resilience.report.goodput import Goodput, Span

HOUR = 3_600_000


def trains(number: int, start: int, first: int, last: int, *, ended: str = "walltime", **fields: Any) -> Life:
    """An attempt of one step a second: 100 s of start-up, the steps, and a tail of 10 s."""
    begin, end = (start + 100) * 1000, (start + 100 + last - first) * 1000
    spans = (
        Span(number, C.START_UP, start * 1000, begin),
        Span(number, C.PRODUCTIVE, begin, end, first, last),
        Span(number, C.TAIL, end, end + 10_000),
    )
    ids: dict[str, Any] = {"attempt": number, "job": str(40 + number), "ended": ended}
    known: dict[str, Any] = {"launch_ms": start * 1000 + 1000, "queued_ms": 0} | fields
    return Life(**ids, start_ms=start * 1000, end_ms=end + 10_000, spans=spans, **known)


def whole(found: Goodput) -> dict[C, float]:
    """Check what always holds, and return the seconds of categories."""
    at = found.start_ms
    for one in found.spans:
        assert one.start_ms == at < one.end_ms, "no gap, no overlap"
        at = one.end_ms
    assert at == found.end_ms
    assert tuple(found.ms) == tuple(C) and sum(found.ms.values()) == found.wall_ms
    counted = Counter[C]()
    for one in found.spans:
        counted[one.category] += one.ms
    assert counted == Counter({category: ms for category, ms in found.ms.items() if ms})
    own = [one for one in found.spans if one.attempt is not None]
    assert sum(sum(one.ms.values()) for one in found.by_attempt) == sum(one.ms for one in own)
    assert sum(sum(one.ms.values()) for one in found.by_class) == sum(one.ms for one in own)
    kept = [one for one in found.spans if one.category is C.PRODUCTIVE]
    assert all((one.last_step or 0) <= (other.first_step or 0) for one, other in pairwise(kept)), "no step twice"
    return {category: ms / 1000 for category, ms in found.ms.items() if ms}


def test_steps_that_a_later_attempt_does_again_are_taken_from_the_earlier_one() -> None:
    lives = [trains(1, 100, 0, 500), trains(2, 1000, 300, 900), trains(3, 2000, 900, 1000, ended="finished")]
    found = compose("gpt", lives, end_ms=0)
    assert whole(found) == {C.QUEUE: 680, C.START_UP: 300, C.PRODUCTIVE: 1000, C.REDONE: 200, C.TAIL: 30}
    assert [(one.steps, one.redone_steps) for one in found.by_attempt] == [(300, 200), (600, 0), (100, 0)]
    assert found.kept_steps == 1000 and found.wall_ms == 2_210_000 and found.ettr == pytest.approx(1000 / 2210)
    assert found.ettr_without_queue == pytest.approx(1000 / 1530)


def test_a_checkpoint_of_long_ago_takes_the_steps_of_several_attempts() -> None:
    lives = [trains(1, 0, 0, 500), trains(2, 1000, 500, 800), trains(3, 2000, 800, 900), trains(4, 3000, 450, 460)]
    found = compose("gpt", lives, end_ms=0)
    whole(found)
    assert [(one.steps, one.redone_steps) for one in found.by_attempt] == [(450, 50), (0, 300), (0, 100), (10, 0)]


def test_without_a_later_attempt_the_last_durable_step_is_what_is_kept() -> None:
    found = compose("gpt", [trains(1, 0, 0, 500, ended="gpu_fault")], end_ms=0, durable_step=400)
    assert whole(found)[C.REDONE] == 100
    assert found.by_class[0].lost_ms == 110_000


def test_time_between_attempts_is_queue_from_the_submit_on_and_held_before_it() -> None:
    lives = [trains(1, 50, 0, 40), trains(2, 1000, 40, 80, queued_ms=600_000)]
    assert whole(compose("gpt", lives, end_ms=0)) == {
        C.QUEUE: 450, C.HELD: 400, C.START_UP: 200, C.PRODUCTIVE: 80, C.TAIL: 20,
    }  # fmt: skip


def test_the_breaker_holds_what_is_queued_until_it_is_closed() -> None:
    lives = [trains(1, 0, 0, 40, held_until_ms=700_000), trains(2, 1000, 40, 80)]
    found = whole(compose("gpt", lives, end_ms=0))
    assert (found[C.HELD], found[C.QUEUE]) == (550, 300)
    lives = [trains(1, 0, 0, 40, held_until_ms=2**60)]
    assert whole(compose("gpt", lives, end_ms=HOUR))[C.HELD] == 3450
    assert whole(compose("gpt", [trains(1, 0, 0, 40)], end_ms=HOUR, waits=C.QUEUE))[C.QUEUE] == 3450


def test_nobody_tells_when_the_job_was_submitted() -> None:
    lives = [trains(1, 50, 0, 40, queued_ms=None), trains(2, 1000, 40, 80, queued_ms=None)]
    found = compose("gpt", lives, end_ms=0)
    assert whole(found)[C.UNKNOWN] == 800 and found.start_ms == 50_000


def test_of_overlapping_attempts_the_newest_that_was_launched_counts() -> None:
    twin = [trains(1, 0, 0, 500), trains(2, 300, 100, 500, launch_ms=350_000)]
    found = compose("gpt", twin, end_ms=0)
    assert whole(found) == {C.START_UP: 150, C.PRODUCTIVE: 500, C.REDONE: 150, C.TAIL: 10}
    assert [sum(one.ms.values()) for one in found.by_attempt] == [350_000, 460_000]
    waited = [trains(1, 0, 0, 500), trains(2, 300, 500, 900, launch_ms=610_000)]
    assert whole(compose("gpt", waited, end_ms=0))[C.PRODUCTIVE] == 500 + 190
    inside = [trains(1, 0, 0, 5000), trains(2, 300, 0, 5, launch_ms=None)]
    assert whole(compose("gpt", inside, end_ms=0))[C.PRODUCTIVE] == 5000


def test_since_leaves_out_time_after_all_of_it_was_judged() -> None:
    lives = [trains(1, 100, 0, 500), trains(2, 1000, 300, 900)]
    found = compose("gpt", lives, end_ms=0, since_ms=600_000)
    assert whole(found) == {C.REDONE: 100, C.TAIL: 20, C.QUEUE: 290, C.START_UP: 100, C.PRODUCTIVE: 600}
    assert (found.start_ms, found.by_attempt[0].start_ms, found.by_attempt[0].redone_steps) == (600_000, 600_000, 100)
    later = compose("gpt", lives, end_ms=0, since_ms=800_000)
    assert [one.attempt for one in later.by_attempt] == [2] and whole(later)
    assert compose("gpt", lives, end_ms=0, since_ms=10**10).spans == ()


def test_gpu_hours_leave_out_attempts_whose_gpus_are_unknown() -> None:
    lives = [trains(1, 0, 0, 3490, gpus=8), trains(2, 5000, 3490, 3500)]
    found = compose("gpt", lives, end_ms=0).gpu_hours
    assert found is not None and found.allocated == 8.0 and found.productive == pytest.approx(8 * 3490 / 3600)
    assert found.unknown_attempts == 1
    assert compose("gpt", lives[1:], end_ms=0).gpu_hours is None


def test_effective_time_is_kept_steps_times_the_median_step() -> None:
    durations = Durations({round(200 * 6.907755): 90, round(200 * 9.2103): 10})  # 1 s, and a few of 10 s
    found = compose("gpt", [trains(1, 0, 0, 890)], end_ms=0, durations=durations)
    assert found.step_s == pytest.approx(1.0, rel=0.01) and found.effective_time == pytest.approx(0.89, rel=0.01)


def test_a_run_without_attempts_has_no_time() -> None:
    found = compose("gpt", [], end_ms=5)
    assert (found.wall_ms, found.ettr, found.effective_time, found.by_attempt) == (0, None, None, ())
    assert set(found.ms) == set(C)


# ---- any history ---------------------------------------------------------------------------------------------------

NAMES = [
    *["progress"] * 6, "start", "resume", "checkpoint_chosen", "save_begin", "save_staged", "save", "save_failed",
    "phase", "decision", "error", "exit", "end", "launch", "attempt_start", "siblings_held", "loss_spike", "clock_set",
]  # fmt: skip
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"event": st.sampled_from(NAMES), "step": st.none() | st.integers(0, 400), "stop": st.booleans()}
        | {
            "time": st.integers(0, 5000) | st.floats(-1e6, 1e6),
            "phase": st.sampled_from(["train", "eval", "data", "x"]),
        }
    ),
    max_size=30,
)
ENDS = st.sampled_from(["finished", "stopped", "exception", "collective_timeout", "lost", "running"])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Life, bool]]:
    """Attempts that may overlap, with events in any order, and whether any of them tells a step."""
    found, durations, recent = [], Durations(), deque[float](maxlen=5)
    for number in range(1, draw(st.integers(1, 5)) + 1):
        start = draw(st.integers(0, 4_000_000))
        end, ended = start + draw(st.integers(0, 1_500_000)), draw(ENDS)
        hangs = draw(st.lists(st.integers(0, 400), max_size=2))
        made = AttemptFold(number, start, end, ended=ended, hang_steps=hangs, recent=recent, durations=durations)
        events = draw(EVENTS)
        if draw(st.booleans()):  # in order: more of them count
            events.sort(key=lambda one: float(one["time"] or 0))
        for event in events:
            made.add(event)
        life = Life(
            attempt=number,
            job="7",
            ended=ended,
            start_ms=start,
            end_ms=end,
            spans=tuple(made.finish()),
            launch_ms=made.launch_ms,
            queued_ms=draw(st.none() | st.integers(0, 5_000_000)),
            held_until_ms=draw(st.none() | st.integers(0, 5_000_000)),
            gpus=draw(st.none() | st.integers(1, 8)),
        )
        steps = [one["step"] for one in events if one["step"] is not None and one["event"] != "loss_spike"]
        found.append((life, len(set(steps)) > 1))
    return found


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(0, 6_000_000), st.none() | st.integers(0, 6_000_000), st.none() | st.integers(0, 400))
def test_whatever_happened_and_was_lost_the_categories_sum_to_the_wall_clock(
    history: list[tuple[Life, bool]], end: int, since: int | None, durable: int | None
) -> None:
    lives = [life for life, _ in history]
    found = compose("gpt", lives, end_ms=end, since_ms=since, durable_step=durable, waits=C.HELD)
    whole(found)
    lived = [(one.start_ms, one.end_ms) for one in lives if one.start_ms < one.end_ms]
    if since is None and lived:
        assert found.start_ms <= min(lived)[0] and found.end_ms == max(end, *(last for _, last in lived))
    for life, tells in history:
        assert sum(one.ms for one in life.spans) == life.end_ms - life.start_ms
        if not tells:
            assert not any(one.category is C.PRODUCTIVE for one in life.spans), "unknown is never productive"
    steps = sum(one.steps + one.redone_steps for one in found.by_attempt)
    assert steps >= found.kept_steps >= 0
