"""The watchdogs of a project: the plugins, and the [watch.NAME] tables that configure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from resilience.errors import UsageError
from resilience.plugins import Family
from resilience.runs.context import Context
from resilience.runs.open_project import in_child
from resilience.runs.project import Project
from resilience.schedulers import Scheduler
from resilience.settings.convert import plugin_settings
from resilience.watch.checks import Check

SEARCH_S = 5.0
"""The deadline for searching $PATH."""


@cache
def checks() -> Family:
    """Return the plugin family of watchdogs."""
    return Family("checks", "CHECK")


class Watchdog(NamedTuple):
    """One check with its settings.

    Attributes:
        name: the name in `resil watch NAME` and [watch.NAME].
        kind: the plugin's name; the same unless the table sets `kind`.
        is_requested: whether resil.toml or the command line names this watchdog. One that is only installed may have
            no targets.
    """

    name: str
    kind: str
    check: Check
    settings: Any
    is_requested: bool = True


class Listed(NamedTuple):
    """One row of `resil watch --list`.

    Attributes:
        summary: what the watchdog checks, or the error if it cannot be loaded.
        place: the origin of the settings; empty: the defaults apply.
        in_all: whether `resil watch --all` includes this watchdog.
    """

    name: str
    kind: str
    summary: str
    place: str
    in_all: bool


def context_of(project: Project) -> Context:
    """Return the context in which the checks of a project run."""
    loaded = project.loaded
    return Context(
        system=project.system,
        project=loaded.project,
        state_dir=loaded.state_dir,
        run=project.default_run(),
        group=loaded.settings.run.group,
        scheduler=_scheduler_of(project),
        scheduler_deadline_s=loaded.settings.scheduler.deadline_s,
        has_settings=loaded.path is not None,
        cron=loaded.settings.cron,
        checkpoints=str(loaded.store_path("{run}") or ""),
        save_every=loaded.settings.guard.every if loaded.settings.guard is not None else "",
        config=str(loaded.path or ""),
        evidence=str(loaded.evidence_path(project.system.host.home)),
    )


def _scheduler_of(project: Project) -> Callable[..., Scheduler]:
    """Return `project.scheduler`, with the default scheduler detected in a child: a directory on $PATH may hang."""
    known: list[str] = []

    def scheduler(name: str = "", *, cluster: str = "") -> Scheduler:
        if not name and not known:
            known.append(_scheduler_name(project))
        return project.scheduler(name or known[0], cluster=cluster)

    return scheduler


def _scheduler_name(project: Project) -> str:
    if project.loaded.settings.scheduler.name != "auto":
        return project.scheduler_name()
    path = project.system.environ.get("PATH", "")
    answer = in_child(project.system, f"programs on PATH {path}", project.scheduler_name, SEARCH_S)
    if answer.error is not None:
        raise type(answer.error)(
            f"cannot search PATH for sbatch: {answer.error.message}",
            hint='a directory on PATH may hang; set [scheduler] name = "slurm"',
        )
    return str(answer.value)


def kind_of(project: Project, name: str) -> str:
    """Return the plugin of a watchdog. Raise UsageError, suggesting the nearest name, if there is none."""
    table = project.loaded.settings.watches.get(name)
    if table is not None:
        return table.kind
    if name not in checks().names():
        from resilience.messages import suggest

        raise UsageError(f"there is no watchdog {name!r}", hint=suggest(name, every_name(project)))
    return name


def load_watchdog(
    project: Project, name: str, overrides: Mapping[str, object] | None = None, *, is_requested: bool = True
) -> Watchdog:
    """Return one watchdog with its settings; `overrides` (from the command line) take precedence.

    Raise UsageError if there is no such watchdog, SettingsError if its settings are invalid.
    """
    kind = kind_of(project, name)
    check = checks().load(kind)
    table = project.loaded.settings.watches.get(name)
    settings = plugin_settings(
        check.Settings, "watch", name, table, origins=project.loaded.origins, overrides=overrides
    )
    return Watchdog(name, kind, check, settings, is_requested)


def every_name(project: Project) -> tuple[str, ...]:
    """Return the names of all plugins and all [watch.NAME] tables."""
    return tuple(dict.fromkeys((*checks().names(), *project.loaded.settings.watches)))


def watchdog_names(project: Project) -> tuple[str, ...]:
    """Return the watchdogs of `resil watch --all`: those in [watch] checks, or all."""
    return tuple(dict.fromkeys(project.loaded.settings.watch.checks)) or every_name(project)


def is_requested(project: Project, name: str) -> bool:
    """Return whether the settings name this watchdog, so that having no target is UNKNOWN."""
    return name in project.loaded.settings.watches or name in project.loaded.settings.watch.checks


def listed(project: Project) -> tuple[Listed, ...]:
    """Return every watchdog, including those that cannot be loaded."""
    names = watchdog_names(project)
    rows = []
    for name in dict.fromkeys((*every_name(project), *names)):
        kind, summary = name, ""
        try:
            kind = kind_of(project, name)
            summary = str(checks().load(kind).summary)
        except UsageError as error:
            summary = f"{error.message}; {error.hint}" if error.hint else error.message
        rows.append(Listed(name, kind, summary, _place(project, name), name in names))
    return tuple(rows)


def _place(project: Project, name: str) -> str:
    origins = project.loaded.origins
    there = {origin for key, origin in origins.items() if key == f"watch.{name}" or key.startswith(f"watch.{name}.")}
    return f"[watch.{name}] {', '.join(sorted(there))}".rstrip() if name in project.loaded.settings.watches else ""
