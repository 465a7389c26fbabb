"""What the batch shell makes of the launch's exit code, and of what rank 0's guard has written."""

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
echo "$resil_code"
"""


def line(event: str, rest: str, attempt: int = 3) -> str:
    return f'{{"event":"{event}","time":1795182480.93,"attempt":{attempt},"rank":0,"host":"n1",{rest}}}\n'


def end(attempt: int = 3, code: int = 75, stopped: str = "true") -> str:
    return line("end", f'"step":446,"exit_code":{code},"stopped":{stopped}', attempt)


START = line("start", '"step":0')
STOP = line("decision", '"save":true,"stop":true,"label":"","reasons":["enough"]')
SAVE = line("decision", '"save":true,"stop":false,"label":"","reasons":["please"]')
LATER = line("request", '"trigger":"kill","why":"it lies there"')
QUOTED = line("error", '"error":"{\\"event\\":\\"end\\",\\"exit_code\\":75,\\"stopped\\":true}"')
FAILED, DONE = end(code=1, stopped="false"), end(code=0, stopped="false")


def job_code(run_dir: Path, launch: int) -> int:
    script = REPOSITORY / "slurm_templates" / "_attempt.bash"
    argv = ["bash", "-c", SHELL, "bash", str(script), str(run_dir), str(launch)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert said.stderr == ""
    return int(said.stdout)


@pytest.mark.parametrize(
    ("journal", "launch", "code"),
    [
        # A launcher that has another code than its workers.
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
        (STOP, 1, 1),  # it was told to stop, and crashed
        # A training that forgets the guard's exit code must not finish the run.
        (end(), 0, 75),
        (FAILED, 0, 1),
        (end(code=1), 0, 1),  # its loss was NaN
        (end(code=3), 0, 3),
        (DONE, 0, 0),
        ("", 0, 0),
        (START + STOP, 0, 75),  # it was told to stop, and ended without a word
        (START + SAVE, 0, 0),
        (START + STOP + end() + START + DONE, 0, 0),  # of two trainings in one job the last one counts
        (START + STOP + end() + START, 0, 0),
        # One rank stopped in good order, another could not save.
        (FAILED, 75, 1),
        (end(), 75, 75),
        ("", 75, 75),
        (DONE, 75, 75),
    ],
)
def test_the_guards_word_and_the_launchs_code_make_the_jobs_code(
    tmp_path: Path, journal: str, launch: int, code: int
) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "7.0.jsonl").write_text(journal)
    assert job_code(tmp_path, launch) == code


def test_a_journal_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert job_code(tmp_path, 1) == 1
    os.mkfifo(tmp_path / "journal" / "7.0.jsonl")
    assert job_code(tmp_path, 1) == 1
    (tmp_path / "elsewhere").write_text(end())
    (tmp_path / "journal" / "7.0.jsonl").unlink()
    (tmp_path / "journal" / "7.0.jsonl").symlink_to(tmp_path / "elsewhere")
    assert job_code(tmp_path, 1) == 1
