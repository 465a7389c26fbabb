"""Which file system a path lies on, without touching that file system: /proc/self/mountinfo only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_OCTAL = r"\\([0-7]{3})"

NODE_LOCAL_TYPES = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}
)
"""File systems of one machine. A head node may export one of them over NFS, so this is a hint, not a proof."""

MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems that a reboot empties."""


class Mount(NamedTuple):
    """One mounted file system.

    Attributes:
        point: where it is mounted.
        type: ext4, nfs4, lustre, gpfs ...
        source: device or export.
        options: of the mount itself: rw, noatime ...
    """

    point: str
    type: str
    source: str
    options: tuple[str, ...] = ()

    @property
    def is_node_local(self) -> bool:
        """Whether other nodes most probably see something else under the same path."""
        return self.type in NODE_LOCAL_TYPES


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Given /proc/self/mountinfo, return the mounts in its order. Format: proc_pid_mountinfo(5)."""
    mounts = []
    for line in text.split("\n"):  # no other line end: the kernel writes them into paths as they are
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 2:
            continue
        mounts.append(Mount(_unescape(before[4]), after[0], _unescape(after[1]), tuple(before[5].split(","))))
    return tuple(mounts)


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that a path lies on: the longest mount point above it, the last one mounted there."""
    wanted = os.path.abspath(path)  # noqa: PTH100 - resolve() would touch a file system that may hang
    best: Mount | None = None
    for mount in mounts:
        prefix = mount.point.rstrip("/") + "/"
        if (wanted + "/").startswith(prefix) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def current_mounts() -> tuple[Mount, ...]:
    """The mounts of this process; empty where /proc does not tell."""
    try:
        raw = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return ()
    return parse_mountinfo(os.fsdecode(raw))


def _unescape(text: str) -> str:
    return re.sub(_OCTAL, lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
