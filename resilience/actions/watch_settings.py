"""Opens the project for `resil watch`: its settings may lie on the very file system that hangs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from resilience.actions.project import Project
from resilience.settings.load import Source, find_source, load
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
    """The project, without a disk that hangs getting hold of this process. Raise as `read_source`."""
    source = source or read_source(world, wanted)
    return Project(world, load(world, wanted=wanted, overrides=overrides, source=source))
