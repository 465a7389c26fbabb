"""Output files of runs and of jobs: `<state_dir>/.cron/output/<key>/<slot>.txt` and `<job>.out`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from resilience.base.files import write_all
from resilience.cron.book import Run
from resilience.cron.slots import names
from resilience.cron.state_directory import CronDirectory
from resilience.errors import StateDirectoryError
from resilience.system.files import explain_os_error, make_directory

_NAME = re.compile(r"(\d+)(?:-(\d+))?\.txt")
_AT_MOST = 100
"""Maximum number of output files per slot."""


def output_directory(directory: CronDirectory, key: str) -> Path:
    """Return the directory of an entry's outputs; may not exist."""
    return directory.path / "output" / key


class OutputFile:
    """Output file of one run; created at the first write, so that silent runs use no inode."""

    def __init__(self, directory: CronDirectory, key: str, slot: int) -> None:
        self._directory, self._key, self._slot = directory, key, slot
        self._descriptor = -1
        self._gap = ""
        self.path: Path | None = None

    @property
    def name(self) -> str:
        """File name; empty as long as nothing was written."""
        return self.path.name if self.path is not None else ""

    def append(self, content: bytes, *, is_last: bool = False) -> None:
        """Append to the file, and close it with the last content; some file servers report a full disk only then.

        Raise StateDirectoryError if that fails; the next write then adds a notice of the gap.
        """
        if content and self._gap:
            content = f"\n... output is missing here: {self._gap} ...\n".encode("utf-8", "replace") + content
        try:
            if content:
                if self._descriptor < 0:
                    self._open()
                write_all(self._descriptor, content)
                self._gap = ""
            if is_last and self._descriptor >= 0:
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)
        except OSError as error:
            self._gap = os.strerror(error.errno or 0)
            place = self.path or output_directory(self._directory, self._key)
            raise explain_os_error(error, "write", place) from error

    def _open(self) -> None:
        directory = output_directory(self._directory, self._key)
        make_directory(directory, mode=self._directory.directory_mode)
        for number in range(1, _AT_MOST):  # a rerun of the slot gets a file of its own
            path = directory / (f"{self._slot}.txt" if number == 1 else f"{self._slot}-{number}.txt")
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(path, flags, self._directory.file_mode)
            except FileExistsError:
                continue
            self.path = path
            os.fchmod(self._descriptor, self._directory.file_mode)
            return
        raise StateDirectoryError(f"{directory} has too many outputs of slot {self._slot}", hint="resil cron prune")


def number_of(name: str) -> str:
    """Return the slot or the job of an output: `1800000000` of `1800000000-2.txt`. Pure."""
    return name.partition(".")[0].partition("-")[0]


def outputs(directory: CronDirectory, key: str) -> tuple[str, ...]:
    """Return the names of an entry's outputs, oldest slot first. Raise StateDirectoryError if they cannot be read."""
    found = [(int(match[1]), int(match[2] or 1), match[0])
             for name in names(output_directory(directory, key)) if (match := _NAME.fullmatch(name))]  # fmt: skip
    return tuple(name for _, _, name in sorted(found))


def files_in(directory: Path) -> dict[Path, os.stat_result]:
    """Return the regular files of a directory. Raise StateDirectoryError if it cannot be read."""
    found = {}
    for name in names(directory) if directory.is_dir() else ():
        with suppress(OSError):
            info = os.lstat(directory / name)
            if stat.S_ISREG(info.st_mode):
                found[directory / name] = info
    return found


def busy_numbers(active: Iterable[Run], key: str) -> set[str]:
    """Return the slots and jobs of an entry's active runs."""
    mine = [run for run in active if run.entry_key == key]
    return {f"{run.slot}" for run in mine} | {run.job[1].partition("_")[0] for run in mine}


def expired(files: Mapping[Path, os.stat_result], keep_runs: int, busy: Collection[str]) -> list[Path]:
    """Return the outputs of an entry except the newest `keep_runs` and those of active runs.

    Those of runs, `<slot>.txt`, are as old as their slot; those of jobs, `<job>.out`, as their last change.
    """
    ages = {}
    for path, info in files.items():
        number = number_of(path.name)
        if number.isdigit() and number not in busy and path.suffix in (".txt", ".out"):
            ages[path] = (float(number) if path.suffix == ".txt" else info.st_mtime, path.name)
    return sorted(ages, key=lambda path: ages[path], reverse=True)[max(0, keep_runs) :]


def prune(directory: CronDirectory, key: str, keep_runs: int) -> None:
    """Delete the expired outputs of an entry; those that cannot be deleted are left. Never raises."""
    with suppress(OSError, StateDirectoryError):
        busy = busy_numbers(directory.book.active(), key)
        for path in expired(files_in(output_directory(directory, key)), keep_runs, busy):
            path.unlink(missing_ok=True)
