"""The batch shell derives the job's exit code from the launch's and from the journal of the guard."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integrations.launched import REPOSITORY

SHELL = """
set -u -o pipefail
source <(sed -n '/^resil_guard_said()/,/^}/p; /^resil_hear_guard()/,/^}/p' "$1")
resil_say() { :; }
RESIL_RUN_DIR=$2 RESIL_JOB_ID=7 RESIL_ATTEMPT=3 resil_code=$3
resil_hear_guard
printf '%s %s' "$resil_code" "$resil_guard_why"
"""


def line(event: str, rest: str, attempt: int = 3, time: float = 1795182480.93) -> str:
    return f'{{"event":"{event}","time":{time},"attempt":{attempt},"rank":0,"host":"n1",{rest}}}\n'


def end(attempt: int = 3, code: int = 75, stopped: str = "true", more: str = "", time: float = 1795182480.93) -> str:
    return line("end", f'"step":446,"exit_code":{code},"stopped":{stopped}{more}', attempt, time)


START = line("start", '"step":0')
STOP = line("decision", '"save":true,"stop":true,"label":"","reasons":["enough"]')
STOP_AT_447 = line("decision", '"save":true,"stop":true,"label":"","reasons":["enough"],"step":447')
NOT_SAVED = line("save_failed", '"step":446,"error":"OSError(28)"')
SAVE = line("decision", '"save":true,"stop":false,"label":"","reasons":["please"]')
LATER = line("request", '"trigger":"kill","why":"it lies there"')
QUOTED = line("error", '"error":"{\\"event\\":\\"end\\",\\"exit_code\\":75,\\"stopped\\":true}"')
FAILED, DONE = end(code=1, stopped="false"), end(code=0, stopped="false")
SAVED = line("save", '"step":446,"seconds":1.5')
OF_4 = ',"ranks":4,"well":4'
ALL, ONE_OF_4, THREE_OF_4 = end(more=OF_4), end(more=',"ranks":4,"well":1'), end(more=',"ranks":4,"well":3')
AFTER_ALL = line("exit", '"exit_code":1,"error":"RuntimeError(\'x\')"')


def word_of(run_dir: Path, launch: int) -> tuple[int, str]:
    """Return the job's code, and the reason."""
    script = REPOSITORY / "slurm_templates" / "_attempt.bash"
    argv = ["bash", "-c", SHELL, "bash", str(script), str(run_dir), str(launch)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert said.stderr == ""
    code, _, why = said.stdout.partition(" ")
    return int(code), why


def job_code(run_dir: Path, launch: int) -> int:
    return word_of(run_dir, launch)[0]


@pytest.mark.parametrize(
    ("journal", "launch", "code"),
    [
        # A launcher with another exit code than its workers.
        (end(), 1, 75),
        (end(), 137, 75),
        (LATER + end() + LATER, 1, 75),
        (FAILED, 1, 1),
        (DONE, 1, 1),
        (end(attempt=2), 1, 1),
        (end(attempt=33), 1, 1),
        (end(code=750), 1, 1),
        (end(stopped="false"), 1, 1),
        (QUOTED, 1, 1),
        ("", 1, 1),
        (STOP, 1, 1),  # decided to stop, and crashed
        # A training that ignores the guard's exit code must not finish the run.
        (end(), 0, 75),
        (FAILED, 0, 1),
        (end(code=1), 0, 1),  # its loss was NaN
        (end(code=3), 0, 3),
        (DONE, 0, 0),
        ("", 0, 0),
        (START + STOP + SAVED, 0, 75),  # decided to stop, saved, and ended without a record
        (START + STOP, 0, 1),  # and did not save
        (START + SAVED + STOP, 0, 1),  # saved before the decision
        (START + STOP_AT_447 + SAVED, 0, 1),  # a save in flight that was durable later does not count
        (START + SAVE, 0, 0),
        (START + NOT_SAVED, 0, 1),  # os._exit(0) after an asynchronous save that failed
        (START + NOT_SAVED + SAVED, 0, 0),
        (START + STOP + end() + START + DONE, 0, 0),  # of two trainings in one job the last one counts
        (START + STOP + end() + START, 0, 0),
        # One rank stopped cleanly, another could not save.
        (FAILED, 75, 1),
        (end(), 75, 75),
        ("", 75, 75),
        (DONE, 75, 75),
        (START + STOP, 75, 1),
        (START + STOP + SAVED, 75, 75),
        # All ranks have left cleanly, or not.
        (ALL, 1, 75),
        (ALL, 137, 75),
        (ALL, 143, 75),
        (THREE_OF_4, 1, 1),
        (THREE_OF_4, 75, 1),
        (THREE_OF_4, 0, 1),
        # srun has ended the others because of the one that failed; 137 may be another SIGKILL.
        (FAILED, 143, 1),
        (end(code=3), 143, 3),
        (FAILED, 137, 137),
        (DONE, 143, 143),
        # A code that no launcher makes of 75 is the training's own.
        (ALL, 3, 3),
        (ALL, 134, 134),
        (ALL, 139, 139),
        # The guard was closed cleanly, but the process failed.
        (ALL + AFTER_ALL, 1, 1),
        (ALL + AFTER_ALL, 75, 1),
        (ALL + line("exit", '"exit_code":75,"error":"the exit took too long"'), 1, 75),
        (ALL + line("exit", '"exit_code":1,"error":"x"', attempt=2), 1, 75),
    ],
)
def test_the_journal_of_the_guard_and_the_launchs_code_make_the_jobs_code(
    tmp_path: Path, journal: str, launch: int, code: int
) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "7.0.jsonl").write_text(journal)
    assert job_code(tmp_path, launch) == code


@pytest.mark.parametrize(
    ("others", "launch", "code"),
    [
        # Rank 0 ended first, cleanly; the others had lost rank 0 when they were stopped.
        ([ONE_OF_4, ONE_OF_4, ONE_OF_4], 1, 75),
        ([ONE_OF_4, ONE_OF_4], 1, 1),  # one without a record
        ([ONE_OF_4, ONE_OF_4, end(code=1, stopped="false", more=',"ranks":4,"well":0')], 1, 1),
        ([ONE_OF_4, ONE_OF_4, ONE_OF_4 + AFTER_ALL], 1, 1),
        ([ONE_OF_4, ONE_OF_4, end(more=',"ranks":4,"well":1', time=1795182000.5)], 1, 1),  # of a launch before
    ],
)
def test_ranks_that_had_lost_rank_0_are_counted_by_their_own_records(
    tmp_path: Path, others: list[str], launch: int, code: int
) -> None:
    (tmp_path / "journal").mkdir()
    done = end(code=0, stopped="false", more=',"ranks":4,"well":1')
    (tmp_path / "journal" / "7.0.jsonl").write_text(START + done)
    for rank, text in enumerate(others, start=1):
        (tmp_path / "journal" / f"7.{rank}.jsonl").write_text(text)
    (tmp_path / "journal" / "70.1.jsonl").write_text(AFTER_ALL)  # another job's
    (tmp_path / "journal" / "7.batch.jsonl").write_text(AFTER_ALL)
    assert job_code(tmp_path, launch) == code


def test_an_exception_on_another_rank_after_a_good_end_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "7.0.jsonl").write_text(START + ALL)
    (tmp_path / "journal" / "7.3.jsonl").write_text(AFTER_ALL)
    assert word_of(tmp_path, 1) == (1, "RuntimeError('x')")
    (tmp_path / "journal" / "7.3.jsonl").unlink()
    (tmp_path / "journal" / "7.3.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "journal" / "7.2.jsonl")
    assert job_code(tmp_path, 1) == 75


@pytest.mark.parametrize(
    ("journal", "why"),
    [
        (STOP + ALL, "enough"),
        (
            end(code=1, stopped="false", more=r',"why":"the save of step 9: OSError(28, \"No \\space\")"'),
            r'the save of step 9: OSError(28, "No \space")',
        ),
        (THREE_OF_4, "only 3 of 4 ranks ended cleanly"),
        (START + STOP, "the training was requested to stop, and ended without a save and without an end record"),
    ],
)
def test_the_guards_reason_is_that_of_the_attempt(tmp_path: Path, journal: str, why: str) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "7.0.jsonl").write_text(journal)
    assert word_of(tmp_path, 75)[1] == why


def test_a_journal_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert job_code(tmp_path, 1) == 1
    os.mkfifo(tmp_path / "journal" / "7.0.jsonl")
    assert job_code(tmp_path, 1) == 1
    (tmp_path / "elsewhere").write_text(end())
    (tmp_path / "journal" / "7.0.jsonl").unlink()
    (tmp_path / "journal" / "7.0.jsonl").symlink_to(tmp_path / "elsewhere")
    assert job_code(tmp_path, 1) == 1
