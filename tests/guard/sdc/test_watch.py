"""A wrong value is found before it is applied, and the training goes on as if nothing had happened, or is stopped."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.guard.agreement.reports import Report
from resilience.guard.sdc.comparison import MOST_UNANSWERED
from resilience.guard.sdc.watch import SdcWatch
from resilience.guard.settings import GuardSettings
from tests.guard.guards import make_guard, make_run, save
from tests.guard.sdc.arrays import Arrays, batch_of

STEPS = 60


class Result:
    """A training that has ended."""

    def __init__(
        self, run: Path, prepare: Callable[[Arrays], object] = lambda state: None, *, sdc: bool = True, **more: Any
    ) -> None:
        random.seed(7)
        self.state, self.said = Arrays(), list[str]()
        prepare(self.state)
        self.decisions = []
        with make_guard(make_run(run), sdc=sdc, say=self.said.append) as guard:
            self.watch = guard.sdc(self.state)
            for step in range(1, STEPS + 1):
                self.watch.run(lambda batch: self.state.step(self.watch, batch), batch_of(step))
                decision = guard.step()
                if step in more.get("saves", ()):
                    save(guard)
                if decision:
                    self.decisions.append(decision)
                if decision.stop:
                    break
        self.guard = guard
        self.digest = self.state.digest(gradients=False)
        (journal,) = (run / "journal").glob("*.0.jsonl")
        self.events = [json.loads(line) for line in journal.read_text().splitlines()]

    def sdc(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "sdc"]


@pytest.fixture
def clean(tmp_path: Path) -> Result:
    return Result(tmp_path / "clean", sdc=False)


def once(step: int, name: str, value: float, *, times: int = 1) -> Callable[[Arrays], object]:
    """Put a value into a tensor at a step, the first so many times that it is done."""

    def prepare(state: Arrays) -> None:
        left = [value] * times

        def inject(this: int) -> None:
            if this == step and left:
                state.tensors[name][2] = left.pop()

        state.inject = inject

    return prepare


def test_a_watched_training_is_the_same_as_one_that_is_not(clean: Result, tmp_path: Path) -> None:
    watched = Result(tmp_path / "watched")
    assert watched.watch.is_on and not clean.watch.is_on
    assert watched.digest == clean.digest and watched.state.done == list(range(1, STEPS + 1))
    assert not watched.watch.found and not watched.sdc()


@pytest.mark.parametrize("name", ["gradient", "momentum", "weight"])
@pytest.mark.parametrize("value", [1e17, -1e17, 3.4e38, math.nan, -math.inf])
def test_after_a_transient_fault_the_training_ends_with_the_same_bits(
    clean: Result, tmp_path: Path, name: str, value: float
) -> None:
    result = Result(tmp_path / "run", once(41, name, value))
    assert result.digest == clean.digest
    assert [one.verdict for one in result.watch.found] == ["transient"]
    assert result.state.done == [*range(1, 42), 40, 41, *range(42, STEPS + 1)], "the last two steps were done again"
    (event,) = result.sdc()
    assert (event["verdict"], event["step"], event["of_rank"], event["times"]) == ("transient", 41, 0, 1)
    assert name in event["why"] and any("2 steps were replayed, clean" in line for line in result.said)


def test_damage_after_the_check_is_found_at_the_next_step(clean: Result, tmp_path: Path) -> None:
    def prepare(state: Arrays) -> None:
        left = [1e20]

        def after(step: int) -> None:
            if step == 40 and left:
                state.tensors["momentum"][0] = left.pop()

        state.after = after

    result = Result(tmp_path / "run", prepare)
    assert result.digest == clean.digest
    assert [one.step for one in result.watch.found] == [41]


def test_a_value_that_repeats_bit_by_bit_stops_the_training_and_blames_no_node(tmp_path: Path) -> None:
    result = Result(tmp_path / "run", once(41, "gradient", 1e9, times=99))
    assert [one.verdict for one in result.watch.found] == ["repeated"]
    (decision,) = result.decisions
    assert decision.stop and not decision.save and decision.triggers == ("sdc_repeated",)
    assert result.guard.exit_code == 1 and result.sdc()[0]["times"] == 0
    (ruined,) = [event for event in result.events if event["event"] == "state_ruined"]
    assert (ruined["step"], ruined["since"], ruined["world"]) == (41, 39, 1), "the state after step 39 was checked"


def test_a_spike_of_the_data_below_the_ceiling_is_applied_and_stops_nothing(clean: Result, tmp_path: Path) -> None:
    expected = Result(tmp_path / "off", once(41, "gradient", 1e4, times=99), sdc=False)
    result = Result(tmp_path / "run", once(41, "gradient", 1e4, times=99))
    assert [one.verdict for one in result.watch.found] == ["repeated"] and result.watch.is_on
    assert not result.decisions and result.guard.exit_code == 0 and result.digest == expected.digest != clean.digest
    assert result.sdc()[0]["times"] == 0, "no node is blamed"
    assert sum("It is applied" in line for line in result.said) == 1, "said once, although its momentum is large later"


@pytest.mark.parametrize("value", [1e4, 1e9, math.nan])
def test_a_spike_of_data_whose_step_does_not_repeat_bit_by_bit_blames_no_node(tmp_path: Path, value: float) -> None:
    def prepare(state: Arrays) -> None:
        noise = iter(range(99))

        def inject(step: int) -> None:
            if step == 41:
                state.tensors["gradient"][1] = value
                state.tensors["gradient"][2] += 1e-7 * next(noise)  # atomic additions of a GPU: in any order

        state.inject = inject

    result = Result(tmp_path / "run", prepare)
    assert [one.verdict for one in result.watch.found] == ["repeated"] and result.sdc()[0]["times"] == 0
    assert [one.triggers for one in result.decisions] == [("sdc_repeated",)] * (value != 1e4)


def test_a_checkpoint_that_was_saved_with_the_damage_is_not_taken_again(tmp_path: Path) -> None:
    state, run = Arrays(), tmp_path / "run"
    with make_guard(make_run(run), sdc=True) as guard:
        guard.resumed(20)
        state.tensors["weight"][1] = math.nan
        sdc = guard.sdc(state)
        for step in range(21, 25):
            sdc.run(lambda batch: state.step(sdc, batch), batch_of(step))
            if guard.step().stop:
                break
    (journal,) = (run / "journal").glob("*.0.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    (ruined,) = [event for event in events if event["event"] == "state_ruined"]
    assert (ruined["step"], ruined["since"]) == (21, 19), "the checkpoint of step 20 may be damaged"


def test_other_bits_from_the_same_inputs_stop_the_training_and_are_the_hardwares(tmp_path: Path) -> None:
    def prepare(state: Arrays) -> None:
        values = iter(range(1, 99))

        def inject(step: int) -> None:
            if step == 41:
                state.tensors["gradient"][1] = 1e9 * 10 ** next(values)

        state.inject = inject

    result = Result(tmp_path / "run", prepare)
    assert [one.verdict for one in result.watch.found] == ["unstable"]
    (decision,) = result.decisions
    assert decision.stop and not decision.save and decision.triggers == ("sdc",)
    assert result.sdc()[0]["times"] == 2
    (ruined,) = [event for event in result.events if event["event"] == "state_ruined"]
    assert ruined["world"] == 0, "no batch is suspect"


def test_a_rank_that_is_wrong_a_second_time_saves_and_stops(tmp_path: Path) -> None:
    def prepare(state: Arrays) -> None:
        left = {30: 1e20, 41: 1e20}

        def inject(step: int) -> None:
            if step in left:
                state.tensors["weight"][1] = left.pop(step)

        state.inject = inject

    result = Result(tmp_path / "run", prepare)
    assert [one.verdict for one in result.watch.found] == ["transient", "transient"]
    (decision,) = result.decisions
    assert decision.stop and decision.save and decision.exit_code == 75
    assert "It is the hardware's" in decision.why


def test_a_checkpoint_between_the_damage_and_its_discovery_is_named(tmp_path: Path) -> None:
    for step, is_named in ((40, True), (39, False)):
        result = Result(tmp_path / str(step), once(41, "weight", 1e20), saves=[step])
        assert ("The checkpoint of step 40 may hold" in result.watch.found[0].why) == is_named


class TwoRanks:
    """Rank 0 of two, whose other rank never compares replicas, and says about each step what is given."""

    carries_reports = True

    def __init__(self, faults: dict[int, str] | None = None) -> None:
        """`faults`: by the number of the check."""
        self.state, self.warned, self.faults, self.checks = Arrays(), list[str](), faults or {}, 0
        gate: Any = SimpleNamespace(count=0, rewound=0)
        place: Any = SimpleNamespace(world=2, rank=0, host="n1", is_first=True)
        recorder: Any = SimpleNamespace(warn=lambda text, key="": self.warned.append(text))
        settings = GuardSettings(sdc=True, sdc_replicas_every=1)
        self.gate = gate
        self.watch = SdcWatch(self.state, settings, gate, place, recorder, self, lambda request: None)

    def report(self, key: str, text: str) -> None:
        """Nobody answers."""

    def reported(self, key: str) -> None:
        """Nobody has answered."""

    def wait_for_report(self, key: str, timeout_s: float) -> Report:
        self.checks += 1
        return Report([self.faults[self.checks]] if self.checks in self.faults else [])

    def run(self, steps: int) -> TwoRanks:
        for step in range(1, steps + 1):
            self.watch.run(lambda batch: self.state.step(self.watch, batch), batch_of(step))
            self.gate.count = step
        return self


def test_a_rank_that_leaves_ends_the_watch_and_not_the_training() -> None:
    ranks = TwoRanks({3: "rank 1: left with exit code 137"}).run(5)
    assert ranks.state.done == [1, 2, 3, 4, 5] and not ranks.watch.is_on
    assert len(ranks.warned) == 1 and "rank 1: left with exit code 137" in ranks.warned[0]


@pytest.mark.parametrize("check", [6, 7])
def test_a_rank_that_leaves_in_a_replay_leaves_it_without_a_verdict(check: int) -> None:
    found = "rank 1: sdc on n2 0f inf: weight is NaN, at most 1 is normal"
    ranks = TwoRanks({5: found, check: "rank 1: left with exit code 137"}).run(8)
    assert ranks.state.done == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8] and not ranks.watch.is_on
    assert not ranks.watch.found
    assert "rank 1 on n2: weight is NaN" in ranks.warned[1] and "was the hardware" in ranks.warned[1]


def test_an_error_of_the_training_in_a_replay_leaves_what_was_found() -> None:
    """A collective fails, because another rank has died."""
    ranks = TwoRanks({5: "rank 1: sdc on n2 0f inf: weight is NaN, at most 1 is normal"}).run(4)

    def fail(step: int) -> None:
        if step in ranks.state.done[:-1]:
            raise ConnectionError("closed by peer")

    ranks.state.inject = fail
    with pytest.raises(ConnectionError):
        ranks.watch.run(lambda batch: ranks.state.step(ranks.watch, batch), batch_of(5))
    assert ranks.state.done == [1, 2, 3, 4, 5, 4] and not ranks.watch.found
    assert "rank 1 on n2: weight is NaN" in ranks.warned[0] and "its replay was cut off" in ranks.warned[0]


def test_no_memory_for_the_copies_of_a_replay_ends_the_watch_alone() -> None:
    ranks = TwoRanks({5: "rank 1: sdc on n2 0f inf: weight is NaN, at most 1 is normal"}).run(4)
    captures = iter([ranks.state.capture(None)])
    setattr(ranks.state, "capture", lambda old: next(captures))  # noqa: B010
    batch = batch_of(5)
    ranks.watch.run(lambda batch: ranks.state.step(ranks.watch, batch), batch)
    assert ranks.state.done == [1, 2, 3, 4, 5, 4, 5] and not ranks.watch.is_on


def test_comparisons_that_a_rank_never_answers_are_told() -> None:
    assert not TwoRanks().run(MOST_UNANSWERED).warned
    ranks = TwoRanks().run(40)
    assert ranks.watch.is_on and "not every rank answers" in ranks.warned[0]


def test_with_sdc_off_the_state_is_never_asked() -> None:
    class Silent:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    with make_guard() as guard:
        sdc = guard.sdc(Silent())
        assert sdc.run(lambda batch: (batch, sdc.step), 5) == (5, 1)
        sdc.check()


@pytest.mark.parametrize("method", ["capture", "largest", "digest"])
def test_a_fault_of_the_watch_does_not_end_the_training(clean: Result, tmp_path: Path, method: str) -> None:
    def fail(*_: object, gradients: bool = True) -> str:
        if gradients:
            raise MemoryError("no memory for the copies")
        return ""

    def prepare(state: Arrays) -> None:
        if method == "digest":  # asked for only if something is found
            once(STEPS, "gradient", 1e30)(state)
        setattr(state, method, fail)

    result = Result(tmp_path / "run", prepare)
    assert not result.watch.is_on and result.state.done == list(range(1, STEPS + 1))
    assert method == "digest" or result.digest == clean.digest
    assert sum("sdc is off from here on" in line for line in result.said) == 1


def test_an_exception_of_the_training_passes_through() -> None:
    def fails(batch: int) -> None:
        raise ZeroDivisionError

    with make_guard(sdc=True) as guard:
        sdc = guard.sdc(Arrays())
        with pytest.raises(ZeroDivisionError):
            sdc.run(fails, 0)
        assert sdc.step == 0


def test_a_step_function_that_catches_everything_does_not_swallow_the_abnormal_step(
    clean: Result, tmp_path: Path
) -> None:
    def prepare(state: Arrays) -> None:
        step = state.step

        def catching(*args: Any) -> float:
            try:
                return step(*args)
            except BaseException:
                return 0.0

        once(41, "gradient", 1e30)(state)
        setattr(state, "step", catching)  # noqa: B010

    result = Result(tmp_path / "run", prepare)
    assert [one.verdict for one in result.watch.found] == ["transient"] and result.digest == clean.digest


def test_after_a_jump_in_the_steps_only_the_step_itself_is_replayed() -> None:
    state = Arrays()
    with make_guard(sdc=True) as guard:
        sdc = guard.sdc(state)
        for step in range(1, 30):
            sdc.run(lambda batch: state.step(sdc, batch), batch_of(step))
            guard.step()
        guard.resumed(10)
        once(11, "gradient", 1e30)(state)
        state.done.clear()
        sdc.run(lambda batch: state.step(sdc, batch), batch_of(11))
        assert state.done == [11, 11] and [one.verdict for one in sdc.found] == ["transient"]
