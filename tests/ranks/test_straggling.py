"""One of four real ranks is 30 % slower: it is named, and without it nobody is."""

from __future__ import annotations

import os
import random
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from resilience.ranks.beats import read_beats
from resilience.ranks.stragglers import Pace, judge
from resilience.runs.run_directory import RunDirectory
from tests.guard.guards import make_run
from tests.lab.waiting import until
from tests.ranks.test_hangs import SOAK, Launcher, a_launcher  # noqa: F401 - a fixture

ROUNDS = int(os.environ.get("RESIL_STRAGGLERS", "50"))
pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.xdist_group("hangs"),
    pytest.mark.timeout(240 + 60 * ROUNDS),
    *SOAK,
]


def first_judgement(run: Path) -> tuple[Pace, float]:
    """Return the first judgement that could be made, and how long it took."""
    began = time.monotonic()

    def judged() -> Pace | None:
        found = judge(read_beats(RunDirectory(run)))
        return found if len(found.ranks) == 4 and not found.nothing else None

    found = until(judged, "ten windows", 300)
    assert found is not None
    return found, time.monotonic() - began


def run_once(launcher: Launcher, base: Path, odd: int) -> Pace:
    """`odd` -1: no rank is slow."""
    base.mkdir()
    run = make_run(base / "gpt")
    with launcher.training(run, "slow", odd, 5):
        found, took_s = first_judgement(run)
    said = "; ".join(one.why for one in found.stragglers)
    print(f"rank {odd}: {said or 'none'}, {took_s:.1f} s; waits {[f'{one.waits or 0:.2f}' for one in found.ranks]}")
    return found


def test_the_rank_that_is_30_percent_slower_is_named(tmp_path: Path, launcher: Launcher) -> None:
    for number in range(ROUNDS):
        odd = random.Random(f"slow {number}").randrange(4)
        found = run_once(launcher, tmp_path / str(number), odd)
        assert [one.ranks for one in found.stragglers] == [(odd,)], found
        assert found.stragglers[0].host == f"n{1 + odd // 2}" and 1.1 < found.stragglers[0].factor < 1.5


def test_ranks_that_are_equally_fast_give_no_alarm(tmp_path: Path, launcher: Launcher) -> None:
    for number in range(ROUNDS):
        assert not run_once(launcher, tmp_path / str(number), -1).stragglers
