"""The places to watch: those that were named, or those that a training needs. Touches nothing that may hang.

Places are grouped by the file system it lies on, from /proc/self/mountinfo alone; only symbolic links on the root
file system are followed (`/scratch` is one to `/gpfs/scratch` at many sites), since resil itself lies no safer.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from resilience.base.mounts import MEMORY_TYPES, STORAGE_VARIABLES, Mount, mount_of
from resilience.errors import UsageError

CHECKPOINT_FOLDERS = ("checkpoints", "checkpoint", "ckpts", "ckpt")
"""Directories of a project that hold checkpoints, when nothing else is said."""

_VARIABLE = r"\$(?:(\w+)|\{(\w+)\})"
_LINKS_MOST = 40
"""As many as the kernel follows (path_resolution(7))."""
_PSEUDO = frozenset({"proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs"})


class Place(NamedTuple):
    """One path, and what it is to the training.

    Attributes:
        path: absolute, as it was named or found.
        role: `project directory`, `home`, `$SCRATCH`; empty: it was named.
        is_needed: whether the training writes there.
        may_miss: whether it is no news when it does not exist.
    """

    path: str
    role: str = ""
    is_needed: bool = False
    may_miss: bool = False


def named_places(paths: Sequence[str], *, base: Path, home: Path, environ: Mapping[str, str]) -> tuple[Place, ...]:
    """Given paths as people write them, return them absolute: `~` and `$VARIABLE` filled in, relative ones to `base`.

    Raise UsageError if a path is empty, holds a NUL or line end, or names a user or variable that there is not.
    """
    places: dict[str, Place] = {}
    for text in paths:
        path = _absolute(text, base, home, environ)
        places.setdefault(path, Place(path))
    return tuple(places.values())


def found_places(
    *, project: Path, state_dir: Path, home: Path, environ: Mapping[str, str], checkpoints: str = ""
) -> tuple[Place, ...]:
    """The places that a training needs, most important first, each path once."""
    places = [Place(str(project), "project directory", is_needed=True)]
    if checkpoints:
        places.append(Place(checkpoints, "checkpoints", is_needed=True, may_miss=True))
    places.append(Place(str(state_dir), "state directory", is_needed=True, may_miss=True))
    for name in STORAGE_VARIABLES:
        value = environ.get(name, "")
        if value.startswith("/") and "\0" not in value and os.path.normpath(value) != "/":
            places.append(Place(os.path.normpath(value), f"${name}", may_miss=name in {"TMPDIR", "JOBSCRATCH"}))
    places.append(Place(str(home), "home"))
    places.append(Place("/dev/shm", "/dev/shm", may_miss=True))
    places.append(Place("/tmp", "/tmp", may_miss=True))
    unique: dict[str, Place] = {}
    for place in places:
        unique.setdefault(os.path.normpath(place.path), place)
    return tuple(unique.values())


def by_mount(places: Sequence[Place], mounts: Sequence[Mount]) -> dict[str, tuple[Place, ...]]:
    """Given places, return them by the mount point of the file system that each lies on.

    What is mounted twice (the same device or export at two points) is one: its first point stands for it.
    """
    groups: dict[str, list[Place]] = {}
    points: dict[tuple[str, str], str] = {}
    for place in places:
        mount = mount_of(Path(settled(place.path, mounts)), mounts)
        if mount is None:
            groups.setdefault("/", []).append(place)
        elif mount.type not in _PSEUDO:
            # A source that is only a word, `tmpfs` or `overlay`, names no one file system.
            is_name = mount.source.startswith("/") or ":" in mount.source
            key = (mount.type, mount.source if is_name else mount.point)
            groups.setdefault(points.setdefault(key, mount.point), []).append(place)
    return {point: tuple(group) for point, group in groups.items()}


def settled(path: str, mounts: Sequence[Mount]) -> str:
    """A path with the symbolic links followed that lie on the root file system or in memory; the rest as it is."""
    rest = [part for part in path.split("/") if part]
    done, links = "", 0
    while rest:
        part = rest.pop(0)
        if part == ".":
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = mount_of(Path(done or "/"), mounts)
        there = f"{done}/{part}"
        mounted = mount_of(Path(there), mounts)
        if here is None or mounted is not here or not (here.point == "/" or here.type in MEMORY_TYPES):
            done = there
            if here is not None and here.point != "/" and here.type not in MEMORY_TYPES:
                return "/".join([done, *rest])  # a link there may hang who reads it
            continue
        try:
            target = os.readlink(there)  # noqa: PTH115 - as text
        except OSError:
            done = there
            continue
        links += 1
        if links > _LINKS_MOST:
            return "/".join([there, *rest])
        if target.startswith("/"):
            done = ""
        rest = [item for item in target.split("/") if item] + rest
    return done or "/"


def _absolute(text: str, base: Path, home: Path, environ: Mapping[str, str]) -> str:
    if not text.strip():
        raise UsageError("an empty text is no path", hint="an unset variable? name the directory, or none at all")
    if "\0" in text:
        raise UsageError(f"{text!r} holds a NUL byte: no path does")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise UsageError(f"{text!r}: ${name} is not set here", hint="cron sets few variables: write the path out")
        return environ[name]

    expanded = re.sub(_VARIABLE, value, text)
    if expanded.startswith("~"):
        user, slash, rest = expanded[1:].partition("/")
        try:
            directory = str(home) if not user else pwd.getpwnam(user).pw_dir
        except KeyError:
            raise UsageError(f"{text!r}: there is no user {user!r} on this machine", hint="write ~/...") from None
        expanded = f"{directory}{slash}{rest}"
    return os.path.normpath(os.path.join(base, expanded))  # noqa: PTH118 - normpath keeps what resolve() would touch
