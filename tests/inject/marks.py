"""A fault for tests: a file that is there while it is on; and a run that allows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from resilience.runs.run_directory import RunDirectory
from tests.lab.shell import SETTINGS, Shell

PLUGIN = '''
import os
import time
from dataclasses import dataclass
from pathlib import Path
from resilience.errors import ResilError, UsageError
from resilience.inject import Plan

@dataclass(frozen=True)
class Settings:
    """The options.

    Attributes:
        path: where the mark is made.
        fails: when it fails: at the start, or when it is undone.
        count: how many marks are made.
    """

    path: str = ""
    fails: str = ""
    count: int = 1

class Mark:
    summary = "make a mark"
    Settings = Settings
    argument = "path"
    example = "resil inject big-mark here"
    length_s = 60

    def look(self, settings, scene):
        return {"is_there": Path(settings.path).parent.is_dir(), "path": str(Path(settings.path).absolute())}

    def plan(self, settings, seen):
        if not seen["is_there"]:
            raise UsageError(f"there is no directory for {seen['path']}", hint="create it")
        return Plan(target=seen["path"], does=f"makes {seen['path']}", undoes=f"removes {seen['path']}",
                    state={"path": seen["path"], "fails": settings.fails, "alone": [seen["path"]]})

    def start(self, state, scene):
        Path(state["path"]).write_text(scene.id)
        if state["fails"] == "start":
            raise ResilError("no mark can be made")
        return {"made": True}

    def tend(self, state, scene):
        begin = time.monotonic()
        time.sleep(0.05)
        with open(state["path"] + ".tended", "a") as file:
            file.write(f"{begin} {time.monotonic()}\\n")
        return 0.05

    def undo(self, state, scene):
        if state["fails"] == "undo" and os.path.exists(state["path"] + ".locked"):
            raise ResilError("the mark is locked")
        Path(state["path"]).unlink(missing_ok=True)

FAULT = Mark()
'''


def allow(shell: Shell, *, allowed: bool = True) -> RunDirectory:
    """Make the run of a shell one that was submitted with `allow_inject`, and install the fault."""
    faults = shell.directory.parent / "plugins" / "faults"
    faults.mkdir(exist_ok=True)
    (faults / "big_mark.py").write_text(PLUGIN)
    text = SETTINGS.replace("[sbatch]", f"allow_inject = {str(allowed).lower()}\n[sbatch]")
    shell.settings(text)
    directory = shell.project.directory("gpt")
    state_dir = f'state_dir = "{directory.path.parent}"\n'
    directory.create(text.replace("[sbatch]", f"{state_dir}[sbatch]"))
    return directory


def start_injector(shell: Shell, mark: Path, *words: str) -> subprocess.Popen[str]:
    """Start `resil inject` in a process of its own, and return when it has said that the fault is on."""
    repository = Path(__file__).parents[2]
    injector = subprocess.Popen(
        [sys.executable, "-m", "resilience", "inject", "big-mark", str(mark), *words],
        cwd=shell.directory, env={**os.environ, "PYTHONPATH": str(repository)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert injector.stdout is not None
    lines = [injector.stdout.readline() for _ in range(2)]
    assert "Ctrl-C undoes it now" in lines[1], lines
    return injector


def end_of(injector: subprocess.Popen[str]) -> int:
    """Wait for the end of an injector; return its exit code."""
    injector.communicate(timeout=60)
    return injector.returncode
