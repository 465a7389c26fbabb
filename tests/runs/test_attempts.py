"""Attempts, their saves and their end by force: tables from journals to sentences."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.runs.attempts import (
    AttemptEnd,
    KillStage,
    Stage,
    clock_time,
    describe,
    describe_save,
    kill_stage,
    last_save,
)


def test_the_batch_shells_words_for_an_end_stay_as_they_are() -> None:
    assert {end.value for end in AttemptEnd} == {
        "finished",
        "exited",
        "stopped",
        "superseded",
        "terminated",
        "lost",
    }


NOW = 10_000.0


def saves(name: str, ago_s: float, step: int, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": NOW - ago_s, "step": step, **fields}


SAVED = [saves("start", 900, 0), saves("save_begin", 760, 1200), saves("save", 720, 1200, seconds=40.0)]
BEGUN = saves("save_begin", 40, 1300)
STAGED = saves("save_staged", 38, 1300, seconds=2.0)
FAILED = saves("save_failed", 5, 1300, error="OSError(28,\n'No space left on device')")
SAVES: list[tuple[list[dict[str, Any]], bool, str | None]] = [
    ([], True, None),
    ([saves("start", 5, 0)], True, None),
    (SAVED, True, "step 1200, 12 min ago"),
    ([*SAVED, BEGUN], True, "step 1200, 12 min ago; save of step 1300 has begun, 40 s ago"),
    ([*SAVED, BEGUN, STAGED], True, "step 1200, 12 min ago; save of step 1300 is in flight, 40 s ago"),
    ([*SAVED, BEGUN, STAGED], False, "step 1200, 12 min ago; save of step 1300 was interrupted"),
    (
        [*SAVED, BEGUN, STAGED, FAILED],
        True,
        "step 1200, 12 min ago; save of step 1300 failed: OSError(28, 'No space left on device')",
    ),
    ([BEGUN, FAILED], False, "nothing yet; save of step 1300 failed: OSError(28, 'No space left on device')"),
    (
        [*SAVED, BEGUN, FAILED, saves("save_begin", 3, 1400), saves("save", 0.1, 1400)],
        True,
        "step 1400, just now",
    ),
    ([*SAVED, BEGUN, STAGED, saves("start", 10, 1200)], True, "step 1200, 12 min ago"),  # the next attempt
    ([saves("save", -60, 7)], True, "step 7, just now"),  # clock skew
    (
        [
            {"event": "save"},
            {"event": "save", "step": "7"},
            {"event": "save", "step": True},
            {"step": 4},
        ],
        True,
        None,
    ),
]


@pytest.mark.parametrize(("events", "is_running", "said"), SAVES)
def test_the_sentence_of_the_saves(events: list[dict[str, Any]], is_running: bool, said: str | None) -> None:
    save = last_save(events)
    assert (None if save is None else describe_save(save, NOW, is_running=is_running)) == said


@pytest.mark.parametrize("moment", [float("nan"), 1e308, -5, "x", True, None])
def test_a_time_that_is_none_is_left_out(moment: Any) -> None:
    save = last_save([SAVED[-1] | {"time": moment}, BEGUN | {"time": moment}])
    assert save is not None
    assert describe_save(save, NOW, is_running=True) == "step 1200; save of step 1300 has begun"


def test_nothing_is_said_of_journals_that_were_not_read() -> None:
    save = last_save([BEGUN, FAILED])
    assert save is not None
    said = describe_save(replace(save, is_whole=False), NOW, is_running=True)
    assert said.startswith("no durable save in the newest journals; save of step 1300 failed")


def test_it_tells_whose_saves_they_were_and_when_the_newest_failed() -> None:
    events = [saves("save", 9, 40, attempt=1), saves("save_failed", 5, 80, attempt=2, error="full")]
    save = last_save(events)
    assert save is not None
    assert (save.attempt, save.failed_attempt, save.failed_time) == (1, 2, NOW - 5)
    save = last_save([*events, saves("save", 1, 90, attempt="x")])
    assert save is not None
    assert (save.attempt, save.failed_attempt, save.failed_time) == (0, 0, 0.0)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
SAVE_NAMES = st.sampled_from(["start", "save_begin", "save_staged", "save", "save_failed", "end"])


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"event": SAVE_NAMES | JSON, "time": JSON, "step": JSON, "error": JSON})
    )
)
def test_no_journal_breaks_the_saves(events: list[dict[str, Any]]) -> None:
    save = last_save(events)
    assert save is None or describe_save(save, NOW, is_running=True)


NOON = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
WHY = "the kill switch was set by bob: loss is NaN"


def kills(name: str, at: float, attempt: int = 3, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": NOON + at, "attempt": attempt, "why": WHY, **fields}


NOTICED = kills("kill_noticed", 0, bound_s=95, scope="job")
TAKEN = kills("kill_taken", 20, bound_s=960)
STACKS = kills("kill_stacks", 95)
TERM = kills("kill_term", 100, kill_wait_s=30)
KILL = kills("kill_kill", 130)
KILLS: list[tuple[list[dict[str, Any]], float, str | None]] = [
    ([], 0, None),
    ([kills("attempt_start", -9), kills("signal", -5)], 0, None),
    ([NOTICED], 0, "noticed just now, SIGTERM at 12:01:35 unless the training stops at a step"),
    ([NOTICED], 12, "noticed 12 s ago, SIGTERM at 12:01:35 unless the training stops at a step"),
    ([NOTICED], -40, "noticed just now, SIGTERM at 12:01:35 unless the training stops at a step"),  # clock skew
    (
        [NOTICED, TAKEN],
        140,
        "the training was requested to stop 2 min ago, SIGTERM at 12:16:20 unless it saves and exits",
    ),
    (
        [NOTICED, STACKS],
        97,
        "the training did not stop in time: requested the stacks of all ranks 2 s ago, then SIGTERM",
    ),
    ([NOTICED, STACKS, TERM], 108, "SIGTERM sent 8 s ago, SIGKILL at 12:02:10"),
    ([NOTICED, STACKS, TERM, KILL], 135, "SIGKILL sent 5 s ago"),
    ([TERM], 108, "SIGTERM sent 8 s ago, SIGKILL at 12:02:10"),  # the tail of a long journal
    ([NOTICED, kills("kill_cleared", 30)], 40, None),
    ([NOTICED, kills("kill_cleared", 30), kills("kill_noticed", 50, bound_s=10)], 50,
     "noticed just now, SIGTERM at 12:01:00 unless the training stops at a step"),
    ([NOTICED, TERM, kills("attempt_end", 110)], 111, None),
    ([kills("kill_term", 0, attempt=2, kill_wait_s=30)], 1, None),
    ([kills("kill_noticed", 0)], 1, "noticed 1 s ago, SIGTERM unless the training stops at a step"),
    ([kills("kill_noticed", 0, bound_s="soon")], 1, "noticed 1 s ago, SIGTERM unless the training stops at a step"),
    ([kills("kill_noticed", 0, bound_s=1e300)], 1, "noticed 1 s ago, SIGTERM unless the training stops at a step"),
    ([kills("kill_noticed", -9e10 - NOON, bound_s=1)], 1, "noticed, SIGTERM unless the training stops at a step"),
    ([{**TERM, "kill_wait_s": -99999999999}], 108, "SIGTERM sent 8 s ago, SIGKILL"),
    ([{**TERM, "time": "x"}], 108, "SIGTERM sent, SIGKILL"),
    ([{**TERM, "time": True, "kill_wait_s": True}], 108, "SIGTERM sent, SIGKILL"),
    ([{**KILL, "time": float("nan")}], 108, "SIGKILL sent"),
    ([kills("kill_joy", 0)], 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("events", "now", "said"), KILLS)
def test_the_last_event_of_the_attempt_tells_what_was_done_and_what_comes(
    events: list[dict[str, Any]], now: float, said: str | None
) -> None:
    stage = kill_stage(events, 3)
    assert (stage and describe(stage, NOON + now)) == said
    assert stage is None or stage.why == WHY


def test_another_day_is_named() -> None:
    assert clock_time(NOON + 86400, NOON) == "2026-11-21 12:00:00"


def test_the_sentence_of_a_stranger_is_one_printable_line() -> None:
    (stage,) = [kill_stage([kills("kill_term", 0) | {"why": "\x1b[2Jx\ny" * 500}], 3)]
    assert stage is not None and stage.why.isprintable() and len(stage.why) <= 500


json_like = st.none() | st.booleans() | st.integers() | st.floats() | st.floats(-2e11, 2e11) | st.text(max_size=5)
keys = st.sampled_from(["event", "time", "attempt", "why", "bound_s", "kill_wait_s"])
words = st.sampled_from([*(f"kill_{stage}" for stage in Stage), "kill_cleared", "attempt_end", 3])


@given(st.lists(st.dictionaries(keys, json_like | words, max_size=6)), st.floats(0, 4e9))
def test_no_journal_whatever_ends_in_an_exception(events: list[dict[str, Any]], now: float) -> None:
    for attempt in (0, 1):
        stage = kill_stage([{"attempt": 1, **one} for one in events], attempt)
        assert stage is None or (isinstance(stage, KillStage) and describe(stage, now).isprintable())
