"""Faults for a training that was started with our library: where nothing can be mounted.

`resil inject preload -- COMMAND` compiles preload.c with the host's C compiler, and starts the command with it. The
library does nothing until the control file in the run directory says so, which all nodes see.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from resilience.base.files import replace_file
from resilience.errors import ResilError
from resilience.inject.files.behaviour import CHANGE, LOOK, READ, SYNC, WRITE, Behaviour

CONTROL = "RESIL_INJECT_FILES"
"""The variable that names the control file; preload.c reads it."""

_SOURCE = Path(__file__).with_name("preload.c")
_CLASSES = {LOOK: 1, READ: 2, WRITE: 4, SYNC: 8, CHANGE: 16}
_FULL = 32 | 64  # mkdir and whatever takes space
_COMPILE_S = 60.0


def line(behaviour: Behaviour, directory: Path, until: float) -> str:
    """Return the control file's text: preload.c explains it. Pure."""
    classes = sum(_CLASSES[each] for each in behaviour.on)
    if behaviour.space_bytes is not None:
        classes |= _FULL
    if behaviour.delay_s or behaviour.bytes_per_s:
        classes |= 128  # of nothing: it is only late
    delay_us, rate = round(behaviour.delay_s * 1e6), behaviour.bytes_per_s or 0
    return f"{until:.0f} {behaviour.error} {classes} {delay_us} {rate} {directory}\n"


def why_not(behaviour: Behaviour) -> str:
    """Return why the library cannot do this, or nothing. Pure."""
    if behaviour.space_bytes:
        return "the library counts no bytes: it can only leave no space at all"
    return ""


def write(control: Path, text: str) -> None:
    """Begin a fault. The other processes see the whole line or none."""
    replace_file(control, text, mode=0o644)


def environment(library: Path, control: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command with the library before those that it preloads already. Pure."""
    before = environ.get("LD_PRELOAD", "")
    return {**environ, "LD_PRELOAD": f"{library}:{before}" if before else str(library), CONTROL: str(control)}


def library(directory: Path) -> Path:
    """Return the library for this machine, compiled into the directory if it is not there. Raise ResilError if not."""
    name = f"preload-{platform.machine()}-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}.so"
    found = directory / name
    if found.exists():
        return found
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise ResilError(
            "the library for faults cannot be compiled: there is no cc, gcc or clang here",
            hint=f"module load gcc, or run it where there is a compiler: the result stays in {directory}",
        )
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f".{name}.{os.getpid()}"
    argv = [compiler, "-shared", "-fPIC", "-O2", "-o", str(new), str(_SOURCE), "-ldl"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ResilError(f"{compiler} did not end within {_COMPILE_S:.0f} s") from error
    if done.returncode != 0:
        raise ResilError(f"{compiler} cannot compile {_SOURCE}: {done.stderr.strip()[:400]}")
    new.replace(found)
    return found
