"""The PULSE line: its text for every state, the files it may be in, and its interval."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.job import Job, JobId, JobState
from resilience.watch.checks._job.pulse import _claim, describe_pulse, is_due, last_pulses, pulse_line
from resilience.watch.checks._job.reading import fold
from tests.lab.fakes import DOWN, NOW, FakeScheduler, a_job
from tests.watch.checks.job.stage import HOUR, OK, Stage, running

PENDING = JobState.PENDING


@pytest.fixture(autouse=True)
def paris(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "Europe/Paris")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


START = 1_651_366_800.0  # 2022-05-01 03:00:00 in Paris
SINCE = START - (86400 + 7 * 3600 + 27 * 60 + 33)

WORDS = [
    (
        a_job(123, task=4, start_time=SINCE, partition="gpu", nodes="n[1-4]"),
        "is running for 1-07:27:33 since 2022-04-29T19:32:27 (123_4 on 'gpu' partition (n[1-4]))",
    ),
    (
        a_job(123, PENDING, tasks="5-9%1", reason="JobArrayTaskLimit", partition="gpu"),
        "is waiting for the previous Job Array job to finish before scheduling a new one "
        "(123_[5-9%1] on 'gpu' partition)",
    ),
    (
        a_job(124, PENDING, reason="Dependency", partition="gpu"),
        "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism "
        "(124 on 'gpu' partition)",
    ),
    (a_job(124, PENDING, reason="Priority", partition="gpu"), "is waiting to be scheduled (124 on 'gpu' partition)"),
    (
        a_job(124, PENDING, reason="Priority", partition="gpu", start_time=START + 5430),
        "is scheduled to start in 01:30:30 (at 2022-05-01T04:30:30) (124 on 'gpu' partition)",
    ),
    (
        a_job(124, PENDING, reason="Priority", partition="gpu", start_time=START - 100),
        "is due to start now (at 2022-05-01T02:58:20) (124 on 'gpu' partition)",
    ),
    (
        a_job(124, PENDING, reason="JobHeldUser", partition="gpu"),
        "will not start: held by its owner (124 on 'gpu' partition)",
    ),
    (
        a_job(124, PENDING, reason="PartitionDown", partition="gpu"),
        "is waiting for unavailable resources: the partition is down (124 on 'gpu' partition)",
    ),
    (
        a_job(124, JobState.COMPLETING, start_time=START - 60, partition="gpu", nodes="n1"),
        "is ending for 00:01:00 since 2022-05-01T02:59:00 (124 on 'gpu' partition (n1))",
    ),
    (
        a_job(124, JobState.SUSPENDED, start_time=START - 60, partition="gpu", nodes="n1"),
        "is suspended for 00:01:00 since 2022-05-01T02:59:00 (124 on 'gpu' partition (n1))",
    ),
]


@pytest.mark.parametrize(("job", "words"), WORDS)
def test_each_state_has_its_words(job: Job, words: str) -> None:
    assert describe_pulse(fold([job]), START) == words
    assert pulse_line("gpt", words, START) == f"[2022-05-01 03:00:00] PULSE: gpt {words}"


@pytest.mark.parametrize("state", [s for s in JobState if s.is_alive])
def test_every_state_has_a_complete_description(state: JobState) -> None:
    words = describe_pulse(fold([a_job(1, state, start_time=START - 5, partition="gpu", nodes="n1")]), START)
    assert "fix me" not in words and "(1 on 'gpu' partition" in words


def test_the_newest_line_about_a_name_is_found_among_others() -> None:
    text = (
        "noise\n[2022-05-01 01:00:00] PULSE: gpt is x\n[2022-05-01 02:00:00] PULSE: gpt2 is x\n[bad] PULSE: gpt is x\n"
    )
    found = last_pulses(text)
    assert found["gpt"] == START - 2 * HOUR and found["gpt2"] == START - HOUR and "llama" not in found


@pytest.mark.parametrize("words", [words for _, words in WORDS])
def test_a_line_is_found_again_by_its_name_whatever_the_name_holds(words: str) -> None:
    for name in ("gpt", "what is it", "a was b", "x | y"):
        assert last_pulses(pulse_line(name, words, START))[name] == START


DUE = [(None, True), (0.0, False), (3599.0, False), (3600.0, True), (-60.0, False), (-7200.0, True)]


@pytest.mark.parametrize(("age_s", "due"), DUE)
def test_a_line_is_due_after_an_hour(age_s: float | None, due: bool) -> None:
    assert is_due(None if age_s is None else NOW - age_s, NOW, HOUR) is due


# ---- the file ---------------------------------------------------------------------------------------------------


@pytest.fixture
def log(stage: Stage) -> Path:
    return stage.project.loaded.project / "pulse.log"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def pulses(log: Path) -> list[str]:
    """Return the lines without their timestamps."""
    return [line.partition("PULSE: ")[2] for line in lines(log)]


@pytest.fixture
def pulsing(stage: Stage) -> Stage:
    stage.run("gpt", 1)
    stage.job(1, **running())
    return stage


def test_a_tick_each_minute_gives_a_line_each_hour(pulsing: Stage, log: Path) -> None:
    for _ in range(185):
        pulsing.tick(pulse_file="pulse.log")
        pulsing.wait(60)
    assert len(lines(log)) == 4
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] PULSE: gpt is running for ", line) for line in lines(log))
    assert len(list(log.parent.glob(".pulse.log*"))) == 1, "old claims are swept"


def test_two_hosts_share_one_hour(pulsing: Stage, log: Path) -> None:
    other = Stage(pulsing.directory, pulsing.queue)
    for _ in range(65):
        pulsing.tick(pulse_file="pulse.log")
        other.tick(pulse_file="pulse.log")
        for one in (pulsing, other):
            one.wait(60)
    assert len(lines(log)) == 2


def test_one_of_many_concurrent_ticks_claims_the_hour(tmp_path: Path) -> None:
    gate, won = threading.Barrier(8), []

    def claim() -> None:
        gate.wait()
        won.append(_claim(tmp_path / "pulse.log", "gpt", 7))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]


def test_each_watched_job_has_its_own_line(stage: Stage, log: Path) -> None:
    stage.queue.records += [a_job(1, **running()), a_job(2, PENDING, name="t5", reason="Priority")]
    stage.tick(names=("gpt", "t5", "gone"), pulse_file="pulse.log")
    found = pulses(log)
    assert found[0].startswith("gpt is running for 01:00:02 since "), "making sure of `gone` took 2 s"
    assert found[1].startswith("t5 is waiting to be scheduled (2 on ")
    assert found[2] == "gone is neither running nor scheduled to run"


def test_ended_and_unknown_jobs_have_descriptions_too(stage: Stage, log: Path) -> None:
    stage.finish(stage.run("done", 1))
    stage.kill(stage.run("killed", 2), why="enough", when=NOW)
    stage.tick(pulse_file="pulse.log")
    stage.queue.trouble = DOWN
    stage.wait(HOUR)
    stage.tick(pulse_file="pulse.log")
    found = pulses(log)
    assert found[0] == "done is finished: the training is complete"
    assert found[1].startswith("killed was stopped on purpose: ")
    assert found[2] == "done is unknown: the scheduler did not answer (squeue did not answer in 30 s)"


@pytest.mark.parametrize("through_a_link", [False, True])
def test_the_trainings_own_log_is_refused_also_through_a_link(pulsing: Stage, through_a_link: bool) -> None:
    own = pulsing.project.directory("gpt").path / "logs" / "gpt-1.out"
    own.write_text("step 1\n")
    (pulsing.project.loaded.project / "main_log.txt").symlink_to(own)
    faults = pulsing.faults(pulse_file="main_log.txt" if through_a_link else str(own))
    assert set(faults) == {"", "pulse-file"}
    assert own.read_text() == "step 1\n"


class KnowsOutputs(FakeScheduler):
    """A queue that knows output paths of jobs only from `scontrol show job`."""

    stdout = ""

    def job(self, job_id: JobId) -> Job:
        return replace(super().job(job_id), stdout=self.stdout)


def test_the_output_of_a_watched_job_is_refused(stage: Stage, tmp_path: Path) -> None:
    queue = KnowsOutputs(records=[a_job(1, **running())])
    queue.stdout = str(tmp_path / "main_log.txt")
    Path(queue.stdout).write_text("iteration 1\n")
    hard_link = tmp_path / "other.txt"
    hard_link.hardlink_to(queue.stdout)
    for name in (queue.stdout, str(hard_link)):
        (warned,) = [f for f in Stage(tmp_path, queue).tick(names=("gpt",), pulse_file=name) if f.fault == "pulse-file"]
        assert "is the output of job 1" in warned.summary
    assert Path(queue.stdout).read_text() == "iteration 1\n"


@pytest.mark.parametrize("kind", ["fifo", "directory", "missing directory"])
def test_a_write_error_is_reported_and_changes_nothing_else(pulsing: Stage, log: Path, kind: str) -> None:
    path = log
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = path / "deeper" / "pulse.log"
    faults = pulsing.faults(pulse_file=str(path))
    assert {name: verdict.value for name, verdict in faults.items()} == {"": "OK", "pulse-file": "WARNING"}


def test_a_full_disk_gives_the_hour_back(pulsing: Stage, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("resilience.watch.checks._job.pulse.os.write", full)
        assert "pulse-file" in pulsing.faults(pulse_file="pulse.log")
    assert pulsing.faults(pulse_file="pulse.log") == {"": OK}
    assert len(lines(log)) == 1


def test_a_truncated_line_is_ended_first(pulsing: Stage, log: Path) -> None:
    log.write_text("half a li")
    pulsing.tick(pulse_file="pulse.log")
    assert lines(log)[0] == "half a li" and len(lines(log)) == 2
