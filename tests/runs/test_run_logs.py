"""The logs of a run are found in one place: in its directory, or where sbatch was told to write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience import layout
from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import TAIL_BYTES
from resilience.runs.run_logs import (
    BEATS_READ,
    Start,
    last_step,
    logs_by_age,
    logs_for_step,
    logs_of,
    newest_log,
    output_globs,
)
from resilience.runs.submissions import Intent, Outcome


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


def test_step_0_is_shown_until_any_other_step_is_known(run: RunDirectory) -> None:
    put(run, "beats/2.n1", "step = 0\n")
    assert last_step(run) == 0
    put(run, "logs/a.out", "step 900\n")
    assert last_step(run) == 900
    put(run, "beats/1.n1", "step = 950\n", age_s=60)
    assert last_step(run) == 950, "an attempt that has just started has not lost the steps of the one before"


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
    ("step 12,345, loss 2.1\n", 12345),
    ("step 3,100 tokens\n", 3100),
    ("step 4, 120 tokens\n", 4),
    ("step 5. done\n", 5),
    ("step 4.20k | loss 2.1\n", None),
    ("step 4k\n", None),
    ('{"step": 33, "loss": 0.5}\n', 33),
    ("{'iteration': 34}\n", 34),
    ("\rstep 1\rstep 2\rstep 3", 3),
    ("epoch 2, batch 3/30, loss 0.5\n", 3),
    ("Epoch 1 Batch [4 / 30]\nepoch 1 batch 5 of 30\n", 5),
    ("step 7\nbatch 3/30\n", 7),
    ("batch: 32\nbatch_size 64/2\nbatch size: 3/4\n", None),
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


# ---- logs of a user's own script ---------------------------------------------------------------------------------

GLOBS = [
    ("/a/slurm-%j.out", Start(12, None, 12), ["/a/slurm-12.out"]),
    ("/a/slurm-%A_%a.out", Start(12, 3, 15), ["/a/slurm-12_3.out"]),
    ("/a/slurm-%A_%a.out", Start(12), ["/a/slurm-12_*.out", "/a/slurm-12_4294967294.out"]),
    ("/a/%6A-%4a-%b.log", Start(12, 13, 15), ["/a/000012-0013-3.log"]),
    ("/a/%j.out", Start(12), ["/a/12.out"]),  # the raw id of a task is not known
    ("/a/%u/%N-%n.%t.%s.out", Start(12, None, 12), ["/a/me/*-0.0.*.out"]),
    ("/a/100%%/[x]*?.out", Start(12, None, 12), ["/a/100%/[[]x][*][?].out"]),
    ("/a/b\\%j.out", Start(12, None, 12), ["/a/b%j.out"]),
    ("/a/train.log", Start(12), ["/a/train.log"]),
]


@pytest.mark.parametrize(("pattern", "start", "globs"), GLOBS)
def test_the_fields_of_an_output_pattern_are_those_of_sbatch(pattern: str, start: Start, globs: list[str]) -> None:
    assert list(output_globs(pattern, start, "me")) == globs


def own(number: int, output: str, time: float = 1.0) -> Intent:
    return Intent(
        f"t{number}", "slurm", "/home/me/my.sh", (), time, Outcome.SUBMITTED, JobId(number), by="me", output=output
    )


def test_the_log_of_an_own_script_is_found_by_its_pattern(run: RunDirectory, tmp_path: Path) -> None:
    intents = [own(7, f"{tmp_path}/slurm-%j.out"), own(8, f"{tmp_path}/slurm-%j.out")]
    assert newest_log(run, intents) is None
    for name, age_s in (("slurm-7.out", 60.0), ("slurm-8.out", 0.0), ("slurm-9.out", -60.0)):
        put(run, f"../{name}", f"step {name[6]}00\n", age_s)
    assert newest_log(run, intents) == tmp_path / "slurm-8.out"
    assert last_step(run, logs_for_step(run, intents)) == 800
    assert logs_of(run, Start(7, None, 7), intents) == (f"{tmp_path}/slurm-7.out",)


def test_the_log_of_a_task_is_not_that_of_another_task(run: RunDirectory, tmp_path: Path) -> None:
    intents = [own(7, f"{tmp_path}/slurm-%A_%a.out")]
    for name in ("slurm-7_1.out", "slurm-7_11.out", "slurm-7_2.out"):
        put(run, f"../{name}", "x")
    assert logs_of(run, Start(7, 1, 8), intents) == (f"{tmp_path}/slurm-7_1.out",)
    assert len(logs_by_age(run, intents)) == 3


def test_a_log_in_the_run_directory_belongs_to_the_job_whose_whole_label_is_in_its_name(run: RunDirectory) -> None:
    for name in ("12_3.out", "12_3.rank7.out", "112_3.out", "12_31.out", "12.out", "12_4.out"):
        put(run, f"logs/gpt-{name}", "x")
    for start, own in ((Start(12, 3), ["12_3.out", "12_3.rank7.out"]), (Start(12), ["12.out"])):
        assert logs_of(run, start) == tuple(str(run.path / "logs" / f"gpt-{name}") for name in own)


def test_a_file_without_an_id_in_its_name_is_of_this_run_only_if_written_since_its_submit(
    run: RunDirectory, tmp_path: Path
) -> None:
    put(run, "../train.log", "step 5\n", age_s=3600)
    intents = [own(7, f"{tmp_path}/train.log", time=2e9 - 60)]
    assert logs_of(run, Start(7, None, 7), intents) == ()
    put(run, "../train.log", "step 6\n")
    assert logs_of(run, Start(7, None, 7), intents) == (f"{tmp_path}/train.log",)


def test_a_run_that_went_on_with_an_own_script_is_read_from_its_log(run: RunDirectory, tmp_path: Path) -> None:
    put(run, "logs/gpt-6_1.out", "step 90\n", age_s=60)
    put(run, "attempts/0001", 'job_id = 6\nlabel = "6_1"\nstart = 1.0\n')
    put(run, "../slurm-8.out", "step 95\n")
    intents = [own(8, f"{tmp_path}/slurm-%j.out")]
    assert newest_log(run, intents) == tmp_path / "slurm-8.out"
    assert last_step(run, logs_for_step(run, intents)) == 95


def test_a_log_that_is_no_file_is_none(run: RunDirectory, tmp_path: Path) -> None:
    assert logs_of(run, Start(7, None, 7), [own(7, "/dev/null")]) == ()
    os.mkfifo(tmp_path / "7.out")
    assert logs_of(run, Start(7, None, 7), [own(7, f"{tmp_path}/%j.out")]) == ()
