"""What the settings of a project say about its run, for drills. Reads nothing but the settings."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from resilience.drills.words import Facts
from resilience.errors import QuantityError, ResilError
from resilience.quantities import parse_slurm_time_s
from resilience.runs.project import Project
from resilience.settings.sections import Settings
from resilience.watch.watchdogs import load_watchdog, watchdog_names


def facts_of(project: Project) -> Facts:
    """Return the facts. Raise SettingsError if a table of the settings is invalid."""
    loaded, settings = project.loaded, project.loaded.settings
    run = project.default_run()
    store, guard = settings.checkpoints, settings.guard
    log = _log_settings(project)
    path = loaded.store_path(run)
    return Facts(
        run=run,
        command=settings.run.command,
        template=settings.run.template,
        environment=tuple(settings.environment),
        scheduler=project.scheduler_name(),
        store="" if path is None else str(path),
        is_own_store=store is None or not store.pattern,
        successors=_successors(settings),
        walltime_s=_walltime_s(settings),
        lead_s=settings.submit.signal_lead_s,
        watches_walltime=guard is None or guard.walltime,
        has_guard=project.system.environ.get("RESIL_GUARD", "") != "off"
        and settings.environment.get("RESIL_GUARD", "") != "off",
        channels=settings.alert.channels,
        quiet_hours=settings.alert.quiet_hours,
        checks=watchdog_names(project),
        hang_s=getattr(log, "timeout_s", None),
        floor_s=getattr(log, "floor_s", 120.0),
        on_hang=getattr(log, "on_hang", "tell"),
        acts=settings.act.enabled,
        unknown_for_s=settings.alert.unknown_for_s,
    )


def _successors(settings: Settings) -> str:
    act = settings.act
    if act.enabled and act.requeue:
        return "the job requeues itself"
    if act.enabled and act.keep_queued:
        return f"resil keeps {act.keep_queued} queued"
    return f"an array of {settings.submit.array}" if settings.submit.array else ""


def _walltime_s(settings: Settings) -> float | None:
    with suppress(QuantityError):
        return parse_slurm_time_s(str(settings.sbatch.get("time", "unlimited")))
    return None


def _log_settings(project: Project) -> Any:
    with suppress(ResilError):  # invalid ones are reported by `resil config check`
        return load_watchdog(project, "log").settings
    return None
