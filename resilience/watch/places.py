"""The paths to watch: those that the user named, or those that a training needs. Accesses nothing that may hang.

Paths are grouped by file system using /proc/self/mountinfo alone. Symbolic links are followed only on the root file
system and in memory (at many sites `/scratch` is a link to `/gpfs/scratch`).
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from resilience.base.mounts import STORAGE_VARIABLES, Mount, mount_of, resolve_local_links
from resilience.errors import UsageError

CHECKPOINT_DIRECTORIES = ("checkpoints", "checkpoint", "ckpts", "ckpt")
"""Where a project's checkpoints are searched for if the settings name no directory."""

_VARIABLE = r"\$(?:(\w+)|\{(\w+)\})"
_PSEUDO = frozenset({"proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs"})


class Place(NamedTuple):
    """One path and its role in the training.

    Attributes:
        path: absolute, as named or found.
        role: `project directory`, `home`, `$SCRATCH`; empty: the user named the path.
        is_needed: whether the training writes there.
        is_optional: whether a missing path is not a fault.
        is_read: whether the training only reads it, so that a full file system is no fault.
    """

    path: str
    role: str = ""
    is_needed: bool = False
    is_optional: bool = False
    is_read: bool = False


def named_places(paths: Sequence[str], *, base: Path, home: Path, environ: Mapping[str, str]) -> tuple[Place, ...]:
    """Return paths as absolute paths: `~` and `$VARIABLE` expanded, relative ones joined to `base`.

    Raise UsageError if a path is empty, contains a NUL, or names an unknown user or a variable that is not set.
    """
    places: dict[str, Place] = {}
    for text in paths:
        path = _absolute(text, base, home, environ)
        places.setdefault(path, Place(path))
    return tuple(places.values())


def needed_places(
    *,
    project: Path,
    state_dir: Path,
    home: Path,
    environ: Mapping[str, str],
    checkpoints: str = "",
    reads: Sequence[str] = (),
) -> tuple[Place, ...]:
    """Return the places that a training needs, most important first, each path once.

    `reads`: the paths of its command, its data and its environment.
    """
    places = [Place(str(project), "project directory", is_needed=True)]
    if checkpoints:
        places.append(Place(checkpoints, "checkpoints", is_needed=True, is_optional=True))
    places.append(Place(str(state_dir), "state directory", is_needed=True, is_optional=True))
    for name in STORAGE_VARIABLES:
        value = environ.get(name, "")
        if value.startswith("/") and "\0" not in value and os.path.normpath(value) != "/":
            places.append(Place(os.path.normpath(value), f"${name}", is_optional=name in {"TMPDIR", "JOBSCRATCH"}))
    places.append(Place(str(home), "home"))
    places.append(Place("/dev/shm", "/dev/shm", is_optional=True))
    places.append(Place("/tmp", "/tmp", is_optional=True))
    places += [Place(path, "used by the training", is_optional=True, is_read=True) for path in reads]
    unique: dict[str, Place] = {}
    for place in places:
        unique.setdefault(os.path.normpath(place.path), place)
    return tuple(unique.values())


def by_mount(places: Sequence[Place], mounts: Sequence[Mount]) -> dict[str, tuple[Place, ...]]:
    """Return the places by the mount point of their file system.

    A device or export that is mounted twice counts as one file system, under its first mount point.
    """
    groups: dict[str, list[Place]] = {}
    points: dict[tuple[str, str], str] = {}
    for place in places:
        mount = mount_of(Path(resolve_local_links(place.path, mounts)), mounts)
        if mount is None:
            groups.setdefault("/", []).append(place)
        elif mount.type not in _PSEUDO:
            # A source such as `tmpfs` or `overlay` does not identify the file system.
            is_name = mount.source.startswith("/") or ":" in mount.source
            key = (mount.type, mount.source if is_name else mount.point)
            groups.setdefault(points.setdefault(key, mount.point), []).append(place)
    return {point: tuple(group) for point, group in groups.items()}


def _absolute(text: str, base: Path, home: Path, environ: Mapping[str, str]) -> str:
    if not text.strip():
        raise UsageError("a path is empty", hint="is a variable unset? name a directory, or omit the argument")
    if "\0" in text:
        raise UsageError(f"path {text!r} contains a NUL byte")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise UsageError(f"{text!r}: ${name} is not set", hint="cron sets few variables: write the full path")
        return environ[name]

    expanded = re.sub(_VARIABLE, value, text)
    if expanded.startswith("~"):
        user, slash, rest = expanded[1:].partition("/")
        try:
            directory = str(home) if not user else pwd.getpwnam(user).pw_dir
        except KeyError:
            raise UsageError(f"{text!r}: unknown user {user!r}", hint="write ~/...") from None
        expanded = f"{directory}{slash}{rest}"
    return os.path.normpath(os.path.join(base, expanded))  # noqa: PTH118 - resolve() would access the disk
