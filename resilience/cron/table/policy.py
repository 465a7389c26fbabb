"""Decides whose files may run with the owner's rights, from facts of stat(2) and of the symbolic links on the way.

Write access to a drop-in, its directory or a parent directory decides what runs as the owner of the project; so the
rule is that of sshd for authorized_keys (StrictModes): they must belong to the owner or to root, and no other user may
write to them. If a Unix group may operate the project, its members may as well, by the rule of the switches: the file's
group is that group, and its directory is setgid and closed to others, so that only members can have created it.

So replacing the file between this check and the start of the program gains nothing: only trusted users can. It is
checked again right before the start, because a slot may start an hour after the table was read. An access list
(setfacl) appears as group write permission and names further users, who are checked as well.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from resilience.messages import quoted

ROOT = 0
BROKEN_LINK = "it is a broken symbolic link"
MOST_LINKS = 40
"""MAXSYMLINKS of Linux: path_resolution(7)."""
_ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_WRITE = 0x02, 0x08, 0x10, 0x02


class Facts(NamedTuple):
    """Facts from stat(2) about a file or directory.

    Attributes:
        path: for display, and for the command that corrects it.
        mode, uid, gid: as in stat(2), including the type.
        users, groups: who may write by an access list (acl(5)).
    """

    path: str
    mode: int
    uid: int
    gid: int
    users: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()


class Refusal(NamedTuple):
    """Why something may not run, and what to do.

    Attributes:
        reason: one sentence.
        hint: a command, if one helps.
    """

    reason: str
    hint: str = ""


class Policy(NamedTuple):
    """Trusted users.

    Attributes:
        uid: user with whose rights everything runs.
        gid: Unix group that may operate the project; None: none.
        group: its name, for display.
        is_private: whether a group has no member except the owner, such as the private group that many systems create
            for each user.
        name_of: returns a user's name for display.
    """

    uid: int
    gid: int | None = None
    group: str = ""
    is_private: Callable[[int], bool] = lambda _: False
    name_of: Callable[[int], str] = str

    def judge_directory(self, directory: Facts) -> Refusal | None:
        """Return why nothing in a directory may run; None if it may."""
        return self._judge(directory, "directory", is_shared=self._is_shared(directory))

    def judge_file(self, file: Facts, directory: Facts) -> Refusal | None:
        """Return why a file in an accepted directory may not run; None if it may."""
        return self._judge(file, "file", is_shared=self._is_shared(directory) and file.gid == self.gid)

    def judge_above(self, directory: Facts) -> Refusal | None:
        """Return why a parent directory of a link's target makes it unsafe: other users can replace its content.

        Owners of directories above one's home must be trusted anyway; a world-writable directory is safe only with the
        sticky bit, which prevents renaming directories of other users.
        """
        if directory.mode & stat.S_IWOTH and not directory.mode & stat.S_ISVTX:
            return _world_writable(directory, "directory")
        return None

    def _is_shared(self, directory: Facts) -> bool:
        """Return whether only the owner, root and members of the group can have created files in a directory."""
        is_setgid = bool(directory.mode & stat.S_ISGID)
        return self.gid is not None and directory.gid == self.gid and is_setgid and not directory.mode & stat.S_IWOTH

    def _trusts(self, gid: int) -> bool:
        return gid in {self.gid, ROOT} or self.is_private(gid)

    def _judge(self, what: Facts, kind: str, *, is_shared: bool) -> Refusal | None:
        if what.mode & stat.S_IWOTH:
            return _world_writable(what, kind)
        it = f"the {kind} {what.path}"
        if what.mode & stat.S_IWGRP and not self._trusts(what.gid):
            return Refusal(
                f"{it} is group-writable, and no group operates this project", f"chmod g-w {quoted(what.path)}"
            )
        writers = [self.name_of(uid) for uid in what.users if uid not in {self.uid, ROOT}]
        writers += [f"group {gid}" for gid in what.groups if not self._trusts(gid)]
        if writers:
            return Refusal(
                f"{it} is writable for {', '.join(writers)} by its access list", f"setfacl -b {quoted(what.path)}"
            )
        if what.uid in {self.uid, ROOT} or is_shared:
            return None
        owner = f"{it} belongs to {self.name_of(what.uid)}"
        if self.gid is None:
            return Refusal(
                f"{owner}, but would run with the rights of {self.name_of(self.uid)}",
                "copy it: the copy belongs to you",
            )
        directory = what.path.rpartition("/")[0] or "/"
        return Refusal(
            f"{owner}, and group {self.group} does not control it safely",
            f"chgrp {self.group} {quoted(what.path)}; its directory: chmod g+s,o-w {quoted(directory)}",
        )


def _world_writable(what: Facts, kind: str) -> Refusal:
    """Return the refusal. The sticky bit does not help: it prevents renaming, not adding."""
    return Refusal(f"the {kind} {what.path} is world-writable", f"chmod o-w {quoted(what.path)}")


# ---- facts -----------------------------------------------------------------------------------------------------


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
    if not info.st_mode & stat.S_IWGRP:
        # The mask of an access list appears as group permissions: without w, no one else can write.
        return facts
    # acl(5), as in include/uapi/linux/posix_acl_xattr.h of the kernel: a version, then tag, permissions, id of each.
    try:
        raw = os.getxattr(path, "system.posix_acl_access")
    except OSError:  # none, or none on this file system
        return facts
    entries = list(struct.iter_unpack("<HHI", raw[4 : 4 + (len(raw) - 4) // 8 * 8]))
    mask = next((permissions for tag, permissions, _ in entries if tag == _ACL_MASK), 7)
    users, groups = (
        tuple(number for tag, may, number in entries if tag == wanted and may & mask & _ACL_WRITE)
        for wanted in (_ACL_USER, _ACL_GROUP)
    )
    return facts._replace(users=users, groups=groups)


def explain(error: OSError) -> str:
    """Describe an error of reading a path."""
    if error.errno is None:
        return str(error)
    known = {
        errno.ENOENT: BROKEN_LINK,
        errno.ELOOP: "it is a circular symbolic link",
        errno.EACCES: "permission to read it is denied",
    }
    return known.get(error.errno) or f"it cannot be read: {os.strerror(error.errno)}"
