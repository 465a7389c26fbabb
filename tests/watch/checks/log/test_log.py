"""`resil watch log`: findings about logs, tick by tick, with a fake clock.

Mistakes of the scripts of earlier trainings are tested as well: a log's mtime is no progress (their own hourly line
kept it young), neither is any write, nor rank 0's alone; a gap for an evaluation or a save is no hang.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from resilience.errors import ProbeError, SettingsError
from resilience.finding import Verdict
from resilience.watch.checks.log import CHECK
from tests.lab.fakes import FakeClock
from tests.watch.checks.log.watcher import HOUR, MINUTE, LogWatcher
from tests.watch.checks.outcome import outcome

RECORDED = Path(__file__).parents[3] / "recorded" / "logs"
MEGATRON = (RECORDED / "megatron.log").read_text()
"""Its last line is of step 42780, and a step takes 105.16 s."""


@pytest.fixture
def watchdog(tmp_path: Path, clock: FakeClock) -> LogWatcher:
    return LogWatcher(tmp_path, "train.log", clock=clock)


def steps(first: int, last: int) -> str:
    return "".join(f"step {number} loss 2.1\n" for number in range(first, last + 1))


def then_write(change: Callable[[Path], object], text: str) -> Callable[[Path], str]:
    """Change the log, and append this at the same time."""

    def changed(log: Path) -> str:
        change(log)
        return text

    return changed


def copytruncate(log: Path) -> None:
    os.truncate(log, 0)


# Scenarios: (seconds later, what is appended or done to the log, what is found, words of what is said)

LOADS = " loading checkpoint from /checkpoints at iteration 50\n"
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad batch\n'
CHDIR = "slurmstepd: error: couldn't chdir to `/data': going to /tmp instead\n"
BAR = "\r{0}%|##   | {0}/100 [00:10<01:00,  1.00it/s]"
KEEPALIVES = "".join(f"2022-05-01 0{n}:30:00 WARNING failed to send a keep-alive heartbeat\n" for n in range(1, 9))
SAVED = "saving checkpoint at iteration 42780\n  successfully saved checkpoint at iteration 42780\n"
QUIET, SILENT, FAILS = "WARNING no-progress", "CRITICAL no-progress", "WARNING failing"
ANYTHING = ""

SCENARIOS: dict[str, tuple[dict[str, float], list[tuple[Any, ...]]]] = {
    "the time allowed follows the measured interval": ({}, [
        (0, steps(0, 0), "OK"), *((1000, steps(step, step), "OK") for step in range(1, 8)), (1999, None, "OK"),
        (2, None, QUIET, "CRITICAL after 1 h"), (2000, None, SILENT), (0, steps(8, 8), "OK")]),
    "a log alone is given half an hour however fast it was, and proves a hang after an hour": ({}, [
        (0, (RECORDED / "tqdm.log").read_bytes(), "OK"), (28 * MINUTE - 1, None, "OK"), (2, None, QUIET),
        (28 * MINUTE, None, SILENT)]),
    "a ceiling holds whatever was measured": ({"ceiling_s": 600}, [
        (0, MEGATRON, "OK"), (599, None, "OK"), (2, None, QUIET), (600, None, SILENT)]),
    "a fixed timeout holds whatever was measured": ({"timeout_s": 60}, [
        (0, MEGATRON, "OK"), (59, None, "OK"), (2, None, SILENT)]),
    "a save that is over may not take longer": ({}, [(0, MEGATRON + SAVED, "OK"), (29 * MINUTE, None, QUIET)]),
    "a gap that was seen before is no hang when it comes again": ({}, [
        *((gap_s, steps(step, step), ANYTHING) for step, gap_s in enumerate((10, 10, 3000, 10, 10))),
        (5900, None, "OK", "2 times the longest quiet: 50 min at step 1"), (200, None, QUIET)]),
    "the same step written again and again is no progress": ({"timeout_s": 300}, [
        *((60, "step 17: retrying the all-reduce\n", ANYTHING) for _ in range(10)), (0, None, SILENT)]),
    "hours of the same warning are seen at the first tick where lines have times": ({}, [
        (0, "2022-05-01 01:00:00 step 17 loss 2\n" + KEEPALIVES, SILENT, "no new step for 7 h 30 min")]),
    "a log that never had a step is judged by new lines only": ({"timeout_s": 120}, [
        *((60, f"gradient {n}.5 applied\n", ANYTHING) for n in range(5)),
        (0, None, "OK", "no step found", "progress_regex"),
        *((60, f"[2026-11-20 10:00:0{n}] still waiting for the others\n", ANYTHING) for n in range(5)),
        (0, None, SILENT)]),
    "retries that count up are no progress": ({"timeout_s": 120}, [
        *((60, f"connection to n17:29500 failed, attempt {n} of 1000\n", ANYTHING) for n in range(6)),
        (0, None, SILENT)]),
    "growth counts for nothing once a step was seen": ({"timeout_s": 120}, [
        (0, steps(1, 3), ANYTHING),
        *((60, f"something new every time: {os.urandom(8).hex()} {n}\n", ANYTHING) for n in range(4)),
        (0, None, SILENT)]),
    "a bar of carriage returns is progress while it moves": ({}, [
        *((10, BAR.format(n), "OK") for n in range(0, 100, 10)), (0, None, "OK", "step 90/100"),
        (29 * MINUTE, None, QUIET)]),
    "a new epoch's bar begins at zero and is no regress": ({}, [
        (60, f"\rEpoch {epoch}: {n}%|# | {n}/100 [00:10<01:00]\r{n}%|# | {n}/100 [00:10<01:00]", "OK")
        for epoch in range(3) for n in (1, 50, 100)]),
    "a counter that begins anew each epoch is no step back": ({}, [
        *((30, steps(n % 10, n % 10), "OK") for n in range(60)), (29 * MINUTE, None, QUIET)]),
    "a counter that begins anew at different steps is a step back": ({}, [
        *((30, steps(n, n), "OK") for n in range(20)), *((30, steps(n, n), "OK") for n in range(9)),
        (30, steps(0, 0), "WARNING regressing")]),
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
        (0, None, "WARNING regressing", "3 restarts without progress")]),
    "ranks that write into one log a step apart are no regress": ({}, [
        (0, "step 10 rank 0\nstep 20 rank 0\nstep 10 rank 1\nstep 20 rank 1\nstep 30 rank 0\n", "OK"),
        (0, "step 20 rank 2\n", "OK")]),
    "a step cut by two probes is read whole": ({}, [
        (0, steps(998, 1234) + "step 12", ANYTHING), (5, "35 loss\n", "OK", "step 1235 ")]),
    # and no new beginning, which might go back
    "a flood is read at its end, and the log stays the same log": ({"read_bytes": 4096}, [
        (0, steps(1, 100), ANYTHING),
        (5, "noise\n" * 10000 + steps(50, 50), "WARNING regressing", "KiB of new output skipped")]),
    "a bounded read never takes half a number for a step": ({"read_bytes": 4096}, [
        (0, steps(1, 3), ANYTHING), (5, "loss 1 step 4 " + "5" * 10000 + "\n" + steps(5, 6), ANYTHING, "step 6 ")]),
    "a missing log is unknown, not hung": ({}, [(0, None, "UNKNOWN missing", "no such file")]),
    "an empty log names the buffered output": ({}, [
        (0, "", "OK"), (10 * MINUTE, None, "OK"),
        (50 * MINUTE, None, "WARNING empty", "empty for 1 h", "PYTHONUNBUFFERED=1")]),
    "a log that grows in blocks names the buffered output": ({}, [
        (0, steps(1, 1000)[:8192], "OK"),
        (HOUR, None, SILENT, "it grows in blocks and ends within a line: set PYTHONUNBUFFERED=1")]),
    "a log that is renamed and recreated continues": ({}, [
        (0, steps(1, 100), ANYTHING), (30, lambda log: log.rename(log.with_name("train.log.1")), "OK"),
        (0, "", "OK"), (30, steps(101, 102), "OK", "step 102")]),
    "a log that vanished for good is unknown and may come back": ({}, [
        (0, steps(1, 100), ANYTHING), (MINUTE, Path.unlink, "OK"), (HOUR, None, "UNKNOWN missing", "(100 at "),
        (0, steps(101, 102), "OK")]),
    # began again from a checkpoint: another file's step may be smaller
    "a log that is truncated in place is read from its beginning": ({}, [
        (0, steps(1, 100), ANYTHING), (30, then_write(copytruncate, steps(41, 42)), "OK", "step 42")]),
    "a log that is truncated and grows beyond its old size is read from its beginning": ({}, [
        (0, steps(1, 100), ANYTHING),
        (30, then_write(copytruncate, steps(41, 42) + "x" * 3000 + "\n"), "OK", "step 42")]),
    "a rotated log that repeats its last step has made none": ({"timeout_s": 100}, [
        (0, steps(1, 100), ANYTHING), (90, then_write(Path.unlink, steps(100, 100)), ANYTHING), (20, None, SILENT)]),
    # NFS clients may believe for 60 s that a file has not changed (nfs(5), acregmax).
    "attributes that come a minute late make no hang": ({}, [
        (10, None if step % 60 else steps(step, step + 59), "OK") for step in range(0, 600, 10)]),
}  # fmt: skip


@pytest.mark.parametrize("claim", SCENARIOS)
def test_a_log_is_judged_as_it_grows(watchdog: LogWatcher, claim: str) -> None:
    settings, acts = SCENARIOS[claim]
    watchdog = watchdog.anew(**settings)
    log = watchdog.directory / "train.log"
    for number, (later_s, change, expected, *words) in enumerate(acts):
        watchdog.clock.sleep(later_s)
        text = change(log) if callable(change) else change
        if isinstance(text, str | bytes):
            watchdog.write(text)
        finding = watchdog.finding()
        assert expected in (ANYTHING, outcome(finding)), (number, finding)
        said = "\n".join((finding.summary, *finding.looked, finding.advice))
        assert all(word in said for word in words), (number, finding)


# A log with progress, and one without


def test_a_training_that_steps_is_ok(watchdog: LogWatcher) -> None:
    for tick in range(5):
        log = watchdog.write(steps(10 * tick, 10 * tick + 9), age_s=1)
        finding = watchdog.finding()
        assert outcome(finding) == "OK"
        watchdog.clock.sleep(MINUTE)
    assert (finding.subject, finding.summary) == (str(log), "step 49 1 s ago, usually every 6 s")


def test_a_log_silent_for_an_hour_is_critical(watchdog: LogWatcher) -> None:
    log = watchdog.write(MEGATRON, age_s=57 * MINUTE)
    finding = watchdog.finding()
    assert outcome(finding) == SILENT
    assert re.match(r"no new step for 57 min \(42780 at \d\d:\d\d:\d\d\); ", finding.summary)
    assert "last line: [default7]: iteration    42780/ 115311" in finding.summary
    assert "py-spy dump" in finding.advice and f"tail -n 50 {log}" in finding.advice
    assert len(finding.evidence) == 5 and finding.evidence[-1].startswith("[default7]: iteration    42780/")
    assert [(figure.label, figure.value) for figure in finding.figures] == [("quiet", 3420.0), ("step", 42780.0)]


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("***** Running Evaluation *****", "evaluation_s"),
        ("Validation DataLoader 0:  45%|####5     | 45/100 [00:10<00:12,  4.50it/s]", "evaluation_s"),
        ("saving checkpoint at iteration 42780 to /checkpoints", "save_s"),
        ("loading distributed checkpoint from /checkpoints at iteration 42000", "startup_s"),
    ],
)
def test_evaluation_save_and_start_up_may_take_longer(watchdog: LogWatcher, line: str, setting: str) -> None:
    watchdog.write(f"{MEGATRON}{line}\n", age_s=15 * MINUTE)
    assert watchdog.outcome() == "OK"
    assert watchdog.anew(**{setting: 5 * MINUTE}).finding().verdict is Verdict.CRITICAL
    assert watchdog.anew(**{setting: 10 * MINUTE}).finding().verdict is Verdict.WARNING


# Talking is not progress


def test_pulse_lines_in_the_log_are_no_progress(watchdog: LogWatcher) -> None:
    """The original's hourly PULSE line kept the log's mtime young for ever."""
    watchdog.write(MEGATRON)
    assert watchdog.outcome() == "OK"
    for _ in range(3):
        watchdog.clock.sleep(HOUR)
        watchdog.write("[2022-05-01 10:00:02] PULSE: tr11-176B-ml is running for 1-07:27:33 since 2022-04-29\n")
        finding = watchdog.finding()
        assert outcome(finding) == SILENT
    assert finding.summary.startswith("no new step for 3 h")
    assert not any("PULSE" in line for line in finding.evidence)


SAVE_WARNING = "resil: warning: the save of step 42780 failed: OSError(28, 'No space left on device')\n"


def test_the_guards_warning_in_a_log_without_a_run_is_a_fault(watchdog: LogWatcher) -> None:
    """No journal has it."""
    watchdog.write(MEGATRON + SAVE_WARNING)
    assert watchdog.outcome() == "CRITICAL failing"


def test_a_line_repeated_for_hours_is_no_progress(watchdog: LogWatcher) -> None:
    watchdog.write(MEGATRON)
    watchdog.findings()
    for _ in range(60):
        watchdog.clock.sleep(MINUTE)
        watchdog.write((RECORDED / "torchelastic_hung.log").read_bytes())
        finding = watchdog.finding()
    assert outcome(finding) == SILENT and "no new step for 1 h" in finding.summary
    assert "still writing output, 1799 lines of it repetitions" in finding.summary
    assert "RendezvousTimeoutError" in finding.evidence[-1]


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
def test_a_log_that_reports_its_end_does_not_hang(watchdog: LogWatcher, line: str) -> None:
    watchdog.write(f"{steps(1, 9)}{line}\n", age_s=5 * HOUR)
    finding = watchdog.finding()
    assert outcome(finding) == "OK" and line[:20].strip() in finding.summary
    watchdog.write(steps(10, 11))  # the next job appends to it
    assert watchdog.finding().summary.startswith("step 11")
    watchdog.clock.sleep(HOUR)
    assert watchdog.outcome() == SILENT


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
def test_a_fatal_error_is_quoted_at_once_and_gone_with_the_next_step(watchdog: LogWatcher, line: str) -> None:
    watchdog.write(f"{steps(1, 9)}{line}\n")
    finding = watchdog.finding()
    assert outcome(finding) == "CRITICAL failing"
    assert line.strip() in finding.summary and line.strip() in finding.evidence
    watchdog.write(steps(10, 10))
    assert watchdog.outcome() == "OK"


def test_a_guard_that_stops_on_purpose_under_srun_is_no_error(watchdog: LogWatcher) -> None:
    watchdog.write(f"{steps(1, 9)}srun: error: n17: tasks 0-3: Exited with exit code 75\n")
    assert watchdog.outcome() == "OK"
    watchdog.write("srun: error: n17: task 3: Exited with exit code 7\n")
    assert watchdog.outcome() == "CRITICAL failing"


# Files


def test_the_hole_in_a_truncated_log_is_skipped(watchdog: LogWatcher) -> None:
    with open(watchdog.directory / "train.log", "wb") as file:
        file.seek(3 * 2**30)  # the writer continues at its old offset: a sparse file
    watchdog.write("\n" + steps(7, 9))
    assert watchdog.finding().summary.startswith("step 9")


def test_nul_bytes_and_broken_utf_8_hide_no_step(watchdog: LogWatcher) -> None:
    watchdog.write(b"\0\0st\0ep 5\xff\xfe loss\n\xc3\x28\n", age_s=HOUR)
    finding = watchdog.finding()
    assert finding.verdict is Verdict.CRITICAL and "(5 at" in finding.summary
    assert all(line.isprintable() for line in finding.evidence)


def test_a_line_of_a_gigabyte_costs_no_more_than_its_end(watchdog: LogWatcher) -> None:
    log = watchdog.write(steps(1, 5))
    watchdog.findings()
    with open(log, "ab") as file:
        for _ in range(64):
            file.write(b"x" * 2**20)
        file.truncate(2**30)
    watchdog.clock.sleep(10.0)
    watchdog.write(b"\nstep 6 loss\n" + b"y" * 2**20)
    import tracemalloc

    tracemalloc.start()
    finding = watchdog.finding()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome(finding) == "OK"
    assert any("of new output skipped" in line for line in finding.looked)
    assert peak < 16 * 2**20


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_its_directory_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


NO_LOGS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "unreadable": make_its_directory_a_file,
}


@pytest.mark.parametrize("kind", NO_LOGS)
def test_a_path_that_is_no_regular_file_is_unknown_and_never_blocks(watchdog: LogWatcher, kind: str) -> None:
    path = watchdog.directory / "logs" / "train.log"
    path.parent.mkdir()
    NO_LOGS[kind](path)
    fault = "missing" if kind == "link to nothing" else "not-read"
    assert watchdog.anew(path).outcome() == f"UNKNOWN {fault}"


def test_a_link_is_followed(watchdog: LogWatcher) -> None:
    watchdog.write(steps(1, 3), "run-1.out")
    (watchdog.directory / "train.log").symlink_to("run-1.out")
    assert watchdog.outcome() == "OK"


# Clocks


def test_a_write_in_the_future_neither_causes_nor_hides_a_hang_and_the_clock_is_reported(watchdog: LogWatcher) -> None:
    watchdog.write(MEGATRON, age_s=-HOUR)
    finding = watchdog.finding()
    assert outcome(finding) == "OK"
    assert any("clock is at least 1 h ahead of ours" in line for line in finding.looked)
    watchdog.clock.sleep(57 * MINUTE)
    assert watchdog.outcome() == SILENT


def test_a_file_servers_clock_that_is_behind_neither_causes_nor_delays_an_alert(watchdog: LogWatcher) -> None:
    for step in range(20):
        watchdog.write(steps(step, step), age_s=10 * MINUTE)
        finding = watchdog.finding()
        assert outcome(finding) == "OK"
        watchdog.clock.sleep(30.0)
    assert any("behind ours" in line for line in finding.looked)
    watchdog.clock.sleep(57 * MINUTE)
    assert watchdog.outcome() == SILENT


def test_by_a_clock_that_is_two_hours_ahead_the_next_look_sees_that_the_training_goes_on(watchdog: LogWatcher) -> None:
    watchdog.write(MEGATRON, age_s=2 * HOUR)
    assert watchdog.outcome() == SILENT  # as of a hang: no earlier look tells them apart
    watchdog.clock.sleep(30.0)
    watchdog.write(steps(42790, 42790), age_s=2 * HOUR)
    assert watchdog.outcome() == "OK"


@pytest.mark.parametrize("jump_s", [8 * HOUR, 365 * 24 * HOUR, -HOUR])
def test_a_clock_jump_and_a_suspended_machine_are_no_hang(
    watchdog: LogWatcher, clock: FakeClock, jump_s: float
) -> None:
    watchdog.write(MEGATRON)
    watchdog.findings()
    clock.sleep(MINUTE)
    clock.time += jump_s  # the monotonic clock does not see it
    finding = watchdog.finding()
    assert outcome(finding) == "OK" and finding.summary.startswith("step 42780 1 min ago")
    clock.sleep(57 * MINUTE)
    assert watchdog.outcome() == SILENT


def test_now_is_never_before_the_readings(watchdog: LogWatcher, clock: FakeClock) -> None:
    watchdog.write(steps(1, 2))
    watchdog.findings()
    clock.time -= 5.0
    assert watchdog.outcome() == "OK"


# Several files


def test_each_log_of_a_pattern_is_a_subject_of_its_own(watchdog: LogWatcher) -> None:
    for rank in range(4):
        watchdog.write(MEGATRON, f"rank{rank}.log", age_s=HOUR if rank == 2 else 1)
    expected = {f"rank{rank}.log": "OK" for rank in range(4)} | {"rank2.log": SILENT}
    assert watchdog.anew("rank*.log").outcomes() == expected


def test_a_pattern_may_require_any_log_or_only_the_newest(watchdog: LogWatcher) -> None:
    for rank in range(3):
        watchdog.write(steps(1, 9), f"rank{rank}.log", age_s=HOUR if rank else 1)
    for files in ("any", "newest"):
        finding = watchdog.anew("rank*.log", files=files, timeout_s=60.0).finding()
        assert outcome(finding) == "OK" and finding.subject == str(watchdog.directory / "rank*.log")
    watchdog.clock.sleep(HOUR)
    assert watchdog.anew("rank*.log", files="any", timeout_s=60.0).finding().verdict is Verdict.CRITICAL


def test_a_pattern_skips_old_and_rotated_logs(watchdog: LogWatcher) -> None:
    watchdog.write(steps(1, 9), "gpt.out")
    for name in ("gpt.out.1", "gpt.out-20261119", "gpt.out.2.gz"):
        watchdog.write(steps(1, 9), name, age_s=HOUR)
    watchdog.write(steps(1, 9), "other.out", age_s=48 * HOUR)
    (watchdog.directory / "latest.out").symlink_to("gpt.out")
    assert list(watchdog.anew("*").outcomes()) == ["gpt.out"]


def test_a_watched_log_stays_watched_when_it_is_old(watchdog: LogWatcher) -> None:
    for name in ("gpt.out", "other.out"):
        watchdog.write(steps(1, 9), name)
    several = watchdog.anew("*.out")
    several.findings()
    watchdog.clock.sleep(48 * HOUR)
    assert several.outcomes() == {"gpt.out": SILENT, "other.out": SILENT}


def test_the_next_jobs_log_takes_over_from_the_one_before(watchdog: LogWatcher) -> None:
    watchdog = watchdog.anew("gpt-*.out")
    watchdog.write(steps(1, 9), "gpt-1001.out")
    assert watchdog.outcome() == "OK"
    watchdog.clock.sleep(2 * HOUR)
    watchdog.write(steps(10, 19), "gpt-1002.out")
    found = {Path(finding.subject).name: finding for finding in watchdog.findings()}
    assert {name: outcome(finding) for name, finding in found.items()} == {"gpt-1001.out": "OK", "gpt-1002.out": "OK"}
    assert found["gpt-1001.out"].summary.startswith("gpt-1002.out has taken over")
    watchdog.clock.sleep(2 * HOUR)
    assert watchdog.outcomes() == {"gpt-1001.out": "OK", "gpt-1002.out": SILENT}


def test_concurrent_jobs_do_not_take_over_from_each_other(watchdog: LogWatcher) -> None:
    for number in (1001, 1002):
        watchdog.write(steps(1, 5), f"gpt-{number}.out", age_s=1010 - number)
    watchdog = watchdog.anew("*.out")
    assert ["taken over" in finding.summary for finding in watchdog.findings()] == [False, False]
    watchdog.clock.sleep(HOUR)
    watchdog.write(steps(6, 7), "gpt-1002.out")
    assert watchdog.outcomes() == {"gpt-1001.out": SILENT, "gpt-1002.out": "OK"}


def test_a_rank_that_hangs_is_reported_beside_healthy_ones(watchdog: LogWatcher) -> None:
    watchdog = watchdog.anew("rank-*.log", timeout_s=300.0)
    for tick in range(10):
        for rank in range(3):
            if rank != 1 or tick < 2:
                watchdog.write(steps(tick, tick), f"rank-{rank}.log")
        outcomes = watchdog.outcomes()
        watchdog.clock.sleep(MINUTE)
    assert outcomes == {"rank-0.log": "OK", "rank-1.log": SILENT, "rank-2.log": "OK"}


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        (("rank0.log", "rank1.log"), "OK"),
        (("gpt-1234.0.out", "gpt-1234.1.out"), "OK"),
        (("0/stdout.log", "1/stdout.log"), "OK"),
        (("slurm-1234_1.out", "slurm-1234_2.out"), "WARNING"),
        (("exp0.log", "exp1.log"), "WARNING"),
        (("rank0.log", "rank1.err"), "WARNING"),
    ],
)
def test_a_rank_that_logs_no_steps_is_covered_by_one_that_does(
    watchdog: LogWatcher, names: tuple[str, str], verdict: str
) -> None:
    watchdog = watchdog.anew("*/*.log" if "/" in names[0] else "*")
    for name in names:
        (watchdog.directory / name).parent.mkdir(exist_ok=True)
        watchdog.write("UserWarning: slow\n", name)
    for step in range(3):
        watchdog.write(steps(step, step), names[0])
        found = {finding.subject: finding for finding in watchdog.findings()}
        watchdog.clock.sleep(20 * MINUTE)
    other = str(watchdog.directory / names[1])
    assert found[other].verdict.value == verdict
    watchdog.write("[rank1]: RuntimeError: NCCL error: unhandled\n", names[1])
    found = {finding.subject: finding for finding in watchdog.findings()}
    assert outcome(found[other]) == "CRITICAL failing"


def test_a_given_path_that_never_existed_is_no_vanished_log_of_a_pattern(watchdog: LogWatcher) -> None:
    watchdog.write(steps(1, 2), "a.log")
    one, many = watchdog.anew("b.log"), watchdog.anew("*.log")
    assert one.outcome() == "UNKNOWN missing"
    many.memory = one.memory
    assert many.outcome() == "OK"


def test_a_pattern_that_matches_nothing_is_unknown(watchdog: LogWatcher) -> None:
    def expect(expected: str, word: str = "") -> None:
        finding = watchdog.anew("logs/*.out").finding()
        assert outcome(finding) == expected and word in finding.summary

    expect("UNKNOWN not-read", "No such file")
    (watchdog.directory / "logs").mkdir()
    expect("UNKNOWN missing")
    watchdog.write(steps(1, 2), "logs/a.out", age_s=48 * HOUR)
    expect("UNKNOWN old", "a.out")


def test_a_pattern_is_a_subject_too_so_that_the_end_of_its_own_faults_is_reported(watchdog: LogWatcher) -> None:
    watchdog = watchdog.anew("*.out")
    pattern = str(watchdog.directory / "*.out")

    def outcomes() -> dict[str, str]:
        return {finding.subject: outcome(finding) for finding in watchdog.all_findings()}

    assert watchdog.outcome() == "UNKNOWN missing"
    log = watchdog.write(steps(1, 2), "a.out")
    assert outcomes() == {pattern: "OK", str(log): "OK"}
    log.unlink()
    watchdog.clock.sleep(MINUTE)
    watchdog.findings()
    watchdog.clock.sleep(HOUR)
    assert outcomes() == {pattern: "UNKNOWN missing", str(log): "OK"}


def test_paths_in_settings_are_relative_to_the_project_and_typed_ones_may_be_to_the_current_directory(
    watchdog: LogWatcher, clock: FakeClock
) -> None:
    below = watchdog.directory / "sub"
    below.mkdir()
    watchdog.context = watchdog.context._replace(project=below)
    watchdog.write(steps(1, 2))
    assert watchdog.finding().summary.startswith("step 2")
    log = watchdog.write(steps(1, 5), "sub/train.log")
    finding = LogWatcher(below, "train.log", clock=clock).finding()
    assert (finding.subject, finding.summary[:6]) == (str(log), "step 5")


def test_a_file_whose_name_is_a_pattern_is_that_file(watchdog: LogWatcher) -> None:
    log = watchdog.write(steps(1, 2), "train[1].log")
    finding = watchdog.anew("train[1].log").finding()
    assert (finding.subject, outcome(finding)) == (str(log), "OK")


def test_logs_of_one_file_system_are_one_target(watchdog: LogWatcher) -> None:
    watchdog = watchdog.anew("a.log", "b.log", "/dev/shm/c.log")
    targets = CHECK.targets(watchdog.settings, watchdog.context)
    assert sorted(len(target.subjects) for target in targets) == [1, 2]
    assert str(watchdog.directory / "a.log") in {subject for target in targets for subject in target.subjects}


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
def test_invalid_settings_are_rejected(watchdog: LogWatcher, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        CHECK.targets(replace(watchdog.settings, **settings), watchdog.context)


def test_a_regular_expression_that_backtracks_for_ever_is_stopped_and_reported(watchdog: LogWatcher) -> None:
    watchdog.write("a" * 4000 + "\n")
    with pytest.raises(ProbeError, match=r"progress_regex .* took more than 1 s on .*train\.log") as caught:
        watchdog.anew(progress_regex=r"(?:a+)+(b)").findings()
    assert "backtracking" in caught.value.hint


def test_secrets_and_control_characters_are_not_in_findings(watchdog: LogWatcher) -> None:
    text = (
        "step 5 loss\n\x1b[31mred\x1b[0m\x07 bell\n"
        "login with hf_abcdefghijklmnopqrstuvwx\npassword=correct1horse2battery\n"
        "posting to https://hooks.slack.com/services/T000/B000/XXXX\ngit clone https://me:gh0pass@host/x\n"
    )
    watchdog.write(text, age_s=HOUR)
    finding = watchdog.finding()
    said = " ".join((finding.summary, *finding.evidence))
    assert finding.verdict is Verdict.CRITICAL and said.isprintable()
    for secret in ("hf_abc", "correct1horse", "T000", "gh0pass"):
        assert secret not in said
