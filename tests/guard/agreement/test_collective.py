"""`Collective` with real gloo processes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.errors import GuardError
from resilience.guard import Collective, SingleProcess
from resilience.guard.agreement.base import AgreementEvent
from resilience.guard.agreement.collective import CollectiveAgreement
from resilience.guard.gate import Gate
from resilience.guard.rank_info import RankInfo
from tests.guard.agreement.campaign import Event, Plan, Pool, assert_nothing_was_trained, need_torch
from tests.guard.agreement.ranks import save


@pytest.mark.parametrize("every", [0, -1, 1.0, 2.5, "10", None, True])
def test_ranks_cannot_meet_every_so_often(every: Any) -> None:
    with pytest.raises(GuardError, match="Collective"):
        Collective(every=every)


def test_one_process_needs_no_collective() -> None:
    assert isinstance(Collective(every=3)(Gate(), lambda heard: None, RankInfo()), SingleProcess)


def agreement(every: int = 10) -> tuple[Gate, CollectiveAgreement, list[AgreementEvent]]:
    gate = Gate()
    news: list[AgreementEvent] = []
    made = Collective(every=every)(gate, news.append, RankInfo(rank=0, world=2))
    assert isinstance(made, CollectiveAgreement)
    return gate, made, news


def test_between_two_meetings_no_step_is_held_up_whatever_is_requested() -> None:
    gate, made, _ = agreement(every=10)
    gate.count = 1
    assert not made.on_step()  # the guard's first step asks
    made.request(save())
    assert gate.limit == 10
    gate.count = 13
    made.restore()
    assert gate.limit == 20


def test_a_signal_between_two_meetings_is_kept_for_the_next() -> None:
    gate, made, _ = agreement(every=10)
    gate.count = 4
    gate.limit = 0  # the handler
    made.request(save())
    assert not made.on_step()
    assert gate.limit == 10


@pytest.mark.filterwarnings("ignore:Failed to initialize NumPy")  # torch's own, where there is no NumPy
def test_without_torch_distributed_it_says_what_is_missing() -> None:
    need_torch()
    gate, made, _ = agreement(every=1)
    start = made.wait_for_start(0.1)
    assert start is not None
    assert not start.stop
    gate.count = 1
    with pytest.raises(GuardError, match="not initialized") as raised:
        made.on_step()
    assert "init_process_group" in (raised.value.hint or "")


SOAKED = [pytest.param(*one, marks=pytest.mark.soak) for one in ((2, 1), (2, 10))]


@pytest.mark.parametrize(("world", "every"), [(4, 3), *SOAKED])
def test_all_ranks_save_and_stop_at_the_same_meeting(pool: Pool, world: int, every: int) -> None:
    plan = Plan(f"collective{world}x{every}", world, collective_every=every)
    plan.events = [
        Event("save", world - 1, 12, why="a save"),
        Event("memory", world - 1, 31, why="only here"),
        Event("signal", 0, 31),
    ]
    results = pool.train(plan)
    for result in results:
        assert all(decision["step"] % every == 0 for decision in result["decisions"])
        assert result["decisions"][-1]["step"] >= 31


def test_two_saves_one_after_the_other_are_two_decisions_and_the_switch_goes_only_after_each(pool: Pool) -> None:
    plan = Plan("collectivesaves", 2, collective_every=2, step_ms=(2.0, 4.0))
    plan.events = [Event("save", 0, 5, why="one"), Event("save", 1, 60, why="two"), Event("kill", 0, 120)]
    results = pool.train(plan)
    reasons = [reason for decision in results[0]["decisions"] for reason in decision["reasons"]]
    assert [any(why in reason for reason in reasons) for why in ("one", "two")] == [True, True]
    assert not (Path(results[0]["run_dir"]) / "switches" / "save").exists()
    assert (Path(results[0]["run_dir"]) / "switches" / "kill").exists()


def test_a_kill_switch_keeps_all_ranks_from_starting(pool: Pool) -> None:
    plan = Plan("collectiveearly", 2, collective_every=5, asks_early=True)
    assert_nothing_was_trained(pool.run(plan, before=["kill"]))


def test_ranks_that_form_anew_after_a_death_meet_again(pool: Pool) -> None:
    plan = Plan("collectivedeath", 2, collective_every=4, resume=8)
    plan.events = [Event("die", 1, 11), Event("memory", 0, 20, 1), Event("kill", 1, 21, 1)]
    pool.train(plan)


def test_every_rank_s_trigger_hears_how_its_request_went(pool: Pool) -> None:
    plan = Plan("collectiveheard", 2, collective_every=3)
    plan.events = [Event("memory", 0, 7), Event("memory", 1, 7)]
    results = pool.train(plan)
    assert [result["heard"] for result in results] == [["saved"], ["saved"]]
