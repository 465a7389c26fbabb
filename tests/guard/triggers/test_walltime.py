"""When the time limit stops a training: the decision as a table, the trigger on a timetable, and real guards."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.guard import TrainingGuard
from resilience.guard.decision import OBEYED, Request
from resilience.guard.end_time import NO_LIMIT, EndTime, QueryUnavailable, find_end_time, find_stop_time
from resilience.guard.rank_info import RankInfo, find_rank_info
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers import built_in_triggers
from resilience.guard.triggers.walltime import (
    CLOCK_HOLD_S,
    LEAD_LIMIT_S,
    PROCEED,
    QUERY,
    STOP,
    JobClock,
    Walltime,
    decide,
    lead_for,
    steady_clock,
)
from resilience.job import ExitCode, JobUpdate
from tests.guard.guards import job_environ
from tests.schedulers.spooled import Lab, lab

SETTINGS: dict[str, Any] = {"safety": 1.5, "margin_s": 10.0, "first_save_s": 60.0}
TABLE: list[tuple[str, float | None, float | None, float | None, bool, float, str]] = [
    # what, left, step, save, confirmed, asking for, action. A step of 20 and a save of 40 need 1.5 x 60 + 10 = 100.
    ("unknown end", None, 20.0, 40.0, True, 0, PROCEED),
    ("there is no limit", math.inf, 20.0, 40.0, True, 0, PROCEED),
    ("there is plenty of time", 5000.0, 20.0, 40.0, True, 0, PROCEED),
    ("just enough", 100.0, 20.0, 40.0, True, 0, PROCEED),
    ("a moment too late", 99.9, 20.0, 40.0, True, 0, STOP),
    ("the end has passed", -50.0, 20.0, 40.0, True, 0, STOP),
    ("soon, not confirmed", 129.0, 20.0, 40.0, False, 0, QUERY),
    ("not so soon, not confirmed", 131.0, 20.0, 40.0, False, 0, PROCEED),
    ("too late, not confirmed", 99.0, 20.0, 40.0, False, 0, QUERY),
    ("too late, and no answer for 21 s", 99.0, 20.0, 40.0, False, 21, QUERY),
    ("too late, and no answer for 22 s", 99.0, 20.0, 40.0, False, 22, STOP),
    ("soon, and no answer for 22 s", 129.0, 20.0, 40.0, False, 22, PROCEED),
    ("no time for one step and save, not confirmed", 59.0, 20.0, 40.0, False, 0, QUERY),
    ("no time for one step and save, and no answer for 5 s", 59.0, 20.0, 40.0, False, 5, STOP),
    ("no save is measured: 1.5 x 80 + 10", 130.0, 20.0, None, True, 0, PROCEED),
    ("no save is measured, later", 129.0, 20.0, None, True, 0, STOP),
    ("no step is measured: 1.5 x 40 + 10", 70.0, None, 40.0, True, 0, PROCEED),
    ("no step is measured, later", 69.0, None, 40.0, True, 0, STOP),
    ("nothing is measured: 1.5 x 60 + 10", 100.0, None, None, True, 0, PROCEED),
    ("nothing is measured, later", 99.0, None, None, True, 0, STOP),
]


@pytest.mark.parametrize("case", TABLE, ids=[case[0] for case in TABLE])
def test_the_training_stops_when_less_is_left_than_a_step_and_a_save_need(case: Any) -> None:
    _, left_s, step_s, save_s, is_fresh, asking_s, action = case
    verdict = decide(left_s, step_s, save_s, is_fresh=is_fresh, asking_s=asking_s, **SETTINGS)
    assert verdict.action == action
    assert bool(verdict.why) == (action == STOP)


def test_the_reason_is_a_sentence_with_all_figures() -> None:
    assert decide(95.0, 20.0, 40.0, **SETTINGS).why == (
        "the job's time limit is in 1 min 35 s: a step takes up to 20 s, a save 40 s; 1.5 times that plus 10 s is "
        "1 min 40 s"
    )
    assert decide(-3.0, 0.25, 40.0, **SETTINGS).why.startswith(
        "the job's time limit was 3 s ago: a step takes up to 0.2 s, a save 40 s;"
    )


def test_a_guess_is_called_a_guess() -> None:
    why = decide(95.0, 20.0, None, **SETTINGS).why
    assert "a save is assumed to take 1 min because none was measured yet (first_save_s)" in why
    assert "no step has completed yet" in decide(50.0, None, None, **SETTINGS).why


@given(st.floats(-1e6, 1e6), st.none() | st.floats(0, 1e5), st.none() | st.floats(0, 1e5))
def test_who_stops_with_less_time_stops_with_the_same_figures_whenever_less_is_left(
    left_s: float, step_s: float | None, save_s: float | None
) -> None:
    if decide(left_s, step_s, save_s, **SETTINGS).action == STOP:
        assert decide(left_s - 1, step_s, save_s, **SETTINGS).action == STOP
    else:
        assert decide(left_s + 1, step_s, save_s, **SETTINGS).action == PROCEED


@pytest.mark.parametrize(
    ("wanted_s", "lead_s"), [(10, 60), (200, 300), (240, 300), (250, 600), (615, 900), (1e6, 65535)]
)
def test_a_lead_is_a_round_number_that_sbatch_takes(wanted_s: float, lead_s: int) -> None:
    assert lead_for(wanted_s) == lead_s <= LEAD_LIMIT_S
    assert lead_s >= wanted_s or lead_s == LEAD_LIMIT_S


# ---- on a timetable -----------------------------------------------------------------------------------------------

NOON = 1_800_000_000.0


class FakeEndTime(EndTime):
    """The end of a job, with a scheduler that answers at once, or never, and counts."""

    def __init__(
        self, end: float | None, answer: float | None = None, *, every_s: float = 120.0, cap: float = NO_LIMIT
    ) -> None:
        super().__init__(end, lambda: None, every_s, cap)
        self.answer = answer
        self.asked: list[float] = []
        self.is_silent = False
        self._is_open = False

    def query(self, now: float) -> None:
        self._collect(now)
        if self._is_open:
            return
        self.asked.append(now)
        self._begun_at = now
        self._is_open = self.is_silent
        if not self.is_silent:
            self.checked_at = now
            if self.answer is not None:
                self.update(self.answer)

    def _collect(self, now: float) -> None:
        if self._is_open and self._begun_at is not None and now - self._begun_at > 22:
            self.checked_at = now


class Job:
    """A trigger in a job on a timetable: two clocks, a pace, and what was said."""

    def __init__(self, end: Any, *, step_s: float = 20.0, save_s: float | None = 40.0, **more: Any) -> None:
        self.end = end
        self.now = 5000.0
        self.clock_is_off_s = 0.0
        self.said: list[str] = []
        self.place = place = RankInfo(lead_s=more.pop("lead_s", 0.0), world=more.pop("world", 1), end_time=end.end)
        self.recorder = Recorder(place, self.said.append)
        self.timer = FixedPace(step_s, save_s)
        self.trigger = Walltime(
            place, GuardSettings(**more), self.recorder, self.timer, environ={}, end_time=end,
            wall=lambda: NOON + self.now - 5000.0 + self.clock_is_off_s, steady=lambda: self.now,
        )  # fmt: skip

    def run(self, seconds: int) -> Request | None:
        """Look every second; return the first request."""
        for _ in range(seconds):
            self.now += 1
            request = self.trigger.poll()
            if request is not None:
                return request
        return None


class FixedPace(StepTimer):
    def __init__(self, step_s: float | None, save_s: float | None) -> None:
        super().__init__()
        self.step_s, self.save_s = step_s, save_s

    @property
    def slowest_step_s(self) -> float | None:
        return self.step_s

    @property
    def slowest_save_s(self) -> float | None:
        return self.save_s


def job(
    told: float | None, answer: float | None = None, *, every_s: float = 120.0, cap: float = NO_LIMIT, **more: Any
) -> Job:
    """A job whose end is told as so many seconds after noon, and whose scheduler answers so many."""
    end, reply = (None if after_s is None else NOON + after_s for after_s in (told, answer))
    return Job(FakeEndTime(end, reply, every_s=every_s, cap=NOON + cap), **more)


def quiet_job(told: float = 36000, **more: Any) -> Job:
    """A job whose scheduler is never asked."""
    return job(told, every_s=0.0, **more)


def left_when_asked(job: Job, request: Request | None) -> float:
    assert request is not None and job.end.end is not None
    assert (request.save, request.stop, request.discard, request.exit_code) == (True, True, False, 75)
    return float(job.end.end) - (NOON + job.now - 5000.0)


def assert_stops_in_time(job: Job, seconds: int = 1000) -> Request:
    """It asks for a save and a stop at the last moment: a step and a save need 100 s."""
    request = job.run(seconds)
    assert 98 <= left_when_asked(job, request) < 100
    assert request is not None
    return request


def test_it_asks_for_a_save_and_a_stop_at_the_last_moment() -> None:
    assert_stops_in_time(quiet_job(1000))


@pytest.mark.parametrize("end", [None, NO_LIMIT], ids=["unknown", "unlimited"])
def test_without_a_known_limit_nothing_is_asked_for(end: float | None) -> None:
    training = job(end, lead_s=10)
    assert training.run(5000) is None and not training.said


def test_an_end_that_the_environment_does_not_name_is_learned_by_asking() -> None:
    training = job(None, 500)
    assert_stops_in_time(training)
    assert not training.said  # that is no change


def test_a_limit_that_was_cut_is_noticed_in_time_and_reported() -> None:
    training = job(36000, 36000)
    assert training.run(300) is None
    training.end.answer = NOON + 900
    assert_stops_in_time(training)
    assert training.place.end_time == NOON + 900  # what others forecast by
    (said,) = training.said
    assert re.fullmatch(r"the job's time limit was changed: it ends at 2027-.* \(9 h 45 min earlier\)", said)


def test_a_limit_that_was_extended_is_noticed_before_anything_is_done() -> None:
    training = job(1000, 1000)
    assert training.run(860) is None
    training.end.answer = NOON + 8000  # between two questions
    assert training.run(7000) is None
    assert training.end.asked and training.said[-1].endswith(" (1 h 56 min later)")
    assert_stops_in_time(training)


def test_a_limit_that_was_taken_away_is_no_limit() -> None:
    training = job(1000, 1000)
    training.run(200)
    training.end.answer = NO_LIMIT
    assert training.run(5000) is None
    assert training.said == ["the job no longer has a time limit"]
    training.end.answer = NOON + 20000
    assert training.run(130) is None and training.said[-1].endswith(" (it had none)")


def test_the_scheduler_is_asked_seldom_as_long_as_there_is_time() -> None:
    training = job(36000, 36000)
    assert training.run(3600) is None
    assert 29 <= len(training.end.asked) <= 31


def test_a_scheduler_that_never_answers_does_not_keep_the_training_from_stopping_in_time() -> None:
    training = job(1000)
    training.end.is_silent = True
    assert 95 <= left_when_asked(training, training.run(1000)) < 100


def test_a_job_that_wakes_up_too_late_asks_first_because_its_end_may_have_moved() -> None:
    training = job(1000, 1000)
    training.run(100)
    training.end.answer = NOON + 5000  # scontrol suspend, and resume an hour later: SLURM has moved the end
    training.now += 3600
    assert training.run(200) is None


def test_a_job_that_wakes_up_too_late_waits_a_few_seconds_for_an_answer_and_no_longer() -> None:
    training = job(1000)
    training.run(200)
    training.end.is_silent = True
    training.now += 790  # 10 s are left, and a step and a save need 60
    began = training.now
    assert training.run(200) is not None
    assert 4 <= training.now - began <= 7


def test_it_asks_once_and_not_again_for_a_stop_that_was_obeyed_unless_the_limit_is_extended() -> None:
    training = job(1000, 1000)
    assert training.run(1000) is not None
    training.trigger.done(OBEYED)
    assert training.run(300) is None
    training.end.answer = NOON + 3000
    assert_stops_in_time(training, 3000)


def test_a_clock_that_is_set_does_not_stop_the_training_at_once_and_the_scheduler_is_asked() -> None:
    training = job(7200, 7200)
    training.run(20)  # far from the next question
    before = len(training.end.asked)
    training.clock_is_off_s = 7000.0
    assert training.run(int(CLOCK_HOLD_S) - 2) is None
    assert len(training.end.asked) == before + 1
    assert training.said == ["warning: the clock of this node was set by +7000 s; rechecking the end of the job"]
    training.clock_is_off_s = 0.0  # mended
    assert training.run(5000) is None


def test_a_clock_that_is_set_again_and_again_is_reported_once_and_in_the_journal_each_time() -> None:
    training = quiet_job(1e6)
    for _ in range(5):
        training.clock_is_off_s += 100
        training.run(60)
    assert len(training.said) == 1
    clock_set = [event["seconds"] for event in training.recorder.events if event["event"] == "clock_set"]
    assert clock_set == [100.0] * 5


def test_an_end_that_had_passed_long_before_the_start_is_of_another_job() -> None:
    training = quiet_job(-3600)
    assert training.run(100) is None
    assert training.said == ["warning: RESIL_END_TIME or SLURM_JOB_END_TIME says that the job ended 1 h ago: ignored"]
    assert training.place.end_time is None  # nobody else goes by it either
    assert quiet_job(-20).run(2) is not None, "it is just over"


def test_an_end_of_another_job_is_replaced_by_what_the_scheduler_says() -> None:
    assert_stops_in_time(job(-3600, 500))


# ---- stop_after -----------------------------------------------------------------------------------------------------

CAPPED: list[tuple[float | None, float | None]] = [(None, None), (None, NO_LIMIT), (NO_LIMIT, NO_LIMIT), (36000, 72000)]


@pytest.mark.parametrize(("told", "answer"), CAPPED, ids=str)
def test_no_word_of_the_scheduler_pushes_the_end_behind_stop_after(told: float | None, answer: float | None) -> None:
    training = job(told, answer, cap=1000)
    request = assert_stops_in_time(training, 2000)
    assert training.place.end_time == NOON + 1000
    assert request.why.startswith("the attempt's end by stop_after is in 1 min 39 s: ")
    assert training.said == [], "nothing has changed"


def test_a_limit_before_stop_after_is_the_end() -> None:
    training = job(1000, 500, cap=2000)
    assert assert_stops_in_time(training, 2000).why.startswith("the job's time limit is in")
    assert training.end.end == NOON + 500


def test_stop_after_of_another_job_that_was_over_long_before_the_start_is_passed_over() -> None:
    training = quiet_job(3000, cap=-3600)
    assert training.run(100) is None and training.place.end_time is None


IN_A_JOB = {"RESIL_JOB_ID": "12", "RESIL_ATTEMPT": "3", "SLURM_JOB_ID": "12", "RESIL_STOP_AT": str(int(NOON) + 900)}
STARTS: list[tuple[str, dict[str, str], float, float]] = [
    ("the batch shell says when", IN_A_JOB, 600.0, NOON + 900),
    ("nobody wants it", IN_A_JOB, 0.0, NO_LIMIT),
    ("alone", {}, 600.0, NOON + 600),
    ("a job of an own script", {"SLURM_JOB_ID": "12"}, 600.0, NOON + 600),
    ("submitted by a job of a template", {**IN_A_JOB, "SLURM_JOB_ID": "13"}, 600.0, NOON + 600),
    ("an older batch shell", {**IN_A_JOB, "RESIL_STOP_AT": ""}, 600.0, NOON + 600),
    ("no time", {**IN_A_JOB, "RESIL_STOP_AT": "soon"}, 600.0, NOON + 600),
]


@pytest.mark.parametrize(("environ", "stop_after_s", "stop"), [case[1:] for case in STARTS], ids=[c[0] for c in STARTS])
def test_stop_after_counts_from_the_launch_in_a_job_of_a_template_and_else_from_the_guards_own_start(
    environ: dict[str, str], stop_after_s: float, stop: float
) -> None:
    place = find_rank_info(environ, "n1")
    assert find_stop_time(place, environ, stop_after_s, NOON) == stop
    assert find_end_time(place, environ, 0.0, find_stop_time(place, environ, stop_after_s, NOON)).end == (
        None if stop == NO_LIMIT else stop
    )


def test_stop_after_holds_where_the_time_limit_is_not_watched() -> None:
    place = RankInfo(end_time=NOON + 10)
    settings = GuardSettings(walltime=False, stop_after=300.0)
    recorder = Recorder(place, lambda text: None)
    trigger = Walltime(place, settings, recorder, FixedPace(20.0, 40.0), environ={}, wall=lambda: NOON)
    assert place.end_time == NOON + 300 and trigger.poll() is None
    assert "walltime" in [
        getattr(found, "name", "") for found in built_in_triggers(place, settings, recorder, StepTimer())
    ]


def test_a_clock_that_stays_as_it_was_set_is_believed_after_a_while() -> None:
    clock_is_off, now = [0.0], [100.0]
    clock = JobClock(lambda: NOON + now[0] + clock_is_off[0], lambda: now[0])
    seen = []
    for second in range(60):
        now[0] += 1
        if second == 10:
            clock_is_off[0] = -3600.0
        seen.append(clock.read()[1] - NOON - now[0])
    assert seen[:10] == [0.0] * 10 and seen[10:39] == [0.0] * 29 and seen[-10:] == [-3600.0] * 10


def test_a_clock_that_drifts_is_followed() -> None:
    now, drift = [100.0], [0.0]
    clock = JobClock(lambda: NOON + now[0] + drift[0], lambda: now[0])
    for _ in range(1000):
        now[0] += 1
        drift[0] += 0.1
        assert clock.read()[1] == pytest.approx(NOON + now[0] + drift[0]) and not clock.was_set


def test_the_steady_clock_counts_the_time_in_which_the_machine_slept() -> None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("this system has no CLOCK_BOOTTIME")
    assert steady_clock() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)


# ---- what people hear ---------------------------------------------------------------------------------------------


def test_a_lead_that_is_too_short_is_reported_once_with_what_to_set() -> None:
    training = quiet_job(step_s=10, save_s=400, lead_s=300)
    training.run(100)
    assert training.said == [
        "warning: the signal arrives 300 s before the end, but a step takes up to 10 s and a save 6 min 40 s; 1.5 "
        "times that is 10 min 15 s: set signal_lead_s = 900 in [submit] of resil.toml. Until then only the guard's own "
        "clock stops in time"
    ]


LEADS: list[tuple[str, dict[str, Any], dict[float | None, list[tuple[str, str]]]]] = [
    # claim, the job, and for what saves take, one after the other: the saves and leads that were named until then
    ("long enough", {"step_s": 10, "lead_s": 300}, {180: []}),
    ("nobody can judge it before a save", {"step_s": 10, "lead_s": 5}, {None: []}),
    ("no lead", {"step_s": 10}, {400: []}),
    ("rank 0 saved nothing", {"step_s": 39.5, "lead_s": 60, "world": 2}, {0.6: [], 400: [("6 min 40 s", "900")]}),
    ("steps too long, short saves", {"step_s": 100, "lead_s": 60, "world": 2}, {0: [("0 s", "240")]}),
    (
        "corrected once slower saves are known, and again only if that is not enough",
        {"step_s": 10, "lead_s": 10, "world": 2},
        {5: [("5 s", "60")], 400: [("5 s", "60"), ("6 min 40 s", "900")], 410: [("5 s", "60"), ("6 min 40 s", "900")]},
    ),
]


@pytest.mark.parametrize(("pace", "story"), [row[1:] for row in LEADS], ids=[row[0] for row in LEADS])
def test_a_lead_is_judged_by_the_slowest_rank_and_corrected_when_it_is_too_short(
    pace: dict[str, Any], story: dict[float | None, list[tuple[str, str]]]
) -> None:
    training = quiet_job(**pace)
    for training.timer.save_s, named in story.items():
        training.run(100)
        found = [re.findall(r"and a save (.*?); .*signal_lead_s = (\d+)", said) for said in training.said]
        assert found == [[lead] for lead in named]


def test_that_the_length_of_a_save_is_a_guess_is_reported_once_some_time_before_it_matters() -> None:
    training = quiet_job(2000, save_s=None)
    assert training.run(1200) is None and not training.said
    request = training.run(1000)
    assert request is not None and "none was measured yet" in request.why
    (said,) = training.said
    assert said.startswith("warning: no save was measured yet, and the job ends in 12 min")
    assert said.endswith("assuming that a save takes 1 min (first_save_s in [guard])")


@pytest.mark.parametrize(
    ("left_s", "learned_step_s", "save_s", "step_s"),
    [(40, 7200.0, 0.2, 0.0), (400, 100.0, 21.0, 100.0)],
    ids=["one slow save does not stop every attempt as it begins", "what fits into the job is believed"],
)
def test_what_was_learned_is_believed_as_far_as_it_fits_into_the_job(
    left_s: float, learned_step_s: float, save_s: float, step_s: float
) -> None:
    training = quiet_job(left_s, first_save_s=1.0)
    training.trigger._timer = timer = StepTimer()
    timer.restore({"gaps": [[learned_step_s, 3600.0]], "saves": [21.0, 0.2], "stalls": []}, training.now)
    assert training.run(10) is None
    assert (timer.slowest_save_s, timer.slowest_known_step_s) == (save_s, step_s)


def test_what_an_earlier_job_has_measured_may_arrive_a_little_late() -> None:
    training = quiet_job(600, save_s=None)
    assert training.run(10) is None
    training.timer.save_s = 20.0
    training.run(100)
    assert not training.said


# ---- in a guard -------------------------------------------------------------------------------------------------


def train(guard: TrainingGuard, *, most_s: float, save_s: float = 0.0) -> list[tuple[bool, bool, str]]:
    """Do steps of 10 ms until told to stop; return the decisions that were not to go on."""
    decisions = []
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        time.sleep(0.01)
        decision = guard.step()
        if decision:
            decisions.append((decision.save, decision.stop, decision.why))
        if decision.save:
            with guard.saving():
                time.sleep(save_s)
        if decision.stop:
            break
    return decisions


OPTIONS: dict[str, Any] = {
    "host_memory": False, "gpu_memory": "off", "signals": (), "poll_s": 0.1, "walltime_margin_s": 1, "first_save_s": 1,
}  # fmt: skip


def test_a_guard_stops_in_time_before_the_end_that_its_job_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "RESIL_JOB_ID", "RESIL_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    end = time.time() + 6
    environ = job_environ(RESIL_END_TIME=str(round(end)))
    with TrainingGuard.from_env(environ, say=lambda text: None, walltime_safety=1.5, **OPTIONS) as guard:
        decisions = train(guard, most_s=20)
    assert [(save, stop) for save, stop, _ in decisions] == [(True, True)]
    assert "first_save_s" in decisions[0][2] and guard.exit_code == 75
    assert 1.0 < end - time.time() < 5.0


def test_a_guard_notices_that_the_embedded_scheduler_was_asked_to_end_its_job_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]
) -> None:
    now = time.time()
    directory = tmp_path / "jobs" / "12"
    directory.mkdir(parents=True)
    record = {"raw": 12, "state": "RUNNING", "start": now - 100, "time_limit_s": 36000}

    def write(**changes: Any) -> None:
        (directory / "new").write_text(json.dumps(record | changes))
        (directory / "new").rename(directory / "task.json")

    write()
    environ = job_environ(RESIL_END_TIME=str(round(now + 35900)))
    for name, text in {**environ, "RESIL_SCHEDULER": "local", "RESIL_LOCAL_SPOOL": str(tmp_path)}.items():
        monkeypatch.setenv(name, text)
    with TrainingGuard.from_env(os.environ, say=said.append, **OPTIONS) as guard:
        assert not train(guard, most_s=1.5)
        write(time_limit_s=104)
        (decision,) = train(guard, most_s=20)
    assert decision[:2] == (True, True) and "the job's time limit is in " in decision[2]
    assert any(text.startswith("the job's time limit was changed: it ends at ") for text in said)


TRAINING = """
import sys, time
from resilience.guard import TrainingGuard
with TrainingGuard.from_env(host_memory=False, gpu_memory="off", walltime_margin_s=1, first_save_s=1) as guard:
    while True:
        time.sleep(0.05)
        decision = guard.step()
        if guard.count == 10:
            print("trains", flush=True)
        if decision.save:
            with guard.saving():
                print("saves", flush=True)
        if decision.stop:
            break
sys.exit(guard.exit_code)
"""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path) as opened:
        yield opened


def test_a_job_of_the_real_embedded_scheduler_saves_when_its_limit_is_cut(local: Lab) -> None:
    (local.work / "train.py").write_text(TRAINING)
    command = f"exec {sys.executable} {local.work}/train.py 2>&1"
    local.environ["PYTHONPATH"] = str(Path(__file__).parents[3])
    job_id = local.submit(command, time="600")
    local.says(job_id, "trains")
    local.scheduler.update(job_id, JobUpdate(end_time=time.time() + 8))
    (job,) = local.ended(job_id, timeout_s=60)
    output = local.output(job)
    assert job.exit_code == ExitCode(75, 0), output
    assert "saves" in output and "the job's time limit was changed: it ends at " in output


def test_a_guard_notices_that_slurm_was_asked_to_end_its_job_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`scontrol update EndTime=`, as far as the guard sees it: another answer of squeue."""
    answer = tmp_path / "answer"
    answer.write_text(f"12 {time.time() + 36000:.0f}\n")
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\ncat "{answer}"\n')
    program.chmod(0o755)
    environ = job_environ(RESIL_END_TIME=f"{time.time() + 36000:.0f}")
    for name, text in {**environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("RESIL_SCHEDULER", raising=False)
    with TrainingGuard.from_env(os.environ, say=lambda text: None, walltime_ask_s=0.5, **OPTIONS) as guard:
        assert not train(guard, most_s=1.5)
        answer.write_text(f"12 {time.time() + 5:.0f}\n")
        (decision,) = train(guard, most_s=20)
    assert decision[:2] == (True, True)


def test_a_failed_query_is_no_reason_to_stop_or_to_continue() -> None:
    def nobody() -> float | None:
        raise QueryUnavailable

    training = Job(EndTime(NOON + 1000, nobody, 120.0))
    assert 97 <= left_when_asked(training, training.run(1000)) < 101


def test_looking_costs_the_watching_thread_next_to_nothing() -> None:
    """Asked every second for weeks: some 10 us."""
    training = quiet_job(1e7)
    began = time.perf_counter()
    for _ in range(1000):
        training.trigger.poll()
    assert time.perf_counter() - began < 10.0
