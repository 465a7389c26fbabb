"""What `resil status` says of a kill under way: a table from the batch shell's events to a sentence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.runs.attempts import KillStage, Stage, clock_time, describe, kill_stage

NOON = time.mktime((2026, 11, 20, 12, 0, 0, 0, 0, -1))
WHY = "the kill switch is thrown by bob: loss is NaN"


def event(name: str, at: float, attempt: int = 3, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": NOON + at, "attempt": attempt, "why": WHY, **fields}


NOTICED = event("kill_noticed", 0, bound_s=95, scope="job")
TAKEN = event("kill_taken", 20, bound_s=960)
STACKS = event("kill_stacks", 95)
TERM = event("kill_term", 100, kill_wait_s=30)
KILL = event("kill_kill", 130)
STORIES: list[tuple[list[dict[str, Any]], float, str | None]] = [
    ([], 0, None),
    ([event("attempt_start", -9), event("signal", -5)], 0, None),
    ([NOTICED], 0, "noticed just now, SIGTERM at 12:01:35 unless it stops at a step"),
    ([NOTICED], 12, "noticed 12 s ago, SIGTERM at 12:01:35 unless it stops at a step"),
    ([NOTICED], -40, "noticed just now, SIGTERM at 12:01:35 unless it stops at a step"),  # another machine's clock
    ([NOTICED, TAKEN], 140, "the training was told to stop 2 min ago, SIGTERM at 12:16:20 unless it saves and ends"),
    ([NOTICED, STACKS], 97, "no end in time: asked all ranks for their stacks 2 s ago, then SIGTERM"),
    ([NOTICED, STACKS, TERM], 108, "SIGTERM sent 8 s ago, SIGKILL at 12:02:10"),
    ([NOTICED, STACKS, TERM, KILL], 135, "SIGKILL sent 5 s ago"),
    ([TERM], 108, "SIGTERM sent 8 s ago, SIGKILL at 12:02:10"),  # the tail of a long journal
    ([NOTICED, event("kill_cleared", 30)], 40, None),
    ([NOTICED, event("kill_cleared", 30), event("kill_noticed", 50, bound_s=10)], 50,
     "noticed just now, SIGTERM at 12:01:00 unless it stops at a step"),
    ([NOTICED, TERM, event("attempt_end", 110)], 111, None),
    ([event("kill_term", 0, attempt=2, kill_wait_s=30)], 1, None),
    ([event("kill_noticed", 0)], 1, "noticed 1 s ago, SIGTERM unless it stops at a step"),
    ([event("kill_noticed", 0, bound_s="soon")], 1, "noticed 1 s ago, SIGTERM unless it stops at a step"),
    ([event("kill_noticed", 0, bound_s=1e300)], 1, "noticed 1 s ago, SIGTERM unless it stops at a step"),
    ([event("kill_noticed", -9e10 - NOON, bound_s=1)], 1, "noticed, SIGTERM unless it stops at a step"),
    ([{**TERM, "kill_wait_s": -99999999999}], 108, "SIGTERM sent 8 s ago, SIGKILL"),
    ([{**TERM, "time": "x"}], 108, "SIGTERM sent, SIGKILL"),
    ([{**TERM, "time": True, "kill_wait_s": True}], 108, "SIGTERM sent, SIGKILL"),
    ([{**KILL, "time": float("nan")}], 108, "SIGKILL sent"),
    ([event("kill_joy", 0)], 1, None),
]  # fmt: skip


@pytest.mark.parametrize(("events", "now", "said"), STORIES)
def test_the_last_event_of_the_attempt_tells_what_was_done_and_what_comes(
    events: list[dict[str, Any]], now: float, said: str | None
) -> None:
    stage = kill_stage(events, 3)
    assert (stage and describe(stage, NOON + now)) == said
    assert stage is None or stage.why == WHY


def test_another_day_is_named() -> None:
    assert clock_time(NOON + 86400, NOON) == "2026-11-21 12:00:00"


def test_the_sentence_of_a_stranger_is_one_printable_line() -> None:
    (stage,) = [kill_stage([event("kill_term", 0) | {"why": "\x1b[2Jx\ny" * 500}], 3)]
    assert stage is not None and stage.why.isprintable() and len(stage.why) <= 500


json_like = st.none() | st.booleans() | st.integers() | st.floats() | st.floats(-2e11, 2e11) | st.text(max_size=5)
keys = st.sampled_from(["event", "time", "attempt", "why", "bound_s", "kill_wait_s"])
words = st.sampled_from([*(f"kill_{stage}" for stage in Stage), "kill_cleared", "attempt_end", 3])


@given(st.lists(st.dictionaries(keys, json_like | words, max_size=6)), st.floats(0, 4e9))
def test_no_journal_whatever_ends_in_an_exception(events: list[dict[str, Any]], now: float) -> None:
    for attempt in (0, 1):
        stage = kill_stage([{"attempt": 1, **one} for one in events], attempt)
        assert stage is None or (isinstance(stage, KillStage) and describe(stage, now).isprintable())
