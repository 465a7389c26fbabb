"""What runs right now is seen, though no line of the history has it yet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from resilience.base.processes import start_ticks
from resilience.cron.entries import marks_of, runs_of
from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.table.running import Mark, here, write_mark
from tests.lab.fakes import NOW, make_project

KEY = "cron.hourly+backup"
SLOT = int(NOW)


@pytest.fixture
def cron(tmp_path: Path) -> CronProject:
    return open_cron(make_project(tmp_path))


def mark(slot: int = SLOT, **given: Any) -> Mark:
    """Of this very process, which is alive."""
    at = here()
    made = Mark("cron.hourly/backup", KEY, slot, at.host, at.boot, at.namespace, os.getpid(),
                start_ticks(os.getpid()) or 0, slot + 1.0, None)  # fmt: skip
    return made._replace(**given)


def record(cron: CronProject, slot: int, outcome: Outcome) -> None:
    cron.state.record(KEY, RunRecord(name="cron.hourly/backup", slot=slot, outcome=outcome, time=slot + 2.0))


def test_an_active_run_comes_after_finished_ones(cron: CronProject) -> None:
    record(cron, SLOT - 3600, Outcome.DONE)
    write_mark(cron.state, mark())
    (directory := cron.state.path / "output" / KEY).mkdir(parents=True)
    for name in (f"{SLOT}.txt", f"{SLOT}-2.txt", f"{SLOT - 3600}.txt"):
        (directory / name).touch()
    ended, running = runs_of(cron, KEY)
    assert (ended.outcome, running.outcome) == (Outcome.DONE, Outcome.RUNNING)
    assert running.started == SLOT + 1.0 and running.pid == os.getpid() and running.output == f"{SLOT}-2.txt"
    assert list(marks_of(cron)) == [KEY]


def test_an_end_in_the_history_counts_more_than_a_mark_that_was_left(cron: CronProject) -> None:
    write_mark(cron.state, mark())
    record(cron, SLOT, Outcome.FAILED)
    assert [run.outcome for run in runs_of(cron, KEY)] == [Outcome.FAILED]


def test_a_run_whose_supervisor_died_is_cut_short_before_any_tick_says_so(cron: CronProject) -> None:
    write_mark(cron.state, mark(ticks=1))
    (run,) = runs_of(cron, KEY)
    assert run.outcome is Outcome.CUT_SHORT and "has ended" in run.summary


def test_a_run_on_another_host_is_believed_while_its_time_lasts(cron: CronProject) -> None:
    write_mark(cron.state, mark(host="n17", until=NOW + 600))
    assert runs_of(cron, KEY)[0].outcome is Outcome.RUNNING
    write_mark(cron.state, mark(host="n17", until=NOW - 600))
    assert runs_of(cron, KEY)[0].outcome is Outcome.CUT_SHORT


def test_an_end_that_found_no_room_in_the_history_is_read_from_the_mark(cron: CronProject) -> None:
    end = RunRecord(name="cron.hourly/backup", slot=SLOT, outcome=Outcome.FAILED, time=NOW, exit_code=3)
    write_mark(cron.state, mark(end=end))
    assert runs_of(cron, KEY) == (end,)
