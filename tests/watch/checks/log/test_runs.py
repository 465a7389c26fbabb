"""Runs of the state directory: the guard's heartbeat beats the log, and what is over is not awaited."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from resilience import layout
from resilience.finding import Finding
from resilience.guard.heartbeat.beat import GONE, RUNNING, Pulse, RankBeat, compose
from tests.fakes import FakeClock
from tests.guard.guards import make_run
from tests.watch.checks.log.watcher import LogWatcher, write

MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Run:
    """A run directory written by hand."""

    def __init__(self, folder: Path, clock: FakeClock, name: str = "gpt") -> None:
        self.clock = clock
        self.path = make_run(folder / "runs" / name)
        (self.path / layout.RUN_FILE).write_text('[run]\nname = "gpt"\n')

    def attempt(self, number: int, job_id: int) -> None:
        text = (
            f'number = {number}\njob_id = {job_id}\nlabel = "{job_id}"\nhost = "n1"\nstart = {int(self.clock.time)}\n'
        )
        (self.path / "attempts" / layout.attempt_file(number)).write_text(text)

    def end(self, number: int, word: str) -> None:
        text = f'end = "{word}"\nexit_code = 1\ntime = {int(self.clock.time)}\n'
        (self.path / "attempts" / layout.attempt_end_file(number)).write_text(text)

    def log(self, job_id: int, text: str, age_s: float = 0.0) -> Path:
        return write(self.path / "logs" / f"gpt-{job_id}.out", text, at=self.clock.time - age_s, append=True)

    def beat(
        self, job_id: int, ranks: dict[int, tuple[int, float, str]], *, attempt: int = 1, host: str = "n1",
        ahead_s: float = 0.0, gone: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """ranks: number -> (step, seconds since it advanced, phase); `ahead_s`: of the node's clock."""
        now = self.clock.time + ahead_s
        beats = {}
        for number, (step, quiet_s, phase) in ranks.items():
            pulse = Pulse(now - quiet_s)
            pulse.steps, pulse.phase = step, phase
            beats[number] = RankBeat(4000 + number, pulse, GONE if number in gone else RUNNING)
        path = self.path / "beats" / f"{job_id}.{host}"
        path.write_text(compose(attempt, host, beats, now))
        os.utime(path, (self.clock.time, self.clock.time))


@pytest.fixture
def run(tmp_path: Path, clock: FakeClock) -> Run:
    one = Run(tmp_path, clock)
    one.attempt(1, 101)
    return one


def told(finding: Finding) -> tuple[str, str]:
    return finding.verdict.value, finding.fault


def watcher(folder: Path, clock: FakeClock, *paths: str, **settings: Any) -> LogWatcher:
    return LogWatcher(folder, *paths, clock=clock, **settings)


def test_without_runs_nothing_is_awaited_and_that_is_said(tmp_path: Path, clock: FakeClock) -> None:
    (finding,) = watcher(tmp_path, clock).look_at_all()
    assert told(finding) == ("OK", "") and finding.summary == f"no run is under way in {tmp_path}/runs"
    assert finding.subject == str(tmp_path / "runs")


def test_the_newest_attempts_log_is_watched_without_configuration(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.log(100, "step 900 loss\n", age_s=5 * HOUR)
    watchdog = watcher(tmp_path, clock)
    assert told(watchdog.one()) == ("OK", "")
    run.log(101, "step 901 loss\n")
    finding = watchdog.one()
    assert (finding.subject, finding.run, finding.summary[:8]) == ("gpt", "gpt", "step 901")
    clock.sleep(HOUR)
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "silent") and "resil logs gpt" in finding.advice


def test_a_job_that_just_began_may_take_its_time(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    assert "no log and no heartbeat yet" in watchdog.one().summary
    clock.sleep(HOUR)
    assert told(watchdog.one()) == ("UNKNOWN", "missing")
    run.log(101, "building the data set\n", age_s=2 * HOUR)  # appended to what the job before left
    run.attempt(2, 101)
    assert told(watchdog.one()) == ("OK", "")


def test_what_the_job_before_left_in_the_log_does_not_hurry_the_next(
    tmp_path: Path, clock: FakeClock, run: Run
) -> None:
    run.log(101, "iteration 7/ 9 | elapsed time per iteration (s): 1.0 |\n", age_s=HOUR)
    run.attempt(2, 101)  # requeued, and the log appended to
    clock.sleep(10 * MINUTE)
    assert told(watcher(tmp_path, clock).one()) == ("OK", "")
    clock.sleep(25 * MINUTE)
    assert told(watcher(tmp_path, clock).one()) == ("CRITICAL", "silent")


@pytest.mark.parametrize("word", ["exited", "stopped", "terminated", "lost", "superseded"])
def test_the_log_of_a_job_that_is_over_does_not_hang(tmp_path: Path, clock: FakeClock, run: Run, word: str) -> None:
    run.log(101, "step 901 loss\nCUDA out of memory\n")
    run.end(1, word)
    clock.sleep(5 * HOUR)
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("OK", "") and f"job 101 is over: {word} with 1" in finding.summary


def test_a_finished_run_is_not_awaited_and_later_not_even_looked_at(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.log(101, "step 901 loss\n")
    write(run.path / "finished", "attempt = 1\n", at=clock.time)
    watchdog = watcher(tmp_path, clock)
    assert watchdog.one().summary.startswith("the run is finished")
    clock.sleep(48 * HOUR)
    assert watchdog.look() == []
    assert watcher(tmp_path, clock, "gpt").one().summary.startswith("the run is finished")


def test_a_heartbeat_beats_a_silent_log(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    run.log(101, "step 1 loss\n")
    for tick in range(100):
        run.beat(101, {0: (10 * tick, 1.0, "train"), 1: (10 * tick, 2.0, "train")})
        finding = watchdog.one()
        assert told(finding) == ("OK", "")
        clock.sleep(MINUTE)
    assert finding.summary == "step 990 2 s ago, usually every 6 s (heartbeat of 2 ranks)"
    assert told(watcher(tmp_path, clock, heartbeat=False).one()) == ("CRITICAL", "silent")


def test_a_rank_that_stands_still_is_named_though_the_log_goes_on(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    for tick in range(12):
        run.log(101, f"step {tick} loss\n")
        run.beat(101, {0: (tick, 1.0, "train"), 1: (tick, 1.0, "train")}, host="n1")
        run.beat(101, {2: (tick, 1.0, "train"), 3: (min(tick, 4), max(0, tick - 4) * MINUTE, "train")}, host="n2")
        finding = watchdog.one()
        clock.sleep(MINUTE)
    assert told(finding) == ("CRITICAL", "no-progress")
    assert "rank 3 on n2 is the slowest of 4" in finding.summary and "(4 at " in finding.summary
    assert "on n2: py-spy" in finding.advice


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
def test_a_node_whose_clock_is_wrong_does_not_hang(tmp_path: Path, clock: FakeClock, run: Run, ahead_s: float) -> None:
    watchdog = watcher(tmp_path, clock)
    for tick in range(5):
        run.beat(101, {0: (tick, 1.0, "train")}, ahead_s=ahead_s)
        assert told(watchdog.one()) == ("OK", "")
        clock.sleep(MINUTE)


def test_a_heartbeat_whose_mirror_is_dead_gives_way_to_the_log(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    run.beat(101, {0: (5, 1.0, "train")})
    for step in range(5, 40):
        run.log(101, f"step {step} loss\n")
        finding = watchdog.one()
        assert told(finding) == ("OK", "")
        clock.sleep(MINUTE)
    assert finding.summary.startswith("step 39")
    assert any("mirror is dead" in line for line in finding.looked)
    clock.sleep(HOUR)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


def test_a_heartbeat_that_stands_still_with_the_log_is_a_hang(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    for step in range(5):
        run.log(101, f"step {step} loss\n")
        run.beat(101, {0: (step, 0.0, "train")})
        watchdog.look()
        clock.sleep(MINUTE)
    clock.sleep(HOUR)
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "silent") and "its heartbeat stands still as well" in finding.summary


@pytest.mark.parametrize("phase", ["eval", "validation", "save", "start"])
def test_a_phase_of_the_heartbeat_has_its_own_allowance(tmp_path: Path, clock: FakeClock, run: Run, phase: str) -> None:
    watchdog = watcher(tmp_path, clock)
    for step in range(5):
        run.beat(101, {0: (step, 0.0, "train"), 1: (step, 0.0, "train")})
        watchdog.look()
        clock.sleep(10.0)
    clock.sleep(20 * MINUTE)
    quiet_s = 20 * MINUTE + 10
    run.beat(101, {0: (4, quiet_s, phase), 1: (4, quiet_s, "train")})  # the others wait for the one that saves
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(20 * MINUTE)
    run.beat(101, {0: (4, quiet_s + 20 * MINUTE, phase), 1: (4, quiet_s + 20 * MINUTE, "train")})
    assert told(watchdog.one()) == ("CRITICAL", "silent")


def test_a_rank_that_ended_without_a_word_is_told(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    run.beat(101, {0: (9, 1.0, "train"), 1: (9, 1.0, "train")}, gone=(1,))
    finding = watchdog.one()
    assert told(finding) == ("WARNING", "rank-gone") and "rank 1 on n1 has ended without a word" in finding.summary
    clock.sleep(10 * MINUTE)
    run.beat(101, {0: (9, 601.0, "train"), 1: (9, 601.0, "train")}, gone=(1,))
    assert told(watchdog.one()) == ("CRITICAL", "rank-gone")


def test_a_heartbeat_of_an_earlier_attempt_says_nothing(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.beat(101, {0: (900, 1.0, "train")}, attempt=1)
    clock.sleep(HOUR)
    run.attempt(2, 101)  # requeued: the same job
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("OK", "") and "began" in finding.summary


def test_a_new_attempt_may_begin_below_the_last_step(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock)
    run.log(101, "".join(f"step {n} loss\n" for n in range(90, 101)))
    watchdog.look()
    clock.sleep(MINUTE)
    run.attempt(2, 101)
    run.log(101, "step 51 loss\nstep 52 loss\n")
    finding = watchdog.one()
    assert told(finding) == ("OK", "") and finding.summary.startswith("step 52")


def test_what_was_wrong_with_a_run_that_was_removed_is_over(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.log(101, "step 5 loss\n")
    watchdog = watcher(tmp_path, clock)
    clock.sleep(5 * HOUR)
    assert told(watchdog.one()) == ("CRITICAL", "silent")
    shutil.rmtree(run.path)
    finding = watchdog.one()
    assert (finding.subject, *told(finding)) == ("gpt", "OK", "") and "no longer there" in finding.summary
    assert watchdog.look() == []


def test_damaged_heartbeats_are_passed_over(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.log(101, "step 5 loss\n")
    for host, content in {
        "a": b"\xff\x00", "b": b"time = 1", "c": b"rank = 5\ntime = 1", "d": b'time = "x"\n[rank.0]\n',
        "e": b'attempt = 1\nhost = "e"\ntime = 5\n[rank.0]\nstep = "x"\n', "f": b"a = " + b"[" * 5000,
    }.items():  # fmt: skip
        (run.path / "beats" / f"101.{host}").write_bytes(content)
    assert told(watcher(tmp_path, clock).one()) == ("OK", "")


def test_one_of_a_runs_logs_that_goes_on_is_enough(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    watchdog = watcher(tmp_path, clock, timeout_s=300.0)
    for tick in range(10):
        for rank in range(3):
            if rank == 0 or tick == 0:
                path = run.path / "logs" / f"gpt-101.rank{rank}.out"
                write(path, f"step {tick} loss\n", at=clock.time, append=True)
        finding = watchdog.one()
        clock.sleep(MINUTE)
    assert told(finding) == ("OK", "") and finding.subject == "gpt"


def test_a_training_said_done_whose_job_never_ends_is_told(tmp_path: Path, clock: FakeClock, run: Run) -> None:
    run.log(101, "step 5 loss\n[exiting program after 10 minutes]\n")
    watchdog = watcher(tmp_path, clock)
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(2 * HOUR)
    assert told(watchdog.one()) == ("WARNING", "not-ended")


def test_the_guards_last_event_ends_a_training_that_no_template_started(tmp_path: Path, clock: FakeClock) -> None:
    run = Run(tmp_path, clock)
    run.beat(7, {0: (5, 0.0, "train")}, attempt=0)
    watchdog = watcher(tmp_path, clock)
    assert watchdog.one().summary.startswith("step 5")
    event = f'{{"event":"end","time":{clock.time},"step":5,"exit_code":0}}\n'
    (run.path / "journal" / "7.0.jsonl").write_text('{"event":"start"}\n' + event)
    clock.sleep(2 * HOUR)
    assert watchdog.one().summary.startswith("the guard was closed at step 5")


def test_many_runs_have_a_finding_each(tmp_path: Path, clock: FakeClock) -> None:
    for number in range(50):
        Run(tmp_path, clock, f"run{number:02d}").attempt(1, 200 + number)
    clock.sleep(2 * HOUR)
    for number in range(50):
        run = tmp_path / "runs" / f"run{number:02d}" / "logs" / f"gpt-{200 + number}.out"
        write(run, "step 5 loss\n", at=clock.time - (HOUR if number == 7 else 1.0))
    found = watcher(tmp_path, clock).look()
    assert len(found) == 50
    assert [finding.subject for finding in found if finding.fault] == ["run07"]
