"""Resolves symbolic links, and the directories that they pass through."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path
from typing import NamedTuple

from resilience.cron.table.policy import Facts

_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 0x02

BROKEN_LINK = "it is a broken symbolic link"
MOST_LINKS = 40
"""MAXSYMLINKS of Linux: path_resolution(7)."""


class Walk(NamedTuple):
    """A resolved path, and the directories on the way.

    Attributes:
        path: the target.
        strict: directories that contain a link on the way, or the target: write access there controls the target.
        passed: all other directories on the way, outermost first.
    """

    path: Path
    strict: tuple[Path, ...]
    passed: tuple[Path, ...]


def follow(path: Path) -> Walk:
    """Resolve all links of a path, as the kernel does, and collect the directories that determine the target.

    Raise OSError if it is broken (ENOENT), circular (ELOOP), or leads through an unreadable directory (EACCES) or
    through a file (ENOTDIR).
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
        # Not through pathlib, which would drop `..`.
        target = os.readlink(here)  # noqa: PTH115
        if target.startswith("/"):
            real = Path("/")
        if target.endswith("/"):
            target += "."  # it has to be a directory: path_resolution(7)
        rest += [word for word in reversed(target.split("/")) if word]
    strict[real.parent] = None
    return Walk(real, tuple(strict), tuple(directory for directory in passed if directory not in strict))


def facts_of(path: Path, info: os.stat_result | None = None) -> Facts:
    """Return the facts about a file or directory that the policy needs. Raise OSError."""
    info = info or path.stat()
    facts = Facts(path=str(path), mode=info.st_mode, uid=info.st_uid, gid=info.st_gid)
    if (
        not info.st_mode & stat.S_IWGRP
    ):  # the mask of an access list appears as group permissions: without w, no one else can write
        return facts
    users, groups = _writers(path)
    return facts._replace(users=users, groups=groups)


def _writers(path: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the users and groups that an access list lets write, besides the owner: acl(5).

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
    """Describe an error of reading a path."""
    match error.errno:
        case errno.ENOENT:
            return BROKEN_LINK
        case errno.ELOOP:
            return "it is a circular symbolic link"
        case errno.EACCES:
            return "permission to read it is denied"
        case None:
            return str(error)
        case number:
            return f"it cannot be read: {os.strerror(number)}"
