"""What stands before SLURM's commands while a fault of the scheduler is injected, and when it has just been undone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from resilience.inject import slurm_command


def test_a_command_that_starts_as_the_fault_is_undone_is_the_real_one(tmp_path: Path) -> None:
    gone, bin = tmp_path / "hang-1234.bin" / "order.json", tmp_path / "bin"
    bin.mkdir()
    (bin / "squeue").write_text('#!/bin/sh\necho "real $1"\n')
    (bin / "squeue").chmod(0o755)
    argv = [sys.executable, "-IS", slurm_command.__file__, str(gone), "squeue", "--me"]
    done = subprocess.run(
        argv, capture_output=True, text=True, env={"PATH": f"{gone.parent}:{bin}:{os.defpath}"}, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "real --me\n", "")


def test_an_old_answer_whose_fault_is_undone_meanwhile_is_a_new_one(tmp_path: Path) -> None:
    faulty, bin = tmp_path / "lag-1234.bin", tmp_path / "bin"
    for directory in (faulty, bin):
        directory.mkdir()
    order = {"mode": "lag", "until": time.time() + 600, "lag_s": 60.0, "bin": str(faulty)}
    (faulty / "order.json").write_text(json.dumps(order))
    (bin / "squeue").write_text(f'#!/bin/sh\nrm -rf "{faulty}"\necho real\n')
    (bin / "squeue").chmod(0o755)
    argv = [sys.executable, "-IS", slurm_command.__file__, str(faulty / "order.json"), "squeue"]
    done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": f"{bin}:{os.defpath}"}, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "real\n", "") and not faulty.exists()
