"""Decides whose files may run with the owner's rights. Pure: judges facts of stat(2).

Write access to a drop-in, its directory or a parent directory decides what runs as the owner of the project; so the
rule is that of sshd for authorized_keys (StrictModes): they must belong to the owner or to root, and no other user may
write to them. If a Unix group may operate the project, its members may as well, by the rule of the switches: the file's
group is that group, and its directory is setgid and closed to others, so that only members can have created it.

So replacing the file between this check and the start of the program gains nothing: only trusted users can. It is
checked again right before the start, because a slot may start an hour after the table was read. An access list
(setfacl) appears as group write permission and names further users, who are checked as well.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import NamedTuple

from resilience.messages import quoted

ROOT_UID = ROOT_GID = 0


def _never_private(_: int) -> bool:
    return False


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
    is_private: Callable[[int], bool] = _never_private
    name_of: Callable[[int], str] = str

    def judge_directory(self, directory: Facts) -> Refusal | None:
        """Return why nothing in a directory may run; None if it may."""
        return self._writable(directory, "directory") or self._owner(
            directory, "directory", is_shared=self._is_shared(directory)
        )

    def judge_file(self, file: Facts, directory: Facts) -> Refusal | None:
        """Return why a file in an accepted directory may not run; None if it may."""
        is_shared = self._is_shared(directory) and file.gid == self.gid
        return self._writable(file, "file") or self._owner(file, "file", is_shared=is_shared)

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

    def _writable(self, what: Facts, kind: str) -> Refusal | None:
        if what.mode & stat.S_IWOTH:
            return _world_writable(what, kind)
        is_open = bool(what.mode & stat.S_IWGRP) and what.gid not in {self.gid, ROOT_GID}
        if is_open and not self.is_private(what.gid):
            return Refusal(
                f"the {kind} {what.path} is group-writable, and no group operates this project",
                f"chmod g-w {quoted(what.path)}",
            )
        writers = [self.name_of(uid) for uid in what.users if uid not in {self.uid, ROOT_UID}]
        writers += [
            f"group {gid}" for gid in what.groups if gid not in {self.gid, ROOT_GID} and not self.is_private(gid)
        ]
        if writers:
            return Refusal(
                f"the {kind} {what.path} is writable for {', '.join(writers)} by its access list",
                f"setfacl -b {quoted(what.path)}",
            )
        return None

    def _owner(self, what: Facts, kind: str, *, is_shared: bool) -> Refusal | None:
        if what.uid in {self.uid, ROOT_UID} or is_shared:
            return None
        owner = f"the {kind} {what.path} belongs to {self.name_of(what.uid)}"
        if self.gid is None:
            reason, hint = (
                f"{owner}, but would run with the rights of {self.name_of(self.uid)}",
                "copy it: the copy belongs to you",
            )
        else:
            reason = f"{owner}, and group {self.group} does not control it safely"
            directory = what.path.rpartition("/")[0] or "/"
            hint = f"chgrp {self.group} {quoted(what.path)}; its directory: chmod g+s,o-w {quoted(directory)}"
        return Refusal(reason, hint)


def _world_writable(what: Facts, kind: str) -> Refusal:
    """Return the refusal. The sticky bit does not help: it prevents renaming, not adding."""
    return Refusal(f"the {kind} {what.path} is world-writable", f"chmod o-w {quoted(what.path)}")
