"""The paths that a training uses are read from the batch script; those of the operating system do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.runs.used_paths import MOST_PATHS, paths_in

ENVIRON = {"SCRATCH": "/lustre/alice", "EMPTY": ""}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("source /apps/venv/bin/activate", ["/apps/venv/bin/activate"]),
        ("conda activate ~/envs/torch", ["/home/alice/envs/torch"]),
        ("python $SCRATCH/train.py --data=${SCRATCH}/c4", ["/lustre/alice/train.py", "/lustre/alice/c4"]),
        ("python train.py data/c4 ./x ../y", []),
        ("python train.py $EMPTY/data $UNKNOWN/data", []),
        ("#!/bin/bash\nexec /usr/bin/env python /dev/null > /var/tmp/x", []),
        ("singularity run --bind '/data:/data' /images/a.sif", ["/data", "/images/a.sif"]),
        ("curl https://example.org/data", []),
        ('cd "/nix/store/a b"', ["/nix/store/a"]),
        ("a=/x/y,/z/w", ["/x/y"]),
        ("resil_command='python /one/../two//train.py'", ["/two/train.py"]),
    ],
)
def test_paths_of_a_script(line: str, expected: list[str]) -> None:
    assert paths_in(line, ENVIRON, Path("/home/alice")) == expected


def test_a_word_too_long_for_a_file_name_is_none() -> None:
    assert paths_in("python /data/" + "x" * 300, {}, Path("/home")) == []


def test_their_number_is_bounded() -> None:
    assert len(paths_in(" ".join(f"/data/{n}" for n in range(1000)), {}, Path("/home"))) == MOST_PATHS
