"""The run directory: one per run on the shared file system, in plain text.

Several login nodes and jobs may use it at once over NFS, Lustre or GPFS; correctness never depends on a lock.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.system.files import explain_os_error, make_directory, read_regular, write_atomic


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The directory of one run.

    Attributes:
        path: `<state_dir>/<run>`.
        group: name of the Unix group that may operate the run, or empty: then it is private (0700, 0600).
    """

    path: Path
    group: str = ""

    @property
    def run(self) -> str:
        """Return the run's name."""
        return self.path.name

    @property
    def directory_mode(self) -> int:
        """Return the mode of its directories; the set-group-id bit passes the group on to new files."""
        return 0o2770 if self.group else 0o700

    @property
    def file_mode(self) -> int:
        """Return the mode of its files."""
        return 0o660 if self.group else 0o600

    def exists(self) -> bool:
        """Return whether the run was ever submitted here."""
        return self._has(layout.RUN_FILE) or self._has(layout.SUBMISSIONS)

    def create(self, run_file: str) -> None:
        """Create missing directories and write `run.toml`.

        Raise StateDirectoryError if the directory cannot be written, or if the group is unknown on this machine.
        """
        from resilience.submission import check_run_name  # imported late: half a millisecond

        check_run_name(self.run)
        gid = self.group_id()
        created = make_directory(self.path, mode=self.directory_mode)
        if gid is not None:
            # New parents too, so that the group can reach the run.
            for directory in created:
                _give_to_group(directory, gid, self.group)
            if self._is_unfinished(gid):
                _give_to_group(self.path, gid, self.group)
        for name in layout.FOLDERS:
            make_directory(self.path / name, mode=self.directory_mode)
        write_atomic(self.path / layout.RUN_FILE, run_file, mode=self.file_mode, durable=False)

    def group_id(self) -> int | None:
        """Return the group of the run's files, None for the user's own. Raise StateDirectoryError if there is none."""
        return _group_id(self.group)

    def _is_unfinished(self, gid: int) -> bool:
        """Return whether the directory is ours but was not given to the group, because of a crash."""
        info = self.path.stat()
        return info.st_uid == os.geteuid() and info.st_gid != gid and not (self.path / layout.RUN_FILE).exists()

    def stat(self, name: str = "") -> os.stat_result:
        """Return owner and permissions of the directory, or of a file in it. Raise StateDirectoryError on failure."""
        try:
            return (self.path / name).stat()
        except OSError as error:
            raise explain_os_error(error, "access", self.path / name) from error

    def owner(self) -> str:
        """Return the login name of the run's owner. Raise StateDirectoryError if the directory cannot be read."""
        return user_name(self.stat().st_uid)

    def is_finished(self) -> bool:
        """Return whether the training has finished."""
        return self._has(layout.FINISHED)

    def _has(self, name: str) -> bool:
        try:
            return (self.path / name).exists()
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return False
            raise self._explain_access(error) from error

    def _explain_access(self, error: OSError) -> StateDirectoryError:
        explained = explain_os_error(error, "access", self.path)
        with suppress(OSError):  # the state directory may be private as well
            uid = self.path.stat().st_uid
            if isinstance(error, PermissionError) and uid != os.geteuid():
                owner = user_name(uid)
                explained.message = f"run {self.run} belongs to {owner} and is private: {self.path}"
                explained.hint = f'use another run: --run NAME; or ask {owner} to set group = "GROUP" under [run]'
        return explained

    def settings(self) -> dict[str, object]:
        """Return the content of `run.toml`; empty if it is missing or damaged."""
        found = read_regular(self.path / layout.RUN_FILE, limit_bytes=2**20)
        if found is None:
            return {}
        import tomllib

        try:
            return tomllib.loads(found[0].decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # ValueError: broken TOML, or a number of a thousand digits
            return {}


def make_shared_directory(path: Path, group: str) -> None:
    """Create a directory with the modes of a run directory. Raise StateDirectoryError as RunDirectory.create."""
    gid = _group_id(group)
    for directory in make_directory(path, mode=0o2770 if group else 0o700):
        if gid is not None:
            _give_to_group(directory, gid, group)


def _group_id(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError:
        raise StateDirectoryError(
            f"there is no group {group!r} on this machine", hint="see `id -Gn` for your groups"
        ) from None


def _give_to_group(directory: Path, gid: int, group: str) -> None:
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
        os.chown(directory, -1, gid)
        directory.chmod(mode)  # chown clears the set-group-id bit
    except OSError as error:
        raise explain_os_error(error, f"give group {group} to", directory) from error


def user_name(uid: int) -> str:
    """Return the login name of an account, or its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find_runs(state_dir: Path, group: str = "") -> Iterator[RunDirectory]:
    """Yield the runs of a state directory, by name. A missing directory has none.

    Private runs of other users are skipped.
    """
    try:
        entries = sorted(entry.name for entry in os.scandir(state_dir) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, "read", state_dir) from error
    for name in entries:
        directory = RunDirectory(state_dir / name, group)
        try:
            if not directory.exists():
                continue
        except StateDirectoryError as error:
            if isinstance(error.__cause__, PermissionError):
                continue
            raise
        yield directory
