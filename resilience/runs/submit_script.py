"""The text that `resil submit` queues: rendered from the run's template, or the person's own script."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from shlex import quote

from resilience.errors import StateDirectoryError, UsageError
from resilience.guard.settings import PREFIX
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submit_plan import SubmitPlan, SubmitRequest
from resilience.runs.templates.library import TemplateLibrary
from resilience.runs.templates.script import ScriptSpec, render
from resilience.settings.load import Loaded
from resilience.settings.sections import RunSettings
from resilience.system.files import own_folder, read_regular, shipped_folder

TEMPLATES = "slurm_templates"
SCRIPT_LIMIT_BYTES = 4 * 2**20
"""SLURM's default max_script_size (slurm.conf(5), SchedulerParameters)."""


def template_library(project: Project) -> TemplateLibrary:
    """The templates in sight: the project's own win over the person's, and those over the shipped ones."""
    shipped = shipped_folder(TEMPLATES)
    folders = [
        ("project", project.loaded.project / TEMPLATES),
        ("user", project.world.config_home / "resil" / TEMPLATES),
        ("shipped", shipped),
    ]
    # In a clone of resil itself the project's folder is the shipped one.
    return TemplateLibrary(
        [(name, path) for name, path in folders if name == "shipped" or path != shipped],
        own_folder(project.world.cache_home / "resil" / "templates"),
    )


def render_script(project: Project, request: SubmitRequest, plan: SubmitPlan, directory: RunDirectory) -> str:
    """The run's template as a batch script. Raise UsageError without a command, TemplateError if it cannot be made."""
    settings = project.loaded.settings
    if not settings.run.command.strip():
        raise UsageError(
            "there is no command to run",
            hint='set command = "python train.py" under [run] in resil.toml (resil init writes one), or give a SCRIPT',
        )
    spec = ScriptSpec(
        run=request.run,
        run_dir=str(directory.path),
        command=settings.run.command,
        directives=plan.directives,
        setup=settings.run.setup,
        environment={key: str(value) for key, value in settings.environment.items()},
        signal=plan.signal,
        signal_lead_s=plan.signal_lead_s,
        beat_s=settings.attempt.beat_s,
        previous_wait_s=settings.attempt.previous_wait_s,
        owner_policy=owner_policy(settings.run),
        guard=guard_variables(project.loaded),
        group=settings.run.group,
        user=project.world.host.user,
        finish_on_success=settings.run.finish_on_success,
        cron=str(project.loaded.state_dir / ".cron") if settings.cron is not None and settings.cron.revive else "",
        launcher=dict(settings.launcher),
        variables=dict(request.variables),
    )
    return render(template_library(project), request.template or settings.run.template, spec)


def guard_variables(loaded: Loaded) -> dict[str, str]:
    """What the guard in the job has to be told: whatever [guard] says, and whose switches it obeys. Pure.

    What is not set is not exported: a newer guard may have better defaults.
    """
    guard, told = loaded.settings.guard, dict[str, str]()
    for field in fields(guard) if guard is not None else ():
        if f"guard.{field.name}" in loaded.origins:
            told[PREFIX + field.name.upper()] = _as_variable(getattr(guard, field.name))
    return told | {f"{PREFIX}SWITCH_OWNERS": owner_policy(loaded.settings.run)}


def _as_variable(value: object) -> str:
    """A setting as `read_settings` of the guard reads it back, to the last digit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def owner_policy(settings: RunSettings) -> str:
    """Whose switches the jobs of a submit obey, by the settings alone. Pure."""
    return settings.switch_owners or ("group" if settings.group else "owner")


def read_own_script(path: Path) -> str:
    """A person's own script. Raise UsageError for what sbatch would refuse, saying what to do."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a script", hint="give the path of a batch script")
        found = read_regular(path.resolve(), limit_bytes=SCRIPT_LIMIT_BYTES + 1)
    except StateDirectoryError as error:
        raise UsageError(error.message, hint="give the path of a batch script that you may read") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if found is None:
        raise UsageError(f"there is no script {path}", hint="give a path, or leave it out to render the template")
    raw = found[0]
    if len(raw) > SCRIPT_LIMIT_BYTES:
        raise UsageError(f"{path} is larger than 4 MiB; sbatch refuses it", hint="is it the batch script?")
    if b"\0" in raw:
        raise UsageError(f"{path} holds NUL characters; sbatch refuses it", hint="is it the batch script?")
    if not raw.strip():
        raise UsageError(f"{path} is empty", hint="a batch script starts with #!/bin/bash")
    if not raw.startswith(b"#!"):
        raise UsageError(f"{path} does not start with #!", hint="make its first line #!/bin/bash")
    if b"\r\n" in raw:
        raise UsageError(
            f"{path} has DOS line ends (CRLF); sbatch refuses them", hint=f"sed -i 's/\\r$//' {quote(str(path))}"
        )
    return raw.decode("utf-8", "replace")
