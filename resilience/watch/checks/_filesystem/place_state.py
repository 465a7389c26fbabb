"""Whether a path is there, and on which file system: the looks that may hang, so only in a child.

A path that leads nowhere is no error of the watchdog: it is what it looks for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from resilience.base.mounts import Mount, current_mounts, mount_of
from resilience.errors import ProbeError

_GONE = {
    errno.ESTALE: "stale file handle: what was mounted there has been replaced or taken away on the server",
    errno.ENOTCONN: "the file system's server process has ended (transport endpoint is not connected)",
    errno.EHOSTDOWN: "its server is down",
    errno.EHOSTUNREACH: "its server cannot be reached",
    errno.ETIMEDOUT: "its server did not answer in time",
    errno.EIO: "input/output error: the disk or its server fails",
    errno.ESHUTDOWN: "the file system was shut down (after an error, mostly)",
    errno.EUCLEAN: "the file system is damaged and needs cleaning",
}


class PlaceState(NamedTuple):
    """What became of looking at one path.

    Attributes:
        path: the path.
        trouble: missing, dangling, unreadable or stale; empty when it is there.
        detail: that, as a sentence.
        advice: what to try.
        real: the path with its links followed.
        mount: the file system; of the nearest folder above when the path is missing.
        device: st_dev.
        status: statvfs; None with trouble.
        note: what is particular about it.
        is_file: whether it is no folder.
    """

    path: str
    trouble: str = ""
    detail: str = ""
    advice: str = ""
    real: str = ""
    mount: Mount | None = None
    device: int = 0
    status: os.statvfs_result | None = None
    note: str = ""
    is_file: bool = False


def look_at(path: str) -> PlaceState:
    """Look at one path. Raise ProbeError for a failure that is no news about the file system."""
    try:
        info = os.stat(path)  # noqa: PTH116 - before the mounts are read: it makes autofs mount
        status = os.statvfs(path)
        real = os.path.realpath(path)
    except OSError as error:
        return _trouble(path, error)
    mount = mount_of(Path(real), current_mounts())
    note = f"it leads to {real}" if real != os.path.normpath(path) else ""
    is_file = not stat.S_ISDIR(info.st_mode)
    return PlaceState(path, real=real, mount=mount, device=info.st_dev, status=status, note=note, is_file=is_file)


def _trouble(path: str, error: OSError) -> PlaceState:
    mounts = current_mounts()
    if isinstance(error, FileNotFoundError):
        return _missing(path, mounts)
    if isinstance(error, NotADirectoryError):
        parent = _nearest(path)
        return PlaceState(path, "missing", f"does not exist: {parent} is a file, not a folder",
                          "correct the path", mount=mount_of(Path(parent), mounts))  # fmt: skip
    if isinstance(error, PermissionError):
        return PlaceState(path, "unreadable", "a folder above it may not be entered: permission denied",
                          "ask its owner for permission, or watch it as another user",
                          mount=mount_of(Path(path), mounts))  # fmt: skip
    if error.errno == errno.ELOOP:
        return PlaceState(path, "dangling", "its symbolic links lead in a circle", f"see ls -l {path}")
    if error.errno in _GONE:
        mount = mount_of(Path(path), mounts)
        where = f" ({mount.source} at {mount.point})" if mount is not None else ""
        return PlaceState(path, "stale", _GONE[error.errno] + where,
                          "ask the administrators to mount it anew; jobs here cannot use it", mount=mount)  # fmt: skip
    raise ProbeError(f"cannot look at {path}: {error.strerror or error}", hint="is the path meant so?")


def _missing(path: str, mounts: Sequence[Mount]) -> PlaceState:
    parent = _nearest(path)
    mount = mount_of(Path(os.path.realpath(parent)), mounts)
    where = f"the nearest folder above is {parent}" + (
        f", on the file system mounted at {mount.point} ({mount.type})" if mount is not None else ""
    )
    first = _first_missing(path)
    try:
        target = os.readlink(first)  # noqa: PTH115
    except OSError:
        return PlaceState(path, "missing", f"does not exist: {where}", "is its file system mounted on this node?",
                          mount=mount)  # fmt: skip
    return PlaceState(path, "dangling", f"leads nowhere: {first} is a symbolic link to {target}, which does not exist",
                      "is the file system that it leads to mounted on this node?", mount=mount)  # fmt: skip


def _nearest(path: str) -> str:
    """The nearest folder above that exists."""
    parent = os.path.dirname(path)  # noqa: PTH120
    while parent not in ("/", "") and not os.path.exists(parent):  # noqa: PTH110
        parent = os.path.dirname(parent)  # noqa: PTH120
    return parent or "/"


def _first_missing(path: str) -> str:
    """The first part of a path that does not exist, links followed."""
    parent = _nearest(path)
    rest = path[len(parent) :].lstrip("/").split("/")
    return f"{parent.rstrip('/')}/{rest[0]}"
