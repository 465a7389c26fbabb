"""What stands before SLURM's commands while a fault of the scheduler is injected, and when it has just been undone."""

from __future__ import annotations

import os
import subprocess
import sys
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
