"""Filling a file system for real: only one that is small and the user's own."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resilience.base.mounts import MEMORY_TYPES, Mount
from resilience.quantities import format_bytes

MOST_BYTES = 64 * 2**30
"""A larger file system is hardly made for a test, and filling it takes long."""

SHARED = frozenset({"/", "/tmp", "/var", "/var/tmp", "/home", "/dev/shm", "/run", "/usr", "/opt", "/srv", "/local"})
"""Where programs of others write, whoever owns the directory."""


def why_not(mount: Mount | None, *, owner: int, uid: int, size: int, free: int, memory_free: int) -> str:
    """Return why a file system must not be filled, or nothing. Pure.

    `owner` owns its top directory, `size` and `free` are its bytes, and `memory_free` those that the host can spare.
    """
    if mount is None:
        return "its file system is unknown"
    in_memory = mount.type in MEMORY_TYPES
    if not in_memory and not mount.source.startswith("/dev/loop"):
        return f"{mount.point} ({mount.type}) is neither a tmpfs nor a loop device: others may be using it"
    if mount.point in SHARED or mount.point.startswith(("/run/", "/sys/", "/dev/")):
        return f"{mount.point} is used by other programs of this host"
    if owner != uid:
        return f"{mount.point} belongs to another user"
    if size > MOST_BYTES:
        return f"{mount.point} is larger than {format_bytes(MOST_BYTES)}"
    if in_memory and free > memory_free / 2:
        return f"{mount.point} is in memory, and filling it would take more than half of what the host has free"
    return ""


@contextmanager
def fill(directory: Path, keep_bytes: int) -> Iterator[None]:
    """Take all but `keep_bytes` of a file system's space with a file that has no name: it ends with this process."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        offset, step = 0, MOST_BYTES
        while (step := min(step, _free(file.fileno()) - keep_bytes)) > 0:
            try:
                os.posix_fallocate(file.fileno(), offset, step)
                offset += step
            except OSError as error:  # what is free is not always all to be had
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                step //= 2
        yield


def _free(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize
