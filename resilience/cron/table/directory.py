"""Reads the cron directory: its drop-in directories and its crontab. Does the I/O; pure modules judge the results.

Only regular files are opened, because a FIFO would block the scheduler. Files that cannot be read do not run, and are
reported.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

from resilience.cron.records import Entry, EntryOptions, Ignored, Table
from resilience.cron.table.crontab_file import parse_crontab
from resilience.cron.table.drop_ins import HEAD_BYTES, SCHEDULES, Found, judge, judge_unknown, shown, without_duplicates
from resilience.cron.table.links import BROKEN_LINK, explain, facts_of, follow
from resilience.cron.table.options import default_options
from resilience.cron.table.policy import Policy, Refusal
from resilience.messages import quoted
from resilience.settings.cron_settings import CronSettings
from resilience.system.files import explain_os_error

CRONTAB = "crontab"
GONE = "it no longer exists"
CRONTAB_BYTES = 8 * 1024**2
"""Maximum number of bytes read of a crontab."""


def read_table(
    directory: Path, settings: CronSettings, *, uid: int | None = None, group: str = "", project: Path | None = None
) -> Table:
    """Read a cron directory; a missing one is an empty table.

    `uid`: user with whose rights everything runs (default: this process); `group`: Unix group that may operate the
    project, or empty; `project`: project directory, up to which the parents of the cron directory are checked (default:
    the cron directory's parent). Raise StateDirectoryError if the directory cannot be read, which is not an empty
    table; OptionError if the settings are invalid.
    """
    time.tzset()  # a process may run for months, and the machine's time zone may change
    return _Reader(directory, settings, uid=uid, group=group, project=project).table()


def recheck(
    entry: Entry,
    directory: Path,
    settings: CronSettings,
    *,
    uid: int | None = None,
    group: str = "",
    project: Path | None = None,
) -> Ignored | None:
    """Return why a drop-in may no longer run, just before it starts; None if it may. Crontab lines always may."""
    if not entry.path:
        return None
    reader = _Reader(directory, settings, uid=uid, group=group, project=project)
    path = Path(entry.path)
    try:
        refusal = reader.refusal_above() or reader.refusal_of(path.parent)
    except OSError as error:
        return Ignored(entry.place, explain(error), "", True)
    found = reader.drop_in(path.parent.name, path, refusal)
    return found if isinstance(found, Ignored) else None


class _Reader:
    """Reads a cron directory once."""

    def __init__(
        self, directory: Path, settings: CronSettings, *, uid: int | None, group: str, project: Path | None
    ) -> None:
        self.directory = directory.absolute()
        self.settings = settings
        self.uid = os.geteuid() if uid is None else uid
        self.group = group
        self.project = (project or self.directory.parent).absolute()
        is_inside = self.directory.is_relative_to(self.project)
        self.place = shown(str(self.directory.relative_to(self.project) if is_inside else self.directory))

    @cached_property
    def default(self) -> EntryOptions:
        return default_options(self.settings, is_drop_in=True)

    @cached_property
    def gid(self) -> int | None:
        if not self.group:
            return None
        import grp

        try:
            return grp.getgrnam(self.group).gr_gid
        except KeyError:
            return None

    @cached_property
    def policy(self) -> Policy:
        return Policy(
            uid=self.uid,
            gid=self.gid,
            group=self.group,
            is_private=partial(_is_private, uid=self.uid),
            name_of=_name_of,
        )

    def table(self) -> Table:
        entries: list[Entry] = []
        ignored: list[Ignored] = []
        self.default  # noqa: B018 - invalid settings are reported before anything is read
        if self.group and self.gid is None:
            hint = "correct [run] group in resil.toml, or ask the administrators of this machine"
            ignored.append(
                Ignored(
                    self.place,
                    f"group {self.group!r} does not exist on this machine: only the owner's files run",
                    hint,
                    True,
                )
            )
        try:
            names = list(self.names(self.directory))
        except FileNotFoundError:
            if self.directory.is_symlink():
                ignored.append(Ignored(self.place, BROKEN_LINK, f"rm {quoted(self.directory)}", True))
            return Table((), tuple(ignored))
        except OSError as error:
            raise explain_os_error(error, "read", self.directory) from error
        above = self.refusal_above()
        if above is not None:
            ignored.append(Ignored(self.place, above.reason, above.hint, True))
        for name, path in names:
            if name in SCHEDULES:
                found = self.section(name, path, above)
            elif name == CRONTAB:
                found = self.crontab(path, above)
            else:
                unknown = judge_unknown(name, f"{self.place}/{shown(name)}", _mode_of(path))
                found = Table(ignored=(unknown,) if unknown else ())
            entries += found.entries
            ignored += found.ignored
        return Table(tuple(entries), tuple(ignored))

    def names(self, directory: Path) -> Iterator[tuple[str, Path]]:
        """Return the names in a directory, sorted as run-parts does. Raise OSError."""
        yield from ((name, directory / name) for name in sorted(os.listdir(directory)))  # noqa: PTH208

    def refusal_above(self) -> Refusal | None:
        """Return why the policy rejects the cron directory, its parents up to the project, or links on the way."""
        try:
            return self.refusal_of(self.directory) or self._refusal_up_to_project()
        except OSError as error:
            return Refusal(explain(error))

    def _refusal_up_to_project(self) -> Refusal | None:
        top = Path(os.path.realpath(self.project))
        real = Path(os.path.realpath(self.directory))
        is_inside = real.is_relative_to(top)
        for directory in real.parents:
            if is_inside and not directory.is_relative_to(top):
                break
            judge_it = self.policy.judge_directory if is_inside else self.policy.judge_above
            if refusal := judge_it(facts_of(directory)):
                return refusal
        return None

    def refusal_of(self, directory: Path) -> Refusal | None:
        """Return why the policy rejects a directory, or the links that lead to it. Raise OSError."""
        real, refusal = self._follow(directory) if directory.is_symlink() else (directory, None)
        return refusal or self.policy.judge_directory(facts_of(real))

    def _follow(self, path: Path) -> tuple[Path, Refusal | None]:
        """Return the target of a link, and why the policy rejects a directory on the way. Raise OSError."""
        walk = follow(path)
        for directory in walk.strict:
            if refusal := self.policy.judge_directory(facts_of(directory)):
                return walk.path, refusal
        for directory in walk.passed:
            if refusal := self.policy.judge_above(facts_of(directory)):
                return walk.path, refusal
        return walk.path, None

    def section(self, name: str, path: Path, above: Refusal | None) -> Table:
        """Read a drop-in directory."""
        place = f"{self.place}/{name}"
        try:
            if not path.is_dir():
                reason = BROKEN_LINK if path.is_symlink() and not path.exists() else "it is not a directory"
                return Table(ignored=(Ignored(place, reason, f"move it away, then: mkdir {quoted(path)}", True),))
            own = self.refusal_of(path)
            names = list(self.names(path))
        except OSError as error:
            return Table(ignored=(Ignored(place, explain(error), "", True),))
        looked = [self.drop_in(name, file, above or own) for _, file in names]
        # Temporary files of editors and copies may vanish after the listing.
        there = (one for one in looked if not (isinstance(one, Ignored) and one.reason == GONE))
        judged = list(without_duplicates(there))
        if own is not None:
            judged.insert(0, Ignored(place, own.reason, own.hint, True))
        return Table(
            tuple(one for one in judged if isinstance(one, Entry)),
            tuple(one for one in judged if isinstance(one, Ignored)),
        )

    def drop_in(self, section: str, path: Path, refusal: Refusal | None) -> Entry | Ignored:
        """Read and judge one name. `refusal`: why the policy rejects its directory."""
        blank = Found(
            name=path.name, directory=section, path=str(path), place=f"{self.place}/{section}/{shown(path.name)}"
        )
        return judge(self._look(blank, path, refusal), self.default)

    def _look(self, blank: Found, path: Path, refusal: Refusal | None) -> Found:
        try:
            info = path.lstat()
        except FileNotFoundError:
            return blank._replace(problem=GONE)
        except OSError as error:
            return blank._replace(problem=explain(error))
        try:
            real = path
            if stat.S_ISLNK(info.st_mode):
                real, on_the_way = self._follow(path)
                refusal = refusal or on_the_way
                info = real.lstat()
            if not stat.S_ISREG(info.st_mode):
                return blank._replace(mode=info.st_mode)
            head, info = _read(real, HEAD_BYTES)
            own = self.policy.judge_file(facts_of(real, info), facts_of(real.parent))
            return blank._replace(
                mode=info.st_mode,
                is_executable=os.access(real, os.X_OK),
                size_bytes=info.st_size,
                head=head,
                refusal=refusal or own,
            )
        except OSError as error:
            return blank._replace(problem=explain(error), hint=f"rm {quoted(path)}" if path.is_symlink() else "")

    def crontab(self, path: Path, above: Refusal | None) -> Table:
        """Read the crontab."""
        place = f"{self.place}/{CRONTAB}"
        try:
            info = path.lstat()
            real, on_the_way = self._follow(path) if stat.S_ISLNK(info.st_mode) else (path, None)
            info = real.lstat()
            if not stat.S_ISREG(info.st_mode):
                return Table(
                    ignored=(Ignored(place, "it is not a file", "write the lines to a file of that name", True),)
                )
            text, info = _read(real, CRONTAB_BYTES)
            refusal = above or on_the_way or self.policy.judge_file(facts_of(real, info), facts_of(real.parent))
        except OSError as error:
            return Table(ignored=(Ignored(place, explain(error), "", True),))
        if refusal is not None:
            return Table(ignored=(Ignored(place, refusal.reason, refusal.hint, True),))
        if len(text) < info.st_size:
            text = text.rpartition(b"\n")[0]
        users = {"root", *filter(None, map(os.environ.get, ("LOGNAME", "USER")))}
        table = parse_crontab(text, place, self.settings, users=users)
        if len(text) < info.st_size - 1:
            reason = f"only the first {CRONTAB_BYTES // 1024**2} MiB of {info.st_size} bytes are read"
            return Table(table.entries, (*table.ignored, Ignored(place, reason, "write a shorter one", True)))
        return table


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except OSError:
        return None


def _read(path: Path, limit_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the beginning of a regular file, and its status. Raise OSError, also if it is no longer a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path} was replaced while it was read")
        parts = []
        while limit_bytes > 0 and (part := os.read(descriptor, min(limit_bytes, 1024**2))):
            parts.append(part)
            limit_bytes -= len(part)
        return b"".join(parts), info
    finally:
        os.close(descriptor)


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private(gid: int, *, uid: int) -> bool:
    """Return whether a group is a user's private group, which many systems create (adduser.conf(5), USERGROUPS)."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
