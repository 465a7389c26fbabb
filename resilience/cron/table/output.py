"""Output files of runs: `<state_dir>/.cron/output/<key>/<slot>.txt`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

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
        """Append to the file. Raise StateDirectoryError if that fails; the next write then adds a notice of the gap."""
        if not content:
            return self.close() if is_last else None
        if self._gap:
            content = f"\n... output is missing here: {self._gap} ...\n".encode("utf-8", "replace") + content
        place = self.path or output_directory(self._directory, self._key)
        try:
            if self._descriptor < 0:
                self._open()
            view = memoryview(content)
            while view:
                view = view[os.write(self._descriptor, view) :]
            self._gap = ""
        except OSError as error:
            self._gap = os.strerror(error.errno or 0)
            raise explain_os_error(error, "write", self.path or place) from error
        return self.close() if is_last else None

    def close(self) -> None:
        """Close the file; some file servers report a full disk only here. Raise StateDirectoryError then."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError as error:
                raise explain_os_error(error, "write", self.path or Path(self.name)) from error

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


def outputs(directory: CronDirectory, key: str) -> tuple[str, ...]:
    """Return the names of an entry's outputs, oldest slot first. Raise StateDirectoryError if they cannot be read."""
    path = output_directory(directory, key)
    try:
        names = os.listdir(path)  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    found = [(int(match[1]), int(match[2] or 1), name) for name in names if (match := _NAME.fullmatch(name))]
    return tuple(name for _, _, name in sorted(found))


def prune(directory: CronDirectory, key: str, keep_runs: int, *, running: frozenset[int] = frozenset()) -> int:
    """Delete the outputs of an entry except the newest `keep_runs` and those of running slots; return how many.

    Raise StateDirectoryError if the directory cannot be read. Files that cannot be deleted are left.
    """
    names, removed = outputs(directory, key), 0
    for name in names[: max(0, len(names) - keep_runs)]:
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) not in running:
            with suppress(OSError):
                (output_directory(directory, key) / name).unlink()
                removed += 1
    return removed
