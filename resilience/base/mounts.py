"""The file system of a path, from /proc/self/mountinfo only, without touching that file system.

Also the environment variables that sites set for their storage.
"""
# pathlib costs milliseconds at the import of every rank.
# ruff: noqa: PTH100, PTH115

from __future__ import annotations

import os
import re
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_LINKS_MOST = 40
"""The kernel's limit (path_resolution(7))."""
_OCTAL = r"\\([0-7]{3})"

NODE_LOCAL_TYPES = frozenset(
    {"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}
)
"""File systems of one machine. A head node may export one of them over NFS, so this is a hint, not a proof."""

MEMORY_TYPES = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""File systems in memory, which a reboot empties."""

STORAGE_VARIABLES = (
    "SCRATCH", "WORK", "STORE", "PROJECT", "DATA",  # nearly everywhere
    "JOBSCRATCH", "ALL_CCFRWORK", "ALL_CCFRSTORE", "ALL_CCFRSCRATCH",  # IDRIS
    "CCCSCRATCHDIR", "CCCWORKDIR", "CCCSTOREDIR",  # TGCC
    "PSCRATCH", "CFS", "CSCRATCH",  # NERSC
    "MEMBERWORK", "PROJWORK", "WORLDWORK",  # OLCF
    "STOCKYARD", "CORRAL",  # TACC
    "FAST", "PUBLIC", "CINECA_SCRATCH",  # CINECA
    "PROJECT_HOME", "GROUP_SCRATCH", "GROUP_HOME", "OAK", "L_SCRATCH",  # Stanford, Juelich
    "SCRATCHDIR", "WORKDIR", "PROJECTDIR", "PROJECT_DIR", "TMPDIR", "LOCAL_SCRATCH", "SLURM_TMPDIR", "SCRATCH_LOCAL",
    "HPCVAULT", "VSC_SCRATCH", "VSC_DATA", "BEEOND", "WORK_DIR", "SCRATCH_DIR",  # NHR@FAU, VSC and others
)  # fmt: skip
"""Variables that sites set for their storage, from their user guides."""

_OF_A_SESSION = frozenset(
    {"TMPDIR", "JOBSCRATCH", "SLURM_TMPDIR", "LOCAL_SCRATCH", "SCRATCH_LOCAL", "L_SCRATCH", "BEEOND"}
)
"""Variables with a value per job or per node, not valid in another job."""

LASTING = tuple(name for name in STORAGE_VARIABLES if name not in _OF_A_SESSION)
"""Variables with one value per user, on all nodes."""


class Mount(NamedTuple):
    """One mounted file system: a line of mountinfo, proc_pid_mountinfo(5).

    Attributes:
        point: where it is mounted.
        type: ext4, nfs4, lustre, gpfs, cgroup2 ...
        source: device or export.
        options: of the mount itself: rw, noatime ...
        root: the part of the file system that is mounted.
        device: `major:minor`.
        super_options: of the file system: the controllers of a cgroup hierarchy, the size of a tmpfs.
        ident: number of the mount.
        parent: number of the parent mount.
    """

    point: str
    type: str
    source: str
    options: tuple[str, ...] = ()
    root: str = "/"
    device: str = ""
    super_options: frozenset[str] = frozenset()
    ident: int = 0
    parent: int = 0

    @property
    def is_node_local(self) -> bool:
        """Return whether other nodes most probably have a different file system at the same path."""
        return self.type in NODE_LOCAL_TYPES


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Given /proc/self/mountinfo, return the mounts in its order; invalid lines are skipped."""
    mounts = []
    for line in text.split("\n"):  # not splitlines(): the kernel does not escape other line ends in paths
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 6 or len(after) < 2 or not (before[0] + before[1]).isdigit():
            continue
        mounts.append(
            Mount(
                point=_unescape(before[4]),
                type=after[0],
                source=_unescape(after[1]),
                options=tuple(before[5].split(",")),
                root=_unescape(before[3]),
                device=before[2],
                super_options=frozenset(after[2].split(",")) if len(after) > 2 else frozenset(),
                ident=int(before[0]),
                parent=int(before[1]),
            )
        )
    return tuple(mounts)


def mount_of(path: str | Path, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount of a path: the longest mount point above the path, and of several the last one mounted."""
    requested = os.path.abspath(path)  # resolve() would touch a file system that may hang
    best: Mount | None = None
    for mount in mounts:
        prefix = mount.point.rstrip("/") + "/"
        if (requested + "/").startswith(prefix) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def resolve_local_links(path: str, mounts: Iterable[Mount]) -> str:
    """Return a path with symbolic links resolved as far as they are on the root file system or in memory."""
    rest = [part for part in path.split("/") if part]
    done, links = "", 0
    while rest:
        part = rest.pop(0)
        if part == ".":
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = mount_of(done or "/", mounts)
        there = f"{done}/{part}"
        mounted = mount_of(there, mounts)
        if here is None or mounted is not here or not (here.point == "/" or here.type in MEMORY_TYPES):
            done = there
            if here is not None and here.point != "/" and here.type not in MEMORY_TYPES:
                return "/".join([done, *rest])  # reading a link there may hang
            continue
        try:
            target = os.readlink(there)
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


def current_mounts() -> tuple[Mount, ...]:
    """Return the mounts of this process; empty if /proc is not readable."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return parse_mountinfo(os.fsdecode(file.read()))
    except OSError:
        return ()


def _unescape(text: str) -> str:
    return re.sub(_OCTAL, lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
