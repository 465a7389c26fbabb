"""What runs right now is seen, though no line of the history has it yet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.cron.entries import runs_of
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Outcome, RunRecord
from tests.cron.records import FAR, put_run
from tests.lab.fakes import NOW, make_project

KEY = "cron.hourly+backup"
SLOT = int(NOW)


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    return open_cron(make_project(tmp_path))


def mark(cron: CronProject, slot: int = SLOT, **given: Any) -> None:
    put_run(cron.state, KEY, slot, at=slot + 1.0, **given)


def record(cron: CronProject, slot: int, outcome: Outcome) -> None:
    cron.state.record(KEY, RunRecord(name="cron.hourly/backup", slot=slot, outcome=outcome, time=slot + 2.0))


def test_an_active_run_comes_after_finished_ones(cron: CronProject) -> None:
    record(cron, SLOT - 3600, Outcome.DONE)
    mark(cron)
    (directory := cron.state.path / "output" / KEY).mkdir(parents=True)
    for name in (f"{SLOT}.txt", f"{SLOT}-2.txt", f"{SLOT - 3600}.txt"):
        (directory / name).touch()
    ended, running = runs_of(cron, KEY)
    assert (ended.outcome, running.outcome) == (Outcome.DONE, Outcome.RUNNING)
    assert running.started == SLOT + 1.0 and running.pid == os.getpid() and running.output == f"{SLOT}-2.txt"


def test_a_run_whose_supervisor_died_is_cut_short_before_any_tick_says_so(cron: CronProject) -> None:
    mark(cron, ticks=1)
    (run,) = runs_of(cron, KEY)
    assert run.outcome is Outcome.CUT_SHORT and "has ended" in run.summary


@pytest.mark.parametrize(("limit_s", "outcome"), [(NOW - SLOT + 600.0, Outcome.RUNNING), (1.0, Outcome.CUT_SHORT)])
def test_a_run_on_another_host_is_believed_while_its_time_lasts(
    cron: CronProject, limit_s: float, outcome: Outcome
) -> None:
    mark(cron, SLOT - 300, machine_id=FAR, host="n17", limit_s=limit_s)
    assert runs_of(cron, KEY)[0].outcome is outcome


def test_an_end_that_could_not_be_filed_is_read_from_the_record(cron: CronProject) -> None:
    end = RunRecord(name="cron.hourly/backup", slot=SLOT, outcome=Outcome.FAILED, time=NOW, exit_code=3)
    mark(cron, end=end.to_json())
    assert runs_of(cron, KEY) == (end,)
