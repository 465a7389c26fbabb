"""Histories of one attempt with known answers: each event and what its time is, to the millisecond."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import pytest

from resilience.report.fold import AttemptFold, Durations
from resilience.report.goodput import Category as C
from resilience.report.goodput import Span

Told = tuple[float, str, dict[str, Any]]
BOOT: tuple[Told, ...] = (
    (0, "attempt_start", {"nodes": "n1"}),
    (10, "launch", {}),
    (20, "start", {"step": 0, "world": 8}),
)
"""The first step is seen at second 60."""
FIRST: Told = (60, "progress", {"step": 1})


def fold(
    told: Sequence[Told],
    end: float,
    ended: str = "exception",
    hang_steps: Sequence[int] = (),
    usual: float | None = None,
) -> list[Span]:
    recent = deque[float]([] if usual is None else [usual] * 5)
    made = AttemptFold(
        3, 0, round(1000 * end), ended=ended, hang_steps=hang_steps, recent=recent, durations=Durations()
    )
    for time, event, fields in told:
        made.add({"event": event, "time": time, "attempt": 3, **fields})
    spans = made.finish()
    at = 0
    for one in spans:
        assert one.start_ms == at < one.end_ms, "no gap, no overlap, nothing empty"
        at = one.end_ms
    assert at == round(1000 * end) and {one.attempt for one in spans} <= {3}
    return spans


def seconds(spans: Sequence[Span]) -> dict[C, float]:
    found = Counter[C]()
    for one in spans:
        found[one.category] += one.ms
    return {category: ms / 1000 for category, ms in found.items()}


def steps(count: int, since: float = 120, every: float = 60, first: int = 31) -> list[Told]:
    """Lines of progress, 30 steps a minute."""
    return [(since + every * number, "progress", {"step": first + 30 * number}) for number in range(count)]


def test_start_up_ends_with_the_first_step_and_the_tail_begins_after_the_last() -> None:
    spans = fold([*BOOT, FIRST, *steps(5), (370, "end", {"step": 156})], 400)
    assert seconds(spans) == {C.START_UP: 60, C.PRODUCTIVE: 310, C.TAIL: 30}
    trained = [one for one in spans if one.category is C.PRODUCTIVE]
    assert (trained[0].first_step, trained[-1].last_step) == (0, 156)


def test_a_restore_is_from_the_choice_of_a_checkpoint_to_the_resume() -> None:
    told: list[Told] = [*BOOT, (25, "checkpoint_chosen", {"name": "step-90"}), (45, "resume", {"step": 90})]
    spans = fold([*told, (60, "progress", {"step": 91}), (120, "progress", {"step": 120})], 130)
    assert seconds(spans) == {C.START_UP: 40, C.RESTORE: 20, C.PRODUCTIVE: 60, C.TAIL: 10}
    assert [(one.first_step, one.last_step) for one in spans if one.category is C.PRODUCTIVE] == [(90, 120)]


def test_only_the_stall_of_a_save_counts_not_the_time_until_it_is_durable() -> None:
    save: list[Told] = [
        (150, "save_begin", {"step": 46}), (152, "save_staged", {"step": 46}), (200, "save", {"step": 46}),
    ]  # fmt: skip
    assert seconds(fold([*BOOT, FIRST, *steps(1), *save, *steps(1, 182, first=61)], 182))[C.SAVE_STALL] == 2
    in_turn: list[Told] = [
        (150, "save_begin", {"step": 46}), (152, "save_staged", {"step": 46}), (160, "save_begin", {"step": 51}),
        (163, "save", {"step": 46}), (165, "save", {"step": 51}),
    ]  # fmt: skip
    assert seconds(fold([*BOOT, FIRST, *steps(1), *in_turn, *steps(1, 182, first=61)], 182))[C.SAVE_STALL] == 7
    alone: list[Told] = [(150, "save_begin", {"step": 46}), (158, "save_failed", {"step": 46})]
    assert seconds(fold([*BOOT, FIRST, *steps(1), *alone, *steps(1, 182, first=61)], 182))[C.SAVE_STALL] == 8


@pytest.mark.parametrize(
    ("phase", "category"),
    [("eval", C.EVALUATION), ("validation", C.EVALUATION), ("data", C.DATA_WAIT), ("warm-up", C.PRODUCTIVE)],
)
def test_a_phase_is_what_its_name_says(phase: str, category: C) -> None:
    told: list[Told] = [(130, "phase", {"phase": phase, "step": 36}), (190, "phase", {"phase": "train", "step": 36})]
    spans = fold([*BOOT, FIRST, *steps(1), *told, (250, "progress", {"step": 66})], 250)
    assert seconds(spans)[category] == {C.PRODUCTIVE: 190}.get(category, 60)


def test_a_drain_is_from_the_decision_to_stop_without_its_save() -> None:
    told: list[Told] = [
        (130, "decision", {"step": 36, "stop": True}), (132, "save_begin", {"step": 36}),
        (142, "save_staged", {"step": 36}), (150, "save", {"step": 36}), (155, "end", {"step": 36}),
    ]  # fmt: skip
    spans = fold([*BOOT, FIRST, *steps(1), *told], 160, ended="stopped")
    assert seconds(spans) == {C.START_UP: 60, C.PRODUCTIVE: 70, C.DRAIN: 15, C.SAVE_STALL: 10, C.TAIL: 5}


def test_a_decision_that_is_not_followed_drains_nothing_after_the_next_steps() -> None:
    told: list[Told] = [(125, "decision", {"step": 33, "stop": True}), *steps(2, 130, first=40)]
    assert seconds(fold([*BOOT, FIRST, *steps(1), *told], 190))[C.DRAIN] == 5


def test_a_hang_is_found_by_its_evidence_or_by_the_class_of_the_end() -> None:
    told = [*BOOT, FIRST, *steps(5)]
    assert seconds(fold(told, 4000))[C.TAIL] == 3640
    assert seconds(fold(told, 4000, hang_steps=[151]))[C.HANG] == 3640
    assert seconds(fold(told, 4000, ended="collective_timeout"))[C.HANG] == 3640
    assert seconds(fold(told, 4000, ended="running", hang_steps=[152]))[C.HANG] == 3640, "and it still does"
    assert C.HANG not in seconds(fold(told, 400, hang_steps=[31])), "the one at step 31 was over"
    assert seconds(fold(BOOT, 4000, ended="collective_timeout")) == {C.START_UP: 20, C.HANG: 3980}
    died: Told = (4000, "error", {"step": 151})
    spans = fold([*told, died], 4010, ended="collective_timeout")
    assert seconds(spans) == {C.START_UP: 60, C.PRODUCTIVE: 300, C.HANG: 3640, C.TAIL: 10}


def test_steps_that_took_far_longer_than_usual_were_interrupted_by_something_unknown() -> None:
    told = [*BOOT, FIRST, *steps(5), (3660, "progress", {"step": 181}), (3720, "progress", {"step": 211})]
    assert seconds(fold(told, 3720)) == {C.START_UP: 60, C.PRODUCTIVE: 420, C.UNKNOWN: 3240}
    assert seconds(fold(told, 3720, hang_steps=[160])) == {C.START_UP: 60, C.PRODUCTIVE: 420, C.HANG: 3240}


def test_a_training_without_a_guard_is_unknown_after_its_launch() -> None:
    assert seconds(fold(BOOT[:2], 500, ended="finished")) == {C.START_UP: 10, C.UNKNOWN: 490}
    assert seconds(fold([], 500, ended="finished")) == {C.UNKNOWN: 500}
    assert seconds(fold(BOOT[:1], 500)) == {C.START_UP: 500}, "the setup failed"
    assert seconds(fold(BOOT[:1], 500, ended="stopped")) == {C.HELD: 500}, "it found the breaker open"


def test_steps_in_the_output_of_a_supervised_command_are_enough() -> None:
    told: list[Told] = [(0, "attempt_start", {}), (1, "launch", {}), (60, "progress", {"step": 500})]
    spans = fold([*told, (120, "progress", {"step": 530})], 130)
    assert seconds(spans) == {C.START_UP: 60, C.PRODUCTIVE: 60, C.TAIL: 10}


def test_after_the_last_event_of_a_lost_attempt_all_is_unknown() -> None:
    told: list[Told] = [*BOOT, FIRST, *steps(1), (130, "save_begin", {"step": 36})]
    assert seconds(fold(told, 900, ended="lost")) == {C.START_UP: 60, C.PRODUCTIVE: 70, C.UNKNOWN: 770}
    assert seconds(fold([], 900, ended="lost")) == {C.UNKNOWN: 900}


def test_of_a_running_attempt_what_is_not_told_yet_is_unknown() -> None:
    assert seconds(fold([*BOOT, FIRST, *steps(1)], 150, ended="running"))[C.UNKNOWN] == 30
    saving: Told = (120, "save_begin", {"step": 31})
    assert seconds(fold([*BOOT, FIRST, *steps(1), saving], 150, ended="running"))[C.SAVE_STALL] == 30


def test_where_a_clock_was_set_back_nothing_is_productive_until_the_next_event() -> None:
    told = [*BOOT, FIRST, *steps(2), (90, "progress", {"step": 100}), (300, "progress", {"step": 151})]
    spans = fold([*told, (360, "progress", {"step": 181})], 360)
    assert seconds(spans) == {C.START_UP: 60, C.PRODUCTIVE: 180, C.UNKNOWN: 120}


def test_events_outside_of_the_attempt_are_of_a_wrong_clock() -> None:
    told = [*BOOT, FIRST, (9e9, "progress", {"step": 900}), *steps(2), (-50, "save", {"step": 4})]
    assert seconds(fold(told, 180)) == {C.START_UP: 60, C.PRODUCTIVE: 120}
    late: Told = (181.5, "end", {"step": 61})
    assert seconds(fold([*BOOT, FIRST, *steps(2), late], 180)) == {C.START_UP: 60, C.PRODUCTIVE: 120}


def test_a_second_process_in_the_attempt_starts_up_again() -> None:
    told: list[Told] = [(200, "error", {"step": 61}), (220, "start", {"step": 0}), (230, "resume", {"step": 46})]
    again: list[Told] = [(250, "progress", {"step": 47}), (310, "progress", {"step": 76})]
    found = seconds(fold([*BOOT, FIRST, *steps(2), *told, *again], 310))
    assert found == {C.START_UP: 90, C.PRODUCTIVE: 180, C.TAIL: 40}


@pytest.mark.parametrize(
    "event",
    [
        {"event": "progress"}, {"event": "progress", "time": "x"}, {"event": ["a"], "time": 130},
        {"event": "progress", "time": float("nan")}, {"event": "progress", "time": 1e300, "step": 1},
        {"event": "progress", "time": 130, "step": True}, {"event": "progress", "time": 130, "step": -1},
        {"event": "phase", "time": 130, "phase": None}, {"event": "start", "time": 130, "world": "many"},
    ],
)  # fmt: skip
def test_damaged_events_do_no_harm(event: dict[str, Any]) -> None:
    made = AttemptFold(1, 0, 180_000, ended="exception", recent=deque(), durations=Durations())
    for time, name, fields in (*BOOT, FIRST, *steps(1)):
        made.add({"event": name, "time": time, **fields})
    made.add(event)
    assert sum(one.ms for one in made.finish()) == 180_000
