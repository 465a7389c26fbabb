"""Non-finite losses and spikes in the guards' journals: their findings, and when they are resolved."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from resilience.runs.run_files import read_tail
from resilience.watch.checks._log import rundirs
from resilience.watch.checks._log.losses import Training, loss_faults, parse_events, trainings_of, unresolved
from resilience.watch.checks._log.reading import LogReading
from tests.guard.guarded import a_launch
from tests.lab.fakes import NOW, FakeClock
from tests.lab.waiting import until
from tests.watch.checks.log.training_run import (
    ANYTHING,
    Happens,
    Run,
    Story,
    beats,
    begins,
    ends,
    follow,
    journals,
    line,
    nan,
    save,
    start,
)
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher
from tests.watch.checks.outcome import outcome


def finite(step: int, **more: Any) -> bytes:
    return line("loss_finite", step, **{"at": step, "after": 1, **more})


def spike(step: int, **more: Any) -> bytes:
    figures = {"loss": 7.9, "in_a_row": 3, "median": 2.0123, "mad": 0.04, "threshold": 2.44}
    return line("loss_spike", step, **{"at": step, **figures, **more})


def over(name: str, step: int, **more: Any) -> bytes:
    return line(name, step, **{"at": step, "after": 9, "median": 9.0, "before": 2.0, **more})


def stop(step: int, triggers: tuple[str, ...] = ("loss",), code: int = 1, **more: Any) -> bytes:
    fields: dict[str, Any] = {"save": False, "stop": True, "reasons": ["why"], "triggers": triggers, "exit_code": code}
    end = line("end", step, at=step + 2, exit_code=code, stopped=True, **more)
    return line("decision", step, at=step + 1, **fields, **more) + end


def lost(step: int = 12, before: int = 10, **more: Any) -> bytes:
    """Return an attempt that starts before the step at which its loss becomes NaN, and is stopped."""
    return start(before, **more) + nan(step, **more) + stop(step, **more)


NONFINITE, SPIKE = "CRITICAL loss-nonfinite", "WARNING loss-spike"
QUIET_RUN = start() + save(100) + line("phase", 100, at=100, phase="eval") + line("end", 200, at=200, exit_code=75)
STOPPED = lost(before=0)
LASTS = f"{NONFINITE}: the loss is NaN since step 12"
NAN = f"{NONFINITE}: the loss is NaN"
STOPS = ": the guard has stopped the training"
NAN_STOPS = f"{NAN} at step 12{STOPS}"
SPIKED = f"{SPIKE}: the loss rose to 7.9 from a median of 2.012 at step 203 and has not come down"
WAITS = " in attempt 1; attempt 2 has not trained past that step yet"

TABLE: dict[str, tuple[bytes, *tuple[str, ...]]] = {
    "nothing": (b"",),
    "a quiet training": (QUIET_RUN,),
    "a stop that the loss did not ask for": (start() + stop(12, ("kill",), 75),),
    "an error that another trigger reported": (start() + stop(12, ("mine",)),),
    "NaN that stopped it": (STOPPED, NAN_STOPS),
    "infinite, and saved before the stop": (
        start() + nan(12, loss="infinite") + stop(12) + save(12, at=14),
        f"{NONFINITE}: the loss is infinite at step 12{STOPS}",
    ),
    "NaN that lasts": (start() + nan(12) + save(500), LASTS),
    "NaN that lasts on one rank of several": (
        start() + nan(9, rank=5) + finite(10, rank=5) + nan(12, rank=3) + save(500), f"{LASTS} on rank 3"
    ),
    "NaN that passed": (
        start() + nan(12) + finite(14),
        "WARNING loss-nonfinite: the loss was NaN at step 12 and is finite again",
    ),
    "NaN that passed and came back": (start() + nan(12) + finite(14) + nan(90), f"{NAN} since step 90"),
    "NaN that passed on its rank before all stopped": (
        start() + nan(12, rank=3) + finite(13, rank=3) + stop(14), f"{NAN} at step 12 on rank 3{STOPS}"
    ),
    "the same, and NaN on the way back that passes": (
        start() + nan(12, rank=3) + finite(13, rank=3) + stop(14)
        + start(4, attempt=2) + nan(6, attempt=2) + finite(7, attempt=2),
        f"{NAN} at step 12 on rank 3{STOPS}{WAITS}",
    ),
    "NaN that only made a save, when a kill switch stopped it": (
        start() + nan(12) + stop(12, ("kill", "loss"), 75), LASTS
    ),
    "NaN of a rank whose journal was not read": (
        start() + stop(14), f"{NONFINITE}: the loss is not finite at step 14{STOPS}"
    ),
    "NaN on all ranks, first on the fifth": (
        start() + b"".join(nan(12 + (rank != 5), rank=rank) for rank in range(64)) + stop(15),
        f"{NAN} at step 12 on rank 5 and 63 others{STOPS}",
    ),
    "NaN on all ranks at once": (
        start() + b"".join(nan(12, rank=rank) for rank in (1, 0)) + stop(15),
        f"{NAN} at step 12 on rank 0 and 1 other{STOPS}",
    ),
    "a spike": (start() + spike(203), SPIKED),
    "a spike that is over": (start() + spike(203) + over("loss_normal", 230),),
    "a spike that became the level": (start() + spike(203) + over("loss_level", 400),),
    "a spike that ended in NaN": (
        start() + spike(203) + nan(204) + stop(204), f"{NAN} at step 204{STOPS}", SPIKED
    ),
    "a spike that made a save, while another trigger stopped it": (
        start() + spike(203) + stop(204, ("loss", "mine")), SPIKED
    ),
    "NaN before, and an attempt that has only begun": (STOPPED + start(10, attempt=2), NAN_STOPS + WAITS),
    "NaN before, and an attempt that was preempted before that step": (
        STOPPED + start(10, attempt=2) + line("end", 12, at=9, attempt=2), NAN_STOPS + WAITS
    ),
    "NaN before, and an attempt that has trained past it": (STOPPED + start(10, attempt=2) + save(13, attempt=2),),
    "NaN before, and an attempt whose start was not read": (STOPPED + save(13, attempt=2),),
    "NaN to the end, and an attempt that continues from there": (
        start() + nan(12) + save(500) + start(500, attempt=2) + line("phase", 500, at=1, attempt=2), LASTS + WAITS
    ),
    "NaN to the end, and a healthy attempt that continues from there": (
        start() + nan(12) + save(500) + start(500, attempt=2) + save(550, attempt=2),
    ),
    "NaN to the end, and an attempt that resumes from a checkpoint before": (
        start() + nan(12) + save(500) + start(10, attempt=2) + save(13, attempt=2),
    ),
    "a spike before, and an attempt that has trained past it": (
        start() + spike(203) + start(200, attempt=2) + save(250, attempt=2),
    ),
    "NaN before, and one that passes by itself on the way back": (
        STOPPED + start(4, attempt=2) + nan(6, attempt=2) + finite(7, attempt=2), NAN_STOPS + WAITS
    ),
    "NaN twice, at different steps": (STOPPED + lost(19, attempt=2), f"{NAN} at step 19{STOPS}"),
    "NaN twice, and well in between": (
        STOPPED + start(10, attempt=2) + save(50, attempt=2) + lost(attempt=3), NAN_STOPS
    ),
    "NaN three times, with one that did not come as far": (
        STOPPED + start(10, attempt=2) + nan(12, attempt=2) + stop(14, attempt=2) + start(10, attempt=3)
        + line("end", 11, at=1, attempt=3) + lost(attempt=4),
        f"{NAN} for the third time in a row, at step 12{STOPS}",
    ),
    "NaN again in a launch of the same attempt": (
        STOPPED + start(10, at=90.0) + nan(12, at=95.0)
        + line("decision", 12, at=96, stop=True, exit_code=1, triggers=["loss"]),
        f"{NAN} for the second time in a row, at step 12{STOPS}",
    ),
    "NaN, and a launch of the same attempt that has trained past it": (
        STOPPED + start(10, at=90.0) + save(13, at=99.0),
    ),
    "a gradient norm that is not finite any more, as on an overflow without end": (
        start() + line("grad_norm_nonfinite", 60, at=60, grad_norm="infinite", in_a_row=40)
        + stop(62, ("grad_norm",)), f"CRITICAL grad-norm-nonfinite: the gradient norm is infinite at step 60{STOPS}",
    ),
    "a spike of the gradient norm": (
        start() + line("grad_norm_spike", 60, at=60, grad_norm=80.0, in_a_row=3, median=2.0, mad=0.1, threshold=3.0),
        "WARNING grad-norm-spike: the gradient norm rose to 80 from a median of 2 at step 60 and has not come down",
    ),
    "a spike of the gradient norm that is over": (
        start() + line("grad_norm_spike", 60, at=60, grad_norm=80.0, in_a_row=3, median=2.0)
        + line("grad_norm_normal", 70, at=70, after=9),
    ),
    "a loss without a new best": (
        start() + line("loss_plateau", 900, at=90, median=2.1, best=2.0, best_step=300),
        "WARNING loss-plateau: the loss has no new best any more, up to step 900: its lowest median is 2 at step 300",
    ),
    "a loss with a new best again": (
        start() + line("loss_plateau", 900, at=90, median=2.1, best=2.0, best_step=300)
        + line("loss_improved", 950, at=95, median=1.9, before=2.0),
    ),
    "a loss that was stopped before, as the next attempt is told": (
        STOPPED + start(10, attempt=2) + line("save", 11, at=5, attempt=2)
        + b'{"event":"resumed_after","time":1005,"attempt":2,"rank":0,"stopped_step":9999,"times":1}\n',
        NAN_STOPS + WAITS,
    ),
    "an unprintable value": (
        start() + nan(12, loss="N\x1b[31m\ud800aN" + "!" * 99),
        f"{NONFINITE}: the loss is N[31maN!!!!!!!!!!! since step 12",
    ),
    "a line that a crash has cut": (start() + nan(12) + b'{"event":"loss_fin', LASTS),
    "lines that are damaged": (
        b'[1]\nnull\n{"event":"loss_nonfinite"}\n{"event":"loss_nonfinite","time":1e999,"step":Infinity}\n'
        b'{"event":"decision","step":7,"time":5,"stop":true,"exit_code":1,"triggers":null,"attempt":1}\n\xff\n'
        + STOPPED,
        NAN_STOPS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_journals_yield_these_faults(case: str) -> None:
    raw, *expected = TABLE[case]
    trainings = trainings_of("101", parse_events(raw))
    newest = max((training.attempt for training in trainings), default=1)
    assert [said for said, _ in judged(trainings, newest, NOW + 1000 * newest + 600)] == expected


def judged(trainings: list[Training], newest: int, now: float) -> list[tuple[str, str]]:
    """Return the faults of attempts, each with its advice."""
    reading = LogReading(run="gpt", attempt=newest, losses=unresolved(trainings))
    return [(f"{verdict.value} {fault}: {text}", advice) for verdict, fault, text, advice in loss_faults(reading, now)]


def test_the_order_in_which_journals_are_read_does_not_matter() -> None:
    lines = TABLE["NaN three times, with one that did not come as far"][0].splitlines()
    shuffled = trainings_of("101", parse_events(b"\n".join([*lines[5:], *lines[:5]])))
    assert "the third time in a row" in judged(shuffled, 4, NOW)[0][0]


def test_an_anomaly_that_ended_by_itself_is_reported_for_an_hour() -> None:
    trainings = trainings_of("101", parse_events(start() + nan(12) + finite(14)))
    since = NOW + 1000 + 14
    assert [len(judged(trainings, 1, since + age_s)) for age_s in (0, HOUR, HOUR + 1)] == [1, 1, 0]


def test_the_advice_names_the_log_and_the_step() -> None:
    ((_, advice),) = judged(trainings_of("101", parse_events(STOPPED)), 1, NOW)
    assert "resil logs gpt" in advice and "a checkpoint before step 12" in advice


# ---- in a run directory


def loses(attempt: int, job_id: int = 0) -> tuple[Happens, ...]:
    """Return an attempt that starts at step 10, and whose loss becomes NaN at step 12."""
    return begins(attempt, job_id), journals(lost(attempt=attempt), job_id or 100 + attempt), ends(attempt)


def trains(step: int, attempt: int = 2) -> Happens:
    return beats({0: (step, 0.1, "train")}, 100 + attempt, attempt=attempt)


STORIES: dict[str, Story] = {
    "many ranks and one fault are one finding": [
        (0, (journals(start() + b"".join(nan(12, rank=rank) for rank in range(64)) + stop(12)), ends(1)), NONFINITE,
         f"says: the loss is NaN at step 12 on rank 0 and 63 others{STOPS}; job 101 is over: exited, exit code 1\n")],
    "so many ranks are counted as are read": [
        (0, journals(start() + b"".join(nan(12, rank=rank) for rank in range(300))), NONFINITE,
         "on rank 0 and at least 99 others")],
    "each attempt that stops at the same step is the same fault, and they are counted": [
        (0, loses(attempt), NONFINITE, f"says: the loss is NaN {times}{STOPS}") for attempt, times in enumerate((
            "at step 12", "for the second time in a row, at step 12", "for the third time in a row, at step 12",
            "for the fourth time in a row, at step 12", *["for at least the fifth time in a row, at step 12"] * 3,
        ), start=1)],
    "attempts of one requeued job are distinguished": [
        (0, (*loses(1, 101), *loses(2, 101), *loses(3, 101)), NONFINITE, "for the third time in a row, at step 12")],
    "a fault lasts until a later attempt has trained past its step": [
        (0, loses(1), NONFINITE), (MINUTE, begins(2), NONFINITE),  # and not even its guard has begun
        (0, journals(start(10, attempt=2), 102), NONFINITE),
        *((MINUTE, trains(step), NONFINITE, WAITS) for step in (11, 12, 13)), (MINUTE, trains(20), "OK")],
    # All ranks stop a step or two later than the one that detected it; the heartbeat may show that first.
    "a heartbeat that is ahead of the journal ends nothing": [
        (0, (*loses(1), begins(2), journals(start(10, attempt=2), 102), trains(11)), ANYTHING),
        (MINUTE, trains(14), NONFINITE),
        (MINUTE, (journals(nan(12, attempt=2) + stop(14, attempt=2), 102), ends(2)), NONFINITE,
         "for the second time in a row, at step 12")],
    "an attempt that never trained hides nothing": [
        (0, (*loses(1), begins(2), ends(2), begins(3), ends(3)), NONFINITE, "attempt 3 has not trained past")],
    "a fault that the end of a long journal does not show any more lasts": [
        (0, journals(start() + nan(12)), NONFINITE),
        (0, journals(b"".join(save(step) for step in range(13, 1013))), NONFINITE),
        *[(MINUTE, None, NONFINITE, "the loss is NaN since step 12")] * 3,
        (0, journals(finite(1013)), "WARNING loss-nonfinite"), (3 * HOUR, trains(2000, 1), "OK")],
}  # fmt: skip


@pytest.mark.parametrize("claim", STORIES)
def test_a_run_with_a_loss_anomaly(watchdog: LogWatcher, run: Run, claim: str) -> None:
    follow(watchdog, run, STORIES[claim])


# ---- what is read


def test_only_the_end_of_a_huge_journal_is_read(watchdog: LogWatcher, run: Run) -> None:
    with open(run.journal(101), "wb") as file:
        file.truncate(2**36)  # a hole, too large to be read completely
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + nan(12))
    assert watchdog.outcome() == NONFINITE


def test_a_healthy_attempt_needs_only_its_own_journal(
    watchdog: LogWatcher, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: str, limit: int) -> tuple[bytes, bool]:
        read.append(Path(path).name)
        return read_tail(path, limit)

    monkeypatch.setattr(rundirs, "read_tail", counted)
    for attempt in range(1, 10):
        run.attempt(attempt)
        run.journal(100 + attempt, start(10 * attempt, attempt=attempt) + save(10 * attempt + 5, attempt=attempt))
    watchdog.findings()
    assert read == ["109.0.jsonl", "108.0.jsonl"]
    watchdog.findings()
    assert read[2:] == ["109.0.jsonl"]


def test_a_job_of_any_name_may_have_a_heartbeat(watchdog: LogWatcher, clock: FakeClock) -> None:
    run = Run(watchdog.directory, clock)
    (run.path / "beats" / "((.n1").write_text("")
    (run.path / "journal" / "((.0.jsonl").write_bytes(start(attempt=0) + nan(12, attempt=0))
    assert watchdog.outcome() == NONFINITE


def test_without_attempts_the_newest_jobs_journal_is_read(watchdog: LogWatcher, clock: FakeClock) -> None:
    ended = journals(start(attempt=0) + nan(12, attempt=0) + stop(12, attempt=0), 7)
    begun = journals(start(10, attempt=0, at=500.0), 8)
    story: Story = [
        (0, (beats({0: (12, 0.0, "train")}, 7, attempt=0), ended), NONFINITE, "the guard was closed at step 12"),
        (MINUTE, (beats({0: (10, 0.0, "train")}, 8, attempt=0), begun), NONFINITE),
        (0, journals(save(13, attempt=0, at=510.0), 8), "OK"),
    ]
    follow(watchdog, Run(watchdog.directory, clock), story)


# ---- real guards


def test_a_guarded_training_with_a_normal_loss_is_ok(watchdog: LogWatcher, run: Run) -> None:
    with run.guard(1) as guard:
        for step in range(1, 500):
            assert not guard.step(loss=2.0 + 0.01 * (step % 7))
        assert watchdog.outcome() == "OK"
    assert watchdog.outcome() == "OK"


def test_loss_events_of_a_real_guard_are_parsed(tmp_path: Path, run: Run) -> None:
    """A guard that only reports: a spike starts and ends, NaN starts and ends."""
    watchdog, journal = LogWatcher(tmp_path), run.journal(101)

    def after(event: bytes) -> str:
        """Return the outcome and the summary after the guard wrote this event."""
        until(lambda: journal.exists() and event in journal.read_bytes())
        finding = watchdog.finding()
        return f"{outcome(finding)}: {finding.summary}"

    with run.guard(1, loss_nonfinite="report") as guard:
        for step in range(200):
            guard.step(loss=2.0 + 0.01 * (step % 7))
        for _ in range(3):
            guard.step(loss=50.0)
        spiked = f"{SPIKE}: the loss rose to 50 from a median of 2.03 at step 203"
        assert after(b'"loss_spike"').startswith(spiked)
        guard.step(loss=2.0)
        assert after(b'"loss_normal"').startswith("OK: ")
        guard.step(loss=math.nan)
        assert after(b'"loss_nonfinite"').startswith(f"{NAN} since step 205")
        guard.step(loss=2.0)
        assert after(b'"loss_finite"').startswith("WARNING loss-nonfinite: ")


def test_the_same_nan_on_several_ranks_is_one_finding(tmp_path: Path, run: Run) -> None:
    directory = tmp_path / "launch"
    with a_launch(directory, run.path, 3, RESIL_JOB_ID="101", RESIL_ATTEMPT="1", NAN_AT="50") as launch:
        assert [process.wait(60) for process in launch.processes.values()] == [1, 1, 1]
    finding = LogWatcher(tmp_path).until(lambda finding: "others" in finding.summary)
    assert outcome(finding) == NONFINITE
    assert finding.summary == f"the loss is NaN at step 50 on rank 0 and 2 others{STOPS}"
