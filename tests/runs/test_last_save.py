"""What `resil status` says of the saves: a table from rank 0's journal to a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.runs.attempts import describe_save, last_save

NOW = 10_000.0


def event(name: str, ago_s: float, step: int, **fields: Any) -> dict[str, Any]:
    return {"event": name, "time": NOW - ago_s, "step": step, **fields}


SAVED = [event("start", 900, 0), event("save_begin", 760, 1200), event("save", 720, 1200, seconds=40.0)]
BEGUN = event("save_begin", 40, 1300)
STAGED = event("save_staged", 38, 1300, seconds=2.0)
FAILED = event("save_failed", 5, 1300, error="OSError(28,\n'No space left on device')")
STORIES: list[tuple[list[dict[str, Any]], bool, str | None]] = [
    ([], True, None),
    ([event("start", 5, 0)], True, None),
    (SAVED, True, "step 1200, 12 min ago"),
    ([*SAVED, BEGUN], True, "step 1200, 12 min ago; that of step 1300 has begun, 40 s ago"),
    ([*SAVED, BEGUN, STAGED], True, "step 1200, 12 min ago; that of step 1300 is in flight, 40 s ago"),
    ([*SAVED, BEGUN, STAGED], False, "step 1200, 12 min ago; that of step 1300 was cut off"),
    (
        [*SAVED, BEGUN, STAGED, FAILED],
        True,
        "step 1200, 12 min ago; that of step 1300 failed: OSError(28, 'No space left on device')",
    ),
    ([BEGUN, FAILED], False, "nothing yet; that of step 1300 failed: OSError(28, 'No space left on device')"),
    ([*SAVED, BEGUN, FAILED, event("save_begin", 3, 1400), event("save", 0.1, 1400)], True, "step 1400, just now"),
    ([*SAVED, BEGUN, STAGED, event("start", 10, 1200)], True, "step 1200, 12 min ago"),  # the next attempt
    ([event("save", -60, 7)], True, "step 7, just now"),  # another machine's clock
    ([{"event": "save"}, {"event": "save", "step": "7"}, {"event": "save", "step": True}, {"step": 4}], True, None),
]


@pytest.mark.parametrize(("events", "is_running", "said"), STORIES)
def test_the_sentence(events: list[dict[str, Any]], is_running: bool, said: str | None) -> None:
    save = last_save(events)
    assert (None if save is None else describe_save(save, NOW, is_running=is_running)) == said


@pytest.mark.parametrize("moment", [float("nan"), 1e308, -5, "x", True, None])
def test_a_time_that_is_none_is_left_out(moment: Any) -> None:
    save = last_save([SAVED[-1] | {"time": moment}, BEGUN | {"time": moment}])
    assert save is not None
    assert describe_save(save, NOW, is_running=True) == "step 1200; that of step 1300 has begun"


def test_nothing_is_said_of_journals_that_were_not_read() -> None:
    save = last_save([BEGUN, FAILED])
    assert save is not None
    said = describe_save(replace(save, is_whole=False), NOW, is_running=True)
    assert said.startswith("no durable one in the newest journals; that of step 1300 failed")


def test_it_tells_whose_saves_they_were_and_when_the_newest_failed() -> None:
    events = [event("save", 9, 40, attempt=1), event("save_failed", 5, 80, attempt=2, error="full")]
    save = last_save(events)
    assert save is not None
    assert (save.attempt, save.failed_attempt, save.failed_time) == (1, 2, NOW - 5)
    save = last_save([*events, event("save", 1, 90, attempt="x")])
    assert save is not None
    assert (save.attempt, save.failed_attempt, save.failed_time) == (0, 0, 0.0)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)
NAMES = st.sampled_from(["start", "save_begin", "save_staged", "save", "save_failed", "end"])


@given(st.lists(st.fixed_dictionaries({}, optional={"event": NAMES | JSON, "time": JSON, "step": JSON, "error": JSON})))
def test_no_journal_breaks_it(events: list[dict[str, Any]]) -> None:
    save = last_save(events)
    assert save is None or describe_save(save, NOW, is_running=True)
