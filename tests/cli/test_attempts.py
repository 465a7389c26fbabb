"""`resil why` and `resil attempts`: of a log, of a job, of a run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from resilience.job import JobState
from tests.lab.fakes import a_job
from tests.lab.shell import Shell

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    assert shell.resil("submit", "--array", "10").code == 0
    start = 'job_id = 101\nlabel = "101_1"\nrestart = 0\nhost = "n1"\npid = 7\nstart = 1000\n'
    (shell.run_dir / "attempts" / "0001").write_text(start)
    (shell.run_dir / "attempts" / "0001.end").write_text('end = "exited"\nexit_code = 1\ntime = 1060\n')
    (shell.run_dir / "logs" / "gpt-101_1.out").write_text(OOM)
    return shell


@pytest.mark.parametrize("words", [(), ("gpt",), ("101_1",), ("101",)])
def test_a_run_and_a_job_say_why_they_ended(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell.resil("why", *words)
    assert said.code == 0
    assert said.out.startswith("attempt 1 of gpt (job 101_1): gpu oom (likely)\n")
    assert "\n  try: smaller micro batches" in said.out


def test_a_log_that_resil_never_saw_says_why_it_ended(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "slurm-99.out"
    log.write_text(f"step 1 loss 2\n{OOM}")
    assert shell.resil("why", str(log)).out.startswith(f"{log}: gpu oom (likely)\n")
    found = json.loads(shell.resil("why", str(log), "--json").out)["why"]
    assert (found["failure"]["failure"], found["failure"]["quotes"][0]["line"]) == ("gpu_oom", 2)
    log.write_text("step 1 loss 2\nstep 2 loss 2\n")
    *_, last, note = shell.resil("why", str(log)).out.splitlines()
    assert last.endswith("step 2 loss 2") and note.endswith("the program may still run"), "where it ends"


@pytest.mark.parametrize("what", ["gone.log", "logs/gone", "/tmp"])
def test_a_missing_log_is_no_run(shell: Shell, what: str) -> None:
    said = shell.resil("why", what)
    assert said.code == 2 and f"{what} is neither a file nor a run" in said.err


def test_an_attempt_without_an_end_may_still_run(shell: Shell) -> None:
    assert "may still run" not in shell.resil("why").out
    (shell.run_dir / "attempts" / "0001.end").unlink()
    assert "\n  note: attempt 1 has recorded no end: it may still run\n" in shell.resil("why").out


def test_of_attempts_that_wrote_no_end_those_that_are_over_by_others_have_ended(shell: Shell) -> None:
    """A batch shell that was killed writes none: a later attempt says that it is over, or else the scheduler."""
    start = 'job_id = 10{0}\nlabel = "101_{0}"\nrestart = 0\nhost = "n1"\npid = 7\nstart = {0}000\n'
    for number in (2, 3):
        (shell.run_dir / "attempts" / f"000{number}").write_text(start.format(number))
    assert shell.resil("why").out.startswith("attempt 2 of gpt (job 101_2): ")
    shell.fake.records.append(a_job(101, JobState.CANCELLED, task=3, raw_id=103, start_time=3000.0))
    assert shell.resil("why").out.startswith("attempt 3 of gpt (job 101_3): cancelled ")


def test_a_number_without_a_record_is_no_attempt_since_1970(shell: Shell) -> None:
    (shell.run_dir / "attempts" / "0002").touch()
    out = shell.resil("attempts").out
    assert out.count("1970-") == 1 and "trained 1 min, waited 0 s, in total 1 min\n" in out


def test_a_last_attempt_that_has_fallen_silent_is_not_just_running(shell: Shell) -> None:
    (shell.run_dir / "attempts" / "0001.end").unlink()
    beat = shell.run_dir / "attempts" / "0001.beat"
    beat.write_text("1 7 1300\n")
    assert "running" in shell.resil("attempts").out and "has no end" not in shell.resil("attempts").out
    os.utime(beat, (now := time.time() - 1560, now))
    said = shell.resil("attempts").out
    assert "  attempt 1 has no end, and its batch shell has written nothing for 26 min: resil status gpt\n" in said


def test_a_run_may_be_named_by_its_directory(shell: Shell) -> None:
    assert shell.resil("why", str(shell.run_dir)).out.startswith("attempt 1 of gpt (job 101_1): gpu oom (likely)\n")


def test_a_pipe_is_no_log(shell: Shell) -> None:
    os.mkfifo(shell.directory / "pipe")
    said = shell.resil("why", "pipe")
    assert said.code == 2 and "pipe is neither a file nor a run" in said.err


def test_the_ledger_is_a_table_json_and_a_timeline(shell: Shell, tmp_path: Path) -> None:
    said = shell.resil("attempts", "--svg", str(tmp_path / "gpt.svg"))
    assert said.code == 0 and "gpu oom" in said.out and "101_1" in said.out
    assert (tmp_path / "gpt.svg").read_text().startswith("<svg ")
    assert "  causes: gpu oom 1\n" in said.out
    assert "\n  trained 1 min, waited 0 s, in total 1 min\n" in said.out
    found = json.loads(shell.resil("attempts", "--json").out)
    (row,) = found["attempts"]
    assert (row["failure"]["failure"], row["end"], row["exit_code"]) == ("gpu_oom", "exited", 1)
    assert found["totals"] == {"trained_s": 60.0, "waited_s": 0.0, "total_s": 60.0}
    assert row["decided"] == "go on" and found["causes"] == [{"failure": "gpu_oom", "attempts": 1, "hosts": {}}]


def test_what_is_kept_is_shown_when_the_log_is_gone(shell: Shell) -> None:
    assert "decided: go on\n" in shell.resil("why").out
    (shell.run_dir / "logs" / "gpt-101_1.out").unlink()
    assert shell.resil("why").out.startswith("attempt 1 of gpt (job 101_1): gpu oom (likely)\n")


def test_a_timeline_that_cannot_be_written_is_an_error(shell: Shell) -> None:
    said = shell.resil("attempts", "--svg", "/proc/none/gpt.svg")
    assert said.code == 1 and "/proc/none/gpt.svg" in said.err
