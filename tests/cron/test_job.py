"""When a job of the scheduler's chain leaves."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.cron import job as cron_job
from resilience.cron.chain import Words
from resilience.cron.job import main
from resilience.cron.project import CronProject
from resilience.cron.state_directory import CronDirectory
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.test_slurm_keeper import INSTALLED
from tests.cron.records import put_run
from tests.lab.fakes import NOW, FakeClock


@pytest.mark.parametrize(
    ("end", "start", "expected"),
    [("1800000900", "", 1_800_000_900), ("", "1800000000", 1_800_000_600), ("", "", NOW + 600), ("0", "0", NOW + 600)],
)
def test_the_end_is_slurms_or_counted_from_the_start(end: str, start: str, expected: float) -> None:
    assert cron_job._end_time(end, start, 600, NOW) == expected


# ---- when a daemon leaves -----------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Any:
    state = CronDirectory(tmp_path)
    state.install(INSTALLED)
    system = SimpleNamespace(clock=FakeClock(NOW), environ={}, host=SimpleNamespace(name="n1"))
    cron = CronProject(SimpleNamespace(system=system), CronSettings(), tmp_path, state)  # type: ignore[arg-type]
    job = cron_job._Job(cron, INSTALLED, Words(INSTALLED.token, "slurm"), end=NOW + 86400, limit_s=86400)
    job._start_keeper = lambda: None  # type: ignore[method-assign]
    return job


def begin_run(state: CronDirectory) -> None:
    put_run(state, "cron.daily+backup", 5, at=NOW)


def at(job: Any, seconds_before_end: float) -> bool:
    job.cron.project.system.clock.time = job.end - seconds_before_end
    return bool(job._must_exit())


def test_it_leaves_in_its_last_hour_when_nothing_runs_and_not_before(job: Any) -> None:
    assert not at(job, 3700)
    assert at(job, 3500)


def test_it_waits_for_what_runs(job: Any) -> None:
    begin_run(job.cron.state)
    assert not at(job, 3500)
    assert not at(job, 100)


def test_after_an_end_notice_it_exits_at_once_or_after_a_short_wait(job: Any) -> None:
    assert not at(job, 50000)
    job._on_end_notice(signal.SIGUSR1, None)
    assert at(job, 49999)
    begin_run(job.cron.state)
    assert not at(job, 49998)
    assert at(job, 49900), "the time limit was shortened: what runs is ended in time to be written down"


def test_sigterm_counts_at_once(job: Any) -> None:
    begin_run(job.cron.state)
    job._on_terminate(signal.SIGTERM, None)
    assert at(job, 50000)


@pytest.mark.parametrize("change", ["stop", "uninstall"])
def test_it_notices_by_itself_that_it_is_stopped(job: Any, change: str) -> None:
    assert not at(job, 50000)
    if change == "stop":
        job.cron.state.stop("bob", "", NOW)
    else:
        job.cron.state.uninstall()
    assert at(job, 49900)
    assert job.ended


def test_after_a_change_of_mode_it_makes_room_for_the_other_kind(job: Any) -> None:
    (job.cron.state.path / "driver.json").write_text(json.dumps(replace(INSTALLED, mode="pulse").to_json()))
    begin_run(job.cron.state)
    assert not at(job, 50000)
    (mark,) = (job.cron.state.path / "runs").iterdir()
    mark.unlink()
    assert at(job, 49000)
    assert not job.ended, "the chain goes on"


def test_a_state_directory_that_cannot_be_read_for_a_while_stops_nothing(job: Any) -> None:
    (job.cron.state.path / "driver.json").write_text("{")
    assert not at(job, 50000)


def test_a_job_of_another_installation_does_nothing(job: Any) -> None:
    assert main(job.cron, ["--token", "other", "--scheduler", "slurm"]) == 0


def test_a_keeper_that_crashes_is_seen_and_tried_again(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del job._start_keeper

    def crash(*_: object) -> int:
        raise RuntimeError("no module named squeue")

    monkeypatch.setattr(cron_job, "keep", crash)
    job._start_keeper()
    deadline = time.monotonic() + 60
    while job.keeper is not None and time.monotonic() < deadline:
        job._poll_keeper()
    assert job.failures == 1
    assert job.next_keep == NOW + 60
