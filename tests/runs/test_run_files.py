"""Attempts, saves, steps and logs are read from the files of a run; damaged files are skipped and hide no other."""

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
    BEATS_READ,
    FAR_BYTES,
    TAIL_BYTES,
    last_step,
    logs_by_age,
    newest_log,
    newest_save,
    read_attempts,
)

START = 'job_id = 17\nlabel = "12_3"\nrestart = 1\nhost = "n1"\npid = 4711\nstart = 1000\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "llama")
    directory.create("")
    return directory


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


def put(run: RunDirectory, name: str, content: bytes | str, age_s: float = 0.0) -> Path:
    path = run.path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (2e9 - age_s, 2e9 - age_s))
    return path


def test_a_run_that_tells_nothing_has_no_step(run: RunDirectory) -> None:
    assert last_step(run) is None
    assert last_step(RunDirectory(Path("/nonexistent/gpt"))) is None


def test_the_newest_heartbeat_wins_over_the_log(run: RunDirectory) -> None:
    put(run, "logs/a.out", "step 900\n")
    put(run, "beats/1.n1", "step = 5\n", age_s=60)
    put(run, "beats/2.n1", "attempt = 2\nstep = 3\n")
    assert last_step(run) == 3


def test_step_0_is_a_step(run: RunDirectory) -> None:
    put(run, "logs/a.out", "step 900\n")
    put(run, "beats/1.n1", "step = 0\n")
    assert last_step(run) == 0


def test_a_heartbeat_that_is_just_being_written_hides_no_other(run: RunDirectory) -> None:
    put(run, "beats/1.n1", "step = 5\n", age_s=60)
    put(run, "beats/.1.n1.tmp", "step = 6\n")
    (run.path / "beats" / "2.n1").symlink_to("gone")
    os.mkfifo(run.path / "beats" / "3.n1")
    (run.path / "beats" / "4.n1").mkdir()
    assert last_step(run) == 5


@pytest.mark.parametrize("content", [b"", b"step\n", b"step = \n", b"xstep = 3\n", b"\xff\0", b"step = -1\n"])
def test_a_heartbeat_without_a_step_is_passed_over(run: RunDirectory, content: bytes) -> None:
    put(run, "beats/1.n1", "step = 5\n", age_s=60)
    put(run, "beats/2.n1", content)
    assert last_step(run) == 5


def test_of_a_thousand_heartbeats_only_the_newest_are_read(run: RunDirectory) -> None:
    put(run, "beats/old.n1", "step = 5\n", age_s=60)
    for number in range(BEATS_READ):
        put(run, f"beats/{number}.n1", "alive\n")
    assert last_step(run) is None


LOGS = [
    ("step 120 loss 0.3\n", 120),
    ("Step: 7\nstep: 8/400\n", 8),
    ("global_step=42 lr=1\n", 42),
    ("[INFO] iteration [ 33/100]\n", 33),
    ("iter: 5 | iter 6\n", 6),
    ("step #12\n", 12),
    ("\rstep 1\rstep 2\rstep 3", 3),
    ("steps per second: 9\nmisstep 4\n", None),
    ("last step\n2026-01-01 10:00\n", None),
    ("step " + "9" * 5000, None),
    ("step \u0661\n", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "step"), LOGS, ids=[text[:20] for text, _ in LOGS])
def test_the_last_step_that_the_log_names_is_found(run: RunDirectory, text: str, step: int | None) -> None:
    put(run, "logs/a.out", text)
    assert last_step(run) == step


def test_only_the_end_of_a_log_is_read(run: RunDirectory) -> None:
    path = put(run, "logs/a.out", "step 1\n")
    os.truncate(path, 10 * 2**30)  # a hole: nothing is stored
    assert last_step(run) is None
    with open(path, "ab") as file:
        file.write(b"step 2\n" + b"." * (TAIL_BYTES - 100))
    assert last_step(run) == 2


def test_the_log_written_to_last_is_the_newest_and_directories_are_none(run: RunDirectory) -> None:
    put(run, "logs/b.out", "x", age_s=60)
    put(run, "logs/a.out", "x")
    (run.path / layout.LOGS / "z.out").mkdir()
    assert [path.name for path in logs_by_age(run)] == ["b.out", "a.out"]
    newest = newest_log(run)
    assert newest is not None and newest.name == "a.out"


def test_the_log_of_the_last_attempt_wins_over_that_of_a_job_with_nothing_to_do(run: RunDirectory) -> None:
    put(run, "logs/gpt-7_2.out", "step 90\n", age_s=60)
    put(run, "logs/gpt-7_3.out", "the run is finished; nothing to do\n")
    put(run, "attempts/0002", 'job_id = 8\nlabel = "7_2"\nstart = 1.0\n')
    newest = newest_log(run)
    assert newest is not None and newest.name == "gpt-7_2.out"
    assert last_step(run) == 90


def test_a_log_that_says_nothing_yet_leaves_the_step_of_the_one_before(run: RunDirectory) -> None:
    put(run, "logs/gpt-1_1.out", "step 900\n", age_s=60)
    put(run, "logs/gpt-1_2.out", "loading the data\n")
    assert last_step(run) == 900
