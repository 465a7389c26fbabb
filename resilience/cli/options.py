"""What several commands share: their common options, and the project they work on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.system.world import World


def complete_runs(incomplete: str) -> list[str]:
    """Names of runs for tab completion: from local state only, never from the scheduler."""
    try:
        return [directory.run for directory in open_project().runs() if directory.run.startswith(incomplete)]
    except Exception:  # completion must never print a traceback into somebody's prompt
        return []


def complete_templates(incomplete: str) -> list[str]:
    """Names of templates for tab completion."""
    try:
        from resilience.runs.templates.script import template_library

        return [info.name for info in template_library(open_project()).list() if info.name.startswith(incomplete)]
    except Exception:
        return []


ConfigOption = Annotated[
    Path | None,
    # A parser of its own: Typer's looks at the file, which may lie on a disk that hangs.
    typer.Option("--config", "-c", metavar="FILE", parser=Path, help="Settings file instead of the resil.toml found."),
]
SchedulerOption = Annotated[
    str, typer.Option("--scheduler", metavar="NAME", help="slurm, local (the embedded one) or auto.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for programs.")]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="[RUN]",
        help="Name of the run, or a path to its directory. Default: this project's own.",
        autocompletion=complete_runs,
        show_default=False,
    ),
]


def open_project(config: Path | None = None, scheduler: str = "", *, banner: bool = True) -> Project:
    """Read the settings and stand in the world. `banner` says so where alerts could not be delivered for good."""
    world = World()
    overrides = {"scheduler.name": scheduler} if scheduler else {}
    project = Project(world, load(world, wanted=config, overrides=overrides))
    if banner:
        from resilience.cli.banner import warn_of_dead_letters

        warn_of_dead_letters(project)
    return project
