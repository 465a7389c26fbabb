"""The cache of scans: one file per root, with the directories of the last scan and the totals of a few earlier ones.

The file is a header line with a checksum, then data in marshal's format. A damaged file is quarantined, because the
next scan can rebuild it. The cache is usually in the home directory, which is often the very directory that is scanned
because it is full, and which may be read-only or hang. So every access runs in a child process with a deadline, and the
fallback is a directory on this node.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from resilience.errors import StateDirectoryError
from resilience.system.child import run_in_child
from resilience.system.files import make_directory, own_directory, write_atomic
from resilience.watch.scan.tree import Record, Tree, build
from resilience.watch.scan.worker import REMEMBERED, newest_and_largest

FORMAT = f"resil scan 2 {sys.byteorder} marshal {marshal.version}"
MOST_DIRECTORIES = 1_000_000
"""Directories cached per root, about 150 bytes each: those closest to the root. Deeper ones are read again."""

MOST_BYTES = 512 * 2**20
MOST_CACHES = 64
"""Roots that are cached."""

READ_TIMEOUT_S, WRITE_TIMEOUT_S = 5.0, 120.0
"""A million directories are 150 MB, and the home directory may be slow."""

EVERY_S = 600
"""At most one snapshot per this interval: frequent scans do not displace the older ones needed for comparison."""

AGES_S = (3600, 6 * 3600, 86400, 3 * 86400, 8 * 86400, 32 * 86400)
"""One snapshot is kept between each two of these ages: there is always one of about an hour, a day and a week ago."""

LEAST_AGE_S, TARGET_AGE_S = 3600, 86400
MOST_SNAPSHOT_DIRECTORIES = 5000

PARTLY, HOLE = (-1, -1), (-2, -2)
"""In place of the totals of a directory: some below it were not read; it was not fully read itself."""


class Snapshot(NamedTuple):
    """The totals of the largest directories at one time.

    Attributes:
        time: seconds since the epoch.
        sums: relative path -> (blocks of 512 bytes, files and directories), or PARTLY or HOLE.
        whole: whether every directory is in it.
    """

    time: float
    sums: dict[bytes, tuple[int, int]]
    whole: bool = True


def snapshot(tree: Tree, time: float, most: int = MOST_SNAPSHOT_DIRECTORIES) -> Snapshot:
    """Return a snapshot of the totals: of all directories, or of the `most` largest by bytes and by count. Pure."""
    counts = [files + directories for files, directories in zip(tree.files, tree.directories, strict=True)]
    rows: Sequence[int] = range(len(tree))
    if len(tree) > most:
        known = [row for row in rows if not tree.missing[row]]
        by_blocks, by_count = (sorted(known, key=key.__getitem__)[-most // 2 :] for key in (tree.blocks, counts))
        rows = sorted({*by_blocks, *by_count, *[row for row in rows if tree.missing[row]][:most]})
    below = [sum(tree.missing[child] for child in children) for children in tree.below()]
    sums = {
        tree.records[row].path: (tree.blocks[row], counts[row])
        if not tree.missing[row]
        else (PARTLY if tree.missing[row] == below[row] else HOLE)
        for row in rows
    }
    return Snapshot(time, sums, len(rows) == len(tree))


def thin(times: Sequence[float], now: float) -> list[int]:
    """Return the indices of the snapshots to keep: the oldest of each age span. Pure."""
    kept: dict[int, int] = {}
    for number in sorted(range(len(times)), key=lambda number: times[number]):
        age_s = now - times[number]
        if 0 <= age_s <= AGES_S[-1]:  # else the clock was wrong, or the last scan was a month ago
            kept.setdefault(next(index for index, limit in enumerate(AGES_S) if age_s <= limit), number)
    return sorted(kept.values(), key=lambda number: times[number])


def baseline(times: Sequence[float], now: float) -> int | None:
    """Return the index of the snapshot to compare with, or None. Pure.

    Prefers the one closest to a day old among those at least an hour old, since a rate per day from a shorter span is
    a guess; otherwise the oldest.
    """
    past = [number for number, time in enumerate(times) if time < now]
    good = [number for number in past if now - times[number] >= LEAST_AGE_S]
    if good:
        return min(good, key=lambda number: abs(now - times[number] - TARGET_AGE_S))
    return min(past, key=lambda number: times[number], default=None)


def cache_file(directory: Path, root: bytes) -> Path:
    """Return the path of a root's cache file. Pure."""
    return directory / f"{hashlib.sha256(root).hexdigest()[:24]}.scan"


class ScanCache:
    """The cache of one root.

    Attributes:
        notes: warnings for the user.
        snapshots: (time, marshalled totals), in the order they were taken.
    """

    def __init__(self, directory: Path | None, fallback: Path | None, root: bytes) -> None:
        """`directory` is the regular location; `fallback` is on this node, and trusted only if this user owns it."""
        self.notes: list[str] = []
        self.snapshots: list[tuple[float, bytes]] = []
        self._root = root
        self._spare = cache_file(fallback, root) if fallback is not None else None
        home = [cache_file(directory, root)] if directory is not None else []
        self._files = home + ([self._spare] if self._spare is not None else [])

    def read(self, deadline_s: float | None = None) -> Tree | None:
        """Return the tree of the most recent cache within a fifth of the scan's deadline; None if there is none.

        A damaged cache is quarantined, with a note; the scan then starts from scratch.
        """
        timeout_s = READ_TIMEOUT_S if deadline_s is None else min(READ_TIMEOUT_S, max(1.0, deadline_s / 5))
        written: dict[Path, float] = {}
        for file, answer in run_in_child({file: (partial(self._written_at, file), timeout_s) for file in self._files}):
            if answer.error is None:
                written[file] = answer.value
            else:
                self.notes.append(f"scan cache in {file.parent}: {answer.error.message}")
        self._files = [file for file in self._files if file in written]
        if not any(written.values()):
            return None
        file = max(self._files, key=written.__getitem__)
        try:
            return self._parse(file)
        except (ValueError, EOFError, TypeError, IndexError) as error:
            aside = file.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                file.replace(aside)
            self.notes.append(f"damaged scan cache ({error}) quarantined as {aside}; starting from scratch")
        except OSError as error:
            self.notes.append(f"cannot read the scan cache {file}: {error.strerror}")
        return None

    def update(self, tree: Tree, now: float, *, is_changed: bool) -> Snapshot | None:
        """Write the cache if something is new; return the snapshot to compare with, or None."""
        times = [time for time, _ in self.snapshots]
        number = baseline(times, now)
        before = None if number is None else Snapshot(times[number], *marshal.loads(self.snapshots[number][1]))
        is_time = not times or now - max(times) >= EVERY_S or now < max(times)
        if is_time:
            self.snapshots.append((now, marshal.dumps(snapshot(tree, now)[1:])))
            self.snapshots = [self.snapshots[number] for number in thin([*times, now], now)]
        if is_time or is_changed:
            self._write(tree)
        return before

    def _write(self, tree: Tree) -> None:
        """Write the cache to the first directory that accepts it."""
        errors: list[str] = []
        for file in self._files:
            ((_, answer),) = run_in_child({0: (partial(self._write_file, file, tree), WRITE_TIMEOUT_S)})
            if answer.error is None:
                self.notes += [f"scan cache written on this node, in {file.parent}: {text}" for text in errors]
                return
            errors.append(answer.error.message)
        self.notes += [f"scan cache not written, the next scan starts from scratch: {text}" for text in errors]

    def _written_at(self, file: Path) -> float:
        """Return a file's mtime; 0 if there is none that can be trusted."""
        try:
            if file == self._spare and file.parent.parent.lstat().st_uid != os.getuid():
                return 0.0
            with open(file, "rb", opener=_opener) as opened:
                opened.read(1)
                return os.fstat(opened.fileno()).st_mtime
        except FileNotFoundError:
            return 0.0
        except OSError:
            return 1.0  # `read` tells

    def _parse(self, file: Path) -> Tree:
        with open(file, "rb", opener=_opener) as opened:
            if os.fstat(opened.fileno()).st_size > MOST_BYTES:
                raise ValueError("too large")
            head, _, content = opened.read().partition(b"\n")
        if head != f"{FORMAT} {zlib.crc32(content)}".encode():
            raise ValueError("another format, or a checksum mismatch")
        root, rows, columns, snapshots = marshal.loads(content)
        if root != self._root:
            raise ValueError("of another directory")
        if not rows or {len(row) for row in rows} != {len(Record._fields)} or {*map(len, columns)} != {len(rows)}:
            raise ValueError("rows of different lengths")
        self.snapshots = [(float(time), bytes(sums)) for time, sums in snapshots]
        return Tree([tuple.__new__(Record, row) for row in rows], *columns)  # _make takes ten times as long

    def _write_file(self, file: Path, tree: Tree) -> None:
        if file == self._spare and (own_directory(file.parent.parent) is None or own_directory(file.parent) is None):
            raise StateDirectoryError(f"{file.parent} is not a directory that only this user can write to")
        make_directory(file.parent, mode=0o700)
        tree = kept(tree)
        columns = [tree.parent, tree.blocks, tree.files, tree.directories, tree.newest, tree.missing]
        content = marshal.dumps((self._root, [tuple(record) for record in tree.records], columns, self.snapshots))
        head = f"{FORMAT} {zlib.crc32(content)}\n".encode()
        write_atomic(file, head + content, mode=0o600, durable=False)  # one damaged by a power cut is rebuilt
        tidy(file.parent)


def kept(tree: Tree) -> Tree:
    """Return the tree to cache: the directories closest to the root, and the files to look at again. Pure."""
    if len(tree) > MOST_DIRECTORIES:
        nearest = sorted(tree.records, key=lambda record: record.path.count(b"/"))[: MOST_DIRECTORIES // 2]
        tree = build({record.path: record for record in nearest})
    files = [((row, name), size, at) for row, r in enumerate(tree.records) for name, size, at in r.remembered]
    chosen: dict[int, list[tuple[bytes, int, int]]] = {}
    for (row, name), size, at in newest_and_largest(files, REMEMBERED):
        chosen.setdefault(row, []).append((name, size, at))
    return replace(
        tree,
        records=[
            record._replace(remembered=tuple(chosen.get(row, ()))) if record.remembered else record
            for row, record in enumerate(tree.records)
        ],
    )


def tidy(directory: Path, most: int = MOST_CACHES) -> None:
    """Delete the least recently scanned roots' cache files if there are more than `most`."""
    with contextlib.suppress(OSError):
        files = sorted(directory.glob("*.scan"), key=lambda file: file.lstat().st_mtime)
        for file in files[:-most]:
            file.unlink(missing_ok=True)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
