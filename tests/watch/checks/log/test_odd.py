"""Ranks that keep the others waiting are confirmed only while they do nothing: never in a save, an evaluation or a
stall of data, whether the training says so or not."""

from __future__ import annotations

import os
import random
from dataclasses import fields
from typing import Any

import pytest

from resilience.finding import Verdict
from resilience.guard.heartbeat.beat import Progress, RankBeat, compose
from resilience.watch.checks._log.judge import findings
from resilience.watch.checks._log.reading import (
    CONFIRM_S,
    CONFIRMED,
    ODD_S,
    PATIENCE_S,
    Beat,
    LogReading,
    LogSettings,
)
from resilience.watch.checks._log.runs import merge_beats

EVERY_S = 10.0
HANG_S = 1800.0


def beats(now: float, odd: dict[str, Any], *, steps: int = 60, phase: str = "train") -> list[tuple[str, bytes, float]]:
    """The heartbeat of four ranks that stood still at 0 s; rank 2 is in no collective, and has these signs."""
    ranks = {}
    for number in range(4):
        progress = Progress(0.0)
        progress.update((steps, 0, phase), 0.0)
        beat = ranks[number] = RankBeat(40 + number, progress)
        beat.signs.state, beat.signs.looked, beat.signs.looks, beat.signs.inside = "S", now, 90, 80
        beat.signs.entered, beat.signs.is_inside = (60, False) if number == 2 else (61, True)
        for name, value in (odd if number == 2 else {}).items():
            setattr(beat.signs, name, value)
    return [("12.n1", compose(3, "n1", ranks, now).encode(), now)]


def confirmed(signs: Any, *, phase: str = "train") -> list[float]:
    """Return when rank 2 was confirmed, looking every 10 s for half an hour; `signs` are given the time."""
    found, before = [], None
    for tick in range(int(HANG_S / EVERY_S)):
        now = EVERY_S * tick
        before = merge_beats(beats(now, signs(now), phase=phase), 3, before, now, now - EVERY_S)
        assert before is not None
        if before.is_confirmed(now):
            assert before.odd_ranks == (2,) and "rank 2 on n1" in before.odd
            found.append(now)
    return found


def test_a_rank_that_does_nothing_is_confirmed_by_some_heartbeats_and_not_by_the_first() -> None:
    found = confirmed(lambda now: {"cpu_s": 0.01 * now, "io_bytes": int(20 * now)})
    assert found[0] == EVERY_S + CONFIRM_S and len(found) > 100


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_rank_that_is_stopped_or_waits_for_a_dead_disk_is_confirmed(state: str) -> None:
    assert confirmed(lambda now: {"state": state, "looked": 1.0})


HEALTHY = {
    "a silent save of one rank": lambda now: {"io_bytes": int(2e8 * now), "cpu_s": 0.2 * now},
    "a save to storage that is slow": lambda now: {"io_bytes": int(2e5 * now), "state": "D"},
    "an evaluation of one rank": lambda now: {"cpu_s": 0.99 * now},
    "the first compilation, in children": lambda now: {"cpu_s": 1.9 * now, "io_bytes": int(1e5 * now)},
    "data that come slowly": lambda now: {"io_bytes": int(1e6 * (now // 40)), "cpu_s": 0.02 * now},
    "a library that computes with the GIL": lambda now: {"cpu_s": 1.0 * now, "looked": 1.0},
    "a neighbour that is stopped and goes on": lambda now: {"state": "T" if now % 40 < 20 else "S", "cpu_s": 0.4 * now},
}


@pytest.mark.parametrize("what", HEALTHY)
def test_a_rank_that_works_while_the_others_wait_is_never_confirmed(what: str) -> None:
    assert confirmed(HEALTHY[what]) == []


@pytest.mark.parametrize("phase", ["save", "eval", "start", "validation of my own"])
def test_a_rank_in_a_save_or_an_evaluation_is_never_confirmed(phase: str) -> None:
    assert confirmed(lambda _: {"state": "S"}, phase=phase) == []


def all_inside(now: float, entered: int) -> list[tuple[str, bytes, float]]:
    return beats(now, {"entered": entered, "is_inside": True})


@pytest.mark.parametrize(("per_tick", "is_hang"), [(0, True), (3, False)])
def test_ranks_in_one_collective_are_confirmed_and_those_of_an_evaluation_that_calls_some_are_not(
    per_tick: int, is_hang: bool
) -> None:
    before, found = None, False
    for tick in range(60):
        now = EVERY_S * tick
        before = merge_beats(all_inside(now, 61 + per_tick * tick), 3, before, now, now - EVERY_S)
        assert before is not None and not before.odd_ranks
        found |= before.is_confirmed(now)
    assert found == is_hang


@pytest.mark.parametrize(
    ("signs", "told_s"),
    [({}, ODD_S), ({"cpu_s": None}, PATIENCE_S)],
    ids=["a rank that does nothing", "a rank that computes: it may evaluate"],
)
def test_a_confirmed_hang_is_told_before_nccl_ends_the_training(signs: dict[str, Any], told_s: float) -> None:
    before = None
    for tick in range(int(2 * HANG_S / EVERY_S)):
        now = EVERY_S * tick
        seen = {"cpu_s": now} if signs else {}
        before = merge_beats(beats(now, seen), 3, before, now, now - EVERY_S)
        assert before is not None
        reading = LogReading(run="gpt", beat={f.name: getattr(before, f.name) for f in fields(before)})
        (found,) = findings("gpt", reading, LogSettings(), now)
        if found.fault:
            break
    assert found.fault == "no-progress" and found.verdict is Verdict.CRITICAL and "rank 2 on n1" in found.summary
    assert told_s < now <= told_s + EVERY_S
    assert (CONFIRMED in found.looked) == (not signs)


def test_ranks_of_a_training_that_makes_steps_are_not_named() -> None:
    """The last to arrive is outside of the collective at each look."""
    before: Beat | None = None
    for tick in range(100):
        now = EVERY_S * tick
        before = merge_beats(beats(now, {"state": "D"}, steps=tick), 3, before, now, now - EVERY_S)
        assert before is not None and before.odd == "" and not before.is_confirmed(now)


def test_no_healthy_training_is_confirmed() -> None:
    """A pause of any length in which each rank works now and then, for at most 20 s each with nothing to see."""
    for number in range(1000 if os.environ.get("RESIL_SOAK") == "1" else 80):
        source = random.Random(number)
        before, cpu_s, read = None, 0.0, 0
        for tick in range(60):
            now = EVERY_S * tick
            if tick % 2 or source.random() < 0.5:
                cpu_s, read = cpu_s + source.uniform(2, 20), read + source.randrange(2**22)
            state = source.choice(("S", "R", "D"))
            seen = {"state": state, "cpu_s": cpu_s, "io_bytes": read, "looked": now - source.uniform(0, 9)}
            before = merge_beats(beats(now, seen), 3, before, now, now - EVERY_S)
            assert before is not None and not before.is_confirmed(now), (number, now)
