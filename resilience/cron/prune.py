"""`resil cron prune`: deletes expired files. `plan` lists them, and `prune` deletes them.

Deleted are outputs beyond [cron] keep_runs per entry, old outputs of driver jobs, all files of entries removed 30 days
ago, temporary files of crashed writers, and records of dead runs. The book of runs bounds the histories by itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.book import State
from resilience.cron.slots import names
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
        marks: number of records of dead runs.
        lines: number of history lines; always 0.
        trouble: files that could not be deleted.
    """

    removals: tuple[Removal, ...] = ()
    marks: int = 0
    lines: int = 0
    trouble: tuple[str, ...] = ()


def prune(cron: CronProject, *, dry_run: bool = False) -> Pruned:
    """Delete expired files. Raise ResilError if the table cannot be read, because removed entries are unknown then."""
    now, book = cron.project.system.clock.now(), cron.state.book
    if not cron.state.path.is_dir():
        return Pruned()
    cron.state.check()
    running = [run for run in book.active() if run.state is State.RUNNING]
    marks = sum(book.liveness(run, now)[0] is Liveness.GONE for run in running)
    if not dry_run:
        marks = len([*book.settle_dead(now, cron.project.system.host.name)])
    found = plan(cron, now)
    if dry_run:
        return Pruned(found, marks)
    removed, trouble = [], []
    for removal in found:
        try:
            removal.path.unlink(missing_ok=True)
            removed.append(removal)
        except OSError as error:
            trouble.append(f"{removal.path}: {error.strerror or error}")
    for directory in {removal.path.parent for removal in removed}:
        if directory.parent.name in ("output", "history"):
            with suppress(OSError):
                directory.rmdir()  # only when nothing is left in it
    return Pruned(tuple(removed), marks, 0, tuple(trouble))


def plan(cron: CronProject, now: float) -> tuple[Removal, ...]:
    """Return every expired file once. Raise ResilError if the table cannot be read."""
    path, active, keep = cron.state.path, cron.state.book.active(), cron.settings.keep_runs
    known = {entry.key for entry in cron.read_table().entries}
    found: dict[Path, Removal] = {}

    def expire(what: str, files: list[_File]) -> None:
        for file in files:
            found.setdefault(file.path, Removal(what, file.path, file.size_bytes))

    slots, histories = list(_files(path / "slots")), list(_files(path / "history"))
    for key in dict.fromkeys((*cron.state.keys(), *sorted(names(path / "output")))):
        outputs = list(_files(path / "output" / key))
        files = [*outputs, *(file for file in slots if file.path.name.rpartition("@")[0] == key)]
        files += [*_files(path / "history" / key), *(f for f in histories if f.path.name.partition(".jsonl")[0] == key)]
        mine = [run for run in active if run.entry_key == key]
        busy = {f"{run.slot}" for run in mine} | {run.job[1].partition("_")[0] for run in mine}
        # A missing cron directory is not mounted; its entries are not gone.
        if key not in known and not busy and cron.directory.is_dir() and all(now - f.written > GONE_S for f in files):
            expire("gone entries", files)
            continue
        ended = [file for file in outputs if file.age is not None and file.stem not in busy]
        expire("outputs", sorted(ended, key=lambda file: (file.age, file.path.name), reverse=True)[max(0, keep) :])
    driver = [file for file in _files(path / "driver") if file.path.suffix == ".out"]
    expire("driver outputs", sorted(driver, key=lambda file: file.written, reverse=True)[max(1, keep) :])
    for directory in (path, path / "slots", path / "history", path / "runs", path / "driver"):
        old = {".tmp": LEFTOVER_S, ".damaged": GONE_S}
        expire("leftovers", [f for f in _files(directory) if now - f.written > old.get(f.path.suffix, float("inf"))])
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size_bytes: int
    written: float

    @property
    def stem(self) -> str:
        """`1800000000` of `1800000000-2.txt`."""
        return self.path.name.partition(".")[0].partition("-")[0]

    @property
    def age(self) -> float | None:
        """Sort key of an output: `<slot>.txt` by the slot, `<job>.out` by its mtime; None for other files."""
        if not self.stem.isdigit():
            return None
        return {".txt": float(self.stem), ".out": self.written}.get(self.path.suffix)


def _files(directory: Path) -> Iterator[_File]:
    """Yield the regular files of a directory."""
    for one in names(directory) if directory.is_dir() else ():
        with suppress(OSError):
            info = os.lstat(directory / one)
            if stat.S_ISREG(info.st_mode):
                yield _File(directory / one, info.st_blocks * 512, info.st_mtime)
