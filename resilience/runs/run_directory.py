"""The run directory: one folder per run on the shared file system, text that `cat` can read.

Several login nodes and jobs may touch it at once over NFS, Lustre or GPFS; correctness never rests on a lock.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.system.files import explain_os_error, make_folder, read_regular, write_atomic


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where one run lives.

    Attributes:
        path: `<state_dir>/<run>`.
        group: name of the Unix group that may operate the run, or empty: then it is private (0700, 0600).
    """

    path: Path
    group: str = ""

    @property
    def run(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def folder_mode(self) -> int:
        """Mode of its folders; the set-group-id bit keeps the group on what is created below."""
        return 0o2770 if self.group else 0o700

    @property
    def file_mode(self) -> int:
        """Mode of its files."""
        return 0o660 if self.group else 0o600

    def exists(self) -> bool:
        """Whether the run was ever submitted from here."""
        return self._has(layout.RUN_FILE) or self._has(layout.SUBMISSIONS)

    def create(self, run_file: str) -> None:
        """Make the folders where they are missing and write `run.toml`.

        Raise StateDirectoryError if the folder cannot be written, or if the group is not one of this machine's.
        """
        from resilience.submission import check_run_name  # half a millisecond for each word that it knows

        check_run_name(self.run)
        gid = self._gid()
        created = make_folder(self.path, mode=self.folder_mode)
        if gid is not None:
            # The folders above that were missing as well, or the group could not come as far as the run.
            for folder in created:
                self._give_to_group(folder, gid)
            if self._stands_unfinished(gid):
                self._give_to_group(self.path, gid)
        for name in layout.FOLDERS:
            make_folder(self.path / name, mode=self.folder_mode)
        write_atomic(self.path / layout.RUN_FILE, run_file, mode=self.file_mode, durable=False)

    def _gid(self) -> int | None:
        try:
            return grp.getgrnam(self.group).gr_gid if self.group else None
        except KeyError:
            raise StateDirectoryError(
                f"there is no group {self.group!r} on this machine", hint="see `id -Gn` for your groups"
            ) from None

    def _stands_unfinished(self, gid: int) -> bool:
        """Whether the run's folder is ours and was never given to the group: a crash came in between."""
        info = self.path.stat()
        return info.st_uid == os.geteuid() and info.st_gid != gid and not (self.path / layout.RUN_FILE).exists()

    def _give_to_group(self, folder: Path, gid: int) -> None:
        try:
            mode = stat.S_IMODE(folder.stat().st_mode)
            os.chown(folder, -1, gid)
            folder.chmod(mode)  # chown clears the set-group-id bit
        except OSError as error:
            raise explain_os_error(error, f"give group {self.group} to", folder) from error

    def owner_uid(self) -> int:
        """Who owns the run. Raise StateDirectoryError if the folder cannot be looked at."""
        try:
            return self.path.stat().st_uid
        except OSError as error:
            raise explain_os_error(error, "look at", self.path) from error

    def owner(self) -> str:
        """The login name of who owns the run; the number of an account without a name."""
        uid = self.owner_uid()
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    def is_finished(self) -> bool:
        """Whether the training says it is done."""
        return self._has(layout.FINISHED)

    def _has(self, name: str) -> bool:
        try:
            return (self.path / name).exists()
        except OSError as error:
            raise explain_os_error(error, "look at", self.path) from error

    def settings(self) -> dict[str, object]:
        """What `run.toml` says; empty when there is none or it is damaged."""
        found = read_regular(self.path / layout.RUN_FILE, limit_bytes=2**20)
        if found is None:
            return {}
        import tomllib

        try:
            return tomllib.loads(found[0].decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # ValueError: broken TOML, or a number of a thousand digits
            return {}


def find_runs(state_dir: Path, group: str = "") -> Iterator[RunDirectory]:
    """Yield the runs kept in a state directory, by name. A missing directory has none.

    Somebody else's private run is passed over.
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
