"""The run directory: one folder per run on the shared file system, text that `cat` can read.

Several login nodes and jobs may touch it at once over NFS, Lustre or GPFS; correctness never rests on a lock.
"""

from __future__ import annotations

import grp
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from resilience.errors import StateDirectoryError
from resilience.model import layout
from resilience.model.submission import check_run_name
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
        return (self.path / layout.RUN_FILE).exists()

    def create(self, run_file: str) -> None:
        """Make the folders where they are missing and write `run.toml`.

        Raise StateDirectoryError if the folder cannot be written, or if the group is not one of this machine's.
        """
        check_run_name(self.run)
        fresh = not self.path.exists()
        make_folder(self.path, mode=self.folder_mode)
        if fresh and self.group:
            self._give_to_group()
        for name in layout.FOLDERS:
            make_folder(self.path / name, mode=self.folder_mode)
        write_atomic(self.path / layout.RUN_FILE, run_file, mode=self.file_mode)

    def _give_to_group(self) -> None:
        try:
            os.chown(self.path, -1, grp.getgrnam(self.group).gr_gid)
            self.path.chmod(self.folder_mode)  # chown clears the set-group-id bit
        except KeyError:
            raise StateDirectoryError(
                f"there is no group {self.group!r} on this machine", hint="see `id -Gn` for your groups"
            ) from None
        except OSError as error:
            raise explain_os_error(error, f"give group {self.group} to", self.path) from error

    def owner_uid(self) -> int:
        """Who owns the run. Raise StateDirectoryError if the folder cannot be looked at."""
        try:
            return self.path.stat().st_uid
        except OSError as error:
            raise explain_os_error(error, "look at", self.path) from error

    def is_finished(self) -> bool:
        """Whether the training says it is done."""
        return (self.path / layout.FINISHED).exists()

    def settings(self) -> dict[str, object]:
        """What `run.toml` says; empty when there is none or it is damaged."""
        found = read_regular(self.path / layout.RUN_FILE, limit_bytes=2**20)
        if found is None:
            return {}
        try:
            return tomllib.loads(found[0].decode("utf-8", "replace"))
        except tomllib.TOMLDecodeError:
            return {}


def find_runs(state_dir: Path, group: str = "") -> Iterator[RunDirectory]:
    """Yield the runs kept in a state directory, by name. A missing directory has none."""
    try:
        entries = sorted(entry.name for entry in os.scandir(state_dir) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, "read", state_dir) from error
    for name in entries:
        directory = RunDirectory(state_dir / name, group)
        if directory.exists():
            yield directory
