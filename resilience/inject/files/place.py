"""A directory on one host, as a fault of files sees it; on the nodes of a SLURM job it is asked by a task beside the
training: `python -m resilience.inject.files.place ORDER`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from resilience.base.mounts import current_mounts, mount_of
from resilience.errors import ResilError
from resilience.inject.files import ballast, holder, mounting
from resilience.inject.hosts import serve


class Facts(NamedTuple):
    """What matters of a directory on one host.

    Attributes:
        error: why it cannot be used; empty: it can.
        directory: without symbolic links.
        owner: the uid of its owner, and `uid` that of this process.
        fill, mountable: why its file system must not be filled, and why nothing can be mounted; empty: it can.
        is_faulty: whether a fault is mounted there already.
        device: the number of its file system.
    """

    error: str = ""
    directory: str = ""
    owner: int = 0
    uid: int = 0
    fill: str = ""
    mountable: str = ""
    is_faulty: bool = False
    device: int = 0


def look(path: str) -> Facts:
    """Return what matters of a directory on this host."""
    mounts = current_mounts()
    mount = mount_of(path, mounts)
    if mount is not None and mount.type == mounting.TYPE:
        return Facts(directory=path, is_faulty=True)
    try:
        directory = Path(path).resolve(strict=True)
        status, amounts = directory.stat(), os.statvfs(directory)
        mount = mount_of(directory, mounts)
        top = os.stat(mount.point).st_uid if mount is not None else -1  # noqa: PTH116 - the point is a text
    except OSError as error:
        return Facts(error=f"{path}: {error.strerror}")
    why = "" if directory.is_dir() else f"{path} is not a directory"
    if not why and not os.access(directory, os.W_OK):
        why = f"you cannot write to {path}"
    fill = ballast.why_not(
        mount, owner=top, uid=os.geteuid(), size=amounts.f_blocks * amounts.f_frsize,
        free=amounts.f_bavail * amounts.f_frsize, memory_free=_memory_free(),
    )  # fmt: skip
    return Facts(
        why, str(directory), status.st_uid, os.geteuid(), fill, mounting.why_not(),
        mount is not None and mount.type == mounting.TYPE, status.st_dev,
    )  # fmt: skip


def _memory_free() -> int:
    with suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Do what an order says on this host."""
    if "look" in order:
        return look(order["look"])._asdict()
    name, how, directory, control = order["stop"]
    try:
        holder.stop(name, how, Path(directory), Path(control) if control else None)
    except (ResilError, OSError) as error:
        return {"error": str(error)}
    return {"error": ""}


if __name__ == "__main__":
    serve(answer)
