"""What the batch shell believes when a launcher exits with another code than 0 and 75."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integrations.launched import REPOSITORY

SHELL = """
set -u -o pipefail
source <(sed -n '/^resil_meant_to_stop()/,/^}/p' "$1")
RESIL_RUN_DIR=$2 RESIL_JOB_ID=7 RESIL_ATTEMPT=3
resil_meant_to_stop
"""


def end(attempt: int = 3, code: int = 75, stopped: str = "true") -> str:
    head = f'{{"event":"end","time":1795182480.93,"attempt":{attempt},"rank":0,"host":"n1",'
    return f'{head}"step":446,"exit_code":{code},"stopped":{stopped}}}\n'


def believes(run_dir: Path) -> bool:
    script = REPOSITORY / "slurm_templates" / "_attempt.bash"
    said = subprocess.run(
        ["bash", "-c", SHELL, "bash", str(script), str(run_dir)], capture_output=True, text=True, timeout=30
    )
    assert said.stderr == ""
    return said.returncode == 0


LATER = '{"event":"request","time":1.0,"attempt":3,"rank":0,"host":"n1","trigger":"kill","why":"it lies there"}\n'
QUOTED = (
    '{"event":"error","attempt":3,"rank":0,"error":"{\\"event\\":\\"end\\",\\"exit_code\\":75,\\"stopped\\":true}"}\n'
)


@pytest.mark.parametrize(
    ("journal", "meant"),
    [
        (end(), True),
        (LATER + end() + LATER, True),
        (end(attempt=2), False),
        (end(attempt=33), False),
        (end(code=1, stopped="false"), False),
        (end(code=0, stopped="false"), False),
        (end(code=750), False),
        (end() + end(code=1, stopped="false"), False),  # of two trainings in one job, the last
        (QUOTED, False),
        ("", False),
    ],
)
def test_the_last_word_of_this_attempts_rank_0_counts(tmp_path: Path, journal: str, meant: bool) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "7.0.jsonl").write_text(journal)
    assert believes(tmp_path) is meant


def test_a_journal_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    assert not believes(tmp_path)
    os.mkfifo(tmp_path / "journal" / "7.0.jsonl")
    assert not believes(tmp_path)
    (tmp_path / "elsewhere").write_text(end())
    (tmp_path / "journal" / "7.0.jsonl").unlink()
    (tmp_path / "journal" / "7.0.jsonl").symlink_to(tmp_path / "elsewhere")
    assert not believes(tmp_path)
