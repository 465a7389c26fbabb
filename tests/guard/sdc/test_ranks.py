"""Ranks, real processes without a framework: all replay together, and the odd replica is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from resilience.attempts.ledger import corruptions_of
from tests.guard.guards import job_environ, make_run

DEADLINE_S = 120.0
REPOSITORY = Path(__file__).parents[3]


class Ranks:
    """A training of some ranks that has ended."""

    def __init__(self, run: Path, world: int, faults: dict[int, tuple[int, str, float, str]]) -> None:
        make_run(run)
        command = [sys.executable, "-m", "tests.guard.sdc.replica_rank", json.dumps(faults)]
        started = [
            subprocess.Popen(
                command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=os.environ | job_environ(run, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank)),
            )
            for rank in range(world)
        ]  # fmt: skip
        self.told: list[dict[str, Any]] = []
        self.codes = []
        self.said = []
        for process in started:
            out, err = process.communicate(timeout=DEADLINE_S)
            assert out, err
            self.told.append(json.loads(out))
            self.said.append(err)
            self.codes.append(process.returncode)
        lines = (run / "journal" / "12.0.jsonl").read_text().splitlines()
        self.events = [json.loads(line) for line in lines]

    def verdicts(self) -> list[list[str]]:
        return [[verdict for verdict, _, _ in one["found"]] for one in self.told]

    def digests(self) -> set[str]:
        return {one["digest"] for one in self.told}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(tmp_path_factory.mktemp("clean") / "run", 2, {})


def test_ranks_that_are_watched_are_equal_and_left_alone(clean: Ranks) -> None:
    assert clean.verdicts() == [[], []] and len(clean.digests()) == 1 and clean.codes == [0, 0]
    assert all(one["is_on"] and one["done"] == list(range(1, 81)) for one in clean.told)


def test_all_ranks_replay_together_what_one_has_found(clean: Ranks, tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "run", 3, {2: (41, "gradient", 1e30, "before")})
    assert ranks.verdicts() == [["transient"]] * 3
    assert ranks.digests() == clean.digests() and ranks.codes == [0, 0, 0]
    assert all(one["done"].count(41) == one["done"].count(40) == 2 for one in ranks.told)
    (event,) = [event for event in ranks.events if event["event"] == "sdc"]
    assert (event["of_rank"], event["step"], event["rank"]) == (2, 41, 0)
    assert "rank 2 on" in ranks.told[0]["found"][0][2] and ranks.told[0]["found"] == ranks.told[1]["found"]


def test_the_odd_replica_is_named_and_the_training_stops_without_a_save(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "run", 3, {1: (44, "weight", 0.25, "after")})
    assert ranks.verdicts() == [["replica"]] * 3 and ranks.codes == [1, 1, 1]
    assert all(one["stop"] and not one["save"] for one in ranks.told)
    assert ranks.told[0]["found"][0][1] == 50, "the first comparison after the fault"
    (event,) = corruptions_of(ranks.events)
    assert (event.rank, event.times, event.among) == (1, 1, 1)
    (ruined,) = [event for event in ranks.events if event["event"] == "state_ruined"]
    assert (ruined["step"], ruined["since"], ruined["world"]) == (50, 40, 0)


def test_ranks_that_never_were_equal_are_no_replicas_and_go_on(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "run", 2, {1: (1, "weight", 0.25, "after")})
    assert ranks.verdicts() == [[], []] and ranks.codes == [0, 0]
    assert all(one["is_on"] and not one["stop"] for one in ranks.told) and not corruptions_of(ranks.events)
    assert "They never were equal" in ranks.said[0] and "guard.sdc(state, group=...)" in ranks.said[0]


def test_of_two_replicas_nobody_is_named(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path / "run", 2, {1: (44, "weight", 0.25, "after")})
    assert ranks.verdicts() == [["replica"]] * 2
    assert "nobody can tell which of them is wrong" in ranks.told[0]["found"][0][2]
    assert [(one.rank, one.among) for one in corruptions_of(ranks.events)] == [(0, 2), (1, 2)]
