"""Attempts and saves are read from the files of a run; damaged files are skipped and hide no other."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs import run_files as run_files
from resilience.runs.attempts import Attempt, AttemptEnd
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import (
    ATTEMPTS_WITHOUT_SAVE,
    FAR_BYTES,
    TAIL_BYTES,
    newest_save,
    read_attempts,
)

START = 'job_id = 17\nlabel = "12_3"\nrestart = 1\nhost = "n1"\npid = 4711\nstart = 1000\n'


def write(run: RunDirectory, name: str, content: str | bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    (run.path / layout.ATTEMPTS / name).write_bytes(raw)


def test_an_attempt_without_an_end_still_runs_as_far_as_we_know(run: RunDirectory) -> None:
    write(run, "0001", START)
    assert read_attempts(run) == (Attempt(1, 17, "12_3", 1, "n1", 4711, 1000.0),)


def test_an_attempt_with_an_end_tells_it(run: RunDirectory) -> None:
    write(run, "0001", START)
    write(run, "0001.end", 'end = "stopped"\nexit_code = 75\ntime = 2000.5\n')
    (attempt,) = read_attempts(run)
    assert (attempt.end, attempt.exit_code, attempt.end_time) == (AttemptEnd.STOPPED, 75, 2000.5)


def test_a_lost_attempt_lasted_until_its_last_heartbeat_and_not_until_another_found_it(run: RunDirectory) -> None:
    write(run, "0001", START)
    write(run, "0001.end", 'end = "lost"\ntime = 9000\nseen_by = 2\n')
    assert read_attempts(run)[0].end_time == 9000
    beat = run.path / layout.ATTEMPTS / layout.attempt_beat_file(1)
    write(run, beat.name, "1 7 1300\n")
    os.utime(beat, (1300, 1300))
    assert read_attempts(run)[0].end_time == 1300
    os.utime(beat, (500, 500))
    assert read_attempts(run)[0].end_time == 1000, "the clock of the file server is another"


def test_an_exit_code_of_zero_is_known(run: RunDirectory) -> None:
    write(run, "0001", START)
    write(run, "0001.end", "exit_code = 0\n")
    assert read_attempts(run)[0].exit_code == 0


def test_attempts_come_in_the_order_of_their_numbers_beyond_9999_too(run: RunDirectory) -> None:
    for number in (10000, 2, 9999, 1):
        write(run, layout.attempt_file(number), START)
    assert [attempt.number for attempt in read_attempts(run)] == [1, 2, 9999, 10000]


@pytest.mark.parametrize(
    "damage",
    [b"torn = ", b"\xff\x00", b"a = " + b"[" * 30_000, b"job_id = " + b"9" * 5000],
    ids=lambda raw: repr(raw[:9]),
)
def test_a_damaged_attempt_is_passed_over(run: RunDirectory, damage: bytes) -> None:
    write(run, "0001", damage)
    write(run, "0002", START)
    assert [attempt.number for attempt in read_attempts(run)] == [2]


@pytest.mark.parametrize("damage", ["", "end = ", 'end = "exploded"\n'])
def test_a_damaged_end_is_no_end(run: RunDirectory, damage: str) -> None:
    write(run, "0001", START)
    write(run, "0001.end", damage)
    (attempt,) = read_attempts(run)
    assert (attempt.end, attempt.exit_code) == (None, None)


@pytest.mark.parametrize("value", ['"soon"', "nan", "inf", "true", "[]"])
def test_a_time_without_meaning_is_not_known(run: RunDirectory, value: str) -> None:
    write(run, "0001", f"start = {value}\n")
    write(run, "0001.end", f"time = {value}\n")
    (attempt,) = read_attempts(run)
    assert (attempt.start_time, attempt.end_time) == (0.0, None)


def test_what_is_no_attempt_is_not_read(run: RunDirectory) -> None:
    for name in ("0001.end", "1", "001", ".0001.tmp", "0001~", "\u0661\u0661\u0661\u0661", "notes"):
        write(run, name, START)
    (run.path / layout.ATTEMPTS / "0002").symlink_to(run.path / layout.RUN_FILE)
    os.mkfifo(run.path / layout.ATTEMPTS / "0003")
    assert read_attempts(run) == ()


def test_a_run_without_attempts_has_none(tmp_path: Path) -> None:
    assert read_attempts(RunDirectory(tmp_path / "llama")) == ()


def test_an_attempt_that_cannot_be_looked_at_now_does_not_vanish(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, "0001", START)

    def stale(path: Path) -> None:
        raise StateDirectoryError(f"cannot read {path}: {os.strerror(errno.ESTALE)}", transient=True)

    monkeypatch.setattr(run_files, "read_regular", stale)
    with pytest.raises(StateDirectoryError, match="Stale"):
        read_attempts(run)


# ---- the newest save ------------------------------------------------------------------------------------------------


def tell(run: RunDirectory, job_id: int, *events: tuple[str, int], times: int = 1) -> None:
    with open(run.path / "journal" / f"{job_id}.0.jsonl", "a") as file:
        for name, step in events * times:
            file.write(json.dumps({"event": name, "time": 9, "attempt": job_id, "step": step}) + "\n")


def found(run: RunDirectory, *job_ids: int) -> tuple[int | None, bool]:
    save = newest_save(run, job_ids)
    assert save is not None
    return save.step, save.is_whole


FAILED = ("save_failed", 80)


@pytest.mark.parametrize(("failures", "expected"), [(6, (40, True)), (ATTEMPTS_WITHOUT_SAVE, (None, False))])
def test_a_durable_save_lies_before_attempts_whose_save_failed(
    run: RunDirectory, failures: int, expected: tuple[int | None, bool]
) -> None:
    tell(run, 1, ("save", 40))
    job_ids = range(1, failures + 2)
    for job_id in job_ids[1:]:
        tell(run, job_id, FAILED)
    assert found(run, *job_ids) == expected


@pytest.mark.parametrize(("size", "expected"), [(TAIL_BYTES, (40, True)), (FAR_BYTES, (None, False))])
def test_a_durable_save_lies_before_many_other_events(
    run: RunDirectory, size: int, expected: tuple[int | None, bool]
) -> None:
    tell(run, 1, ("save", 40))
    tell(run, 1, ("loss_spike", 50), times=size // 50)
    tell(run, 1, FAILED)
    assert found(run, 1) == expected


def test_no_durable_save_is_certain_only_where_all_journals_were_read(run: RunDirectory) -> None:
    tell(run, 3, FAILED)
    assert found(run, 1, 2, 3) == (None, True)  # no guard ran in the first two
    (run.path / "journal" / "2.0.jsonl").mkdir()
    assert found(run, 1, 2, 3) == (None, False)
