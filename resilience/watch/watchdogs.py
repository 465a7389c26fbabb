"""The project of `resil watch` and its watchdogs: the plugins, and those that tables of resil.toml make of them.

Settings are read by a child with a deadline: they may lie on the very file system that hangs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from resilience.errors import ProbeError, UsageError
from resilience.plugins import Family
from resilience.runs.context import Context
from resilience.runs.project import Project
from resilience.schedulers import Scheduler
from resilience.settings.convert import plugin_settings
from resilience.settings.load import CONFIG_VARIABLE, FILE_NAME, Source, find_source, load
from resilience.system.ports import System
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.watch.checks import Check

SEARCH_S = 5.0
"""How long the directories of $PATH may take."""


@cache
def checks() -> Family:
    """The plugins there are."""
    return Family("checks", "CHECK")


class Watchdog(NamedTuple):
    """One check with its settings.

    Attributes:
        name: the name of its table in resil.toml, and after `resil watch`.
        kind: the plugin's name; the same, unless the table says otherwise.
        is_requested: whether it was requested by name, in resil.toml or on the command line. One that only exists may
            have no target.
    """

    name: str
    kind: str
    check: Check
    settings: Any
    is_requested: bool = True


class Listed(NamedTuple):
    """One row of `resil watch --list`.

    Attributes:
        summary: what it looks at; what is wrong with it when it cannot be loaded.
        place: where its settings stand, or empty: the defaults.
        in_all: whether `resil watch --all` runs it.
    """

    name: str
    kind: str
    summary: str
    place: str
    in_all: bool


def context_of(project: Project) -> Context:
    """Where the checks of a project stand."""
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
    )


def _scheduler_of(project: Project) -> Callable[..., Scheduler]:
    """As `project.scheduler`, and which one new jobs go to is found out apart: a directory of $PATH may hang."""
    known: list[str] = []

    def scheduler(name: str = "", *, cluster: str = "") -> Scheduler:
        if not name and not known:
            known.append(_scheduler_name(project))
        return project.scheduler(name or known[0], cluster=cluster)

    return scheduler


def _scheduler_name(project: Project) -> str:
    if project.loaded.settings.scheduler.name != "auto":
        return project.scheduler_name()
    from resilience.system.stuck import Look, StuckMemory, look_apart

    system = project.system
    look = Look(f"programs on PATH {system.environ.get('PATH', '')}", project.scheduler_name, SEARCH_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        raise type(answer.error)(
            f"cannot tell whether sbatch is installed: {answer.error.message}",
            hint='a directory of PATH hangs; set [scheduler] name = "slurm"',
        )
    return str(answer.value)


def kind_of(project: Project, name: str) -> str:
    """The plugin of a watchdog. Raise UsageError if nothing is called so, naming the nearest."""
    table = project.loaded.settings.watches.get(name)
    if table is not None:
        return table.kind
    if name not in checks().names():
        from resilience.messages import suggest

        raise UsageError(f"no watchdog is called {name!r}", hint=suggest(name, every_name(project)))
    return name


def load_watchdog(
    project: Project, name: str, overrides: Mapping[str, object] | None = None, *, is_requested: bool = True
) -> Watchdog:
    """One watchdog with its settings, `overrides` (the command line's) winning.

    Raise UsageError if there is none of that name, SettingsError if its settings cannot be used.
    """
    kind = kind_of(project, name)
    check = checks().load(kind)
    table = project.loaded.settings.watches.get(name)
    settings = plugin_settings(
        check.Settings, "watch", name, table, origins=project.loaded.origins, overrides=overrides
    )
    return Watchdog(name, kind, check, settings, is_requested)


def every_name(project: Project) -> tuple[str, ...]:
    """Every plugin and every table of one's own."""
    return tuple(dict.fromkeys((*checks().names(), *project.loaded.settings.watches)))


def watchdog_names(project: Project) -> tuple[str, ...]:
    """What `resil watch --all` runs: the setting's, or every plugin and every table of one's own."""
    return tuple(dict.fromkeys(project.loaded.settings.watch.checks)) or every_name(project)


def is_requested(project: Project, name: str) -> bool:
    """Whether the settings speak of it, so that it must have something to look at."""
    return name in project.loaded.settings.watches or name in project.loaded.settings.watch.checks


def listed(project: Project) -> tuple[Listed, ...]:
    """Every watchdog, those that cannot be used included."""
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


START_S = 5.0
"""How long resil.toml may take to be found and read. It cannot be a setting."""


def read_source(system: System, path: Path | None = None) -> Source:
    """The settings file, read by a child with a deadline.

    Raise SettingsError if it cannot be read, ProbeError if the file system does not answer.
    """

    def read() -> tuple[bytes | None, bytes]:
        source = find_source(system, path)
        return (os.fsencode(source.path) if source.path is not None else None), source.content

    look = Look(f"settings of {path or system.cwd}", read, START_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None:
        raise type(answer.error)(f"settings of {path or system.cwd}: {answer.error.message}", hint=answer.error.hint)
    path, content = answer.value
    return Source(Path(os.fsdecode(path)) if path is not None else None, content)


def open_in_child(
    system: System,
    *,
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    source: Source | None = None,
) -> Project:
    """Open the project in a child with a deadline, so that a disk that hangs cannot block this process.

    Where the home directory hangs, the user's own settings are left out, and the project says so (`unread`). Raise as
    `read_source`.
    """
    unread = None
    if source is None:
        try:
            source = read_source(system, path)
        except ProbeError as error:
            source = _read_without_own(system, path, error)
            own = system.config_home / "resil" / "config.toml"
            unread = ProbeError(f"{own} cannot be read, and the defaults count: {error.message}", hint=error.hint)
    return Project(system, load(system, named=path, overrides=overrides, source=source), unread=unread)


def _read_without_own(system: System, path: Path | None, error: ProbeError) -> Source:
    """The settings file of the current directory or of one above, or none. Raise `error` if those hang or one was
    named.

    A file that was named is the only one that counts.
    """
    if path or system.environ.get(CONFIG_VARIABLE):
        raise error

    def is_there() -> bool:
        return any((directory / FILE_NAME).exists() for directory in (system.cwd, *system.cwd.parents))

    look = Look(f"settings above {system.cwd}", is_there, START_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(system), system.clock)
    if answer.error is not None or answer.value:
        raise error
    return Source()
