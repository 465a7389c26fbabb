"""An environment with the libraries that the guard is held against, made once for all benchmarks of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from benchmarks.measure import BenchmarkError

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = ("torch==2.13.0", "accelerate", "lightning", "psutil", "nvidia-resiliency-ext==0.4.1")
"""nvidia-resiliency-ext 0.4.1 is the last that installs without CUDA."""


@cache
def peers_interpreter() -> tuple[str, str]:
    """Return a Python with the peers, and a note on what it is. `$RESIL_BENCH_PEERS` names one that is there already.

    Where they cannot be installed it is this interpreter, and the rows of what is missing are left out.
    """
    if given := os.environ.get("RESIL_BENCH_PEERS"):
        return given, f"peers from {given}"
    directory = Path(tempfile.gettempdir()) / f"resil-bench-peers-{os.getuid()}"
    python = directory / "bin" / "python"
    try:
        if not _is_ours(directory / "complete"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True, capture_output=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS]
            subprocess.run(pip, check=True, capture_output=True, timeout=900)
            (directory / "complete").touch()
        return str(python), f"peers in a fresh virtual environment of the same interpreter, kept in {directory}"
    except (OSError, subprocess.SubprocessError) as error:
        return sys.executable, f"without the peers: they could not be installed ({type(error).__name__}; no network?)"


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have put it there: others may write in the directory for temporary files."""
    try:
        info, parent = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    return info.st_uid == parent.st_uid == os.getuid() and not parent.st_mode & 0o022


def run_program(
    name: str,
    arguments: Sequence[str],
    *,
    python: str,
    scratch: Path,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program of this directory and return the last line that it prints.

    In a session of its own, which is ended as a whole: peers leave processes behind that would hold a pipe open. Raise
    BenchmarkError if it fails, or does not end in time.
    """
    told, errors = scratch / f"{name}.out", scratch / f"{name}.err"
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RESIL_", "SLURM"))}
    environ = kept | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **(env or {})}
    with told.open("wb") as out, errors.open("wb") as err:
        program = subprocess.Popen(
            [python, str(REPOSITORY / "benchmarks" / f"{name}.py"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environ,
            start_new_session=True,
        )
        try:
            code = program.wait(deadline_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
            program.wait()
    if code != 0:
        raise BenchmarkError(f"{name} ended with {code}: {errors.read_text()[-2000:]}")
    return told.read_text().splitlines()[-1]
