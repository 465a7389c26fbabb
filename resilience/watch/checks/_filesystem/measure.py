"""Measures the size and interval of checkpoints, and finds files that a site's purge policy will delete.

Manifests tell sizes and times where there are any. Elsewhere they are measured, and the work is bounded: of a
checkpoint with a hundred thousand files, `MOST_FILES` are counted. The interval comes from the run's journal.

Sites purge by last access ("not accessed for 30 days") or last change; the later of the two counts. A file system
mounted `noatime` or `relatime` may report an access a day late.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

from resilience.errors import CheckpointError
from resilience.watch.checks._filesystem.reading import INODES, median

MOST_FILES = 20_000
MOST_ENTRIES = 2_000
MEASURED = 3
"""This many of the newest checkpoints are measured; the largest counts."""
MOST_MANIFESTS = 4
SETTLED_S = 60.0
"""A checkpoint changed more recently may still be incomplete."""
LEAST_BYTES = 2**20
"""Smaller files beside the checkpoints are not checkpoints: `latest`, `README`."""
TAIL_BYTES = 2**18
MOST_JOURNALS = 3
LONGEST_S = 7 * 86400.0
"""Two saves further apart had a pause between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStats:
    """Measurements of a run's checkpoints.

    Attributes:
        directory: their directory.
        size: the size of one, in bytes or inodes; None if there is none to measure.
        every_s: seconds from one to the next; None if unknown.
        count: the number of checkpoints in the directory.
        saves: the number of saves in the part of the journal that was read; 0 without a journal.
        source: the source of `every_s`.
    """

    directory: str
    size: float | None = None
    every_s: float | None = None
    count: int = 0
    saves: int = 0
    source: str = ""

    @property
    def is_pruned(self) -> bool:
        """Return whether older checkpoints were removed: there were more saves than there are checkpoints."""
        return self.saves > self.count + 1


def measure_checkpoints(directory: str, journal: str, kind: str, now: float) -> CheckpointStats:
    """Measure the checkpoints in a directory, using the run's journal (empty: none, or not to be accessed)."""
    found = _committed(directory, kind) or _guessed(directory, kind, now)
    times = saves_of(_journal_lines(journal)) if journal else ()
    every_s, source = interval_s(times), "the run's journal"
    if every_s is None:
        every_s, source = interval_s(found.times), found.source
    return CheckpointStats(
        directory=directory,
        size=float(max(found.sizes)) if found.sizes else None,
        every_s=every_s,
        count=found.number,
        saves=len(times),
        source=source if every_s is not None else "",
    )


class _Found(NamedTuple):
    """The checkpoints of a directory: how many, the times and sizes of the newest, and the source of the times."""

    number: int
    times: Sequence[float]
    sizes: Sequence[int]
    source: str


def _committed(directory: str, kind: str) -> _Found | None:
    """Return what the manifests tell; None if the directory has none. Saves in flight do not count."""
    from resilience.checkpoints.directory import StoreDirectory

    with suppress(OSError, CheckpointError):
        checkpoints = StoreDirectory.open(directory).checkpoints()
        manifests = []
        for one in checkpoints[-MOST_MANIFESTS:]:
            with suppress(OSError, CheckpointError):
                manifests.append(one.manifest())
        sizes = [one.inodes if kind == INODES else one.size_bytes for one in manifests[-MEASURED:]]
        return _Found(len(checkpoints), [one.durable_at for one in manifests], sizes, "the manifests")
    return None


def _guessed(directory: str, kind: str, now: float) -> _Found:
    entries = _entries(directory)
    sizes: list[int] = []
    for path, changed in reversed(entries[-MEASURED - 1 :]):
        if now - changed > SETTLED_S and len(sizes) < MEASURED:
            size_bytes, files = _measure(path)
            if size_bytes >= LEAST_BYTES:
                sizes.append(files if kind == INODES else size_bytes)
    return _Found(len(entries), [changed for _, changed in entries], sizes, "the times of the checkpoints")


def interval_s(times: Sequence[float]) -> float | None:
    """Return the median interval between the times of checkpoints; None for fewer than three."""
    gaps = [after - before for before, after in pairwise(sorted(times)) if 1 < after - before <= LONGEST_S]
    return median(gaps) if len(gaps) >= 2 else None


def saves_of(lines: Sequence[str]) -> tuple[float, ...]:
    """Return the times of rank 0's completed saves in lines of journals, skipping invalid lines. Pure."""
    times = []
    for line in lines:
        if '"save"' not in line:
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict) or record.get("event") != "save" or record.get("rank", 0) != 0:
            continue
        time = record.get("time")
        if isinstance(time, int | float) and not isinstance(time, bool) and 0 < time < 2**40:
            times.append(float(time))
    return tuple(sorted(times))


def _journal_lines(directory: str) -> list[str]:
    """Return the last lines of the newest journals."""
    lines: list[str] = []
    with suppress(OSError):
        found = [entry for entry in os.scandir(directory) if entry.name.endswith(".jsonl")]
        found = found[:MOST_ENTRIES]
        found.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in found[-MOST_JOURNALS:]:
            if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                continue
            with open(entry.path, "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                lines += file.read(TAIL_BYTES).decode("utf-8", "replace").split("\n")
    return lines


def _entries(directory: str) -> list[tuple[str, float]]:
    """Return the checkpoints in a directory, oldest first: its directories and large files."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= MOST_ENTRIES:
                break
            if entry.name.startswith("."):
                continue
            with suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode) or (stat.S_ISREG(info.st_mode) and info.st_size >= LEAST_BYTES):
                    found.append((entry.path, info.st_mtime))
    return sorted(found, key=lambda item: item[1])


def _measure(path: str) -> tuple[int, int]:
    """Return the bytes on disk and the inodes of a file or a directory tree."""
    size_bytes = files = 0
    with suppress(OSError):
        size_bytes, files = os.lstat(path).st_blocks * 512, 1
    for _, info in islice(below(path), MOST_FILES - files):
        size_bytes += info.st_blocks * 512
        files += 1
    return size_bytes, files


def below(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path and status of everything below a directory, as far as it can be read; nothing below a file."""
    waiting = [top]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(entry.path)
                    yield entry.path, info


MOST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeCandidates:
    """The files that a purge policy will delete soon.

    Attributes:
        directory: the directory that was searched.
        files: the number of files that old.
        size_bytes: their size on disk.
        oldest_s: how long the oldest was not used.
        example: the path of the oldest.
        seen: the number of files checked.
        is_whole: whether all files were checked.
        spares_newest: whether the newest file of all is not among them.
    """

    directory: str
    files: int = 0
    size_bytes: int = 0
    oldest_s: float = 0.0
    example: str = ""
    seen: int = 0
    is_whole: bool = True
    spares_newest: bool = True


def find_purge_candidates(directory: str, unused_s: float, now: float) -> PurgeCandidates:
    """Find the files below a directory that were not used for `unused_s`, within MOST_S and MOST_FILES."""
    files = size_bytes = seen = 0
    oldest_s, youngest_s, example = 0.0, float("inf"), ""
    is_whole, end = True, time.monotonic() + MOST_S
    for path, info in below(directory):
        if seen >= MOST_FILES or time.monotonic() > end:
            is_whole = False
            break
        if stat.S_ISDIR(info.st_mode):
            continue
        seen += 1
        age_s = now - max(info.st_atime, info.st_mtime)
        youngest_s = min(youngest_s, age_s)
        if age_s > unused_s:
            files, size_bytes = files + 1, size_bytes + info.st_blocks * 512
            if age_s > oldest_s:
                oldest_s, example = age_s, path
    return PurgeCandidates(directory=directory, files=files, size_bytes=size_bytes, oldest_s=oldest_s, example=example,
                  seen=seen, is_whole=is_whole, spares_newest=youngest_s <= unused_s)  # fmt: skip
