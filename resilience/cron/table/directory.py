"""Reads the cron directory: its drop-in directories and its crontab. Does the I/O; pure modules judge the results.

Only regular files are opened, because a FIFO would block the scheduler. Files that cannot be read do not run, and are
reported.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from resilience.base.files import read_regular
from resilience.base.switches import name_of_user
from resilience.cron.records import Entry, Ignored, Table
from resilience.cron.table.crontab_file import CRONTAB, parse_crontab
from resilience.cron.table.drop_ins import HEAD_BYTES, SCHEDULES, Found, judge, judge_unknown, shown, without_duplicates
from resilience.cron.table.options import default_options
from resilience.cron.table.policy import BROKEN_LINK, Policy, Refusal, explain, facts_of, follow
from resilience.errors import UsageError
from resilience.messages import quoted
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import explain_os_error

GONE = "it no longer exists"
CRONTAB_BYTES = 8 * 1024**2
"""Maximum number of bytes read of a crontab."""


class CronReader:
    """Reads a cron directory once.

    Args:
        uid: user with whose rights everything runs (default: this process).
        group: Unix group that may operate the project, or empty.
        project: project directory, up to which the parents of the cron directory are checked (default: the cron
            directory's parent).
    """

    def __init__(
        self,
        directory: Path,
        settings: CronSettings,
        *,
        uid: int | None = None,
        group: str = "",
        project: Path | None = None,
    ) -> None:
        self.directory = directory.absolute()
        self.settings = settings
        self.project = (project or self.directory.parent).absolute()
        is_inside = self.directory.is_relative_to(self.project)
        self.place = shown(str(self.directory.relative_to(self.project) if is_inside else self.directory))
        uid = os.geteuid() if uid is None else uid
        self.policy = Policy(uid, _gid_of(group), group, partial(_is_private, uid=uid), name_of_user)

    def table(self) -> Table:
        """Return the table.

        Raise StateDirectoryError if the directory cannot be read, which is not an empty table; OptionError if the
        settings are invalid.
        """
        time.tzset()  # a process may run for months, and the machine's time zone may change
        default_options(self.settings, is_drop_in=True)  # invalid settings are reported before anything is read
        found: list[Entry | Ignored] = []
        if self.policy.group and self.policy.gid is None:
            reason = f"group {self.policy.group!r} does not exist on this machine: only the owner's files run"
            hint = "correct [run] group in resil.toml, or ask the administrators of this machine"
            found.append(Ignored(self.place, reason, hint, True))
        try:
            names = sorted(os.listdir(self.directory))  # noqa: PTH208 - names, sorted as run-parts does
        except FileNotFoundError:
            names = []
            if self.directory.is_symlink():
                found.append(Ignored(self.place, BROKEN_LINK, f"rm {quoted(self.directory)}", True))
        except OSError as error:
            raise explain_os_error(error, "read", self.directory) from error
        above = self._refusal_above() if names else None
        if above is not None:
            found.append(Ignored(self.place, above.reason, above.hint, True))
        for name in names:
            place = f"{self.place}/{shown(name)}"
            try:
                found += self._parts(name, place, above)
            except OSError as error:
                found.append(Ignored(place, explain(error), "", True))
            except UsageError as error:
                found.append(Ignored(place, error.message, error.hint, True))
        return Table(
            tuple(one for one in found if isinstance(one, Entry)),
            tuple(one for one in found if isinstance(one, Ignored)),
        )

    def recheck(self, entry: Entry) -> Ignored | None:
        """Return why a drop-in may no longer run, just before it starts; None if it may. Crontab lines always may."""
        if not entry.path:
            return None
        path = Path(entry.path)
        try:
            refusal = self._refusal_above() or self._refusal_of(path.parent)
        except OSError as error:
            return Ignored(entry.place, explain(error), "", True)
        found = judge(self._found(path, refusal), self.settings)
        return found if isinstance(found, Ignored) else None

    def _refusal_above(self) -> Refusal | None:
        """Return why the policy rejects the cron directory, its parents up to the project, or links on the way."""
        try:
            if refusal := self._refusal_of(self.directory):
                return refusal
            top, real = Path(os.path.realpath(self.project)), Path(os.path.realpath(self.directory))
            is_inside = real.is_relative_to(top)
            judge_it = self.policy.judge_directory if is_inside else self.policy.judge_above
            above = (parent for parent in real.parents if not is_inside or parent.is_relative_to(top))
            return next(filter(None, (judge_it(facts_of(parent)) for parent in above)), None)
        except OSError as error:
            return Refusal(explain(error))

    def _refusal_of(self, directory: Path) -> Refusal | None:
        """Return why the policy rejects a directory, or the links that lead to it. Raise OSError."""
        real, refusal = self._follow(directory)
        return refusal or self.policy.judge_directory(facts_of(real))

    def _follow(self, path: Path) -> tuple[Path, Refusal | None]:
        """Return the target of a path, and why the policy rejects a directory on the way of a link. Raise OSError."""
        if not stat.S_ISLNK(path.lstat().st_mode):
            return path, None
        walk = follow(path)
        refusals = (
            *(self.policy.judge_directory(facts_of(directory)) for directory in walk.strict),
            *(self.policy.judge_above(facts_of(directory)) for directory in walk.passed),
        )
        return walk.path, next(filter(None, refusals), None)

    def _parts(self, name: str, place: str, above: Refusal | None) -> Iterable[Entry | Ignored]:
        """Read a name in the cron directory. Raise OSError, or UsageError with the reason why it is ignored."""
        path = self.directory / name
        if name in SCHEDULES:
            return self._section(path, place, above)
        if name == CRONTAB:
            table = self._crontab(path, place, above)
            return *table.entries, *table.ignored
        try:
            mode = path.stat().st_mode
        except OSError:
            mode = None
        return filter(None, [judge_unknown(name, place, mode)])

    def _section(self, path: Path, place: str, above: Refusal | None) -> Iterable[Entry | Ignored]:
        """Read a drop-in directory."""
        if not path.is_dir():
            reason = BROKEN_LINK if path.is_symlink() and not path.exists() else "it is not a directory"
            raise UsageError(reason, hint=f"move it away, then: mkdir {quoted(path)}")
        own = self._refusal_of(path)
        names = sorted(os.listdir(path))  # noqa: PTH208
        judged = [judge(self._found(path / file, above or own), self.settings) for file in names]
        # Temporary files of editors and copies may vanish after the listing.
        there = (one for one in judged if not (isinstance(one, Ignored) and one.reason == GONE))
        refused = [Ignored(place, own.reason, own.hint, True)] if own else []
        return *refused, *without_duplicates(there)

    def _found(self, path: Path, refusal: Refusal | None) -> Found:
        """Read a name in a drop-in directory. `refusal`: why the policy rejects the directory."""
        section = path.parent.name
        blank = Found(path.name, section, str(path), f"{self.place}/{section}/{shown(path.name)}", refusal=refusal)
        try:
            head, info, own = self._read(path, HEAD_BYTES)
        except OSError as error:
            if path.is_symlink():
                return blank._replace(problem=explain(error), hint=f"rm {quoted(path)}")
            return blank._replace(problem=GONE if isinstance(error, FileNotFoundError) else explain(error))
        return blank._replace(
            mode=info.st_mode,
            is_executable=os.access(path, os.X_OK),
            size_bytes=info.st_size,
            head=head,
            refusal=refusal or own,
        )

    def _read(self, path: Path, limit_bytes: int) -> tuple[bytes, os.stat_result, Refusal | None]:
        """Return the beginning of a regular file, its status, and why the policy rejects it.

        Of anything else, return the status alone. Raise OSError, also if the file is replaced meanwhile.
        """
        real, refusal = self._follow(path)
        info = real.lstat()
        if not stat.S_ISREG(info.st_mode):
            return b"", info, None
        found = read_regular(real, limit_bytes=limit_bytes)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(real))
        head, info = found
        return head, info, refusal or self.policy.judge_file(facts_of(real, info), facts_of(real.parent))

    def _crontab(self, path: Path, place: str, above: Refusal | None) -> Table:
        """Read the crontab."""
        text, info, own = self._read(path, CRONTAB_BYTES)
        if not stat.S_ISREG(info.st_mode):
            raise UsageError("it is not a file", hint="write the lines to a file of that name")
        if refusal := above or own:
            raise UsageError(refusal.reason, hint=refusal.hint)
        users = {"root", *filter(None, map(os.environ.get, ("LOGNAME", "USER")))}
        if len(text) >= info.st_size:
            return parse_crontab(text, place, self.settings, users=users)
        table = parse_crontab(text.rpartition(b"\n")[0], place, self.settings, users=users)
        reason = f"only the first {CRONTAB_BYTES // 1024**2} MiB of {info.st_size} bytes are read"
        return Table(table.entries, (*table.ignored, Ignored(place, reason, "write a shorter one", True)))


def _gid_of(group: str) -> int | None:
    if not group:
        return None
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _is_private(gid: int, *, uid: int) -> bool:
    """Return whether a group is a user's private group, which many systems create (adduser.conf(5), USERGROUPS)."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
