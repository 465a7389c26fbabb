"""The trigger that requests saves: at multiples of steps, so long after the last save, and as often as pays."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path
from typing import Any

import pytest

from resilience.cadence import FIRST_S, OVERHEAD, Past
from resilience.guard.decision import FAILED, OBEYED, SAVED, SKIPPED, Request
from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import read_settings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers import built_in_triggers, cadence
from resilience.guard.triggers.cadence import RETRY_S, SKIPPED_S, CadenceTrigger, read_past
from tests.guard.guarded import a_launch
from tests.guard.guards import make_guard, make_run, train
from tests.lab.waiting import until


@pytest.fixture(autouse=True)
def a_young_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of this process is what a restart costs, and attempts that are shorter than that tell nothing."""
    monkeypatch.setattr(cadence, "process_age_s", lambda: 5.0)


class Training:
    """A training with a fake clock, whose guard polls each second. A request is followed at its step, or at once."""

    def __init__(self, every: str, *, step_s: float = 1.0, stall_s: float = 3.0, **settings: Any) -> None:
        self.now, self.step_s, self.stall_s, self.durable_s = 1000.0, step_s, stall_s, stall_s
        self.outcome = SAVED
        self.gate, self.timer = Gate(), StepTimer()
        self.place = RankInfo()
        self.recorder = Recorder(self.place, lambda text: None)
        self.trigger = CadenceTrigger(
            self.place, read_settings({}, every=every, **settings), self.recorder, self.timer, self.gate,
            steady=lambda: self.now,
        )  # fmt: skip
        self.requests: list[Request] = []
        self.saves: list[tuple[int, float]] = []  # the step, and when the save began
        self._wanted: Request | None = None
        self._poll_at = self.now

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on(self.step_s)
            self.gate.count += 1
            if self._wanted is not None and self.gate.count >= self._wanted.at:
                if self.outcome not in (SKIPPED, OBEYED):
                    self.save()
                wanted, self._wanted = self._wanted, None
                assert not wanted.stop and wanted.save
                self.trigger.done(self.outcome)

    def save(self) -> None:
        self.saves.append((self.gate.count, self.now))
        self.timer.save_began(self.now)
        self.go_on(self.stall_s)
        self.timer.was_saving(self.stall_s)
        if self.outcome == SAVED:
            self.timer.stalled(self.stall_s)
            self.timer.saved(self.durable_s)

    def resume(self, step: int) -> None:
        self.gate.count_from(step)
        self.timer.resumed()

    def go_on(self, seconds: float) -> None:
        end = self.now + seconds
        while self._poll_at <= end:
            self.now = max(self.now, self._poll_at)
            self._poll_at += 1.0
            if self._wanted is None and (request := self.trigger.poll()) is not None:
                self._wanted = request
                self.requests.append(request)
            self.timer.sample(self.now, self.gate.position())
        self.now = end

    def steps(self) -> list[int]:
        return [step for step, _ in self.saves]

    def intervals(self) -> list[float]:
        return [later[1] - earlier[1] for earlier, later in zip(self.saves, self.saves[1:], strict=False)]

    def changes(self) -> list[dict[str, Any]]:
        return [record for record in self.recorder.take() if record["event"] == "cadence"]


# ---- steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_s", "every"), [(0.004, 1000), (0.3, 500), (2.0, 60), (45.0, 10), (100.0, 1)])
def test_saves_land_exactly_on_the_multiples(step_s: float, every: int) -> None:
    training = Training(f"{every} steps", step_s=step_s)
    training.run(5.2 * every * step_s + 5 * training.stall_s)
    assert training.steps()[:5] == [every * number for number in range(1, 6)]


def test_a_multiple_is_requested_only_shortly_before_it() -> None:
    training = Training("500 steps", step_s=0.1)
    training.run(46.5)
    assert not training.requests
    training.run(3.0)
    assert [request.at for request in training.requests] == [500] and training.gate.count < 500


def test_no_save_follows_a_resume_at_a_multiple() -> None:
    training = Training("500 steps")
    training.resume(1000)
    training.run(600)
    assert training.steps() == [1500]


# ---- time -----------------------------------------------------------------------------------------------------------


def test_saves_begin_so_long_after_the_last_one_whoever_requested_that() -> None:
    training = Training("30 min")
    training.run(1000)
    training.save()
    training.run(1700)
    assert len(training.saves) == 1
    training.run(6 * 1800)
    assert len(training.saves) == 7 and training.intervals() == pytest.approx([1800.0] * 6, abs=3)
    assert "the last save began 30 min ago, and one is due every 30 min" in training.requests[-1].why


@pytest.mark.parametrize("every", ["10 min", "auto"])
def test_no_save_follows_a_resume_or_a_long_start(every: str) -> None:
    training = Training(every)
    training.timer.resumed()
    training.go_on(3600.0)  # it loads, and compiles
    training.resume(1000)
    begun = training.now
    training.run(FIRST_S - 10)
    assert not training.saves
    training.run(20)
    assert len(training.saves) == 1 and training.saves[0][1] - begun == pytest.approx(FIRST_S, abs=3)
    assert "the training began" in training.requests[0].why


@pytest.mark.parametrize(
    ("outcome", "seconds"), [(FAILED, RETRY_S), (SKIPPED, SKIPPED_S), (OBEYED, 600.0), (SAVED, 600.0)]
)
def test_a_failed_save_is_retried_before_the_next_is_due(outcome: str, seconds: float) -> None:
    training = Training("10 min", stall_s=0.0)
    training.outcome = outcome
    training.run(605)
    assert len(training.requests) == 1
    training.run(seconds - 9)
    assert len(training.requests) == 1
    training.run(12)
    assert len(training.requests) == 2
    assert ("which failed" in training.requests[-1].why) == (outcome == FAILED)


def test_a_failed_save_at_a_multiple_is_retried_and_the_next_multiple_stays() -> None:
    training = Training("1000 steps", stall_s=0.0)
    training.outcome = FAILED
    training.run(1001)
    training.outcome = SAVED
    training.run(1100)
    assert training.steps() == [1000, 1000 + RETRY_S, 2000]


# ---- auto -----------------------------------------------------------------------------------------------------------


def test_auto_follows_the_cost_of_saves_both_ways_and_says_why_in_the_journal() -> None:
    training = Training("auto", stall_s=7.0)
    training.run(2000)
    assert training.intervals()[-1] == pytest.approx(7.0 / OVERHEAD + 7.0, abs=3)
    first, second = training.changes()
    assert (first["interval_s"], first["bound"]) == (FIRST_S, "unmeasured")
    assert (second["before_s"], second["bound"]) == (FIRST_S, "overhead") and "3.5 %" in second["why"]
    for stall_s, factor in ((14.0, 2.0), (3.5, 0.43)):
        training.stall_s, training.durable_s, before = stall_s, stall_s, training.intervals()[-1]
        training.run(25 * 400)
        assert training.intervals()[-1] / before == pytest.approx(factor, rel=0.05)
    assert 2 <= len(training.changes()) <= 4


def test_auto_does_not_change_its_mind_for_noise() -> None:
    training = Training("auto", stall_s=7.0)
    noise = random.Random(1)
    for _ in range(40):
        training.stall_s = training.durable_s = noise.uniform(6.0, 8.0)
        training.run(210)
    assert len(training.changes()) == 2


def test_auto_waits_for_a_slow_file_system_and_keeps_redo_max() -> None:
    training = Training("auto", stall_s=0.1, redo_max="10m")
    training.durable_s = 300.0
    training.run(4000)
    assert training.intervals()[-1] == pytest.approx(300 / (1 + OVERHEAD), abs=3)
    training.durable_s = 30.0
    assert Training("auto", redo_max="5m").trigger._auto(1000.0).interval_s == 300.0


@pytest.mark.parametrize(("every", "warns"), [("Auto", 0), ("", 1), ("30 min", 1)])
def test_redo_max_without_auto_is_told_to_have_no_effect(every: str, warns: int) -> None:
    said: list[str] = []
    settings = read_settings({}, every=every, redo_max="1h")
    built_in_triggers(RankInfo(), settings, Recorder(RankInfo(), said.append), StepTimer(), Gate())
    assert len([text for text in said if "redo_max has no effect" in text]) == warns


def test_auto_goes_on_with_the_interval_of_an_earlier_job(monkeypatch: pytest.MonkeyPatch) -> None:
    training, earlier = Training("auto", stall_s=7.7), Training("auto", stall_s=7.0)
    earlier.run(2000)
    learned = earlier.trigger.learned(earlier.now)
    assert learned["interval_s"] == pytest.approx(207.0) and learned["step_s"] == pytest.approx(1.0)
    training.trigger.restore(learned, training.now)
    training.timer.restore({"gaps": [], "saves": [7.7], "stalls": [7.7]}, training.now)
    training.run(2000)
    assert {round(change["interval_s"]) for change in training.changes()} == {207}
    for damaged in ({"interval_s": -1}, {"interval_s": math.nan}, {"restart_s": math.inf}):
        with pytest.raises(ValueError, match="time"):
            training.trigger.restore(damaged, 0.0)


# ---- failures of the run --------------------------------------------------------------------------------------------


def attempt(run: Path, number: int, end: str | None, code: int | None = None, *, hours: float = 1.0) -> None:
    start, folder = 1795171582 + 100_000 * number, run / "attempts"
    ended = int(start + 3600 * hours)
    (folder / f"{number:04d}").write_text(f'number = {number}\nhost = "n1"\nstart = {start}\n')
    if end in (None, "lost"):
        (folder / f"{number:04d}.beat").write_text(f"{number} 1 2\n")
        os.utime(folder / f"{number:04d}.beat", (ended, ended))
    if end is not None:
        code_line = "" if code is None else f"exit_code = {code}\n"
        time = ended + 7200 * (end == "lost")
        launched = "false" if end == "stopped" and code == 0 else "true"
        (folder / f"{number:04d}.end").write_text(f'end = "{end}"\n{code_line}time = {time}\nlaunched = {launched}\n')


def test_attempts_that_no_decision_ended_are_failures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    ends: list[tuple[str | None, int | None]] = [
        ("stopped", 75), ("exited", 1), ("lost", None), ("terminated", 75), ("terminated", 143), ("superseded", 1),
        (None, None), ("finished", 0), ("stopped", 0),
    ]  # fmt: skip
    for number, (end, code) in enumerate(ends, 1):
        attempt(run, number, end, code)
    attempt(run, 10, None)  # this one
    attempt(run, 11, "exited", 1)  # a newer one
    (run / "attempts" / "breaker").write_text("burnt = 3\n")
    found = read_past(str(run), 10)
    assert found == [Past(3600.0, failed) for failed in (False, True, True, False, True, False, True, False)]


def test_auto_saves_more_often_in_a_run_that_fails_often(tmp_path: Path) -> None:
    found = []
    for hours in (24.0, 0.2):
        run = make_run(tmp_path / f"{hours}")
        for number in range(1, 31):
            attempt(run, number, "exited", 1, hours=hours)
        training = Training("auto", stall_s=60.0)
        training.place.run_dir, training.place.attempt = str(run), 31
        training.run(1)
        until(lambda training=training: training.trigger._history.is_over)  # type: ignore[misc]
        training.run(6000)
        found.append(training.trigger._auto(training.now))
    seldom, often = found
    assert often.interval_s < 0.5 * seldom.interval_s and often.bound == "overhead"
    assert "30 in" in seldom.reason


def test_attempts_that_cannot_be_read_count_for_nothing(tmp_path: Path) -> None:
    training = Training("auto")
    training.place.run_dir, training.place.attempt = str(tmp_path / "gone"), 2
    training.run(1)
    until(lambda: training.trigger._history is not None and training.trigger._history.is_over)
    training.run(650)
    assert len(training.saves) == 1
    assert [record["what"] for record in training.recorder.take() if record["event"] == "learned_dropped"] == [
        "failures"
    ]


# ---- whole guards ---------------------------------------------------------------------------------------------------


def test_a_guard_saves_at_each_multiple_and_continues(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    saved: list[int] = []
    with make_guard(run, every="100 steps", say=lambda text: None) as guard:
        guard.resumed(1000)
        while len(saved) < 3:
            assert not train(guard, until=lambda decision: decision.save).stop
            saved.append(guard.count)
            with guard.saving():
                pass
    assert saved == [1100, 1200, 1300]


def test_all_ranks_save_at_the_same_multiples(tmp_path: Path) -> None:
    """Three seconds from one to the next: a busy machine agrees on each before it is there."""
    steps: dict[str, Any] = {"RESIL_GUARD__EVERY": "60 steps"} | {f"STEP_S.{rank}": "0.05" for rank in range(3)}
    with a_launch(tmp_path, make_run(tmp_path / "run"), 3, **steps | {"STEP_S.1": "0.055"}) as launch:
        until(lambda: all(len(launch.saves(rank)) >= 3 for rank in range(3)))
        assert [launch.saves(rank)[:3] for rank in range(3)] == [[60, 120, 180]] * 3
