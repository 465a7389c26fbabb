"""When a job of the scheduler's chain leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from resilience.cron import job as cron_job
from resilience.cron.job import Job, Words, main, parse_words
from resilience.cron.project import CronProject
from resilience.cron.records import Heartbeat
from resilience.cron.state_directory import CronDirectory
from resilience.errors import UsageError
from resilience.settings.cron_settings import CronSettings
from tests.cron.drivers.test_slurm_keeper import INSTALLED
from tests.lab.fakes import NOW, FakeClock

START = int(NOW)


def test_the_batch_scripts_words_are_understood() -> None:
    words = ["--token", "abc", "--scheduler", "slurm", "--slot", "1800000000", "--end", "1800086400"]
    assert parse_words(words) == Words("abc", "slurm", 1_800_000_000, 1_800_086_400)
    assert parse_words(["--token", "abc", "--scheduler", "local", "--slot", ""]) == Words("abc", "local", 0, 0)


@pytest.mark.parametrize("words", [[], ["--help"], ["--scheduler", "slurm"], ["--token", "a", "--more", "b"]])
def test_a_manual_call_is_refused_with_a_hint(words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        parse_words(words)
    assert "resil cron install" in refused.value.hint


def a_job(tmp_path: Path, job_id: int = 88, start: int = START) -> Job:
    state = CronDirectory(tmp_path)
    state.install(INSTALLED)
    (state.path / "driver").mkdir(exist_ok=True)
    environ = {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_START_TIME": str(start)}
    system = SimpleNamespace(clock=FakeClock(NOW), environ=environ, host=SimpleNamespace(name="n1"))
    cron = CronProject(SimpleNamespace(system=system), CronSettings(), tmp_path, state)  # type: ignore[arg-type]
    return Job(cron, INSTALLED, Words(INSTALLED.token, "slurm", end=start + 86400))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return a_job(tmp_path)


@pytest.fixture(autouse=True)
def children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the job runs. (The process of the tests has children of its own.)"""
    children: list[str] = []
    monkeypatch.setattr(cron_job, "_has_children", lambda: bool(children))
    return children


def test_a_child_is_seen_until_it_was_waited_for() -> None:
    look = (
        "from resilience.cron.job import _has_children as c; import subprocess; a = c(); p = subprocess.Popen(['true'])"
    )
    code = f"{look}; b = c(); p.wait(); print(a, b, c())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False True False\n"


def after(job: Job, seconds: float) -> bool:
    """Whether the job exits that long after its start."""
    clock: Any = job.cron.project.system.clock
    clock.time = START + seconds
    return job.must_exit()


def tick(job: Job) -> None:
    now = job.cron.project.system.clock.now()
    job.state.beat(Heartbeat(time=now, expected=now + 60, alive_since=now, job_id=str(job.job_id), pid=os.getpid()))


def test_it_ticks_until_shortly_before_its_end_and_does_not_leave_early(job: Job) -> None:
    assert job.until == START + 86400 - 90
    assert not after(job, 86000)


def test_the_older_one_leaves_when_the_newer_one_has_ticked_and_not_before(tmp_path: Path, job: Job) -> None:
    newer = a_job(tmp_path, 89, START + 82000)
    tick(job)
    assert not after(job, 82100) and not after(newer, 150)
    assert not after(job, 82200), "the newer one has not ticked yet"
    tick(newer)
    assert not after(newer, 300), "the newer one stays"
    assert after(job, 82300)
    assert job.state.why == "job 89 ticks now" and job.cron.state.stopped() is not None, "and it starts nothing more"
    assert CronDirectory(tmp_path).stopped() is None


def test_of_two_that_begin_in_one_second_one_stays(tmp_path: Path, job: Job) -> None:
    twin = a_job(tmp_path, 89)
    for one in (twin, job):
        tick(one)
        after(one, 10)
    assert [after(job, 20), after(twin, 20)] == [True, False]


def test_a_requeued_job_is_the_newer_one_although_its_id_is_older(tmp_path: Path, job: Job) -> None:
    again = a_job(tmp_path, 7, START + 500)
    tick(again)
    after(again, 10)
    assert after(job, 600)


def test_a_job_that_died_after_its_first_tick_in_a_wrong_future_ends_nobody(job: Job) -> None:
    (job.state.path / "driver" / "newest").write_text(f"{START + 86400 * 365} 99\n")
    assert not after(job, 100)


def test_it_waits_for_what_it_runs(job: Job, children: list[str]) -> None:
    children.append("a run")
    (job.state.path / "driver" / "newest").write_text(f"{START + 500} 89\n")
    assert not after(job, 600) and job.cron.state.stopped() is not None
    children.clear()
    assert after(job, 700)


def test_after_an_end_notice_it_exits_at_once_or_after_a_short_wait(job: Job, children: list[str]) -> None:
    children.append("a run")
    assert not after(job, 50000)
    job._on_end_notice(signal.SIGUSR1, None)
    assert not after(job, 50001)
    assert after(job, 50100), "the time limit was shortened: what runs is ended in time to be written down"
    children.clear()
    assert after(job, 50002)


def test_sigterm_counts_at_once(job: Job, children: list[str]) -> None:
    children.append("a run")
    job._on_terminate(signal.SIGTERM, None)
    assert after(job, 50000)


@pytest.mark.parametrize("change", ["stop", "uninstall", "another kind"])
def test_it_notices_by_itself_that_it_is_not_wanted(job: Job, change: str) -> None:
    assert not after(job, 50000)
    if change == "stop":
        job.state.stop("bob", "", NOW)
    elif change == "uninstall":
        job.state.uninstall()
    else:
        (job.state.path / "driver.json").write_text(json.dumps(replace(INSTALLED, mode="pulse").to_json()))
    assert after(job, 50100)


def test_a_state_directory_that_cannot_be_read_for_a_while_stops_nothing(job: Job) -> None:
    (job.state.path / "driver.json").write_text("{")
    (job.state.path / "driver" / "newest").write_text("x")
    assert not after(job, 50000)


def test_a_job_of_another_installation_does_nothing(job: Job) -> None:
    assert main(job.cron, ["--token", "other", "--scheduler", "slurm"]) == 0
