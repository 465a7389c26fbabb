"""The facts that the lint of a submit judges by: gathered here, so that the lint itself stays pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress

from resilience import layout
from resilience.base.mounts import current_mounts, mount_of
from resilience.errors import ResilError, UsageError
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submit_plan import SubmitPlan, SubmitRequest
from resilience.runs.templates.directives import parse_directives
from resilience.runs.templates.lint import SIGNAL_SLACK_S, LintFacts
from resilience.submission import ArrayExpression
from resilience.system.files import read_lines

SMALL_ARRAY = 1000
"""Up to this index every cluster agrees (MaxArraySize is 1001 by default): no need to ask."""


def lint_facts(
    project: Project, request: SubmitRequest, plan: SubmitPlan, directory: RunDirectory, script: str
) -> LintFacts:
    """Look at what the lint needs to know. What cannot be found out is left unknown, and not complained about."""
    is_local = project.scheduler_name() == "local"
    mount = mount_of(directory.path, current_mounts())
    recorded = directory.settings().get("run")
    owner = str(recorded.get("name", "")) if isinstance(recorded, dict) else ""
    return LintFacts(
        run=request.run,
        run_dir_owner=owner,
        state_dir=str(project.loaded.state_dir),
        # Said once, at the first submit of a run: who submits again has decided.
        state_dir_is_node_local=not directory.exists() and mount is not None and mount.is_node_local and not is_local,
        max_array_size=_max_array_size(project, plan),
        measured_save_s=slowest_save_s(directory),
        stop_after_s=guard.stop_after if (guard := project.loaded.settings.guard) is not None else 0.0,
        signal_slack_s=0 if is_local else SIGNAL_SLACK_S,
        missing_directories=_missing_directories(project, request, plan, script),
        sbatch_environment=tuple(
            sorted(name for name in project.world.environ if name.startswith("SBATCH_") and not is_local)
        ),
    )


def passed_options(extra_args: Sequence[str]) -> dict[str, str | None]:
    """Given sbatch arguments that are passed through, return them by their long names, as a directive would be read."""
    return dict(parse_directives(f"#!/bin/bash\n#SBATCH {shlex.join(extra_args)}\n").options) if extra_args else {}


def slowest_save_s(directory: RunDirectory) -> float | None:
    """The slowest save that the run's journal knows (`{"event": "save", "seconds": 41.5}`), or None."""
    slowest: float | None = None
    for path in sorted((directory.path / layout.JOURNAL).glob("*.jsonl")):
        with suppress(ResilError):  # one file that cannot be read hides no other
            for record in read_lines(path):
                seconds = record.get("seconds")
                if record.get("event") == "save" and isinstance(seconds, int | float):
                    slowest = max(slowest or 0.0, float(seconds))
    return slowest


def _max_array_size(project: Project, plan: SubmitPlan) -> int | None:
    array = plan.options.get("array")
    if not array:
        return None
    try:
        if ArrayExpression.parse(array).largest <= SMALL_ARRAY:
            return None
        return project.scheduler().config().max_array_size
    except (UsageError, ResilError):
        return None


def _missing_directories(project: Project, request: SubmitRequest, plan: SubmitPlan, script: str) -> tuple[str, ...]:
    """Folders for output files that are not there: SLURM fails such a job without a word."""
    base = project.world.cwd if request.script is not None else project.loaded.project
    options = {**dict(parse_directives(script).options), **plan.options}
    if request.script is None:
        # The run's own folder for logs is made with the run.
        own = str(project.directory(request.run).path)
        options = {
            name: value for name, value in options.items() if not (value or "").startswith(own.replace("%", "%%"))
        }
    missing = []
    for name in ("output", "error"):
        value = options.get(name)
        if value:
            folder = (base / value).parent  # `~` stays: SLURM makes a folder's name of it too
            if "%" not in str(folder) and not folder.is_dir():
                missing.append(str(folder))
    return tuple(dict.fromkeys(missing))
