"""The guard notices that the scheduler of cron is late: once for each episode, and never at the training's cost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from resilience.guard.rank_info import RankInfo
from resilience.guard.recorder import Recorder
from resilience.guard.triggers import built_in_triggers, late_cron
from resilience.guard.triggers.late_cron import EVERY_S, LATE_IN_A_ROW, LateCron
from tests.guard.guards import make_guard, make_run
from tests.lab.waiting import until


class Stage:
    """A run beside a cron directory, and a clock that is moved by hand."""

    def __init__(self, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cron = state_dir / ".cron"
        self.run = make_run(state_dir / "gpt")
        self.passed = 0.0
        self.told: list[str] = []
        start, begun = time.time(), time.monotonic()
        clock = type("Clock", (), {})()
        clock.time = lambda: start + self.passed
        clock.monotonic = lambda: begun + self.passed
        monkeypatch.setattr(late_cron, "time", clock)
        self.now = clock.time
        place = RankInfo(run_dir=str(self.run), run="gpt", host="n1", job_id="7")
        self.recorder = Recorder(place, self.told.append)
        self.trigger = LateCron(place, self.recorder)

    def beat(self, driver: str = "foreground", **fields: Any) -> None:
        self.cron.mkdir(exist_ok=True)
        now = self.now()
        (self.cron / "heartbeat").write_text(
            json.dumps({"time": now, "expected": now + 60, "driver": driver, **fields})
        )

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.passed += EVERY_S
            assert self.trigger.poll() is None  # type: ignore[func-returns-value]

    def events(self) -> list[str]:
        return [record["event"] for record in self.recorder.take()]

    @property
    def note(self) -> Path:
        return self.cron / "notes" / "late"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def test_a_late_scheduler_is_reported_once_and_so_is_its_return(stage: Stage) -> None:
    stage.beat()
    stage.minutes(3)
    assert stage.events() == [] and not stage.note.exists()
    stage.minutes(30)
    assert stage.events() == ["cron_late"]
    note = json.loads(stage.note.read_text())
    assert (note["run"], note["host"], note["job_id"]) == ("gpt", "n1", "7")
    assert len(stage.told) == 1 and "resil cron status" in stage.told[0]
    stage.beat()
    stage.minutes(2)
    assert stage.events() == ["cron_again"] and not stage.note.exists()
    stage.minutes(30)
    assert stage.events() == ["cron_late"], "the next episode is told again"


def test_a_cluster_that_has_just_come_back_is_given_time(stage: Stage) -> None:
    stage.beat()
    stage.minutes(1)
    stage.passed += 86400  # suspended, with the scheduler
    stage.minutes(LATE_IN_A_ROW - 1)
    assert stage.events() == []
    stage.beat()
    stage.minutes(3)
    assert stage.events() == []


def test_it_looks_once_a_minute_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(late_cron, "_read", looks.append)
    for _ in range(600):
        stage.passed += 1.0
        stage.trigger.poll()
    assert len(looks) == 10


def test_nothing_is_said_where_there_is_no_cron(stage: Stage) -> None:
    stage.minutes(30)
    assert stage.events() == [] and not stage.cron.exists()


def test_nothing_is_said_of_one_that_was_stopped_or_uninstalled(stage: Stage) -> None:
    stage.beat()
    (stage.cron / "stop").write_text("{}")
    stage.minutes(30)
    assert stage.events() == []
    (stage.cron / "stop").unlink()
    stage.beat("crontab")
    stage.minutes(30)
    assert stage.events() == [], "no installation is there any more"
    stage.beat(is_last=True)
    stage.minutes(30)
    assert stage.events() == [], "somebody pressed Ctrl-C"
    stage.beat("crontab")
    stage.minutes(30)
    (stage.cron / "driver.json").write_text(json.dumps({"driver": "crontab", "time": 0}))
    stage.minutes(LATE_IN_A_ROW)
    assert stage.events() == ["cron_late"]


def test_its_own_patience_counts(stage: Stage) -> None:
    stage.beat(patience_s=7200)
    stage.minutes(100)
    assert stage.events() == []
    stage.minutes(30)
    assert stage.events() == ["cron_late"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"time": "x"}', '{"time": NaN, "expected": 1}', "x" * 100_000])
def test_a_damaged_sign_of_life_says_nothing_and_harms_nobody(stage: Stage, content: str) -> None:
    stage.cron.mkdir()
    (stage.cron / "heartbeat").write_text(content)
    stage.minutes(30)
    assert stage.events() == []


def test_a_fifo_in_its_place_blocks_nobody(stage: Stage) -> None:
    stage.cron.mkdir()
    os.mkfifo(stage.cron / "heartbeat")
    stage.minutes(5)
    assert stage.events() == []


def test_a_note_that_cannot_be_written_costs_nothing_but_the_note(stage: Stage) -> None:
    stage.beat()
    (stage.cron / "notes").write_text("no directory")
    stage.minutes(30)
    assert stage.events() == ["cron_late"]


def test_rank_0_alone_asks_in_the_thread_for_files_and_it_can_be_switched_off(stage: Stage) -> None:
    assert (LateCron.ranks, LateCron.shared) == ("first", True)
    from resilience.guard.settings import GuardSettings
    from resilience.guard.step_timer import StepTimer

    place = RankInfo(run_dir=str(stage.run))
    for on in (True, False):
        settings = GuardSettings(cron=on, host_memory=False, gpu_memory="off", walltime=False)
        found = built_in_triggers(place, settings, stage.recorder, StepTimer())
        assert any(isinstance(trigger, LateCron) for trigger in found) is on


def test_a_real_guard_journals_it_and_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_cron, "EVERY_S", 0.05)
    monkeypatch.setattr(late_cron, "GAP", 1e9)  # this machine may be busy
    run = make_run(tmp_path / "gpt")
    moment = time.time() - 3600
    (tmp_path / ".cron").mkdir()
    (tmp_path / ".cron" / "heartbeat").write_text(
        json.dumps({"time": moment, "expected": moment + 60, "driver": "foreground"})
    )
    with make_guard(run, say=lambda text: None) as guard:
        until(lambda: (tmp_path / ".cron" / "notes" / "late").exists())
        decision = guard.step()
        assert not decision.save and not decision.stop
    lines = [json.loads(line) for path in (run / "journal").glob("*.jsonl") for line in path.read_text().splitlines()]
    (event,) = [line for line in lines if line["event"].startswith("cron")]
    assert event["event"] == "cron_late" and event["overdue_s"] > 3000 and event["rank"] == 0
