"""A loss that is not finite, or a spike, in the guards' journals: what people hear of it, and when it is over."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import TrainingGuard
from resilience.guard.heartbeat.run_directory import as_line
from resilience.runs.run_files import read_tail
from resilience.watch.checks._log import rundirs
from resilience.watch.checks._log.losses import Training, odd_losses, parse_events, standing, trainings_of
from resilience.watch.checks._log.reading import LogReading
from tests.fakes import NOW, FakeClock
from tests.guard.guarded import a_launch
from tests.guard.guards import QUIET, job_environ, wait_until
from tests.watch.checks.log.test_runs import HOUR, MINUTE, Run, told
from tests.watch.checks.log.watcher import LogWatcher


def line(name: str, step: int, *, rank: int = 0, at: float = 0.0, attempt: int = 1, **fields: Any) -> bytes:
    """A line of a journal, as the guard writes it; `at` is in seconds since the run began."""
    head = {"event": name, "time": NOW + 1000 * attempt + at, "attempt": attempt, "rank": rank, "host": "n1"}
    return as_line({**head, "step": step, **fields})


def start(step: int = 0, *, at: float = 0.0, **more: Any) -> bytes:
    return line("start", 0, at=at, **more) + (line("resume", step, at=at + 0.1, **more) if step else b"")


def nan(step: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"at": step, "loss": "NaN", "in_a_row": 1, **more}
    return line("loss_nonfinite", step, **fields)


def finite(step: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"at": step, "after": 1, **more}
    return line("loss_finite", step, **fields)


def spike(step: int, **more: Any) -> bytes:
    figures = {"loss": 7.9, "in_a_row": 3, "median": 2.0123, "mad": 0.04, "threshold": 2.44}
    fields: dict[str, Any] = {"at": step, **figures, **more}
    return line("loss_spike", step, **fields)


def over(name: str, step: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"at": step, "after": 9, "median": 9.0, "before": 2.0, **more}
    return line(name, step, **fields)


def stop(step: int, triggers: tuple[str, ...] = ("loss",), code: int = 1, **more: Any) -> bytes:
    fields: dict[str, Any] = {"save": False, "stop": True, "reasons": ["why"], "triggers": triggers, "exit_code": code}
    end = line("end", step, at=step + 2, exit_code=code, stopped=True, **more)
    return line("decision", step, at=step + 1, **fields, **more) + end


def save(step: int, **more: Any) -> bytes:
    fields: dict[str, Any] = {"at": step, "seconds": 1.0, **more}
    return line("save", step, **fields)


QUIET_RUN = start() + save(100) + line("phase", 100, at=100, phase="eval") + line("end", 200, at=200, exit_code=75)
STOPPED = start() + nan(12) + stop(12)
SPIKED = "the loss went up to 7.9 from a median of 2.012 at step 203 and has not come down"
NAN_STOPS = "the loss is NaN at step 12: the guard has stopped the training"
WAITS = " in attempt 1; attempt 2 has not trained past that step yet"

TABLE: dict[str, tuple[bytes, list[tuple[str, str, str]]]] = {
    "nothing": (b"", []),
    "a quiet training": (QUIET_RUN, []),
    "a stop that the loss did not ask for": (start() + stop(12, ("kill",), 75), []),
    "an error that another trigger told": (start() + stop(12, ("mine",)), []),
    "NaN that stopped it": (STOPPED, [("CRITICAL", "loss-nonfinite", NAN_STOPS)]),
    "infinite, and saved before the stop": (
        start() + nan(12, loss="infinite") + stop(12) + save(12, at=14),
        [("CRITICAL", "loss-nonfinite", "the loss is infinite at step 12: the guard has stopped the training")],
    ),
    "NaN that lasts": (
        start() + nan(12) + save(500),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN since step 12")],
    ),
    "NaN that lasts on one rank of several": (
        start() + nan(9, rank=5) + finite(10, rank=5) + nan(12, rank=3) + save(500),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN since step 12 on rank 3")],
    ),
    "NaN that passed": (
        start() + nan(12) + finite(14),
        [("WARNING", "loss-nonfinite", "the loss was NaN at step 12 and is finite again")],
    ),
    "NaN that passed and came back": (
        start() + nan(12) + finite(14) + nan(90),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN since step 90")],
    ),
    "NaN that passed on its rank before all stopped": (
        start() + nan(12, rank=3) + finite(13, rank=3) + stop(14),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN at step 12 on rank 3: the guard has stopped the training")],
    ),
    "the same, and NaN on the way back that passes": (
        start() + nan(12, rank=3) + finite(13, rank=3) + stop(14)
        + start(4, attempt=2) + nan(6, attempt=2) + finite(7, attempt=2),
        [(
            "CRITICAL", "loss-nonfinite",
            "the loss is NaN at step 12 on rank 3: the guard has stopped the training" + WAITS,
        )],
    ),
    "NaN that only made a save, when a kill switch stopped it": (
        start() + nan(12) + stop(12, ("kill", "loss"), 75),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN since step 12")],
    ),
    "NaN of a rank whose journal was not read": (
        start() + stop(14),
        [("CRITICAL", "loss-nonfinite", "the loss is not finite at step 14: the guard has stopped the training")],
    ),
    "NaN on all ranks, first on the fifth": (
        start() + b"".join(nan(12 + (rank != 5), rank=rank) for rank in range(64)) + stop(15),
        [(
            "CRITICAL", "loss-nonfinite",
            "the loss is NaN at step 12 on rank 5 and 63 others: the guard has stopped the training",
        )],
    ),
    "NaN on all ranks at once": (
        start() + b"".join(nan(12, rank=rank) for rank in (1, 0)) + stop(15),
        [(
            "CRITICAL", "loss-nonfinite",
            "the loss is NaN at step 12 on rank 0 and 1 other: the guard has stopped the training",
        )],
    ),
    "a spike": (
        start() + spike(203),
        [("WARNING", "loss-spike", SPIKED)],
    ),
    "a spike that is over": (start() + spike(203) + over("loss_normal", 230), []),
    "a spike that became the level": (start() + spike(203) + over("loss_level", 400), []),
    "a spike that ended in NaN": (
        start() + spike(203) + nan(204) + stop(204),
        [
            ("CRITICAL", "loss-nonfinite", "the loss is NaN at step 204: the guard has stopped the training"),
            ("WARNING", "loss-spike", SPIKED),
        ],
    ),
    "a spike that made a save, while another trigger stopped it": (
        start() + spike(203) + stop(204, ("loss", "mine")),
        [("WARNING", "loss-spike", SPIKED)],
    ),
    "NaN before, and an attempt that has only begun": (
        STOPPED + start(10, attempt=2), [("CRITICAL", "loss-nonfinite", NAN_STOPS + WAITS)]
    ),
    "NaN before, and an attempt that was preempted before that step": (
        STOPPED + start(10, attempt=2) + line("end", 12, at=9, attempt=2),
        [("CRITICAL", "loss-nonfinite", NAN_STOPS + WAITS)],
    ),
    "NaN before, and an attempt that has trained past it": (STOPPED + start(10, attempt=2) + save(13, attempt=2), []),
    "NaN before, and an attempt whose start was not read": (STOPPED + save(13, attempt=2), []),
    "NaN to the end, and an attempt that goes on from there": (
        start() + nan(12) + save(500) + start(500, attempt=2) + line("phase", 500, at=1, attempt=2),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN since step 12" + WAITS)],
    ),
    "NaN to the end, and an attempt that goes on from there well": (
        start() + nan(12) + save(500) + start(500, attempt=2) + save(550, attempt=2),
        [],
    ),
    "NaN to the end, and an attempt that goes on from a checkpoint before": (
        start() + nan(12) + save(500) + start(10, attempt=2) + save(13, attempt=2),
        [],
    ),
    "a spike before, and an attempt that has trained past it": (
        start() + spike(203) + start(200, attempt=2) + save(250, attempt=2), []
    ),
    "NaN before, and one that passes by itself on the way back": (
        STOPPED + start(4, attempt=2) + nan(6, attempt=2) + finite(7, attempt=2),
        [("CRITICAL", "loss-nonfinite", NAN_STOPS + WAITS)],
    ),
    "NaN twice, at different steps": (
        STOPPED + start(10, attempt=2) + nan(19, attempt=2) + stop(19, attempt=2),
        [("CRITICAL", "loss-nonfinite", "the loss is NaN at step 19: the guard has stopped the training")],
    ),
    "NaN twice, and well in between": (
        STOPPED + start(10, attempt=2) + save(50, attempt=2) + start(10, attempt=3) + nan(12, attempt=3)
        + stop(12, attempt=3),
        [("CRITICAL", "loss-nonfinite", NAN_STOPS)],
    ),
    "NaN three times, with one that did not come as far": (
        STOPPED + start(10, attempt=2) + nan(12, attempt=2) + stop(14, attempt=2) + start(10, attempt=3)
        + line("end", 11, at=1, attempt=3) + start(10, attempt=4) + nan(12, attempt=4) + stop(12, attempt=4),
        [(
            "CRITICAL", "loss-nonfinite",
            "the loss is NaN for the third time in a row, at step 12: the guard has stopped the training",
        )],
    ),
    "NaN again in a launch of the same attempt": (
        STOPPED + start(10, at=90.0) + nan(12, at=95.0) + line("decision", 12, at=96, stop=True, exit_code=1,
                                                               triggers=["loss"]),
        [(
            "CRITICAL", "loss-nonfinite",
            "the loss is NaN for the second time in a row, at step 12: the guard has stopped the training",
        )],
    ),
    "NaN, and a launch of the same attempt that has trained past it": (
        STOPPED + start(10, at=90.0) + save(13, at=99.0), []
    ),
    "a word that nobody would print": (
        start() + nan(12, loss="N\x1b[31m\ud800aN" + "!" * 99),
        [("CRITICAL", "loss-nonfinite", "the loss is N[31maN!!!!!!!!!!! since step 12")],
    ),
    "a line that a crash has cut": (start() + nan(12) + b'{"event":"loss_fin', [
        ("CRITICAL", "loss-nonfinite", "the loss is NaN since step 12"),
    ]),
    "lines that are damaged": (
        b'[1]\nnull\n{"event":"loss_nonfinite"}\n{"event":"loss_nonfinite","time":1e999,"step":Infinity}\n'
        b'{"event":"decision","step":7,"time":5,"stop":true,"exit_code":1,"triggers":null,"attempt":1}\n\xff\n'
        + STOPPED,
        [("CRITICAL", "loss-nonfinite", NAN_STOPS)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_what_the_journals_tell_is_what_people_hear(case: str) -> None:
    raw, expected = TABLE[case]
    trainings = trainings_of("101", parse_events(raw))
    newest = max((training.attempt for training in trainings), default=1)
    said = hear(trainings, newest, NOW + 1000 * newest + 600)
    assert [(verdict, fault, text) for verdict, fault, text, _ in said] == expected


def hear(trainings: list[Training], newest: int, now: float) -> list[tuple[str, str, str, str]]:
    reading = LogReading(run="gpt", attempt=newest, losses=standing(trainings))
    return [(verdict.value, *words) for verdict, *words in odd_losses(reading, now)]  # type: ignore[misc]


def test_the_order_in_which_journals_are_read_does_not_matter() -> None:
    raw = TABLE["NaN three times, with one that did not come as far"][0]
    lines = raw.splitlines()
    shuffled = trainings_of("101", parse_events(b"\n".join([*lines[5:], *lines[:5]])))
    assert "the third time in a row" in hear(shuffled, 4, NOW)[0][2]


def test_what_passed_by_itself_is_told_for_an_hour() -> None:
    trainings = trainings_of("101", parse_events(start() + nan(12) + finite(14)))
    since = NOW + 1000 + 14
    assert [len(hear(trainings, 1, since + age_s)) for age_s in (0, HOUR, HOUR + 1)] == [1, 1, 0]


def test_the_advice_names_the_log_and_the_step() -> None:
    ((*_, advice),) = hear(trainings_of("101", parse_events(STOPPED)), 1, NOW)
    assert "resil logs gpt" in advice and "a checkpoint before step 12" in advice


# ---- in a run directory


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run(tmp_path: Path, clock: FakeClock) -> Run:
    one = Run(tmp_path, clock)
    one.attempt(1, 101)
    return one


@pytest.fixture
def watchdog(tmp_path: Path, clock: FakeClock) -> LogWatcher:
    return LogWatcher(tmp_path, clock=clock)


def write(run: Run, job: int, raw: bytes) -> None:
    """Add lines to the journals of the ranks that they are of."""
    for one in raw.splitlines(keepends=True):
        rank = json.loads(one)["rank"]
        with open(run.path / "journal" / f"{job}.{rank}.jsonl", "ab") as file:
            file.write(one)


def stopped(run: Run, attempt: int, step: int = 12) -> None:
    """An attempt, begun at step 10, whose loss becomes NaN."""
    run.attempt(attempt, 100 + attempt)
    raw = start(10, attempt=attempt) + nan(step, attempt=attempt) + stop(step, attempt=attempt)
    write(run, 100 + attempt, raw)
    run.end(attempt, "exited")


def test_many_ranks_and_one_fault_are_one_finding(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + b"".join(nan(12, rank=rank) for rank in range(64)) + stop(12))
    run.end(1, "exited")
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "loss-nonfinite") and (finding.subject, finding.run) == ("gpt", "gpt")
    assert finding.summary == (
        "the loss is NaN at step 12 on rank 0 and 63 others: the guard has stopped the training; "
        "job 101 is over: exited with 1"
    )


def test_so_many_ranks_are_counted_as_are_read(watchdog: LogWatcher, run: Run) -> None:
    write(run, 101, start() + b"".join(nan(12, rank=rank) for rank in range(300)))
    assert "on rank 0 and at least 99 others" in watchdog.one().summary


def test_each_attempt_that_stops_at_the_same_step_is_the_same_fault_and_they_are_counted(
    watchdog: LogWatcher, run: Run
) -> None:
    said = []
    for attempt in range(1, 8):
        stopped(run, attempt)
        finding = watchdog.one()
        assert told(finding) == ("CRITICAL", "loss-nonfinite")
        said.append(finding.summary.partition(":")[0])
    assert said[0] == "the loss is NaN at step 12"
    assert said[1:5] == [
        f"the loss is NaN for {which} time in a row, at step 12"
        for which in ("the second", "the third", "the fourth", "at least the fifth")
    ]
    assert said[5:] == said[4:5] * 2


def test_attempts_of_one_job_that_was_requeued_are_told_apart(watchdog: LogWatcher, run: Run) -> None:
    for attempt in (1, 2, 3):
        run.attempt(attempt, 101)
        write(run, 101, start(10, attempt=attempt) + nan(12, attempt=attempt) + stop(12, attempt=attempt))
        run.end(attempt, "exited")
    assert "for the third time in a row, at step 12" in watchdog.one().summary


def test_a_fault_lasts_until_a_later_attempt_has_trained_past_its_step(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    stopped(run, 1)
    clock.sleep(MINUTE)
    run.attempt(2, 102)  # and not even its guard has begun
    assert told(watchdog.look()[0]) == ("CRITICAL", "loss-nonfinite")
    write(run, 102, start(10, attempt=2))
    for step in (11, 12, 13):
        clock.sleep(MINUTE)
        run.beat(102, {0: (step, 0.1, "train")}, attempt=2)
        finding = watchdog.one()
        assert told(finding) == ("CRITICAL", "loss-nonfinite")
        assert "in attempt 1; attempt 2 has not trained past that step yet" in finding.summary
    clock.sleep(MINUTE)
    run.beat(102, {0: (20, 0.1, "train")}, attempt=2)
    assert told(watchdog.one()) == ("OK", "")


def test_a_heartbeat_that_is_ahead_of_the_journal_ends_nothing(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    """All ranks stop a step or two later than the one that saw it; the heartbeat may tell of that first."""
    stopped(run, 1)
    run.attempt(2, 102)
    write(run, 102, start(10, attempt=2))
    run.beat(102, {0: (11, 0.1, "train")}, attempt=2)
    watchdog.look()
    clock.sleep(MINUTE)
    run.beat(102, {0: (14, 0.1, "train")}, attempt=2)
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    write(run, 102, nan(12, attempt=2) + stop(14, attempt=2))
    run.end(2, "exited")
    clock.sleep(MINUTE)
    assert "for the second time in a row, at step 12" in watchdog.one().summary


def test_an_attempt_that_never_trained_hides_nothing(tmp_path: Path, run: Run, clock: FakeClock) -> None:
    stopped(run, 1)
    for attempt in (2, 3):
        run.attempt(attempt, 100 + attempt)
        run.end(attempt, "exited")
    finding = LogWatcher(tmp_path, clock=clock).one()  # nothing is remembered
    assert told(finding) == ("CRITICAL", "loss-nonfinite") and "attempt 3 has not trained past" in finding.summary


def test_a_finished_run_has_no_fault(watchdog: LogWatcher, run: Run) -> None:
    stopped(run, 1)
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    (run.path / "finished").write_text("attempt = 1\n")
    os.utime(run.path / "finished", (watchdog.clock.now(), watchdog.clock.now()))
    assert told(watchdog.one()) == ("OK", "")


def test_what_was_wrong_with_a_run_that_was_removed_is_over(watchdog: LogWatcher, run: Run) -> None:
    stopped(run, 1)
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    shutil.rmtree(run.path)
    assert told(watchdog.one()) == ("OK", "")
    assert watchdog.look() == []


def test_what_stopped_a_run_long_ago_is_not_said_to_be_over(watchdog: LogWatcher, run: Run, clock: FakeClock) -> None:
    stopped(run, 1)
    watchdog.look()
    clock.sleep(48 * HOUR)
    assert watchdog.look() == []
    assert told(LogWatcher(watchdog.scene.project, "gpt", clock=clock).one()) == ("CRITICAL", "loss-nonfinite")
    run.attempt(2, 102)
    write(run, 102, start(10, attempt=2) + save(13, attempt=2))
    assert told(watchdog.one()) == ("OK", "")


def test_a_loss_that_is_odd_is_told_besides_what_else_is_wrong(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    run.beat(101, {0: (12, 0.0, "train")})
    write(run, 101, start() + nan(12))
    watchdog.look()
    clock.sleep(5 * HOUR)
    assert {told(finding) for finding in watchdog.look()} == {("CRITICAL", "loss-nonfinite"), ("CRITICAL", "silent")}


# ---- what is read


def test_a_fault_that_the_end_of_a_long_journal_does_not_show_any_more_lasts(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    write(run, 101, start() + nan(12))
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    write(run, 101, b"".join(save(step) for step in range(13, 1013)))
    for _ in range(3):
        clock.sleep(MINUTE)
        assert "the loss is NaN since step 12" in watchdog.one().summary
    write(run, 101, finite(1013))
    assert told(watchdog.one()) == ("WARNING", "loss-nonfinite")
    clock.sleep(3 * HOUR)
    run.beat(101, {0: (2000, 0.1, "train")})
    assert told(watchdog.one()) == ("OK", "")


def test_a_journal_that_cannot_be_read_is_no_verdict_and_ends_no_fault(watchdog: LogWatcher, run: Run) -> None:
    path = run.path / "journal" / "101.0.jsonl"
    path.mkdir()
    assert told(watchdog.one()) == ("OK", "")
    path.rmdir()
    write(run, 101, start() + nan(12))
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    for place in (path, path.parent):
        aside = place.with_name("aside")
        place.rename(aside)
        place.touch() if place == path.parent else os.mkfifo(place)
        assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
        place.unlink()
        aside.rename(place)


def test_a_run_that_cannot_be_looked_at_is_unknown_and_ends_no_fault(
    watchdog: LogWatcher, run: Run, clock: FakeClock
) -> None:
    write(run, 101, start() + nan(12))
    watchdog.look()
    write(run, 101, b"".join(save(step) for step in range(13, 1013)))
    attempts = run.path / "attempts"
    attempts.rename(run.path / "aside")
    attempts.symlink_to("attempts")  # cannot be listed: ELOOP
    assert told(watchdog.one()) == ("UNKNOWN", "not-read")
    attempts.unlink()
    (run.path / "aside").rename(attempts)
    assert "the loss is NaN since step 12" in watchdog.one().summary


def test_of_a_huge_journal_only_the_end_is_read(watchdog: LogWatcher, run: Run) -> None:
    path = run.path / "journal" / "101.0.jsonl"
    with open(path, "wb") as file:
        file.truncate(2**36)  # a hole, which nobody could read to its end
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + nan(12))
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")


def test_a_healthy_attempt_costs_no_look_at_those_before(
    watchdog: LogWatcher, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: str, limit: int) -> tuple[bytes, bool]:
        read.append(Path(path).name)
        return read_tail(path, limit)

    monkeypatch.setattr(rundirs, "read_tail", counted)
    for attempt in range(1, 10):
        run.attempt(attempt, 100 + attempt)
        write(run, 100 + attempt, start(10 * attempt, attempt=attempt) + save(10 * attempt + 5, attempt=attempt))
    watchdog.look()
    assert read == ["109.0.jsonl", "108.0.jsonl"]
    watchdog.look()
    assert read[2:] == ["109.0.jsonl"]


def test_a_job_of_any_name_may_have_a_heartbeat(tmp_path: Path, clock: FakeClock) -> None:
    run = Run(tmp_path, clock)
    (run.path / "beats" / "((.n1").write_text("")
    (run.path / "journal" / "((.0.jsonl").write_bytes(start(attempt=0) + nan(12, attempt=0))
    assert told(LogWatcher(tmp_path, clock=clock).one()) == ("CRITICAL", "loss-nonfinite")


def test_without_attempts_the_newest_jobs_guard_is_heard(tmp_path: Path, clock: FakeClock) -> None:
    run = Run(tmp_path, clock)
    run.beat(7, {0: (12, 0.0, "train")}, attempt=0)
    write(run, 7, start(attempt=0) + nan(12, attempt=0) + stop(12, attempt=0))
    watchdog = LogWatcher(tmp_path, clock=clock)
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "loss-nonfinite") and "the guard was closed at step 12" in finding.summary
    clock.sleep(MINUTE)
    run.beat(8, {0: (10, 0.0, "train")}, attempt=0)
    write(run, 8, start(10, attempt=0, at=500.0))
    assert told(watchdog.one()) == ("CRITICAL", "loss-nonfinite")
    write(run, 8, save(13, attempt=0, at=510.0))
    assert told(watchdog.one()) == ("OK", "")


# ---- real guards


def guarded(run: Run, attempt: int, **options: Any) -> TrainingGuard:
    run.attempt(attempt, 100 + attempt)
    environ = job_environ(run.path, RESIL_JOB_ID=str(100 + attempt), RESIL_ATTEMPT=str(attempt))
    return TrainingGuard.from_env(environ, **{**QUIET, "say": lambda text: None, **options})


def test_a_guarded_training_whose_loss_is_quiet_is_ok(watchdog: LogWatcher, run: Run) -> None:
    with guarded(run, 1) as guard:
        for step in range(1, 500):
            assert not guard.step(loss=2.0 + 0.01 * (step % 7))
        assert told(watchdog.one()) == ("OK", "")
    assert told(watchdog.one()) == ("OK", "")


def test_what_a_real_guard_writes_of_its_loss_is_understood(tmp_path: Path, run: Run) -> None:
    """The whole way of one that only reports: a spike comes and goes, NaN comes and goes."""
    watchdog = LogWatcher(tmp_path)
    journal = run.path / "journal" / "101.0.jsonl"

    def until_told(word: bytes) -> None:
        wait_until(lambda: journal.exists() and word in journal.read_bytes())

    with guarded(run, 1, loss_nonfinite="report") as guard:
        for step in range(200):
            guard.step(loss=2.0 + 0.01 * (step % 7))
        for _ in range(3):
            guard.step(loss=50.0)
        until_told(b'"loss_spike"')
        finding = watchdog.one()
        assert told(finding) == ("WARNING", "loss-spike")
        assert "the loss went up to 50 from a median of 2.03 at step 203" in finding.summary
        guard.step(loss=2.0)
        until_told(b'"loss_normal"')
        assert told(watchdog.one()) == ("OK", "")
        guard.step(loss=math.nan)
        until_told(b'"loss_nonfinite"')
        assert "the loss is NaN since step 205" in watchdog.one().summary
        guard.step(loss=2.0)
        until_told(b'"loss_finite"')
        assert told(watchdog.one()) == ("WARNING", "loss-nonfinite")


def test_ranks_that_see_the_same_nan_are_one_finding(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "launch"
    with a_launch(folder, run.path, 3, RESIL_JOB_ID="101", RESIL_ATTEMPT="1", NAN_AT="50") as launch:
        assert [process.wait(60) for process in launch.processes.values()] == [1, 1, 1]
    finding = LogWatcher(tmp_path).until(lambda finding: "others" in finding.summary)
    assert told(finding) == ("CRITICAL", "loss-nonfinite")
    assert finding.summary == "the loss is NaN at step 50 on rank 0 and 2 others: the guard has stopped the training"
