"""Rank 0 ends first, or dies, while nothing holds the ranks together: the others hear a kill switch, save on a signal,
and write down how they ended. Real processes.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from tests.guard.guarded import Launch, a_launch
from tests.guard.guards import make_run
from tests.lab.waiting import until


def meet(launch: Launch, run: Path) -> None:
    """Wait until all ranks are connected: all save when the save switch is set."""
    switch = run / layout.SWITCHES / "save"
    launch.wait_for_steps()
    switch.touch()
    until(lambda: not switch.exists(), timeout_s=40)


def alone(launch: Launch, *ranks: int) -> None:
    until(lambda: all("on_leader_lost" in "".join(launch.said(rank)) for rank in ranks), timeout_s=40)


@pytest.mark.parametrize("how", ["is killed", "ends first"])
def test_the_others_read_the_kill_switch_and_stop_cleanly(tmp_path: Path, how: str) -> None:
    run = make_run(tmp_path / "run")
    more: dict[str, Any] = {"LAST.0": "400"} if how == "ends first" else {}
    with a_launch(tmp_path / "launch", run, 3, GONE_S="0.5", **more) as launch:
        meet(launch, run)
        if how == "ends first":
            assert launch.processes[0].wait(60) == 0
        else:
            launch.kill(0)
        alone(launch, 1, 2)
        launch.wait_for_steps()
        before = [launch.saves(rank) for rank in range(3)]
        (run / layout.SWITCHES / "kill").touch()
        assert [launch.processes[rank].wait(60) for rank in (1, 2)] == [75, 75]
        for rank in (1, 2):
            assert len(launch.saves(rank)) == len(before[rank]) + 1
            until(lambda rank=rank: any(one["event"] == "end" for one in launch.journal(rank)))  # type: ignore[misc]
            end = [one for one in launch.journal(rank) if one["event"] == "end"][-1]
            assert (end["exit_code"], end["stopped"], end["ranks"], end["well"]) == (75, True, 3, 1)


def test_a_signal_makes_a_rank_on_its_own_save_and_stop(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with a_launch(tmp_path / "launch", run, 3, GONE_S="0.5") as launch:
        meet(launch, run)
        launch.kill(0)
        launch.signal(2, signal.SIGUSR1)  # before the rank knows that rank 0 is gone
        assert launch.processes[2].wait(60) == 75
        assert launch.saves(2)
        launch.wait_for_steps()
        assert launch.processes[1].poll() is None, "nobody has told it to stop"


def test_a_save_that_is_asked_of_all_is_not_made_by_one_alone(tmp_path: Path) -> None:
    """A rank that saves alone would wait forever for the others, if a save is collective."""
    run = make_run(tmp_path / "run")
    with a_launch(tmp_path / "launch", run, 2, GONE_S="0.5") as launch:
        meet(launch, run)
        launch.kill(0)
        alone(launch, 1)
        before = launch.saves(1)
        (run / layout.SWITCHES / "save").touch()
        for _ in range(5):
            launch.wait_for_steps()
        assert launch.saves(1) == before


def test_a_save_requested_by_rank_0_and_in_flight_at_its_death_is_reported_once_durable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    more: dict[str, Any] = {"SAVE_S.1": "8"}
    with a_launch(tmp_path / "launch", run, 2, GONE_S="0.5", **more) as launch:
        launch.wait_for_steps()
        (run / layout.SWITCHES / "save").touch()
        until(lambda: bool(launch.saves(1)), timeout_s=40)
        launch.kill(0)
        alone(launch, 1)
        launch.signal(1, signal.SIGUSR1)
        assert launch.processes[1].wait(60) == 75
        saved = [one["step"] for one in launch.journal(1) if one["event"] == "save"]
        assert saved == launch.saves(1) and len(saved) == 2


def test_rank_0_does_not_wait_long_at_its_own_end_for_a_save_of_a_rank_that_died(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    more: dict[str, Any] = {"SAVE_S.1": "300", "LAST.0": "600"}
    with a_launch(tmp_path / "launch", run, 2, **more) as launch:
        launch.wait_for_steps()
        (run / layout.SWITCHES / "save").touch()
        until(lambda: bool(launch.saves(1)), timeout_s=40)
        launch.kill(1)
        until(lambda: launch.steps(0) >= 599, timeout_s=60)
        began = time.monotonic()
        launch.processes[0].wait(60)
        assert time.monotonic() - began < 20, "of which it waits for 6 s"


def test_the_time_limit_is_kept_without_rank_0(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    ends: dict[str, Any] = {"RESIL_END_TIME": f"{time.time() + 20:.0f}", "RESIL_GUARD__WALLTIME_MARGIN_S": "2"}
    with a_launch(tmp_path / "launch", run, 2, GONE_S="0.5", RESIL_GUARD__FIRST_SAVE_S="1", **ends) as launch:
        meet(launch, run)
        launch.kill(0)
        assert launch.processes[1].wait(60) == 75
        (stop,) = [one for one in launch.journal(1) if one["event"] == "decision"]
        assert stop["triggers"] == ["walltime"] and len(launch.saves(1)) == 2


def test_with_stop_no_rank_continues_without_rank_0(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with a_launch(tmp_path / "launch", run, 2, GONE_S="0.5", RESIL_GUARD__ON_LEADER_LOST="stop") as launch:
        meet(launch, run)
        launch.kill(0)
        assert launch.processes[1].wait(60) == 75
        assert len(launch.saves(1)) == 2


def test_there_is_a_rank_0_again_and_all_decide_together(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with a_launch(tmp_path / "launch", run, 2, GONE_S="0.5") as launch:
        meet(launch, run)
        launch.kill(0)
        alone(launch, 1)
        launch.start(0)
        meet(launch, run)
        (run / layout.SWITCHES / "kill").touch()
        assert [launch.processes[rank].wait(60) for rank in (0, 1)] == [75, 75]
        end = [one for one in launch.journal(0) if one["event"] == "end"][-1]
        assert (end["stopped"], end["well"]) == (True, 2)
