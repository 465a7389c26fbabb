"""`resil cron prune`: deletes expired files. `plan` lists them, and `prune` deletes them.

Deleted are outputs beyond [cron] keep_runs per entry, old outputs of driver jobs, all files of entries removed 30 days
ago, temporary files of crashed writers, and records of dead runs. The book of runs bounds the histories by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.book import State
from resilience.cron.slots import names
from resilience.cron.table.output import busy_numbers, expired, files_in
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
        trouble: files that could not be deleted.
    """

    removals: tuple[Removal, ...] = ()
    marks: int = 0
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
    return Pruned(tuple(removed), marks, tuple(trouble))


def plan(cron: CronProject, now: float) -> tuple[Removal, ...]:
    """Return every expired file once. Raise ResilError if the table cannot be read."""
    path, active, keep = cron.state.path, cron.state.book.active(), cron.settings.keep_runs
    known = {entry.key for entry in cron.read_table().entries}
    found: dict[Path, Removal] = {}

    def expire(what: str, paths: Iterable[Path], files: Mapping[Path, os.stat_result]) -> None:
        for one in paths:
            found.setdefault(one, Removal(what, one, files[one].st_blocks * 512))

    slots, histories = files_in(path / "slots"), files_in(path / "history")
    for key in dict.fromkeys((*cron.state.keys(), *sorted(names(path / "output")))):
        outputs, busy = files_in(path / "output" / key), busy_numbers(active, key)
        files = outputs | {one: info for one, info in slots.items() if one.name.rpartition("@")[0] == key}
        files |= {one: info for one, info in histories.items() if one.name.partition(".jsonl")[0] == key}
        files |= files_in(path / "history" / key)
        is_old = all(now - info.st_mtime > GONE_S for info in files.values())
        # A missing cron directory is not mounted; its entries are not gone.
        if key not in known and not busy and cron.directory.is_dir() and is_old:
            expire("gone entries", files, files)
        else:
            expire("outputs", expired(outputs, keep, busy), outputs)
    files = files_in(path / "driver")
    driver = sorted((one for one in files if one.suffix == ".out"), key=lambda one: files[one].st_mtime, reverse=True)
    expire("driver outputs", driver[max(1, keep) :], files)
    oldest = {".tmp": now - LEFTOVER_S, ".damaged": now - GONE_S}
    for directory in (path, path / "slots", path / "history", path / "runs", path / "driver"):
        files = files_in(directory)
        old = [one for one, info in files.items() if info.st_mtime < oldest.get(one.suffix, float("-inf"))]
        expire("leftovers", old, files)
    return tuple(found.values())
