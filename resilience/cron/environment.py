"""The environment for ticks, recorded at installation, because cron and systemd start them with a nearly empty one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.records import VARIABLE
from resilience.cron.table.environment import lasting_variables, short_path
from resilience.errors import ResilError
from resilience.system.child import run_in_child

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.system.ports import System

PROGRAMS = ("resil", "sbatch", "squeue", "scontrol")
"""Programs whose directories belong to the PATH of the ticks."""

_SEARCH_S = 5.0
_START_S = 60.0
_LOADER = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""Kept only if the interpreter does not start without them."""


def facts_of(project: Project) -> dict[str, str]:
    """Return the environment variables of the ticks as facts of an installation.

    Raise ResilError if this interpreter does not start in that environment.
    """
    system, loaded = project.system, project.loaded
    own = [str(Path(sys.executable).parent)] if sys.executable else []
    variables = plan_environment(
        system.environ,
        user=system.host.user,
        home=system.host.home,
        # Without a settings file of its own, each tick searches for one: the project may get one.
        config=loaded.path if loaded.path != system.config_home / "resil" / "config.toml" else None,
        directories=(*own, *_program_directories(system.environ.get("PATH"))),
    )
    variables |= _loader(variables, system)
    return {f"{VARIABLE}{name}": value for name, value in sorted(variables.items())}


def plan_environment(
    environ: Mapping[str, str], *, user: str, home: Path, config: Path | None, directories: Iterable[str]
) -> dict[str, str]:
    """Return the environment of the ticks, given the environment of the user who installs."""
    kept = lasting_variables(environ) | {"HOME": str(home), "LOGNAME": user, "USER": user, "SHELL": "/bin/sh"}
    if config is not None:
        kept["RESIL_CONFIG"] = str(config)
    kept["PATH"] = short_path(path for path in directories if path.startswith("/") and ":" not in path)
    return kept


@cache
def _program_directories(path: str | None) -> tuple[str, ...]:
    """Return the directories of resil and of SLURM's commands; none if a PATH directory hangs."""

    def find() -> list[str]:
        found = [shutil.which(program, path=path) for program in PROGRAMS]
        return [str(Path(name).parent.absolute()) for name in found if name]

    ((_, answer),) = run_in_child({"PATH": (find, _SEARCH_S)})
    return tuple(answer.value) if answer.error is None else ()


def _loader(base: Mapping[str, str], system: System) -> Mapping[str, str]:
    """Return the part of PYTHONPATH and LD_LIBRARY_PATH that this interpreter needs to start: usually none.

    A module system (`module load python`) sets the second; a checkout that is not installed needs the first.
    """
    given = {name: system.environ[name] for name in _LOADER if system.environ.get(name)}
    key = (sys.executable, *given.values())
    if key in _loaders:
        return _loaders[key]
    library = {name: value for name, value in given.items() if name == "LD_LIBRARY_PATH"}
    python = {"PYTHONPATH": given.get("PYTHONPATH") or str(Path(__file__).resolve().parents[2])}
    said = ""
    for more in ({}, library, python, python | library):
        argv = [sys.executable or "python3", "-P", "-c", "import resilience.cli.main"]
        done = system.runner.run(argv, timeout_s=_START_S, env={**base, **more}, cwd="/")
        if done.returncode == 0:
            return _loaders.setdefault(key, more)
        said = said or done.stderr.strip().rpartition("\n")[2][:200]
    raise ResilError(
        f"{sys.executable} cannot start resil in a clean environment: {said}",
        hint="install resil into a virtual environment, and call its `resil`",
    )


_loaders: dict[tuple[str, ...], Mapping[str, str]] = {}
"""Results in this process: each check starts an interpreter."""
