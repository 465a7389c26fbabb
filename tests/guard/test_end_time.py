"""The end time is queried from real programs that answer, fail and hang."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience.guard import end_time
from resilience.guard.end_time import (
    NO_LIMIT,
    EndTime,
    QueryUnavailable,
    find_end_time,
    parse_end,
    query_slurm,
    read_local_end,
)
from resilience.guard.rank_info import RankInfo
from resilience.schedulers._local.records import Task, to_json
from tests.lab.hung import hung_directory
from tests.lab.waiting import until

END = 1_795_000_000.0
SOON_S = 10.0


def refreshed(end: EndTime, now: float) -> EndTime:
    end.refresh(now)
    return end


Squeue = Callable[[str], dict[str, str]]


@pytest.fixture
def squeue(tmp_path: Path) -> Squeue:
    """Install a squeue that runs this bash text; return an environment with it first in PATH."""

    def install(text: str) -> dict[str, str]:
        program = tmp_path / "bin" / "squeue"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}

    return install


# ---- what squeue says ---------------------------------------------------------------------------------------------

ANSWERS = [
    ("12 1795000000", END),
    ("12 NONE", NO_LIMIT),
    ("12 N/A", None),
    ("12 Unknown", None),
    ("12 2026-11-20T08:45:55", None),  # a squeue without support for SLURM_TIME_FORMAT=%s
    ("12 0", None),
    ("12 -1", None),
    ("12 1٧95000000", None),
    ("12 99999999999999999999999", None),
    ("", None),
    ("12", None),
    ("13 1795000000", None),
    ("13 1795000009\n12 1795000000\n14 N/A", END),  # -j with an array's job id lists its other tasks too
    ("12 1795000000\n12 1795000000", END),
    ("12 1795000000\n12 1795000007", None),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", None),
]


@pytest.mark.parametrize(("output", "end"), ANSWERS, ids=[case[0] for case in ANSWERS])
def test_only_a_time_of_this_very_job_is_an_end(output: str, end: float | None) -> None:
    assert parse_end(output, "12") == end


def test_squeue_is_asked_for_epoch_seconds_in_a_clean_environment(squeue: Squeue, tmp_path: Path) -> None:
    environ = squeue(f'env >"{tmp_path}/env"; printf "%s\\n" "$@" >"{tmp_path}/argv"; echo 12 1795000000')
    dirty = {"SQUEUE_FORMAT": "%i", "SQUEUE_STATES": "PD", "SLURM_CLUSTERS": "other", "SLURM_TIME_FORMAT": "relative"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_JWT": "token"}
    assert query_slurm("12", {**environ, **dirty, **kept, "LANG": "de_DE.UTF-8"}) == END
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert not {name for name in seen if name.startswith("SQUEUE_")} and "SLURM_CLUSTERS" not in seen
    assert (seen["SLURM_TIME_FORMAT"], seen["LC_ALL"]) == ("%s", "C")
    assert (seen["SLURM_CONF"], seen["SLURM_JWT"]) == ("/etc/slurm.conf", "token")
    assert (tmp_path / "argv").read_text().split("\n")[:-1] == ["-h", "-j", "12", "-o", "%A %e"]


def test_the_output_of_a_failed_squeue_is_ignored(squeue: Squeue) -> None:
    assert query_slurm("12", squeue("echo 12 1795000000; exit 1")) is None
    assert query_slurm("12", squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")) is None
    assert query_slurm("12", squeue("kill -9 $$")) is None


def test_without_squeue_nothing_is_queried(tmp_path: Path) -> None:
    with pytest.raises(QueryUnavailable):
        query_slurm("12", {"PATH": str(tmp_path)})
    (tmp_path / "squeue").write_text("no program")
    with pytest.raises(QueryUnavailable):
        query_slurm("12", {"PATH": str(tmp_path)})


def test_an_environment_that_no_program_can_have_is_no_answer() -> None:
    assert query_slurm("12", {"PATH": "/bin", "BAD": "\0"}) is None


def test_a_hung_squeue_is_killed_with_its_process_group(squeue: Squeue, tmp_path: Path) -> None:
    environ = squeue(f"trap '' TERM HUP INT; sleep 300 & echo $! $$ >{tmp_path}/pids; wait")
    began = time.monotonic()
    assert query_slurm("12", environ, deadline_s=1.0) is None
    assert time.monotonic() - began < 30
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    until(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_squeue_that_writes_without_end_is_no_answer_and_takes_no_memory(squeue: Squeue) -> None:
    assert query_slurm("12", squeue("exec yes '12 1795000000 more'"), deadline_s=0.5) is None


def test_a_child_left_by_squeue_does_not_delay_the_answer(squeue: Squeue, tmp_path: Path) -> None:
    try:
        environ = squeue(f"sleep 1000 & echo $! >{tmp_path}/pid; echo 12 1795000000")
        assert query_slurm("12", environ, deadline_s=500) == END
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_squeue_on_a_hung_file_system_does_not_block_the_caller(tmp_path: Path) -> None:
    """Starting a program holds the interpreter's lock until its file is opened; the shell in between avoids this."""
    script = f"""
import sys, threading, time
from resilience.guard.end_time import query_slurm
ticks, over = [], threading.Event()
def tick():
    while not over.is_set():
        ticks.append(time.monotonic())
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
began = time.monotonic()
assert query_slurm("12", {{"PATH": "{tmp_path}/hung:/usr/bin:/bin"}}, deadline_s=5.0) is None
took = time.monotonic() - began
over.set()
print(took, max(after - before for before, after in zip(ticks, ticks[1:])), flush=True)
import os; os._exit(0)
"""
    with hung_directory(tmp_path / "hung"):
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    took_s, longest_gap_s = map(float, done.stdout.split())
    assert took_s < 30 and longest_gap_s < 4.5  # this thread continued while the other waited


def test_a_child_that_cannot_be_killed_is_left_behind_and_reaped_later(
    squeue: Squeue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "killpg", lambda pid, number: None)  # as in uninterruptible sleep
    assert query_slurm("12", squeue("exec sleep 300"), deadline_s=0.1) is None
    (child,) = end_time._left_behind
    os.kill(child.pid, signal.SIGKILL)
    until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert query_slurm("12", squeue("echo 12 1795000000")) == END
    assert not end_time._left_behind and child.returncode == -signal.SIGKILL


# ---- the embedded scheduler ---------------------------------------------------------------------------------------


def write_task(spool: Path, text: str, job_id: str = "12") -> None:
    directory = spool / "jobs" / job_id
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "task.json").write_text(text)


RECORDS = [
    ({"start": END - 60, "time_limit_s": 60}, END),
    ({"start": END - 60.5, "time_limit_s": 60}, END - 0.5),
    ({"start": END - 60, "time_limit_s": None}, NO_LIMIT),
    ({"start": None, "time_limit_s": 60}, None),
    ({"start": END - 60, "time_limit_s": "60"}, None),
    ({"start": END - 60}, None),
    ({"start": 5, "time_limit_s": 60}, None),
    ([1], None),
]


@pytest.mark.parametrize(("record", "end"), RECORDS, ids=[str(case[0]) for case in RECORDS])
def test_the_end_is_read_from_the_record_of_the_embedded_scheduler(
    tmp_path: Path, record: Any, end: float | None
) -> None:
    write_task(tmp_path, json.dumps(record))
    assert read_local_end(str(tmp_path), "12") == end


@pytest.mark.parametrize(("limit_s", "end"), [(60, END), (None, NO_LIMIT)])
def test_the_record_is_read_as_the_embedded_scheduler_writes_it(
    tmp_path: Path, limit_s: int | None, end: float | None
) -> None:
    write_task(tmp_path, to_json(Task(raw=12, start=END - 60, time_limit_s=limit_s)))
    assert read_local_end(str(tmp_path), "12") == end
    write_task(tmp_path, to_json(Task(raw=12, time_limit_s=limit_s)))  # queued
    assert read_local_end(str(tmp_path), "12") is None


def test_a_record_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    assert read_local_end(str(tmp_path), "12") is None
    write_task(tmp_path, "{half")
    assert read_local_end(str(tmp_path), "12") is None
    path = tmp_path / "jobs" / "12" / "task.json"
    path.unlink()
    os.mkfifo(path)
    assert stat.S_ISFIFO(path.stat().st_mode) and read_local_end(str(tmp_path), "12") is None


# ---- who is asked -------------------------------------------------------------------------------------------------


def test_nothing_is_queried_without_a_job_or_for_another_job() -> None:
    for place, environ in (
        (RankInfo(), {}),
        (RankInfo(job_id="12"), {}),
        (RankInfo(job_id="12"), {"SLURM_JOB_ID": "13"}),
        (RankInfo(job_id="a12"), {"SLURM_JOB_ID": "a12"}),
        (RankInfo(job_id="12"), {"SLURM_JOB_ID": "12", "RESIL_SCHEDULER": "local"}),
        (RankInfo(job_id="12"), {"SLURM_JOB_ID": "12", "RESIL_SCHEDULER": "local", "RESIL_LOCAL_SPOOL": "relative"}),
    ):
        assert not find_end_time(place, environ, 120.0).can_query
    assert not find_end_time(RankInfo(job_id="12"), {"SLURM_JOB_ID": "12"}, 0.0).can_query


def test_squeue_is_asked_in_a_job_of_slurm(squeue: Squeue) -> None:
    end = find_end_time(RankInfo(job_id="12", end_time=END - 500), squeue("echo 12 1795000000"), 120.0)
    assert (end.end, end.can_query, end.every_s) == (END - 500, True, 120.0)
    end.refresh(0.0)
    assert end.end == END - 500  # no waiting
    until(lambda: refreshed(end, 0.1).checked_at is not None)
    assert (end.end, end.checked_at) == (END, 0.1)


def test_the_spool_is_read_in_a_job_of_the_embedded_scheduler_and_often(tmp_path: Path) -> None:
    write_task(tmp_path, json.dumps({"start": END - 60, "time_limit_s": 60}))
    environ = {"RESIL_JOB_ID": "12", "RESIL_SCHEDULER": "local", "RESIL_LOCAL_SPOOL": str(tmp_path)}
    end = find_end_time(RankInfo(job_id="12", end_time=END), environ, 120.0)
    assert end.every_s <= 2.0
    write_task(tmp_path, json.dumps({"start": END - 60, "time_limit_s": 20}))
    end.refresh(0.0)
    until(lambda: refreshed(end, 0.1).end == END - 40)


# ---- when -----------------------------------------------------------------------------------------------------


class Answers:
    """A query that returns when released."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: float | Exception | None = END
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self) -> float | None:
        self.asked += 1
        self.may_answer.wait(SOON_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    yield made
    made.may_answer.set()


def answered(end: EndTime, now: float) -> None:
    """Refresh, and wait for the answer of a due query."""
    end.refresh(now - 1.0)
    until(lambda: refreshed(end, now)._running is None)


def test_the_first_query_is_immediate_and_later_ones_are_periodic(answers: Answers) -> None:
    end = EndTime(None, answers, 100.0)
    answered(end, 1.0)
    assert (end.end, answers.asked) == (END, 1)
    for now in range(2, 100):
        end.refresh(float(now))
    assert answers.asked == 1
    answered(end, 101.0)
    assert answers.asked == 2


@pytest.mark.parametrize("answer", [None, OSError("no"), ValueError("odd")], ids=str)
def test_no_answer_changes_nothing_and_the_query_is_repeated(answers: Answers, answer: Any) -> None:
    answers.answer = answer
    end = EndTime(END - 7, answers, 100.0)
    answered(end, 1.0)
    assert (end.end, end.checked_at, end.can_query) == (END - 7, 1.0, True)


def test_a_removed_limit_is_accepted(answers: Answers) -> None:
    answers.answer = math.inf
    end = EndTime(END, answers, 100.0)
    answered(end, 1.0)
    assert end.end == NO_LIMIT


def test_an_unavailable_query_is_not_retried(answers: Answers) -> None:
    answers.answer = QueryUnavailable()
    end = EndTime(END, answers, 100.0)
    answered(end, 1.0)
    assert (end.end, end.can_query) == (END, False)
    end.refresh(1000.0)
    end.query(1001.0)
    assert answers.asked == 1


def test_a_hung_query_is_abandoned_and_no_second_thread_is_started(answers: Answers) -> None:
    answers.may_answer.clear()
    end = EndTime(END - 7, answers, 10.0)
    end.refresh(0.0)
    until(lambda: answers.asked == 1)
    end.refresh(20.0)
    assert end.checked_at is None
    for now in (23.0, 50.0, 500.0):
        end.refresh(now)
        assert end.checked_at == now
    assert (answers.asked, end.end) == (1, END - 7)
    answers.may_answer.set()  # the file system responds again
    answered(end, 501.0)
    assert end.end == END
    until(lambda: refreshed(end, 600.0) and answers.asked > 1)


def test_asking_never_blocks_the_caller(answers: Answers) -> None:
    answers.may_answer.clear()
    end = EndTime(END, answers, 10.0)
    began = time.monotonic()
    end.refresh(0.0)
    end.query(1.0)
    end.refresh(2.0)
    assert time.monotonic() - began < 10.0
