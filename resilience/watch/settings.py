"""Opens the project for `resil watch`: its settings may lie on the very file system that hangs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from resilience.errors import ProbeError
from resilience.runs.project import Project
from resilience.settings.load import CONFIG_VARIABLE, FILE_NAME, Source, find_source, load
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.system.world import World

START_S = 5.0
"""How long resil.toml may take to be found and read. It cannot be a setting."""


def read_source(world: World, wanted: Path | None = None) -> Source:
    """The settings file, read by a child with a deadline.

    Raise SettingsError if it cannot be read, ProbeError if the file system does not answer.
    """

    def read() -> tuple[bytes | None, bytes]:
        source = find_source(world, wanted)
        return (os.fsencode(source.path) if source.path is not None else None), source.content

    look = Look(f"settings of {wanted or world.cwd}", read, START_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(world), world.clock)
    if answer.error is not None:
        raise type(answer.error)(f"settings of {wanted or world.cwd}: {answer.error.message}", hint=answer.error.hint)
    path, content = answer.value
    return Source(Path(os.fsdecode(path)) if path is not None else None, content)


def open_apart(
    world: World,
    *,
    wanted: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    source: Source | None = None,
) -> Project:
    """The project, without a disk that hangs getting hold of this process. Raise as `read_source`.

    That a home folder hangs keeps nobody from looking at the rest: the user's own settings are done without then, and
    the project says so (`unread`).
    """
    unread = None
    if source is None:
        try:
            source = read_source(world, wanted)
        except ProbeError as error:
            source = _read_but_own(world, wanted, error)
            own = world.config_home / "resil" / "config.toml"
            unread = ProbeError(f"{own} cannot be read, and the defaults count: {error.message}", hint=error.hint)
    return Project(world, load(world, wanted=wanted, overrides=overrides, source=source), unread=unread)


def _read_but_own(world: World, wanted: Path | None, error: ProbeError) -> Source:
    """The settings file of the current folder or of one above, or none. Raise `error` if those hang or one was named.

    Whoever named a file wants that one and no other.
    """
    if wanted or world.environ.get(CONFIG_VARIABLE):
        raise error

    def is_there() -> bool:
        return any((folder / FILE_NAME).exists() for folder in (world.cwd, *world.cwd.parents))

    look = Look(f"settings above {world.cwd}", is_there, START_S)
    ((_, answer),) = look_apart({0: look}, StuckMemory.of(world), world.clock)
    if answer.error is not None or answer.value:
        raise error
    return Source()
