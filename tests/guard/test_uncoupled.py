"""Ranks that do not synchronise in every step (local SGD), one of them 50 times slower. Real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilience import layout
from tests.guard.guarded import Launch, a_launch
from tests.guard.guards import make_run
from tests.lab.waiting import until

WORLD, SLOW, SLOW_STEP_S, AHEAD = 4, 3, 0.5, 200


@contextmanager
def a_slow_rank(directory: Path, run: Path, **more: str) -> Iterator[Launch]:
    """The others are `AHEAD` steps ahead of it, which it would need 100 s for; then the kill switch is thrown."""
    environ: dict[str, Any] = {f"STEP_S.{SLOW}": f"{SLOW_STEP_S}", **more}
    with a_launch(directory / "launch", run, WORLD, **environ) as launch:
        until(lambda: launch.steps(SLOW) > 8 and launch.steps(0) - launch.steps(SLOW) > AHEAD, timeout_s=60)
        (run / layout.SWITCHES / "kill").touch()
        yield launch


def test_the_wait_for_a_slow_rank_is_reported_with_estimates(tmp_path: Path) -> None:
    with a_slow_rank(tmp_path, make_run(tmp_path / "run")) as launch:
        told = re.compile(rf"rank {SLOW} is ([\d,]+) steps behind, at ([\d.]+) s per step: .* for about (.*) at ")
        until(lambda: told.search("".join(launch.said(0))), timeout_s=60)
        found = told.search("".join(launch.said(0)))
        assert found is not None
        assert int(found[1].replace(",", "")) >= AHEAD
        assert SLOW_STEP_S <= float(found[2]) < 4 * SLOW_STEP_S
        assert 'decide_by = "time" in [guard]' in "".join(launch.said(0))
        assert launch.processes[SLOW].poll() is None and not launch.saves(SLOW)


def test_decided_by_time_all_stop_at_once_each_after_its_own_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with a_slow_rank(tmp_path, run, RESIL_GUARD__DECIDE_BY="time") as launch:
        assert [launch.processes[rank].wait(40) for rank in range(WORLD)] == [75] * WORLD
        assert "steps behind" not in "".join(launch.said(0))
        saves = [launch.saves(rank) for rank in range(WORLD)]
        assert all(len(saved) == 1 for saved in saves) and saves[0][0] - saves[SLOW][0] > AHEAD
        (end,) = [event for event in launch.journal(0) if event["event"] == "end"]
        assert (end["exit_code"], end["stopped"], end["well"]) == (75, True, WORLD)
