"""Where a symbolic link leads, and through whose directories."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from resilience.cron.table.policy import Facts

_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 0x02

MOST_LINKS = 40
"""MAXSYMLINKS of Linux: path_resolution(7)."""


class Walk(NamedTuple):
    """A path without links, and the directories on the way.

    Attributes:
        path: where it leads.
        strict: directories that hold a link of the way, or what it leads to: who writes there chooses where it leads.
        passed: all others that were gone through, outermost first.
    """

    path: Path
    strict: tuple[Path, ...]
    passed: tuple[Path, ...]


def follow(path: Path) -> Walk:
    """Follow all links of a path, as the kernel does, and note the directories that decide where it leads.

    Raise OSError if it leads nowhere (ENOENT), in a circle (ELOOP), through a directory closed to us
    (EACCES), or through a file (ENOTDIR).
    """
    real = Path("/")
    rest = list(reversed(path.absolute().parts[1:]))
    strict: dict[Path, None] = {}
    passed: dict[Path, None] = {}
    links = 0
    while rest:
        part = rest.pop()
        if part in (".", ".."):
            if not stat.S_ISDIR(real.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            real = real if part == "." else real.parent
            continue
        passed[real] = None
        here = real / part
        if not stat.S_ISLNK(here.lstat().st_mode):
            real = here
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        strict[real] = None
        # Not through pathlib, which would drop a `..` or two.
        target = os.readlink(here)  # noqa: PTH115
        if target.startswith("/"):
            real = Path("/")
        if target.endswith("/"):
            target += "."  # it has to be a directory: path_resolution(7)
        rest += [word for word in reversed(target.split("/")) if word]
    strict[real.parent] = None
    return Walk(real, tuple(strict), tuple(directory for directory in passed if directory not in strict))


def facts_of(path: Path, info: os.stat_result | None = None) -> Facts:
    """What the policy wants to know of a file or directory. Raise OSError."""
    info = info or path.stat()
    facts = Facts(path=str(path), mode=info.st_mode, uid=info.st_uid, gid=info.st_gid)
    if (
        not info.st_mode & stat.S_IWGRP
    ):  # the mask of an access list shows as the group's: without it nobody else writes
        return facts
    users, groups = _writers(path)
    return facts._replace(users=users, groups=groups)


def _writers(path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The users and groups that an access list lets write besides the owner: acl(5).

    The format is the kernel's, include/uapi/linux/posix_acl_xattr.h: a version, then tag, permissions and id of each.
    """
    try:
        raw = os.getxattr(path, "system.posix_acl_access")
    except OSError:  # none, or none on this file system
        return (), ()
    entries = list(struct.iter_unpack("<HHI", raw[4 : 4 + (len(raw) - 4) // 8 * 8]))
    mask = next((permissions for tag, permissions, _ in entries if tag == _ACL_MASK), 7)
    users, groups = (
        tuple(number for tag, may, number in entries if tag == wanted and may & mask & _ACL_WRITE)
        for wanted in (_ACL_USER, _ACL_GROUP)
    )
    return users, groups


def explain(error: OSError) -> str:
    """What an error of looking at something means, as a sentence."""
    match error.errno:
        case errno.ENOENT:
            return "it is a link to nothing"
        case errno.ELOOP:
            return "it is a link in a circle"
        case errno.EACCES:
            return "it may not be read by us"
        case None:
            return str(error)
        case number:
            return f"it cannot be looked at: {os.strerror(number)}"
