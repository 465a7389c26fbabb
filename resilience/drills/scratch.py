"""The directory of drills: one drill of a project at a time has it, and nothing of it is left afterwards."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from resilience.base.processes import is_same, start_ticks
from resilience.drills.facts import facts_of
from resilience.drills.isolation import LOCAL_TEMPO, SLURM_TEMPO, drill_run, isolated
from resilience.drills.stage import Stage, own_environ
from resilience.drills.watchdogs import end_watchdogs
from resilience.drills.words import Facts
from resilience.errors import UsageError
from resilience.runs.project import Project
from resilience.settings.load import CONFIG_VARIABLE, load
from resilience.system.files import make_directory, write_atomic

OWNER = "owner"
MARK = "drill"
REMOVALS, REMOVAL_S = 5, 1.0
"""A process that ends may still write, and a network file system keeps what is open: it is removed again so often."""


def scratch_of(project: Project) -> Path:
    """Return the directory of drills: beside the state directory, so that all nodes see it."""
    state = project.loaded.state_dir
    return state.with_name(f"{state.name}-{MARK}")


def own_project(project: Project, facts: Facts, name: str, scratch: Path) -> Project:
    """Return the project of a drill: the user's settings, with a state directory and checkpoints of its own."""
    tempo = LOCAL_TEMPO if facts.scheduler == "local" else SLURM_TEMPO
    own = isolated(facts, name, scratch, tempo)
    own["RESIL_SCHEDULER__NAME"] = facts.scheduler
    if project.loaded.path is not None:
        own[CONFIG_VARIABLE] = str(project.loaded.path)
    spool = scratch / "spool" if facts.scheduler == "local" else None
    system = replace(
        project.system, cwd=project.loaded.project, environ=own_environ(project.system.environ, own, spool)
    )
    return Project(system, load(system, named=project.loaded.path))


@contextmanager
def scratch(project: Project, root: Path, *, keep: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Make the directory of drills, after what an earlier one has left was ended, and remove it afterwards; `say` gets
    a sentence if that fails."""
    clean_up(project, root, say)
    new = root.with_name(f"{root.name}.{os.getpid()}.new")
    make_directory(new, mode=0o700)
    write_atomic(new / OWNER, f"{socket.gethostname()} {os.getpid()} {start_ticks(os.getpid())}\n", mode=0o600)
    try:
        new.rename(root)  # with its owner in it, so that nobody takes it for one that was left
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise UsageError(f"another drill begins: {root} is there", hint="wait for it") from error
    try:
        yield
    finally:
        if not keep and (left := remove(project, root)):
            say(left)


def clean_up(project: Project, root: Path, say: Callable[[str], None]) -> None:
    """End what a drill that was killed has left. Raise UsageError if one runs, or may run on another host, or if its
    directory cannot be removed."""
    if not root.exists():
        return
    host, pid, ticks = "", 0, 0
    with suppress(OSError, ValueError):
        host, *numbers = (root / OWNER).read_text().split()
        pid, ticks = map(int, numbers)
    facts = facts_of(project)
    if host and host != socket.gethostname():
        raise UsageError(
            f"a drill was started on {host}, as process {pid}, and may still run there",
            hint=f"look: ssh {host} ps -p {pid}; if it has ended, start this drill on {host}, which ends what is left; "
            f"if {host} is gone: scancel --me --name {drill_run(facts.run)}; rm -r {root}",
        )
    if pid and is_same(pid, ticks) and pid != os.getpid():
        raise UsageError(f"another drill runs: process {pid}", hint="wait for it, or interrupt it")
    for one in [path for path in root.iterdir() if path.is_dir()]:
        end_watchdogs(one)
        for left in Stage(own_project(project, facts, one.name, one)).close():
            say(f"of an earlier drill: {left}")
    if left := remove(project, root):
        raise UsageError(f"of an earlier drill, {left}", hint=f"end what uses it, then: rm -r {root}")


def remove(project: Project, root: Path) -> str:
    """Remove the directory of drills; return a sentence if that fails."""
    why = "it is not empty"
    for turn in range(REMOVALS):
        if turn:
            project.system.clock.sleep(REMOVAL_S)
        shutil.rmtree(root, ignore_errors=True)  # as much as possible
        try:
            shutil.rmtree(root)
        except FileNotFoundError:
            return ""
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
    return f"{root} could not be removed ({why})"
