"""Opens a project without hanging on its file systems: a child process with a deadline reads the settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from resilience.errors import ProbeError, QuantityError, StateDirectoryError
from resilience.quantities import parse_duration_s
from resilience.runs.project import Project
from resilience.settings.load import CONFIG_VARIABLE, FILE_NAME, Source, find_source, load
from resilience.system.child import Answer
from resilience.system.files import open_without_waiting
from resilience.system.ports import System
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child, state_probe

START_S = 5.0
"""The deadline for finding and reading resil.toml, which therefore cannot set it."""


def read_source(system: System, path: Path | None = None, deadline_s: float | None = None) -> Source:
    """Return the settings file, read in a child with a deadline.

    Raise SettingsError if it cannot be read, ProbeError if the file system does not respond.
    """

    def read() -> tuple[bytes | None, bytes]:
        source = find_source(system, path)
        return (os.fsencode(source.path) if source.path is not None else None), source.content

    answer = in_child(system, f"settings of {path or system.cwd}", read, min(START_S, deadline_s or START_S))
    if isinstance(answer.error, ProbeError):
        raise ProbeError(f"settings of {path or system.cwd}: {answer.error.message}", hint=answer.error.hint)
    if answer.error is not None:
        raise answer.error
    path, content = answer.value
    return Source(Path(os.fsdecode(path)) if path is not None else None, content)


def open_in_child(
    system: System,
    *,
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    source: Source | None = None,
) -> Project:
    """Open the project, reading its settings in a child, so that a hung file system cannot block this process.

    If the home directory hangs, the user's own settings are skipped and `unread` of the project has the error.
    Raise as `read_source`.
    """
    unread = None
    if source is None:
        try:
            source = read_source(system, path, _deadline_in(overrides))
        except ProbeError as error:
            source = _read_without_own(system, path, error)
            own = system.config_home / "resil" / "config.toml"
            unread = ProbeError(f"cannot read {own}, defaults apply: {error.message}", hint=error.hint)
    return Project(system, load(system, named=path, overrides=overrides, source=source), unread=unread)


def _deadline_in(overrides: Mapping[str, str] | None) -> float | None:
    """Return the deadline that the command line sets, which is known before the settings."""
    text = (overrides or {}).get("watch.deadline_s", "")
    try:
        return parse_duration_s(text) if text else None
    except QuantityError:
        return None  # reported when the settings are converted


def _read_without_own(system: System, path: Path | None, error: ProbeError) -> Source:
    """Return an empty source if no directory from the current one upwards has a settings file.

    Raise `error` if one has, if one of them hangs, or if the settings file was named explicitly.
    """
    if path or system.environ.get(CONFIG_VARIABLE):
        raise error

    def is_there() -> bool:
        return any((directory / FILE_NAME).exists() for directory in (system.cwd, *system.cwd.parents))

    answer = in_child(system, f"settings above {system.cwd}", is_there, START_S)
    if answer.error is not None or answer.value:
        raise error
    return Source()


def check_responding(project: Project) -> None:
    """Raise StateDirectoryError (temporary) if the state directory or the one of caches hangs.

    For commands that a user types: one that waited in the kernel could not even be interrupted. Children access the
    directories, with the deadline `[watch] state_deadline_s`.
    """
    system, deadline_s = project.system, project.loaded.settings.watch.state_deadline_s
    state_dir, caches = project.loaded.state_dir, system.cache_home / "resil"
    probes = {
        state_dir: state_probe(state_dir, lambda: _touch(state_dir), deadline_s),
        caches: ChildProbe(f"caches {caches}", lambda: _touch(caches), deadline_s, str(caches)),
    }
    for path, answer in probe_in_child(probes, StuckMemory.of(system), system.clock):
        if answer.is_overdue and answer.error is not None:
            why = f"{path} does not respond: {answer.error.message}"
            raise StateDirectoryError(why, hint=answer.error.hint, transient=True)


def check_path(system: System, path: Path) -> None:
    """Raise StateDirectoryError (temporary) if a file or directory that the user typed is on a file system that hangs.

    Missing and unreadable files are reported by the command that needs them.
    """

    def look() -> None:
        with suppress(OSError):
            if path.is_dir():
                with os.scandir(path) as entries:
                    next(entries, None)
            else:
                open(path, "rb", opener=open_without_waiting).close()

    answer = in_child(system, str(path), look, START_S)
    if answer.is_overdue and answer.error is not None:
        why = f"{path} does not respond: {answer.error.message}"
        raise StateDirectoryError(why, hint=answer.error.hint, transient=True)


def _touch(path: Path) -> None:
    with suppress(OSError):  # reported by the command that needs the directory
        os.stat(path)  # noqa: PTH116 - as below
        with os.scandir(path) as entries:
            next(entries, None)  # NFS answers stat from its cache


def in_child(system: System, place: str, work: Callable[[], Any], deadline_s: float) -> Answer:
    """Return the result of `work`, run in a child with a deadline; `place` is reported if the child hangs."""
    ((_, answer),) = probe_in_child({0: ChildProbe(place, work, deadline_s)}, StuckMemory.of(system), system.clock)
    return answer
