"""How far a run has come is read from its heartbeats, else from the end of its log; nothing odd there hurts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience import layout
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import BEATS_READ, TAIL_BYTES, last_step, logs_by_age, newest_log


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "gpt")
    made.create("")
    return made


def put(directory: RunDirectory, name: str, content: bytes | str, age_s: float = 0.0) -> Path:
    path = directory.path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (2e9 - age_s, 2e9 - age_s))
    return path


def test_a_run_that_tells_nothing_has_no_step(directory: RunDirectory) -> None:
    assert last_step(directory) is None
    assert last_step(RunDirectory(Path("/nonexistent/gpt"))) is None


def test_the_newest_heartbeat_wins_over_the_log(directory: RunDirectory) -> None:
    put(directory, "logs/a.out", "step 900\n")
    put(directory, "beats/1.n1", "step = 5\n", age_s=60)
    put(directory, "beats/2.n1", "attempt = 2\nstep = 3\n")
    assert last_step(directory) == 3


def test_step_0_is_a_step(directory: RunDirectory) -> None:
    put(directory, "logs/a.out", "step 900\n")
    put(directory, "beats/1.n1", "step = 0\n")
    assert last_step(directory) == 0


def test_a_heartbeat_that_is_just_being_written_hides_no_other(directory: RunDirectory) -> None:
    put(directory, "beats/1.n1", "step = 5\n", age_s=60)
    put(directory, "beats/.1.n1.tmp", "step = 6\n")
    (directory.path / "beats" / "2.n1").symlink_to("gone")
    os.mkfifo(directory.path / "beats" / "3.n1")
    (directory.path / "beats" / "4.n1").mkdir()
    assert last_step(directory) == 5


@pytest.mark.parametrize("content", [b"", b"step\n", b"step = \n", b"xstep = 3\n", b"\xff\0", b"step = -1\n"])
def test_a_heartbeat_without_a_step_is_passed_over(directory: RunDirectory, content: bytes) -> None:
    put(directory, "beats/1.n1", "step = 5\n", age_s=60)
    put(directory, "beats/2.n1", content)
    assert last_step(directory) == 5


def test_of_a_thousand_heartbeats_only_the_newest_are_read(directory: RunDirectory) -> None:
    put(directory, "beats/old.n1", "step = 5\n", age_s=60)
    for number in range(BEATS_READ):
        put(directory, f"beats/{number}.n1", "alive\n")
    assert last_step(directory) is None


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
def test_the_last_step_that_the_log_names_is_found(directory: RunDirectory, text: str, step: int | None) -> None:
    put(directory, "logs/a.out", text)
    assert last_step(directory) == step


def test_only_the_end_of_a_log_is_read(directory: RunDirectory) -> None:
    path = put(directory, "logs/a.out", "step 1\n")
    os.truncate(path, 10 * 2**30)  # a hole: nothing is stored
    assert last_step(directory) is None
    with open(path, "ab") as file:
        file.write(b"step 2\n" + b"." * (TAIL_BYTES - 100))
    assert last_step(directory) == 2


def test_the_log_written_to_last_is_the_newest_and_folders_are_none(directory: RunDirectory) -> None:
    put(directory, "logs/b.out", "x", age_s=60)
    put(directory, "logs/a.out", "x")
    (directory.path / layout.LOGS / "z.out").mkdir()
    assert [path.name for path in logs_by_age(directory)] == ["b.out", "a.out"]
    newest = newest_log(directory)
    assert newest is not None and newest.name == "a.out"


def test_the_log_of_the_last_attempt_wins_over_that_of_a_job_with_nothing_to_do(directory: RunDirectory) -> None:
    put(directory, "logs/gpt-7_2.out", "step 90\n", age_s=60)
    put(directory, "logs/gpt-7_3.out", "the run is finished; nothing to do\n")
    put(directory, "attempts/0002", 'job_id = 8\nlabel = "7_2"\nstart = 1.0\n')
    newest = newest_log(directory)
    assert newest is not None and newest.name == "gpt-7_2.out"
    assert last_step(directory) == 90


def test_a_log_that_says_nothing_yet_leaves_the_step_of_the_one_before(directory: RunDirectory) -> None:
    put(directory, "logs/gpt-1_1.out", "step 900\n", age_s=60)
    put(directory, "logs/gpt-1_2.out", "loading the data\n")
    assert last_step(directory) == 900
