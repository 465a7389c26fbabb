"""Real training processes: stopped, logging without progress, with a rotated log, and guarded with a hung rank."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resilience.finding import Finding, Verdict
from tests.guard.guarded import a_launch
from tests.lab.fakes import FakeClock
from tests.lab.waiting import until
from tests.watch.checks.log.training_run import Run
from tests.watch.checks.log.watcher import LogWatcher

_TRAINING = """
import os, sys, time
log = sys.argv[1]
step = 0
while True:
    if not os.path.exists(log + ".mute"):
        step += 1
    with open(log, "a") as file:
        print(f"step {step} loss 2.1" if not os.path.exists(log + ".mute") else "waiting for rank 3", file=file)
    time.sleep(0.02)
"""
_WRITER = _TRAINING.replace('with open(log, "a") as file:', "for file in [OPEN]:").replace(
    "step = 0", 'step = 0\nOPEN = open(log, "a", buffering=1)', 1
)


@contextmanager
def a_training(log: Path, program: str = _TRAINING) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", program, str(log)], stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_ok(finding: Finding) -> bool:
    return finding.verdict is Verdict.OK and finding.summary.startswith("step ")


def is_critical(finding: Finding) -> bool:
    return finding.verdict is Verdict.CRITICAL


def test_a_stopped_process_is_a_hang_until_it_is_continued(tmp_path: Path) -> None:
    watchdog = LogWatcher(tmp_path, "train.log", timeout_s=0.7)
    with a_training(tmp_path / "train.log") as process:
        watchdog.until(is_ok)
        process.send_signal(signal.SIGSTOP)
        finding = watchdog.until(is_critical)
        assert finding.fault == "no-progress" and "last line: step" in finding.summary
        process.send_signal(signal.SIGCONT)
        watchdog.until(is_ok)


def test_a_process_that_logs_without_progress_is_a_hang(tmp_path: Path) -> None:
    watchdog = LogWatcher(tmp_path, "train.log", timeout_s=0.7)
    with a_training(tmp_path / "train.log"):
        watchdog.until(is_ok)
        (tmp_path / "train.log.mute").touch()
        finding = watchdog.until(is_critical)
        assert finding.fault == "no-progress" and "last line: waiting for rank 3" in finding.summary
        (tmp_path / "train.log.mute").unlink()
        watchdog.until(is_ok)


def test_rotating_the_log_of_a_running_process_causes_no_alert(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    watchdog = LogWatcher(tmp_path, "train.log", timeout_s=3.0)
    with a_training(log):
        watchdog.until(is_ok)
        for number in range(5):
            until(log.exists)
            log.rename(tmp_path / f"train.log.{number}")
            assert not any(map(is_critical, watchdog.findings()))
            watchdog.until(is_ok)


def test_truncating_the_log_of_a_running_process_causes_no_alert(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    watchdog = LogWatcher(tmp_path, "train.log", timeout_s=3.0)
    with a_training(log, _WRITER):
        for _ in range(3):
            watchdog.until(is_ok)
            with open(log, "r+b") as file:
                file.truncate(0)
            assert not any(map(is_critical, watchdog.findings()))


def test_a_hung_rank_of_a_guarded_training_is_reported(tmp_path: Path) -> None:
    run, watchdog = Run(tmp_path, FakeClock(5.0)), LogWatcher(tmp_path, timeout_s=2.0)
    run.attempt(3, 12)
    with a_launch(tmp_path / "launch", run.path, 3) as launch:
        launch.wait_for_steps()
        finding = watchdog.until(lambda finding: is_ok(finding) and "heartbeat of 3 ranks" in finding.summary)
        launch.signal(1, signal.SIGSTOP)
        finding = watchdog.until(is_critical)
        assert "rank 1 on n1: stopped by a signal or a debugger (state T) (1 of 3 ranks)" in finding.summary
        launch.signal(1, signal.SIGCONT)
        watchdog.until(is_ok)
        launch.kill(2)
        finding = watchdog.until(lambda finding: finding.fault == "rank-gone")
        assert "rank 2 on n1 exited without a final message" in finding.summary
