"""The last answer about the queue is remembered, and shown as old when there is no new one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import SchedulerError
from resilience.job import ExitCode, Job, JobState
from resilience.runs import queue_cache
from resilience.runs.queue_cache import FLOOR_S, query_queue
from resilience.system.ports import System
from tests.lab.fakes import DOWN, NOW, FakeClock, a_job, make_system

JOBS = (
    a_job(7, task=3, nodes="n[1-2]", end_time=NOW + 60, exit_code=ExitCode(0, 9), name='odd "näme"\n\udcff'),
    a_job(7, JobState.PENDING, tasks="4-9%1", task_count=6, reason="JobArrayTaskLimit"),
)


class Asked:
    """The scheduler: counts how often it is asked."""

    def __init__(self, answer: tuple[Job, ...] | Exception = JOBS) -> None:
        self.answer, self.times = answer, 0

    def __call__(self) -> tuple[Job, ...]:
        self.times += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def system(tmp_path: Path, clock: FakeClock) -> System:
    return make_system(tmp_path, clock=clock)


def the_file(system: System) -> Path:
    (found,) = (system.host.home / ".cache" / "resil").iterdir()
    return found


def test_ten_commands_within_the_floor_ask_once(system: System, clock: FakeClock) -> None:
    asked = Asked()
    for _ in range(10):
        answer = query_queue(system, "slurm", asked)
        assert answer.jobs == JOBS, "every field comes back as it was"
        clock.time += FLOOR_S / 10 - 0.01
    assert asked.times == 1
    clock.time += 1
    assert query_queue(system, "slurm", asked).age_s == 0.0
    assert asked.times == 2


def test_whoever_insists_gets_a_fresh_answer(system: System) -> None:
    asked = Asked()
    query_queue(system, "slurm", asked)
    query_queue(system, "slurm", asked, fresh=True)
    assert asked.times == 2


@pytest.mark.parametrize("error", [DOWN, SchedulerError("Invalid user")], ids=repr)
def test_a_silent_scheduler_leaves_the_last_answer_with_its_age_and_the_trouble(
    system: System, clock: FakeClock, error: SchedulerError
) -> None:
    query_queue(system, "slurm", Asked())
    clock.time += 300
    answer = query_queue(system, "slurm", Asked(error))
    assert (answer.jobs, answer.age_s, answer.is_known) == (JOBS, 300.0, True)
    assert error.message in answer.trouble and error.hint in answer.trouble


def test_a_scheduler_that_never_answered_is_not_an_empty_queue(system: System) -> None:
    answer = query_queue(system, "slurm", Asked(DOWN))
    assert (answer.jobs, answer.is_known) == ((), False)


def test_a_clock_that_was_set_back_makes_us_ask_and_no_answer_is_from_the_future(
    system: System, clock: FakeClock
) -> None:
    query_queue(system, "slurm", Asked())
    clock.time -= 3600
    asked = Asked(DOWN)
    assert query_queue(system, "slurm", asked).age_s == 0.0
    assert asked.times == 1


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "torn": lambda raw: raw[: len(raw) // 2],
    "no JSON": lambda raw: b"\xff\x00{",
    "a list": lambda raw: b"[1]",
    "a number": lambda raw: b"1",
    "another version": lambda raw: raw.replace(b'"version": 2', b'"version": 1'),
    "no version": lambda raw: b"{}",
    "brackets without end": lambda raw: b"[" * 100_000,
    "a time beyond counting": lambda raw: raw.replace(str(NOW).encode(), b"9" * 400),
    "a number of a thousand digits": lambda raw: raw.replace(str(NOW).encode(), b"9" * 5000),
    "no time": lambda raw: raw.replace(str(NOW).encode(), b'"soon"'),
    "jobs that are none": lambda raw: b'{"version": 2, "time": %d, "jobs": ["x", 3]}' % NOW,
    "a job without an id": lambda raw: raw.replace(b'"id"', b'"ID"'),
    "an unknown state": lambda raw: raw.replace(b"RUNNING", b"RUMBLING"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_memory_is_no_memory(system: System, case: str) -> None:
    query_queue(system, "slurm", Asked())
    path = the_file(system)
    before = path.read_bytes()
    path.write_bytes(DAMAGE[case](before))
    assert path.read_bytes() != before
    asked = Asked()
    assert query_queue(system, "slurm", asked).jobs == JOBS
    assert asked.times == 1, "and it is written anew"
    assert query_queue(system, "slurm", asked).jobs == JOBS
    assert asked.times == 1


def test_something_else_in_the_memorys_place_is_no_obstacle(system: System) -> None:
    query_queue(system, "slurm", Asked())
    path = the_file(system)
    path.unlink()
    path.mkdir()
    assert query_queue(system, "slurm", Asked()).jobs == JOBS
    queue_cache.invalidate(system, "slurm")


@pytest.mark.parametrize(
    "other",
    [{"environ": {"SLURM_CONF": "/other/slurm.conf"}}, {"environ": {"SLURM_CLUSTERS": "b"}}, {"host": "other-login"},
     {"environ": {"RESIL_LOCAL_SPOOL": "/other"}}],
    ids=str,
)  # fmt: skip
def test_another_cluster_is_never_answered_from_this_ones_memory(
    tmp_path: Path, system: System, other: dict[str, dict[str, str]]
) -> None:
    """The home, and so the memory, may be shared by two clusters whose configurations lie in the same place."""
    query_queue(system, "slurm", Asked())
    elsewhere = make_system(tmp_path, **other)
    asked = Asked(())
    assert query_queue(elsewhere, "slurm", asked).jobs == () and asked.times == 1
    assert query_queue(elsewhere, "local", asked).jobs == () and asked.times == 2
    assert query_queue(system, "slurm", Asked(DOWN)).jobs == JOBS


def test_what_was_just_changed_is_asked_for_anew(system: System) -> None:
    asked = Asked()
    query_queue(system, "slurm", asked)
    queue_cache.invalidate(system, "slurm")
    queue_cache.invalidate(system, "slurm")
    query_queue(system, "slurm", asked)
    assert asked.times == 2


def test_a_home_that_cannot_be_written_only_costs_the_memory(system: System) -> None:
    (system.host.home / ".cache").write_text("a file")
    asked = Asked()
    for _ in range(2):
        assert query_queue(system, "slurm", asked).jobs == JOBS
    queue_cache.invalidate(system, "slurm")
    assert asked.times == 2


def test_nobody_else_may_read_the_memory(system: System) -> None:
    query_queue(system, "slurm", Asked())
    assert the_file(system).stat().st_mode & 0o077 == 0
    assert the_file(system).parent.stat().st_mode & 0o077 == 0


def test_ten_thousand_jobs_are_kept_and_read_in_well_under_a_second(system: System) -> None:
    jobs = tuple(replace(JOBS[0], raw_id=number) for number in range(10_000))
    began = time.process_time()
    queue_cache.save(system, "slurm", jobs)
    assert query_queue(system, "slurm", Asked(DOWN)).jobs == jobs
    assert time.process_time() - began < 1.0


def test_the_memory_is_text_that_people_can_read(system: System) -> None:
    query_queue(system, "slurm", Asked())
    document = json.loads(the_file(system).read_text())
    assert document["jobs"][1]["state"] == "PENDING"
