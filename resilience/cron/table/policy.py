"""Whose files may run with the owner's rights. Pure: judges facts of stat(2).

Whoever can write a drop-in, its directory, or a directory above it chooses what runs as the owner of the project; so
the rule is sshd's for authorized_keys (StrictModes): these belong to the owner or to root, and nobody else can write
them. Where a Unix group may operate the project, members of the group may too, by the rule of the switches: the file's
group is that group, and its directory is setgid and closed to others, so that only members can have made it.

That leaves nothing to gain between this look and the start of the program: who could exchange the file was trusted
already. Whoever starts it looks once more all the same, because a slot may come an hour after the table was read.
An access list (setfacl) shows as write permission of the group, and names more people: these are judged as well.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import NamedTuple

ROOT_UID = ROOT_GID = 0


def _nobody_else(_: int) -> bool:
    return False


class Facts(NamedTuple):
    """What stat(2) says of a file or a directory.

    Attributes:
        path: for people, and for the command that corrects it.
        mode, uid, gid: as in stat(2), the type included.
        users, groups: who besides may write, by an access list (acl(5)).
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
        reason: a sentence.
        hint: a command where there is one.
    """

    reason: str
    hint: str = ""


class Policy(NamedTuple):
    """Who is trusted.

    Attributes:
        uid: of whose rights everything runs with.
        gid: of the Unix group that may operate the project; None: there is none.
        group: its name, for people.
        is_private: whether a group has no member but the owner, as the group of one's own that many systems give
            everybody: what such a group may write, only the owner may.
        name_of: a user's name, for people.
    """

    uid: int
    gid: int | None = None
    group: str = ""
    is_private: Callable[[int], bool] = _nobody_else
    name_of: Callable[[int], str] = str

    def judge_directory(self, directory: Facts) -> Refusal | None:
        """Say why nothing in a directory may run; None: it may."""
        return self._writable(directory, "directory") or self._owner(
            directory, "directory", is_shared=self._is_shared(directory)
        )

    def judge_file(self, file: Facts, directory: Facts) -> Refusal | None:
        """Say why a file may not run, in a directory that passed; None: it may."""
        is_shared = self._is_shared(directory) and file.gid == self.gid
        return self._writable(file, "file") or self._owner(file, "file", is_shared=is_shared)

    def judge_above(self, directory: Facts) -> Refusal | None:
        """Say why a directory far above a link's target makes it unsafe: others can exchange what lies in it.

        As far as one's own home goes one lives with who owns what lies above it; a directory that everybody can write
        in is safe only with the sticky bit, by which nobody renames another one's directory.
        """
        if directory.mode & stat.S_IWOTH and not directory.mode & stat.S_ISVTX:
            return _world_writable(directory, "directory")
        return None

    def _is_shared(self, directory: Facts) -> bool:
        """Whether only the owner, root and members of the group can have put something into a directory."""
        is_setgid = bool(directory.mode & stat.S_ISGID)
        return self.gid is not None and directory.gid == self.gid and is_setgid and not directory.mode & stat.S_IWOTH

    def _writable(self, what: Facts, kind: str) -> Refusal | None:
        if what.mode & stat.S_IWOTH:
            return _world_writable(what, kind)
        is_open = bool(what.mode & stat.S_IWGRP) and what.gid not in {self.gid, ROOT_GID}
        if is_open and not self.is_private(what.gid):
            return Refusal(
                f"the {kind} {what.path} can be written by its group, and no group operates this project",
                f"chmod g-w {_quoted(what.path)}",
            )
        strangers = [self.name_of(uid) for uid in what.users if uid not in {self.uid, ROOT_UID}]
        strangers += [
            f"group {gid}" for gid in what.groups if gid not in {self.gid, ROOT_GID} and not self.is_private(gid)
        ]
        if strangers:
            return Refusal(
                f"the {kind} {what.path} can be written by {', '.join(strangers)}, says its access list",
                f"setfacl -b {_quoted(what.path)}",
            )
        return None

    def _owner(self, what: Facts, kind: str, *, is_shared: bool) -> Refusal | None:
        if what.uid in {self.uid, ROOT_UID} or is_shared:
            return None
        owner = f"the {kind} {what.path} belongs to {self.name_of(what.uid)}"
        if self.gid is None:
            reason, hint = (
                f"{owner}, and would run with the rights of {self.name_of(self.uid)}",
                "copy it: a copy is yours",
            )
        else:
            reason = f"{owner}, and is not safely the group's ({self.group})"
            hint = f"chgrp {self.group} it, and its directory too: chmod g+s,o-w"
        return Refusal(reason, hint)


def _world_writable(what: Facts, kind: str) -> Refusal:
    """The sticky bit is no excuse: it keeps others from renaming, not from adding."""
    return Refusal(
        f"the {kind} {what.path} can be written by everybody on this machine", f"chmod o-w {_quoted(what.path)}"
    )


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)
