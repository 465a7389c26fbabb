"""`resil watch log`: what is said of logs, tick by tick, by a clock that is set by hand.

What the scripts of earlier trainings got wrong stands here as well: a log's mtime is no progress (their own hourly line
kept it young), neither is any write, nor rank 0's alone; a gap for an evaluation or a save is no hang.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import ProbeError, SettingsError
from resilience.finding import Finding, Verdict
from resilience.watch.checks.log import CHECK
from tests.fakes import NOW, FakeClock
from tests.watch.checks.log.watcher import LogWatcher, write

RECORDED = Path(__file__).parents[2] / "recorded" / "logs"
MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def watcher(folder: Path, clock: FakeClock, *paths: str, **settings: object) -> LogWatcher:
    return LogWatcher(folder, *(paths or ("train.log",)), clock=clock, **settings)


def steps(first: int, last: int) -> str:
    return "".join(f"step {number} loss 2.1\n" for number in range(first, last + 1))


def told(finding: Finding) -> tuple[str, str]:
    return finding.verdict.value, finding.fault


# Scenarios: (seconds later, what is appended, what is found, words of the summary or the explanation)

LOADS = " loading checkpoint from /checkpoints at iteration 50\n"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch\n'
CHDIR = "slurmstepd: error: couldn't chdir to `/data': going to /tmp instead\n"
BAR = "\r{0}%|##   | {0}/100 [00:10<01:00,  1.00it/s]"
SILENT, TALKS, FAILS = "CRITICAL silent", "CRITICAL no-progress", "WARNING failing"
ANYTHING = ""

SCENARIOS: dict[str, tuple[dict[str, float], list[tuple[Any, ...]]]] = {
    "the threshold follows the measured interval": ({}, [
        (0, steps(0, 0), "OK"), *((100, steps(step, step), "OK") for step in range(1, 8)), (499, None, "OK"),
        (2, None, SILENT), (0, steps(8, 8), "OK")]),
    "a gap that was seen before is no hang when it comes again": ({}, [
        *((gap_s, steps(step, step), ANYTHING) for step, gap_s in enumerate((10, 10, 500, 10, 10))),
        (700, None, "OK"), (100, None, SILENT)]),
    "the same step written again and again is no progress": ({"timeout_s": 300}, [
        *((60, "step 17: retrying the all-reduce\n", ANYTHING) for _ in range(10)), (0, None, TALKS)]),
    "a log that never had a step is judged by new lines only": ({"timeout_s": 120}, [
        *((60, f"the loss of batch {n} is {n}.5\n", ANYTHING) for n in range(5)),
        (0, None, "OK", "no step found", "progress_regex"),
        *((60, f"[2026-11-20 10:00:0{n}] still waiting for the others\n", ANYTHING) for n in range(5)),
        (0, None, TALKS)]),
    "retries that count up are no progress": ({"timeout_s": 120}, [
        *((60, f"connection to n17:29500 failed, attempt {n} of 1000\n", ANYTHING) for n in range(6)),
        (0, None, TALKS)]),
    "growth counts for nothing once a step was seen": ({"timeout_s": 120}, [
        (0, steps(1, 3), ANYTHING),
        *((60, f"something new every time: {os.urandom(8).hex()} {n}\n", ANYTHING) for n in range(4)),
        (0, None, TALKS)]),
    "a bar of carriage returns is progress, and stands still without": ({}, [
        *((10, BAR.format(n), "OK") for n in range(0, 100, 10)), (0, None, "OK", "step 90/100"),
        (610, None, SILENT)]),
    "a new epoch's bar begins at zero and is no regress": ({}, [
        (60, f"\rEpoch {epoch}: {n}%|# | {n}/100 [00:10<01:00]\r{n}%|# | {n}/100 [00:10<01:00]", "OK")
        for epoch in range(3) for n in (1, 50, 100)]),
    "an exception may have been caught until no step follows": ({}, [
        (0, steps(1, 9) + TRACE, FAILS, "ValueError: bad batch"), (40, None, "CRITICAL failing")]),
    "what SLURM complains of at the start of healthy jobs is a warning": ({}, [
        (0, CHDIR, FAILS), (300, None, FAILS), (0, steps(1, 1), "OK")]),
    "a step that goes back is reported with both numbers": ({}, [
        (0, steps(90, 100), ANYTHING), (10, steps(50, 55), "WARNING regressing", "from 100 to 55"),
        (10, steps(56, 101), "OK")]),
    "a restart from a checkpoint is no regress": ({}, [
        (0, steps(90, 100), ANYTHING), (10, LOADS, "OK"), (0, steps(51, 55), "OK")]),
    "a training that restarts and never gets further is reported": ({}, [
        *((10, LOADS + steps(51, 55), ANYTHING) for _ in range(4)),
        (0, None, "WARNING regressing", "begun again 3 times")]),
    "ranks that write into one log a step apart are no regress": ({}, [
        (0, "step 10 rank 0\nstep 20 rank 0\nstep 10 rank 1\nstep 20 rank 1\nstep 30 rank 0\n", "OK"),
        (0, "step 20 rank 2\n", "OK")]),
    "a step cut by two probes is read whole": ({}, [
        (0, steps(998, 1234) + "step 12", ANYTHING), (5, "35 loss\n", "OK", "step 1235 ")]),
    # and no new beginning, which might go back
    "a flood is read at its end, and the log stays the same log": ({"read_bytes": 4096}, [
        (0, steps(1, 100), ANYTHING),
        (5, "noise\n" * 10000 + steps(50, 50), "WARNING regressing", "KiB were new and not read")]),
    "a bounded read never takes half a number for a step": ({"read_bytes": 4096}, [
        (0, steps(1, 3), ANYTHING), (5, "loss 1 step 4 " + "5" * 10000 + "\n" + steps(5, 6), ANYTHING, "step 6 ")]),
}  # fmt: skip


@pytest.mark.parametrize("claim", SCENARIOS)
def test_a_log_is_judged_as_it_grows(tmp_path: Path, clock: FakeClock, claim: str) -> None:
    settings, acts = SCENARIOS[claim]
    watchdog = watcher(tmp_path, clock, **settings)
    for number, (later_s, text, expected, *words) in enumerate(acts):
        clock.sleep(later_s)
        if text is not None:
            write(tmp_path / "train.log", text, at=clock.time, append=True)
        finding = watchdog.one()
        assert expected in (ANYTHING, " ".join(told(finding)).strip()), (number, finding)
        assert all(word in "\n".join((finding.summary, *finding.looked)) for word in words), (number, finding)


# A log that goes on, and one that does not


def test_a_training_that_steps_is_ok(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    for tick in range(5):
        write(log, steps(10 * tick, 10 * tick + 9), at=clock.time - 1, append=True)
        finding = watchdog.one()
        assert told(finding) == ("OK", "")
        clock.sleep(MINUTE)
    assert finding.subject == str(log)
    assert finding.summary == "step 49 1 s ago, usually every 6 s"


def test_a_log_that_is_silent_for_several_intervals_is_critical_and_says_so(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", (RECORDED / "megatron.log").read_bytes(), at=clock.time - 47 * MINUTE)
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("CRITICAL", "silent")
    assert re.match(r"no new step for 47 min \(42780 at \d\d:\d\d:\d\d\), usually every 1 min 45 s; ", finding.summary)
    assert "last line: [default7]: iteration    42780/ 115311" in finding.summary
    assert "py-spy dump" in finding.advice and f"tail -n 50 {tmp_path}/train.log" in finding.advice
    assert len(finding.evidence) == 5 and finding.evidence[-1].startswith("[default7]: iteration    42780/")
    assert [(figure.label, figure.value) for figure in finding.figures] == [("quiet", 2820.0), ("step", 42780.0)]


def test_fast_steps_have_a_floor_and_slow_ones_a_ceiling(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, (RECORDED / "tqdm.log").read_bytes(), at=clock.time - 119)
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(2.0)
    assert told(watchdog.one()) == ("CRITICAL", "silent")
    slow = tmp_path / "slow.log"
    write(slow, "iteration 7/ 9 | elapsed time per iteration (s): 3000.0 |\n", at=clock.time - 3500)
    watchdog = watcher(tmp_path, clock, "slow.log")
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(200.0)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


def test_a_fixed_timeout_holds_whatever_was_measured(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", (RECORDED / "megatron.log").read_bytes(), at=clock.time - 61)
    assert told(watcher(tmp_path, clock, timeout_s=60.0).one()) == ("CRITICAL", "silent")
    assert told(watcher(tmp_path, clock, timeout_s=62.0).one()) == ("OK", "")


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("***** Running Evaluation *****", "evaluation_s"),
        ("Validation DataLoader 0:  45%|####5     | 45/100 [00:10<00:12,  4.50it/s]", "evaluation_s"),
        ("saving checkpoint at iteration 42780 to /checkpoints", "save_s"),
        ("loading distributed checkpoint from /checkpoints at iteration 42000", "startup_s"),
    ],
)
def test_evaluation_save_and_start_up_may_take_longer(
    tmp_path: Path, clock: FakeClock, line: str, setting: str
) -> None:
    write(tmp_path / "train.log", (RECORDED / "megatron.log").read_text() + line + "\n", at=clock.time - 15 * MINUTE)
    assert told(watcher(tmp_path, clock).one()) == ("OK", "")
    finding = watcher(tmp_path, clock, **{setting: 5 * MINUTE}).one()
    assert finding.verdict is Verdict.CRITICAL


def test_a_save_that_is_over_may_not_take_longer(tmp_path: Path, clock: FakeClock) -> None:
    text = "saving checkpoint at iteration 42780\n  successfully saved checkpoint at iteration 42780\n"
    write(tmp_path / "train.log", (RECORDED / "megatron.log").read_text() + text, at=clock.time - 15 * MINUTE)
    assert told(watcher(tmp_path, clock).one()) == ("CRITICAL", "silent")


# Talking is not progress


def test_lines_of_watchdogs_in_the_trainings_log_are_no_progress(tmp_path: Path, clock: FakeClock) -> None:
    """The original's hourly PULSE line kept the log's mtime young for ever."""
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, (RECORDED / "megatron.log").read_bytes(), at=clock.time)
    assert told(watchdog.one()) == ("OK", "")
    for _ in range(3):
        clock.sleep(HOUR)
        pulse = "[2022-05-01 10:00:02] PULSE: tr11-176B-ml is running for 1-07:27:33 since 2022-04-29\n"
        write(log, pulse, at=clock.time, append=True)
        finding = watchdog.one()
        assert told(finding) == ("CRITICAL", "silent")
    assert finding.summary.startswith("no new step for 3 h")
    assert not any("PULSE" in line for line in finding.evidence)


def test_a_line_repeated_for_hours_is_no_progress(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, (RECORDED / "megatron.log").read_bytes(), at=clock.time)
    watchdog.look()
    for _ in range(20):
        clock.sleep(MINUTE)
        write(log, (RECORDED / "torchelastic_hung.log").read_bytes(), at=clock.time, append=True)
        finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "no-progress")
    assert (
        "no new step for 20 min" in finding.summary and "it still writes, 599 times what it had said" in finding.summary
    )
    assert "RendezvousTimeoutError" in finding.evidence[-1]


def test_hours_of_the_same_warning_are_seen_at_the_first_look_where_lines_have_times(
    tmp_path: Path, clock: FakeClock
) -> None:
    lines = "2022-05-01 01:00:00 step 17 loss 2\n" + "".join(
        f"2022-05-01 {hour:02d}:30:00 WARNING failed to send a keep-alive heartbeat\n" for hour in range(1, 9)
    )
    write(tmp_path / "train.log", lines, at=clock.time - 5)
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("CRITICAL", "no-progress")
    assert "no new step for 7 h 30 min" in finding.summary


# The end, errors, and falling back


@pytest.mark.parametrize(
    "line",
    [
        "[exiting program after 1190.03 minutes] datetime: 2022-05-01 10:00:00 ",
        "[2024-01-01 10:00:00] Training completed",
        "{'train_runtime': 100.0, 'train_loss': 1.2, 'epoch': 3.0}",
        "`Trainer.fit` stopped: `max_epochs=3` reached.",
        "slurmstepd: error: *** JOB 1234 ON n17 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***",
    ],
)
def test_a_log_that_says_it_is_done_does_not_hang(tmp_path: Path, clock: FakeClock, line: str) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 9) + line + "\n", at=clock.time - 5 * HOUR)
    finding = watchdog.one()
    assert told(finding) == ("OK", "") and line[:20].strip() in finding.summary
    write(log, steps(10, 11), at=clock.time, append=True)  # the next job appends to it
    assert watchdog.one().summary.startswith("step 11")
    clock.sleep(HOUR)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed.",
        "srun: error: n17: task 3: Killed",
        "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, unhandled cuda error",
        "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(...)",
        "n17: Bus error (core dumped)",
        "  exitcode  : -9 (pid: 4711)",
        "OSError: [Errno 28] No space left on device",
        "terminate called; signal 9",
        "Fatal Python error: Segmentation fault",
    ],
)
def test_a_fatal_error_is_quoted_at_once_and_gone_with_the_next_step(
    tmp_path: Path, clock: FakeClock, line: str
) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 9) + line + "\n", at=clock.time)
    finding = watchdog.one()
    assert told(finding) == ("CRITICAL", "failing")
    assert line.strip() in finding.summary and line.strip() in finding.evidence
    write(log, steps(10, 10), at=clock.time, append=True)
    assert told(watchdog.one()) == ("OK", "")


# Files


def test_a_missing_log_is_unknown_not_hung(tmp_path: Path, clock: FakeClock) -> None:
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("UNKNOWN", "missing") and "no such file" in finding.summary


def test_an_empty_log_names_the_buffered_output(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", b"", at=clock.time - HOUR)
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("WARNING", "empty")
    assert finding.summary.startswith("empty for 1 h") and "PYTHONUNBUFFERED=1" in finding.advice
    write(tmp_path / "train.log", b"", at=clock.time - 10 * MINUTE)
    assert told(watcher(tmp_path, clock).one()) == ("OK", "")


def test_a_log_that_grows_in_blocks_names_the_buffered_output(tmp_path: Path, clock: FakeClock) -> None:
    whole = steps(1, 1000).encode()
    write(tmp_path / "train.log", whole[:8192], at=clock.time - HOUR)
    finding = watcher(tmp_path, clock).one()
    assert told(finding) == ("CRITICAL", "silent")
    assert "it grows in blocks and ends within a line: set PYTHONUNBUFFERED=1" in finding.looked


def test_a_log_that_is_renamed_and_made_anew_goes_on(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 100), at=clock.time)
    watchdog.look()
    log.rename(tmp_path / "train.log.1")
    clock.sleep(30.0)
    assert told(watchdog.one()) == ("OK", "")  # between the two: nothing is there
    write(log, b"", at=clock.time)
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(30.0)
    write(log, steps(101, 102), at=clock.time, append=True)
    finding = watchdog.one()
    assert told(finding) == ("OK", "") and finding.summary.startswith("step 102")


def test_jobs_that_run_side_by_side_do_not_take_over_from_each_other(tmp_path: Path, clock: FakeClock) -> None:
    for number in (1001, 1002):
        write(tmp_path / f"gpt-{number}.out", steps(1, 5), at=clock.time + number - 1010)
    watchdog = watcher(tmp_path, clock, "*.out")
    assert ["taken over" in finding.summary for finding in watchdog.look()] == [False, False]
    clock.sleep(HOUR)
    write(tmp_path / "gpt-1002.out", steps(6, 7), at=clock.time, append=True)
    verdicts = {Path(finding.subject).name: told(finding) for finding in watchdog.look()}
    assert verdicts == {"gpt-1001.out": ("CRITICAL", "silent"), "gpt-1002.out": ("OK", "")}


def test_a_counter_that_begins_anew_each_epoch_is_a_step_back_once(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    faults = []
    for number in range(60):
        write(log, steps(number % 10, number % 10), at=clock.time, append=True)
        faults.append(watchdog.one().fault)
        clock.sleep(30.0)
    assert faults[:10] == [""] * 10 and set(faults[10:20]) == {"regressing"} and set(faults[20:]) == {""}
    clock.sleep(5 * MINUTE)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


def test_a_file_server_whose_clock_is_behind_delays_no_alarm(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    for step in range(20):
        write(log, steps(step, step), at=clock.time - 10 * MINUTE, append=True)
        assert told(watchdog.one()) == ("OK", "")
        clock.sleep(30.0)
    clock.sleep(3 * MINUTE)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        (("rank0.log", "rank1.log"), "OK"),
        (("gpt-1234.0.out", "gpt-1234.1.out"), "OK"),
        (("0/stdout.log", "1/stdout.log"), "OK"),
        (("slurm-1234_1.out", "slurm-1234_2.out"), "CRITICAL"),
        (("exp0.log", "exp1.log"), "CRITICAL"),
        (("rank0.log", "rank1.err"), "CRITICAL"),
    ],
)
def test_a_rank_that_never_told_of_a_step_is_spoken_for_by_one_that_does(
    tmp_path: Path, clock: FakeClock, names: tuple[str, str], verdict: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "UserWarning: slow\n", at=clock.time)
    watchdog = watcher(tmp_path, clock, "*/*.log" if "/" in names[0] else "*")
    for step in range(3):
        write(tmp_path / names[0], steps(step, step), at=clock.time, append=True)
        found = {finding.subject: finding for finding in watchdog.look()}
        clock.sleep(20 * MINUTE)
    other = found[str(tmp_path / names[1])]
    assert other.verdict.value == verdict
    write(tmp_path / names[1], "[rank1]: RuntimeError: NCCL error: unhandled\n", at=clock.time, append=True)
    found = {finding.subject: finding for finding in watchdog.look()}
    assert told(found[str(tmp_path / names[1])]) == ("CRITICAL", "failing")


def test_a_log_that_was_named_and_never_was_there_is_none_of_a_pattern(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "a.log", steps(1, 2), at=clock.time)
    one, many = watcher(tmp_path, clock, "b.log"), watcher(tmp_path, clock, "*.log")
    assert told(one.one()) == ("UNKNOWN", "missing")
    many.memory = one.memory
    assert [told(finding) for finding in many.look()] == [("OK", "")]


def test_a_log_that_vanished_for_good_is_unknown_and_may_come_back(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 100), at=clock.time)
    watchdog.look()
    log.unlink()
    clock.sleep(MINUTE)
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(HOUR)
    finding = watchdog.one()
    assert told(finding) == ("UNKNOWN", "missing") and "(100 at " in finding.summary
    write(log, steps(101, 102), at=clock.time)
    assert told(watchdog.one()) == ("OK", "")


@pytest.mark.parametrize("grows_beyond", [False, True])
def test_a_log_that_is_truncated_in_place_is_read_from_its_beginning(
    tmp_path: Path, clock: FakeClock, grows_beyond: bool
) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 100), at=clock.time)
    watchdog.look()
    clock.sleep(30.0)
    with open(log, "r+b") as file:  # copytruncate
        file.truncate(0)
        file.write((steps(41, 42) + ("x" * 3000 + "\n" if grows_beyond else "")).encode())
    os.utime(log, (clock.time, clock.time))
    finding = watchdog.one()  # began again from a checkpoint: another file's step may be smaller
    assert told(finding) == ("OK", "") and finding.summary.startswith("step 42")


def test_a_rotated_log_that_repeats_its_last_step_has_made_none(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock, timeout_s=100.0)
    write(log, steps(1, 100), at=clock.time)
    watchdog.look()
    clock.sleep(90.0)
    log.unlink()
    write(log, steps(100, 100), at=clock.time)
    watchdog.look()
    clock.sleep(20.0)
    assert watchdog.one().verdict is Verdict.CRITICAL


def test_the_hole_of_a_truncated_log_is_passed_over(tmp_path: Path, clock: FakeClock) -> None:
    log = tmp_path / "train.log"
    with open(log, "wb") as file:
        file.seek(3 * 2**30)  # the writer goes on at its old place: a sparse file
        file.write(b"\n" + steps(7, 9).encode())
    os.utime(log, (clock.time, clock.time))
    assert watcher(tmp_path, clock).one().summary.startswith("step 9")


def test_nul_bytes_and_broken_utf_8_hide_no_step(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", b"\0\0st\0ep 5\xff\xfe loss\n\xc3\x28\n", at=clock.time - HOUR)
    finding = watcher(tmp_path, clock).one()
    assert finding.verdict is Verdict.CRITICAL and "(5 at" in finding.summary
    assert all(line.isprintable() for line in finding.evidence)


def test_a_line_of_a_gigabyte_costs_no_more_than_its_end(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, steps(1, 5), at=clock.time)
    watchdog.look()
    with open(log, "ab") as file:
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.truncate(2**30)
        file.seek(2**30)
        file.write(b"\nstep 6 loss\n" + b"y" * 2**20)
    clock.sleep(10.0)
    os.utime(log, (clock.time, clock.time))
    import tracemalloc

    tracemalloc.start()
    finding = watchdog.one()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert told(finding) == ("OK", "")
    assert any("were new and not read" in line for line in finding.looked)
    assert peak < 16 * 2**20


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device", "link to nothing", "unreadable"])
def test_what_is_no_log_is_unknown_and_never_waited_for(tmp_path: Path, clock: FakeClock, kind: str) -> None:
    path = tmp_path / "train.log"
    keep: object = None
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        keep = socket.socket(socket.AF_UNIX)
        keep.bind(str(path))
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    else:
        (tmp_path / "file").write_text("x")
        path = tmp_path / "file" / "train.log"
    finding = watcher(tmp_path, clock, str(path)).one()
    if isinstance(keep, socket.socket):
        keep.close()
    assert finding.verdict is Verdict.UNKNOWN
    assert finding.fault == ("missing" if kind == "link to nothing" else "not-read")


def test_a_link_is_followed(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "run-1.out", steps(1, 3), at=clock.time)
    (tmp_path / "train.log").symlink_to("run-1.out")
    assert told(watcher(tmp_path, clock).one()) == ("OK", "")


# Clocks


def test_a_write_in_the_future_is_no_hang_and_the_clock_is_told(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, (RECORDED / "megatron.log").read_bytes(), at=clock.time + HOUR)
    finding = watchdog.one()
    assert told(finding) == ("OK", "")
    assert any("clock is at least 1 h ahead of ours" in line for line in finding.looked)
    clock.sleep(600.0)
    assert told(watchdog.one()) == ("CRITICAL", "silent")  # and it hides no hang


def test_a_file_server_whose_clock_is_late_makes_no_hang(tmp_path: Path, clock: FakeClock) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    for step in range(8):
        write(log, steps(step, step), at=clock.time - 600, append=True)
        finding = watchdog.one()
        assert told(finding) == ("OK", "")
        clock.sleep(30.0)
    assert any("behind ours" in line for line in finding.looked)


def test_attributes_that_come_a_minute_late_make_no_hang(tmp_path: Path, clock: FakeClock) -> None:
    """NFS clients may believe for 60 s that a file has not changed (nfs(5), acregmax)."""
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    for step in range(0, 600, 60):
        write(log, steps(step, step + 59), at=clock.time, append=True)
        for _ in range(6):
            assert told(watchdog.one()) == ("OK", "")
            clock.sleep(10.0)


@pytest.mark.parametrize("jump_s", [8 * HOUR, 365 * 24 * HOUR, -HOUR])
def test_a_clock_that_jumps_and_a_machine_that_slept_make_no_hang(
    tmp_path: Path, clock: FakeClock, jump_s: float
) -> None:
    log, watchdog = tmp_path / "train.log", watcher(tmp_path, clock)
    write(log, (RECORDED / "megatron.log").read_bytes(), at=clock.time)
    watchdog.look()
    clock.sleep(MINUTE)
    clock.time += jump_s  # the monotonic clock does not see it
    finding = watchdog.one()
    assert told(finding) == ("OK", "") and finding.summary.startswith("step 42780 1 min ago")
    clock.sleep(10 * MINUTE)
    assert told(watchdog.one()) == ("CRITICAL", "silent")


# Several files


def test_each_log_of_a_pattern_is_a_subject_of_its_own(tmp_path: Path, clock: FakeClock) -> None:
    for rank in range(4):
        age_s = HOUR if rank == 2 else 1
        write(tmp_path / f"rank{rank}.log", (RECORDED / "megatron.log").read_bytes(), at=clock.time - age_s)
    found = {Path(f.subject).name: told(f) for f in watcher(tmp_path, clock, "rank*.log").look()}
    assert found.pop("rank2.log") == ("CRITICAL", "silent")
    assert found == {f"rank{rank}.log": ("OK", "") for rank in (0, 1, 3)}


def test_of_a_pattern_one_may_be_enough_or_only_the_newest_count(tmp_path: Path, clock: FakeClock) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.log", steps(1, 9), at=clock.time - (HOUR if rank else 1))
    for files in ("any", "newest"):
        finding = watcher(tmp_path, clock, "rank*.log", files=files, timeout_s=60.0).one()
        assert told(finding) == ("OK", "") and finding.subject == str(tmp_path / "rank*.log")
    clock.sleep(HOUR)
    assert watcher(tmp_path, clock, "rank*.log", files="any", timeout_s=60.0).one().verdict is Verdict.CRITICAL


def test_a_pattern_passes_over_what_is_old_and_what_was_rotated(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "gpt.out", steps(1, 9), at=clock.time)
    for name in ("gpt.out.1", "gpt.out-20261119", "gpt.out.2.gz"):
        write(tmp_path / name, steps(1, 9), at=clock.time - HOUR)
    write(tmp_path / "other.out", steps(1, 9), at=clock.time - 48 * HOUR)
    (tmp_path / "latest.out").symlink_to("gpt.out")
    assert [Path(f.subject).name for f in watcher(tmp_path, clock, "*").look()] == ["gpt.out"]


def test_a_log_that_was_watched_is_not_forgotten_when_it_gets_old(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "gpt.out", steps(1, 9), at=clock.time)
    write(tmp_path / "other.out", steps(1, 9), at=clock.time)
    watchdog = watcher(tmp_path, clock, "*.out")
    watchdog.look()
    clock.sleep(48 * HOUR)
    assert [told(finding) for finding in watchdog.look()] == [("CRITICAL", "silent")] * 2


def test_the_next_jobs_log_takes_over_from_the_one_before(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "gpt-1001.out", steps(1, 9), at=clock.time)
    watchdog = watcher(tmp_path, clock, "gpt-*.out")
    assert told(watchdog.one()) == ("OK", "")
    clock.sleep(2 * HOUR)
    write(tmp_path / "gpt-1002.out", steps(10, 19), at=clock.time)
    found = {Path(f.subject).name: f for f in watchdog.look()}
    assert {name: told(f) for name, f in found.items()} == {"gpt-1001.out": ("OK", ""), "gpt-1002.out": ("OK", "")}
    assert found["gpt-1001.out"].summary.startswith("gpt-1002.out has taken over")
    clock.sleep(2 * HOUR)
    assert {Path(f.subject).name: told(f)[1] for f in watchdog.look()} == {"gpt-1001.out": "", "gpt-1002.out": "silent"}


def test_a_rank_that_hangs_is_not_taken_over_by_its_neighbours(tmp_path: Path, clock: FakeClock) -> None:
    watchdog = watcher(tmp_path, clock, "rank-*.log", timeout_s=300.0)
    for tick in range(10):
        for rank in range(3):
            if rank != 1 or tick < 2:
                write(tmp_path / f"rank-{rank}.log", steps(tick, tick), at=clock.time, append=True)
        found = {Path(f.subject).name: told(f)[1] for f in watchdog.look()}
        clock.sleep(MINUTE)
    assert found == {"rank-0.log": "", "rank-1.log": "silent", "rank-2.log": ""}


def test_a_pattern_that_matches_nothing_is_unknown(tmp_path: Path, clock: FakeClock) -> None:
    finding = watcher(tmp_path, clock, "logs/*.out").one()
    assert told(finding) == ("UNKNOWN", "not-read") and "No such file" in finding.summary
    (tmp_path / "logs").mkdir()
    finding = watcher(tmp_path, clock, "logs/*.out").one()
    assert told(finding) == ("UNKNOWN", "missing")
    write(tmp_path / "logs" / "a.out", steps(1, 2), at=clock.time - 48 * HOUR)
    finding = watcher(tmp_path, clock, "logs/*.out").one()
    assert told(finding) == ("UNKNOWN", "old") and "a.out" in finding.summary


def test_a_pattern_is_a_subject_too_so_that_the_end_of_its_own_faults_is_told(tmp_path: Path, clock: FakeClock) -> None:
    watchdog = watcher(tmp_path, clock, "*.out")
    assert told(watchdog.one()) == ("UNKNOWN", "missing")
    write(tmp_path / "a.out", steps(1, 2), at=clock.time)
    found = {finding.subject: told(finding) for finding in watchdog.look_at_all()}
    assert found == {str(tmp_path / "*.out"): ("OK", ""), str(tmp_path / "a.out"): ("OK", "")}
    (tmp_path / "a.out").unlink()
    clock.sleep(MINUTE)
    watchdog.look()
    clock.sleep(HOUR)
    found = {finding.subject: told(finding) for finding in watchdog.look_at_all()}
    assert found == {str(tmp_path / "*.out"): ("UNKNOWN", "missing"), str(tmp_path / "a.out"): ("OK", "")}


def test_a_path_of_the_settings_is_relative_to_the_project_and_a_typed_one_perhaps_to_here(
    tmp_path: Path, clock: FakeClock
) -> None:
    watchdog = watcher(tmp_path, clock, "train.log")
    (tmp_path / "sub").mkdir()
    watchdog.scene = watchdog.scene._replace(project=tmp_path / "sub")
    write(tmp_path / "train.log", steps(1, 2), at=clock.time)
    assert watchdog.one().summary.startswith("step 2")
    write(tmp_path / "sub" / "train.log", steps(1, 5), at=clock.time)
    finding = watcher(tmp_path / "sub", clock, "train.log").one()
    assert (finding.subject, finding.summary[:6]) == (str(tmp_path / "sub" / "train.log"), "step 5")


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train[1].log", steps(1, 2), at=clock.time)
    finding = watcher(tmp_path, clock, "train[1].log").one()
    assert (finding.subject, *told(finding)) == (str(tmp_path / "train[1].log"), "OK", "")


def test_logs_of_one_file_system_are_one_target(tmp_path: Path, clock: FakeClock) -> None:
    watchdog = watcher(tmp_path, clock, "a.log", "b.log", "/dev/shm/c.log")
    targets = CHECK.targets(watchdog.settings, watchdog.scene)
    assert sorted(len(target.subjects) for target in targets) == [1, 2]
    assert str(tmp_path / "a.log") in {subject for target in targets for subject in target.subjects}


# Settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"progress_regex": r"step (\d+"}, "position 5"),
        ({"progress_regex": r"step \d+"}, "0 groups"),
        ({"progress_regex": r"(step) (\d+)"}, "2 groups"),
        ({"files": "some"}, "each, newest or any"),
        ({"factor": 0.5}, "at least 1"),
        ({"timeout_s": 0.0}, "more than 0"),
        ({"floor_s": 100.0, "ceiling_s": 10.0}, "above ceiling_s"),
        ({"read_bytes": 1.0}, "at least 4096"),
        ({"paths": ("",)}, "empty"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    tmp_path: Path, clock: FakeClock, settings: dict[str, object], said: str
) -> None:
    watchdog = watcher(tmp_path, clock)
    watchdog.settings = replace(watchdog.settings, **settings)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=said):
        CHECK.targets(watchdog.settings, watchdog.scene)


def test_a_regular_expression_that_backtracks_for_ever_is_ended_and_named(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", "a" * 4000 + "\n", at=clock.time)
    watchdog = watcher(tmp_path, clock, progress_regex=r"(?:(a+)+)b")
    watchdog.settings = replace(watchdog.settings, progress_regex=r"(?:a+)+(b)")
    with pytest.raises(ProbeError, match=r"progress_regex .* was not through .*train\.log") as caught:
        watchdog.look()
    assert "backtracks" in caught.value.hint


def test_secrets_and_control_characters_of_a_log_reach_no_finding(tmp_path: Path, clock: FakeClock) -> None:
    text = (
        "step 5 loss\n\x1b[31mred\x1b[0m\x07 bell\n"
        "login with hf_abcdefghijklmnopqrstuvwx\npassword=correct1horse2battery\n"
        "posting to https://hooks.slack.com/services/T000/B000/XXXX\ngit clone https://me:gh0pass@host/x\n"
    )
    write(tmp_path / "train.log", text, at=clock.time - HOUR)
    finding = watcher(tmp_path, clock).one()
    said = " ".join((finding.summary, *finding.evidence))
    assert finding.verdict is Verdict.CRITICAL and said.isprintable()
    for secret in ("hf_abc", "correct1horse", "T000", "gh0pass"):
        assert secret not in said
    assert "consumed tokens: 123456789" not in said


def test_now_is_never_before_the_readings(tmp_path: Path, clock: FakeClock) -> None:
    write(tmp_path / "train.log", steps(1, 2), at=NOW)
    watchdog = watcher(tmp_path, clock)
    watchdog.look()
    clock.time -= 5.0
    assert told(watchdog.one()) == ("OK", "")
