"""`python -m resilience.inject.keeper DIRECTORY ID`: undoes one injected fault, whatever becomes of its injector.

Standard input is a pipe that the injector holds open. It writes `on` there when the fault has started, until when only
the injector writes the record; any other line says why to undo the fault now, and the end of the pipe that the injector
was killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from resilience import layout
from resilience.errors import ResilError
from resilience.inject import Scene
from resilience.inject.holding import READY, close_outputs, say
from resilience.inject.injecting import GONE, KILLED, ON, OVER, load_fault, undo
from resilience.runs.injections import Injection, read_injection
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import read_attempts
from resilience.settings.load import load
from resilience.system.ports import System

TRIES, RETRY_S, LONGEST_RETRY_S = 65, 2.0, 60.0
"""How often, and after which pauses, it tries to undo a fault: for an hour, as a controller may be down for a while."""
LOOK_S = 1.0
"""How often it looks whether somebody else has undone the fault."""


class _Asked(Exception):
    """This process was told to end."""


def open_scene(path: Path, name: str) -> tuple[Project, RunDirectory, Injection | None]:
    """Return project, run directory and record of an injection, from the run directory alone."""
    system = System(cwd=Path("/"))
    project = Project(system, load(system, named=path / layout.RUN_FILE))
    directory = RunDirectory(path, project.loaded.settings.run.group)
    return project, directory, read_injection(directory, name)


def keep(path: Path, name: str) -> int:
    """Wait until the fault's time is over or its injector is gone, then undo it. Return 1 if that failed."""
    project, directory, injection = open_scene(path, name)
    if injection is None:
        return 1
    signal.signal(signal.SIGTERM, _ask)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    say(READY)
    close_outputs()
    try:
        how = _wait(project, directory, injection)
    except _Asked:
        how = "its keeper was asked to end"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 0 if _undo(project, directory, injection, how) else 1


def _undo(project: Project, directory: RunDirectory, injection: Injection, how: str) -> bool:
    """Undo the fault, again and again if that fails; return whether it is undone."""
    for number in range(TRIES):
        with suppress(ResilError):
            undo(project, directory, injection, how)
            return True
        time.sleep(min(RETRY_S * 1.5**number, LONGEST_RETRY_S))
    return False


def _wait(project: Project, directory: RunDirectory, injection: Injection) -> str:
    """Return why the fault ends; meanwhile tend it."""
    tend = getattr(load_fault(injection.fault), "tend", None)
    if (line := _read_line()) != ON:
        return line or KILLED
    injection = read_injection(directory, injection.id) or injection
    scene = Scene(project, directory, injection.id, injection.until)
    end = time.monotonic() + max(0.0, (injection.until or 0.0) - time.time())
    due = time.monotonic() if tend is not None else end
    while (now := time.monotonic()) < end:
        if select.select([0], [], [], max(0.0, min(due - now, end - now, LOOK_S)))[0]:
            return _read_line() or KILLED
        try:
            if (found := read_injection(directory, injection.id)) is not None:
                if not found.is_on:
                    return found.how
                if _is_gone(directory, found):
                    return GONE
            if tend is not None and time.monotonic() >= due:
                pause_s = float(tend(injection.state, scene))
                due = time.monotonic() + max(0.01, pause_s)
        except ResilError as error:
            return f"it could not go on: {error.message}"
    return OVER


def _is_gone(directory: RunDirectory, injection: Injection) -> bool:
    """Return whether the attempt is over whose job of SLURM holds the fault: SLURM ends what is held with it."""
    if not injection.state.get("srun_job"):
        return False
    newest = next(iter(read_attempts(directory, newest=1)), None)
    return newest is not None and (newest.number != injection.state["attempt"] or newest.end is not None)


def _read_line() -> str:
    """Return the next line of standard input; empty at its end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line.decode("utf-8", "replace").strip()


def _ask(number: int, frame: FrameType | None) -> None:
    raise _Asked


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), sys.argv[2]))
