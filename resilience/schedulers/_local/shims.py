"""Writes the small programs that stand in for srun, scontrol, squeue and scancel on the jobs' PATH."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import resilience
from resilience.system.files import write_atomic

NAMES = ("srun", "scontrol", "squeue", "scancel", "sbatch")


def shim_script(name: str, *, python: str, source: str) -> str:
    """The program: it calls `_local/shim.py` without touching the environment that the job's own programs see. Pure."""
    code = f"import sys; sys.path.insert(0, {source!r}); from resilience.schedulers._local.shim import main; main()"
    return f'#!/bin/sh\nexec {shlex.quote(python)} -IS -c {shlex.quote(code)} {name} "$@"\n'


def write_shims(folder: Path) -> None:
    """Put them into `folder`, for the Python that runs now; works from an installed package and from a clone."""
    source = str(Path(resilience.__file__).parent.parent)
    for name in NAMES:
        script = shim_script(name, python=sys.executable, source=source)
        path = folder / name
        if not path.exists() or path.read_text() != script:
            write_atomic(path, script, mode=0o700)
