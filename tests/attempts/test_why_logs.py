"""Logs as they come from other programs and launchers: what `resil why FILE` says of them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from resilience.attempts.classify import Evidence, classify
from resilience.attempts.failure import Confidence, FailureClass
from resilience.attempts.ledger import TAIL_BYTES, read_end
from resilience.attempts.why import Why, why_of_log

C = FailureClass
OWN = """Traceback (most recent call last):
  File "/home/ada/train.py", line 88, in step
    loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 521, in backward
    torch.autograd.backward(
{error}
"""
DISK = OWN.format(error="OSError: [Errno 5] Input/output error: '/lustre/shard-17'")
KEY = OWN.format(error="KeyError: 'train_split'")
STEPS = "".join(f"[rank{rank}]: step {step} loss 2.31\n" for step in range(40) for rank in range(4))
CHATTER = "".join(f"[rank{at % 3}]: monitor: gpu {at % 97} % mem 40 GiB waits {at} s\n" for at in range(60_000))
WATCHDOG = (
    "[rank0]:[E1120 03:24:15.9 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: Work\n"
)
ELASTIC = 'Traceback (most recent call last):\n  File "/opt/torchrun", line 8, in <module>\nChildFailedError:\n'


def prefixed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def record(**fields: object) -> str:
    return json.dumps({"ts": "2026-11-20T03:14:15Z", **fields}) + "\n"


LOGS = {
    "JSON": (
        record(level="info", step=512, loss=2.3) * 9 + record(level="error", exc_info=KEY, rank=3),
        C.EXCEPTION, 3, "KeyError: 'train_split'",
    ),
    "JSON of a record longer than a line may be": (
        record(exc_info=OWN.replace("loss.backward()", "x" * 9000).format(error="OSError: [Errno 28] x")),
        C.DISK_FULL, None, "OSError: [Errno 28] x",
    ),
    "mpirun --tag-output": (prefixed(STEPS + KEY, "[1,2]<stderr>:"), C.EXCEPTION, 2, "[1,2]<stderr>:KeyError"),
    "Ray": (prefixed(STEPS + KEY, "(TrainWorker pid=9860, ip=10.1.2.4) "), C.EXCEPTION, None, "KeyError"),
    "pdsh": (prefixed(STEPS + DISK, "worker-1: "), C.IO_ERROR, None, "worker-1: OSError"),
    "progress bars": (
        "".join(f"\r {step}/5000 [01:12<07:11, 11.5it/s, train_loss=2.31]" for step in range(900)) + "\n" + KEY
        + "\r 900/5000 [01:12<07:11, 11.5it/s, train_loss=2.31]\n",
        C.EXCEPTION, None, "KeyError",
    ),
    "colours": (
        STEPS + "\x1b[31m\x1b[1mERROR\x1b[0m | save - [Errno 122] Disk quota exceeded: '/ckpt'\x1b[0m\n",
        C.QUOTA, None, "ERROR | save - [Errno 122] Disk quota",
    ),
    "other ranks chatter on": (
        STEPS + prefixed(DISK, "[rank3]: ") + CHATTER + WATCHDOG + ELASTIC, C.IO_ERROR, 3, "[rank3]: OSError",
    ),
    "a traceback megabytes before, and further steps": (DISK + STEPS * 300, C.UNKNOWN, None, "step 39"),
    "an earlier start of the job": (
        STEPS + DISK + "resil: START attempt 4 of gpt\n" + CHATTER, C.UNKNOWN, None, "monitor",
    ),
}  # fmt: skip


def why(directory: Path, log: bytes) -> Why:
    path = directory / "job.log"
    path.write_bytes(log)
    os.utime(path, (1000, 1000))
    return why_of_log(path, time.time())


@pytest.mark.parametrize("name", LOGS)
def test_the_cause_is_found_in_whatever_form(tmp_path: Path, name: str) -> None:
    log, failure, rank, quoted = LOGS[name]
    found = why(tmp_path, log.encode())
    assert (found.failure.failure, found.failure.rank) == (failure, rank), found.failure.reason
    assert any(quoted in quote.text for quote in found.failure.quotes)
    assert found.is_whole == (len(log) <= TAIL_BYTES), "else the numbers are not those of the file's lines"
    assert not found.notes


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8"])
def test_words_of_other_languages_are_quoted_as_they_are(tmp_path: Path, encoding: str) -> None:
    log = "".join(f"[信息] 第 {step} 步 损失 2.31\n" for step in range(99)) + OWN.format(
        error="ValueError: 数据 已损坏"
    )
    found = why(tmp_path, log.encode(encoding))
    assert (found.failure.failure, found.failure.quotes[0].text) == (C.EXCEPTION, "ValueError: 数据 已损坏")


def test_of_a_log_that_was_just_written_it_says_that_the_program_may_still_run(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(STEPS)
    found = why_of_log(tmp_path / "job.log", time.time())
    assert found.failure.failure is C.UNKNOWN and "ends with steps" in found.failure.reason
    assert "may still run" in found.notes[0]


def test_the_rank_that_reports_the_silence_of_another_is_no_culprit() -> None:
    found = classify(Evidence(exit_code=1, log=STEPS + WATCHDOG + "srun: error: n7: task 0: Aborted (core dumped)\n"))
    assert (found.failure, found.confidence) == (C.COLLECTIVE_TIMEOUT, Confidence.GUESS)
    assert (found.rank, found.host) == (None, "")


def test_of_a_running_attempt_no_earlier_traceback_is_read(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(DISK + STEPS)
    assert "Errno 5" in read_end(log, 2000)
    assert "Errno 5" not in read_end(log, 2000, looks_back=False)
