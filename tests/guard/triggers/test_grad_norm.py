"""The norm of the gradients, and a loss that does not fall any more: what is a fault, and what is a loss scaler."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import TrainingGuard
from resilience.guard.decision import EXIT_ERROR
from resilience.guard.learned import MAX_GRAD_NORMS, Learned
from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.settings import GuardSettings
from resilience.guard.step_timer import StepTimer
from resilience.guard.triggers.loss import GradNorm, Loss
from tests.guard.guards import make_guard, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def events(run: Path, *names: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "journal" / "12.0.jsonl").read_text().splitlines()]
    return [event for event in found if event["event"] in names]


def train(guard: TrainingGuard, norms: list[Any], loss: float | None = 2.0) -> None:
    """Do a step for each norm until a stop."""
    for norm in norms:
        guard.observe(grad_norm=norm)
        if guard.step(loss).stop:
            return


@pytest.mark.parametrize("skipped", [16, 34, 39])
def test_a_loss_scaler_that_looks_for_its_scale_is_no_fault(run: Path, skipped: int) -> None:
    """torch's GradScaler and Megatron skip the steps whose gradients are not finite, and halve the scale."""
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        train(guard, [math.inf] * skipped + [1.0] * 50 + [math.nan] + [1.0] * 50)
    assert guard.exit_code == 0 and not said
    assert not events(run, "grad_norm_nonfinite", "state_ruined")


def test_gradients_that_are_never_finite_again_stop_a_training_whose_loss_looks_well(run: Path) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        train(guard, [1.0] * 60 + [math.nan] * 60)
        decision = guard.decided
    assert decision is not None and decision.triggers == ("grad_norm",) and not decision.save
    assert decision.why == "the gradient norm is NaN for 40 steps in a row, at step 100"
    assert guard.exit_code == EXIT_ERROR
    (event,) = events(run, "state_ruined")
    assert (event["step"], event["since"]) == (61, 60)


def test_a_spike_of_the_gradients_is_reported_and_known_to_the_next_job(run: Path) -> None:
    noise = random.Random(1)
    said: list[str] = []
    with make_guard(run, say=said.append) as guard:
        guard.resumed(0)
        train(guard, [noise.gauss(1.0, 0.02) for _ in range(300)])
        with guard.saving():
            pass
    with make_guard(run, say=said.append) as guard:
        guard.resumed(300)
        train(guard, [9.0] * 3)
    assert guard.exit_code == 0
    assert len(said) == 1 and "the gradient norm is above" in said[0] and "for 3 steps in a row" in said[0]
    assert [event["step"] for event in events(run, "grad_norm_spike")] == [303]


@pytest.mark.parametrize("norm", [None, "1.0", object(), [1.0]])
def test_what_is_no_number_is_not_judged(run: Path, norm: Any) -> None:
    with make_guard(run, say=lambda text: None) as guard:
        train(guard, [norm] * 50)
    assert guard.exit_code == 0


def test_a_guard_that_is_off_observes_nothing() -> None:
    TrainingGuard.from_env({"RESIL_GUARD": "off"}).observe(grad_norm=math.nan)


# ---- a plateau ------------------------------------------------------------------------------------------------------


class Watched:
    """A loss on one rank, with its events."""

    def __init__(self, rank: int = 0, **settings: Any) -> None:
        place = RankInfo(rank=rank, world=2)
        self.recorder = Recorder(place, lambda text: None)
        self.loss = Loss(place, GuardSettings(**settings), self.recorder)
        self.noise = random.Random(1)
        self.step = 0

    def lasts(self, steps: int, level: float, slope: float = 0.0) -> Watched:
        for number in range(steps):
            self.step += 1
            value = self.noise.gauss(level - slope * number, 0.02)
            assert self.loss.check(value, self.step) is None, "told, not acted on"
        return self

    def names(self) -> list[str]:
        return [event["event"] for event in self.recorder.events]


def test_a_loss_without_a_new_best_is_told_once_and_so_is_its_end() -> None:
    watched = Watched(loss_plateau_steps=2000).lasts(3000, 3.0, slope=1e-4)
    assert not watched.names(), "it falls"
    watched.lasts(6000, 2.75)
    assert watched.names() == ["loss_plateau"]
    plateau = watched.recorder.events[-1]
    assert plateau["best_step"] <= 3100 and plateau["step"] - plateau["best_step"] >= 2000
    watched.lasts(500, 2.0)
    assert watched.names() == ["loss_plateau", "loss_improved"]


def test_a_plateau_is_watched_only_where_it_is_asked_for_and_on_rank_0() -> None:
    assert not Watched().lasts(9000, 2.0).names()
    assert not Watched(rank=1, loss_plateau_steps=1000).lasts(9000, 2.0).names()


def test_the_best_of_before_is_carried_over(run: Path) -> None:
    for first in (0, 500, 1000):
        with make_guard(run, say=lambda text: None, loss_plateau_steps=1200) as guard:
            guard.resumed(first)
            for _ in range(500):
                guard.step(2.0)
            with guard.saving():
                pass
    (plateau,) = events(run, "loss_plateau")
    assert plateau["best_step"] == 50 and plateau["step"] >= 1250


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_the_longest_windows_fit_into_the_part_of_the_file_that_is_read() -> None:
    place = RankInfo(run_dir="/nowhere")
    settings, recorder = GuardSettings(loss_window=100_000, loss_plateau_steps=1), Recorder(place)
    loss, norm = Loss(place, settings, recorder), GradNorm(place, settings, recorder)
    learned = Learned(place, settings, recorder, StepTimer(), loss, norm, {})
    learned._arrived.set()
    for step in range(10_000_000, 10_000_000 + 30_000):
        loss.check(-1.23456e-15 * (1 + step % 7), step)
        norm.check(1.23456e-15 * (1 + step % 7), step)
        if step % 5000 == 0:
            learned.save_begins(step)
            learned.saved(step)
    text = learned.text()
    assert len(text) < 65_536
    kept = json.loads(text)["losses"]
    assert len(kept) == 3 and len(kept[-1]["grad_norms"]) == MAX_GRAD_NORMS
