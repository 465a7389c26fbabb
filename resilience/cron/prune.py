"""`resil cron prune`: deletes expired files. `plan` lists them, and `prune` deletes them.

Deleted are outputs beyond [cron] keep_runs per entry, old outputs of driver jobs, all files of entries removed 30 days
ago, temporary files of crashed writers, and marks of dead runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.job import Liveness

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

GONE_S = 30 * 86400.0
"""A removed entry without a new file for this long is expired."""

LEFTOVER_S = 86400.0
"""An older temporary file belongs to a writer that crashed."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One expired file.

    Attributes:
        what: `outputs`, `gone entries`, `driver outputs`, `leftovers`.
        size_bytes: its disk usage.
    """

    what: str
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """The files deleted, or with a dry run the files to delete.

    Attributes:
        marks: number of marks of dead runs.
        lines: number of history lines.
        trouble: files that could not be deleted.
    """

    removals: tuple[Removal, ...] = ()
    marks: int = 0
    lines: int = 0
    trouble: tuple[str, ...] = ()


def prune(cron: CronProject, *, dry_run: bool = False) -> Pruned:
    """Delete expired files. Raise ResilError if the table cannot be read, because removed entries are unknown then."""
    now = cron.project.system.clock.now()
    if not cron.state.path.is_dir():
        return Pruned()
    cron.state.check()
    trouble: list[str] = []
    marks = (
        _dead_marks(cron, now) if dry_run else len([*cron.state.book.settle_dead(now, cron.project.system.host.name)])
    )
    found = plan(cron, now)
    if dry_run:
        return Pruned(found, marks)
    removed = []
    for removal in found:
        try:
            removal.path.unlink()
            removed.append(removal)
        except FileNotFoundError:
            pass
        except OSError as error:
            trouble.append(f"{removal.path}: {error.strerror or error}")
    for directory in {removal.path.parent for removal in removed}:
        if directory.parent in (cron.state.path / "output", cron.state.path / "history"):
            with suppress(OSError):
                directory.rmdir()  # only when nothing is left in it
    return Pruned(tuple(removed), marks, 0, tuple(trouble))


def plan(cron: CronProject, now: float) -> tuple[Removal, ...]:
    """Return every expired file once. Raise ResilError if the table cannot be read."""
    table = cron.read_table()
    known = {entry.key for entry in table.entries}
    path = cron.state.path
    found: dict[Path, Removal] = {}
    running = _running(cron)
    for key in _keys(cron):
        files = _files_of(cron, key)
        # A missing cron directory is not mounted; its entries are not gone.
        is_gone = key not in known and cron.directory.is_dir() and all(now - f.written > GONE_S for f in files)
        outputs = [file for file in files if file.path.parent.parent == path / "output"]
        if is_gone and not any(run_key == key for run_key, _ in running):
            chosen, what = files, "gone entries"
        else:
            busy = {f"{slot}" for run_key, slot in running if run_key == key} | _jobs(cron, key)
            chosen, what = _beyond(outputs, cron.settings.keep_runs, busy), "outputs"
        found |= {file.path: Removal(what, file.path, file.size_bytes) for file in chosen}
    driver = [file for file in _files(path / "driver") if file.path.suffix == ".out"]
    for file in sorted(driver, key=lambda file: file.written, reverse=True)[max(1, cron.settings.keep_runs) :]:
        found[file.path] = Removal("driver outputs", file.path, file.size_bytes)
    for file in _leftovers(path, now):
        found.setdefault(file.path, Removal("leftovers", file.path, file.size_bytes))
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size_bytes: int
    written: float


def _files(directory: Path) -> Iterator[_File]:
    """Yield the regular files of a directory."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    yield _File(Path(entry.path), info.st_blocks * 512, info.st_mtime)


def _keys(cron: CronProject) -> tuple[str, ...]:
    keys = dict.fromkeys(cron.state.keys())
    with suppress(FileNotFoundError, NotADirectoryError):
        keys |= dict.fromkeys(sorted(os.listdir(cron.state.path / "output")))  # noqa: PTH208 - names only
    return tuple(keys)


def _files_of(cron: CronProject, key: str) -> list[_File]:
    """Return all files of an entry: slots, history, outputs."""
    path = cron.state.path
    files = [file for file in _files(path / "slots") if file.path.name.rpartition("@")[0] == key]
    histories = {f"{key}.jsonl", f"{key}.jsonl.old"}
    files += [file for file in _files(path / "history") if file.path.name in histories]
    files += list(_files(path / "history" / key))
    return files + list(_files(path / "output" / key))


def _beyond(outputs: Sequence[_File], keep_runs: int, busy: set[str]) -> list[_File]:
    """Return the outputs beyond the newest `keep_runs`, except those of running runs."""
    counted = [(age, file) for file in outputs if (age := _age(file)) is not None and _stem(file.path) not in busy]
    newest_first = sorted(counted, key=lambda one: (one[0], one[1].path.name), reverse=True)
    return [file for _, file in newest_first[max(0, keep_runs) :]]


def _age(file: _File) -> float | None:
    """Return the sort key of an output: `<slot>.txt` by the slot, `<job>.out` by its mtime; None for other files."""
    if not _stem(file.path).isdigit():
        return None
    return {".txt": float(_stem(file.path)), ".out": file.written}.get(file.path.suffix)


def _stem(path: Path) -> str:
    """Return `1800000000` for `1800000000-2.txt`."""
    return path.name.partition(".")[0].partition("-")[0]


def _jobs(cron: CronProject, key: str) -> set[str]:
    """Return the jobs of an entry not known to have ended."""
    from resilience.cron.book import State

    queued = (run for run in cron.state.book.active() if run.state is State.QUEUED and run.entry_key == key)
    return {run.job[1].partition("_")[0] for run in queued}


def _leftovers(path: Path, now: float) -> Iterator[_File]:
    for directory in (path, path / "slots", path / "history", path / "runs", path / "driver"):
        for file in _files(directory):
            name = file.path.name
            is_temporary = name.startswith(".") and name.endswith(".tmp") and now - file.written > LEFTOVER_S
            is_damaged = name.endswith(".damaged") and now - file.written > GONE_S
            if is_temporary or is_damaged:
                yield file


def _running(cron: CronProject) -> set[tuple[str, int]]:
    return {(run.entry_key, run.slot) for run in cron.state.book.active()}


def _dead_marks(cron: CronProject, now: float) -> int:
    from resilience.cron.book import State

    book = cron.state.book
    return sum(run.state is State.RUNNING and book.liveness(run, now)[0] is Liveness.GONE for run in book.active())
