"""A stop because the training's state was ruined is told to the next attempts until one of them gets past it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.guard import Request, TrainingGuard
from resilience.guard.decision import EXIT_ERROR, Decision
from resilience.guard.earlier_stops import (
    MOST_SKIPPED,
    MOST_STOPS,
    EarlierStop,
    EarlierStops,
    add_unreadable,
    newest_open,
    read_stops,
    suspects,
)
from resilience.guard.rank_info import RankInfo
from tests.guard.guards import Requester, make_guard, make_run, train


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


class Seen:
    """What an attempt was told, and how it ended."""

    def __init__(self, guard: TrainingGuard) -> None:
        self.after = guard.resumed_after
        self.skip = guard.skip_steps
        self.code = -1


def attempt(
    run: Path, first: int, last: int, *, nan_at: int = 0, save: bool = True, every: int = 1, skips: bool = False,
    loss: Any = math.nan, **settings: Any,
) -> Seen:  # fmt: skip
    """Train from a checkpoint to a step; the batch `nan_at` ruins the state for good. Save at the end."""
    with make_guard(run, say=lambda text: None, **settings) as guard:
        seen = Seen(guard)
        guard.resumed(first)
        is_ruined = False
        while guard.count < last:
            step = guard.count + 1
            is_ruined |= step == nan_at and not (skips and step in seen.skip)
            if guard.step((loss if is_ruined else 2.0) if step % every == 0 else None).stop:
                break
        else:
            if save:
                with guard.saving():
                    pass
    seen.code = guard.exit_code
    return seen


def stops(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / layout.LEARNED / layout.STOPS).read_text())["stops"]
    return found


def events(run: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] == name]


def test_the_next_attempt_is_told_until_a_checkpoint_is_past_the_step(run: Path) -> None:
    first = attempt(run, 0, 100)
    assert first.after is None and first.skip == frozenset()
    assert attempt(run, 100, 200, nan_at=150).code == EXIT_ERROR
    second = attempt(run, 100, 200, nan_at=150)
    assert second.after is not None
    assert (second.after.step, second.after.saved_step, second.after.times, second.after.attempt) == (150, 100, 1, 3)
    assert second.after.why == "the loss is NaN, at step 150"
    third = attempt(run, 100, 149)  # preempted before that step: it proves nothing
    assert third.after is not None and third.after.times == 2
    fourth = attempt(run, 149, 200, save=False)  # got past it, but its work is lost
    assert fourth.after is not None
    fifth = attempt(run, 149, 200)
    assert fifth.after is not None
    sixth = attempt(run, 200, 210)
    assert sixth.after is None
    assert sixth.skip == {149, 150}  # still offered: the training may fall back to before it


def test_the_breaker_finds_the_step_and_the_reason_in_the_journal_and_in_the_list(run: Path) -> None:
    attempt(run, 0, 200, nan_at=150)
    (event,) = events(run, "state_ruined")
    kept = {name: event[name] for name in ("step", "since", "saved_step", "why", "world", "attempt")}
    assert kept == {"step": 150, "since": 149, "saved_step": 0, "why": "the loss is NaN, at step 150", "world": 1,
                    "attempt": 3}  # fmt: skip
    assert [(one["step"], one["times"], one["is_passed"]) for one in stops(run)] == [(150, 1, False)]


def test_a_training_that_skips_what_it_is_offered_gets_past(run: Path) -> None:
    assert attempt(run, 0, 200, nan_at=150).code == EXIT_ERROR
    assert attempt(run, 0, 200, nan_at=150, skips=True).code == 0
    assert attempt(run, 200, 210).after is None


def test_the_step_is_the_first_of_the_row_and_the_suspects_begin_at_the_last_finite_loss(run: Path) -> None:
    attempt(run, 0, 200, nan_at=150, every=20, loss_nonfinite_in_a_row=2)
    assert [(one["step"], one["since"]) for one in stops(run)] == [(160, 140)]
    assert attempt(run, 0, 10).skip == set(range(140, 161))


def test_a_loss_that_is_never_finite_points_at_the_checkpoint(run: Path) -> None:
    attempt(run, 100, 200, nan_at=101)
    seen = attempt(run, 100, 110)
    assert seen.after is not None and (seen.after.saved_step, seen.after.step) == (100, 101)
    assert seen.skip == {101}


def test_a_training_that_goes_back_by_itself_has_no_suspects_of_before(run: Path) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        for _ in range(200):
            guard.step(2.0)
        guard.resumed(100)
        assert guard.step(math.nan).stop
    assert [(one["step"], one["since"], one["saved_step"]) for one in stops(run)] == [(101, 101, 100)]


def test_a_checkpoint_before_an_older_one_keeps_the_fault_open(run: Path) -> None:
    attempt(run, 100, 200, nan_at=150)
    seen = attempt(run, 50, 140)  # fell back one checkpoint
    assert seen.after is not None
    assert attempt(run, 140, 145).after is not None


def test_a_save_of_the_stopped_training_proves_nothing(run: Path) -> None:
    with make_guard(run, say=lambda text: None, loss_nonfinite="save_and_stop") as guard:
        decision = [guard.step(math.nan), guard.step()][0]
        assert decision.save and decision.stop
        with guard.saving():
            pass
    assert [one["is_passed"] for one in stops(run)] == [False]


def test_other_ranks_counts_offer_nothing_to_skip_but_tell(run: Path) -> None:
    attempt(run, 0, 200, nan_at=150)
    fields = stops(run)[0]
    assert suspects([EarlierStop(fields)], world=8) == frozenset()
    assert newest_open([EarlierStop(fields)]) is not None


def test_a_stop_on_purpose_is_no_ruin(run: Path) -> None:
    with make_guard(run, triggers=[Requester("enough")], say=lambda text: None) as guard:
        train(guard)
    assert not (run / layout.LEARNED / layout.STOPS).exists()


def test_a_trigger_of_the_users_own_can_say_that_the_state_is_ruined(run: Path) -> None:
    request = Request("mine", "the weights are huge", save=False, discard=True, exit_code=EXIT_ERROR, step=7, since=5)
    with make_guard(run, triggers=[Requester(request)], say=lambda text: None) as guard:
        train(guard)
    assert [(one["step"], one["since"], one["why"]) for one in stops(run)] == [(7, 5, "the weights are huge")]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]",
        lambda text: '{"version":9,"stops":[]}',
        lambda text: text.replace('"step":150', '"step":"x"'), lambda text: text.replace('"step":150', '"step":-1'),
        lambda text: '{"version":1,"stops":[5]}', lambda text: "\x00" * 40, lambda text: "[" * 5000,
    ],
    ids=["half", "empty", "list", "version", "text", "negative", "number", "nul", "deep"],
)  # fmt: skip
def test_a_damaged_list_is_dropped_with_a_reason_and_written_anew(run: Path, damage: Callable[[str], str]) -> None:
    attempt(run, 0, 200, nan_at=150)
    path = run / layout.LEARNED / layout.STOPS
    path.write_text(damage(path.read_text()))
    seen = attempt(run, 0, 200, nan_at=150)
    assert seen.after is None and seen.skip == frozenset()
    assert [one["what"] for one in events(run, "learned_dropped")][-1] == "stops"
    assert [(one["step"], one["times"]) for one in stops(run)] == [(150, 1)]


def test_the_list_stays_small_after_many_stops(tmp_path: Path) -> None:
    place = RankInfo(run_dir=str(make_run(tmp_path / "run")))
    for step in range(10_000_000, 10_000_060):
        record = EarlierStops(place)
        request = Request("loss", "x" * 4000, save=False, discard=True, exit_code=EXIT_ERROR, step=step, since=1)
        assert record.stopped([request], Decision(stop=True, step=step)) is not None
        record.write()
        record.write()  # nothing new
    path = tmp_path / "run" / layout.LEARNED / layout.STOPS
    assert path.stat().st_size < 8000
    kept = read_stops(path.read_bytes())
    assert len(kept) == MOST_STOPS and kept[-1].step == 10_000_059
    assert len(suspects(kept, world=1)) <= MOST_SKIPPED + MOST_STOPS


def test_without_a_run_directory_nothing_is_known_and_nothing_fails() -> None:
    with make_guard(None, say=lambda text: None) as guard:
        assert guard.resumed_after is None and guard.skip_steps == frozenset()
        assert guard.step(math.nan).stop
    inert = TrainingGuard.from_env({"RESIL_GUARD": "off"})
    assert inert.resumed_after is None and inert.skip_steps == frozenset()


def test_a_number_of_decimal_is_a_loss(run: Path) -> None:
    attempt(run, 0, 20, nan_at=15, loss=Decimal("NaN"))
    assert [one["step"] for one in stops(run)] == [15]


def test_an_unreadable_checkpoint_is_told_until_a_training_has_loaded_it_or_got_past_it(run: Path) -> None:
    attempt(run, 0, 100)
    assert add_unreadable(str(run), 1, 100, "checkpoint: truncated") and not add_unreadable(str(run), 1, 100, "again")
    second = attempt(run, 50, 90)
    assert second.after is not None and second.skip == frozenset(), "no step is to blame"
    assert (second.after.step, second.after.saved_step, second.after.times) == (100, 100, 1)
    assert add_unreadable(str(run), 2, 100, "checkpoint: truncated") and stops(run)[0]["times"] == 2
    third = attempt(run, 50, 120)
    assert third.after is not None and third.after.why == "checkpoint: truncated"
    assert attempt(run, 120, 121).after is None


@pytest.mark.parametrize(("world", "is_data"), [(1, True), (0, False)])
def test_only_a_stop_by_its_data_is_told_to_be_done_again_by_the_same_data(
    run: Path, *, world: int, is_data: bool
) -> None:
    stop = {"step": 50, "since": 40, "saved_step": 40, "attempt": 1, "times": 1, "world": world, "why": "it was ruined"}
    folder = run / "learned"
    folder.mkdir(exist_ok=True)
    (folder / "stops.json").write_text(json.dumps({"version": 1, "stops": [stop | {"time": 1.0, "is_passed": False}]}))
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        assert guard.resumed_after is not None
    (told,) = [line for line in said if "an earlier attempt was stopped: it was ruined" in line]
    assert ("The same data may do it again" in told) == is_data == ("No batch is suspect" not in told)
