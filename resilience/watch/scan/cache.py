"""The cache of scans: one compact file per root, with the columns of its tree and a few snapshots.

The file is a JSON header line, then the raw columns, then the names. Reading it executes nothing; a checksum detects
damage, and a damaged file is quarantined, because the next scan can rebuild it. Snapshots hold the totals of
directories at earlier times, from which growth is computed; older ones are kept more sparsely.

The cache is in the first directory that responds and accepts it. It is usually in the home directory, which is often
the very directory that is scanned because it is full, and which may be read-only or hang. So every access runs in a
child process with a deadline, and the fallback is a directory on this node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from resilience.errors import StateDirectoryError
from resilience.system.child import run_in_child
from resilience.system.files import make_directory, own_directory, write_atomic
from resilience.watch.scan.tree import MOST_HOT, NUMBERS, Hot, Totals, Tree, grow

EVERY_S = 600
"""At most one snapshot per this interval: frequent scans do not displace the older ones needed for comparison."""

AGES_S = (3600, 6 * 3600, 86400, 3 * 86400, 8 * 86400, 32 * 86400)
"""One snapshot is kept between each two of these ages: there is always one of about an hour, a day and a week ago."""

LEAST_AGE_S = 3600
TARGET_AGE_S = 86400
MOST_SNAPSHOT_DIRECTORIES = 5000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The totals of the largest directories at one time.

    Attributes:
        time: seconds since the epoch.
        sums: relative path -> (blocks of 512 bytes, files and directories), without directories that were not fully
            read.
        holes: paths that were not read: everything below them is unknown.
        whole: whether every directory is in one of the two.
    """

    time: float
    sums: dict[bytes, tuple[int, int]]
    holes: tuple[bytes, ...] = ()
    whole: bool = True


def snapshot(tree: Tree, totals: Totals, time: float, most: int = MOST_SNAPSHOT_DIRECTORIES) -> Snapshot:
    """Return a snapshot of the totals: of all directories, or of the `most` largest by bytes and by count. Pure."""
    paths = tree.paths
    rows = [row for row, missing in enumerate(totals.missing) if not missing]
    whole = len(rows) <= most
    if not whole:
        by_blocks = sorted(rows, key=totals.blocks.__getitem__)[-most // 2 :]
        by_count = sorted(rows, key=lambda row: totals.files[row] + totals.directories[row])[-most // 2 :]
        rows = sorted({*by_blocks, *by_count})
    sums = {paths[row]: (totals.blocks[row], totals.files[row] + totals.directories[row]) for row in rows}
    holes = [paths[row] for row, missing in enumerate(totals.missing) if missing]
    leaves = [path for row, path in enumerate(holes) if row + 1 == len(holes) or not _is_below(holes[row + 1], path)]
    return Snapshot(time, sums, tuple(leaves[:most]), whole and len(leaves) <= most)


def _is_below(path: bytes, above: bytes) -> bool:
    return not above or path.startswith(above + b"/")


def thin(times: Sequence[float], now: float) -> list[int]:
    """Return the indices of the snapshots to keep: the oldest of each age span. Pure."""
    kept: dict[int, int] = {}
    for number in sorted(range(len(times)), key=lambda number: times[number]):
        age_s = now - times[number]
        if age_s < 0 or age_s > AGES_S[-1]:
            continue  # the clock was wrong, or the last scan was a month ago
        span = next(index for index, limit in enumerate(AGES_S) if age_s <= limit)
        kept.setdefault(span, number)
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


FORMAT = "resil scan 1"
MOST_DIRECTORIES = 1_000_000
"""Directories cached per root, about 100 bytes each: those closest to the root. Deeper ones are read again."""

MOST_BYTES = 512 * 2**20
MOST_CACHES = 64
"""Roots that are cached."""


@dataclass(slots=True)
class CachedScan:
    """The cached results of earlier scans of a root.

    Attributes:
        tree: None if nothing is cached.
        times: of the snapshots, in the order they were taken.
        note: the error of the cache file, for the user; empty if there was none.
    """

    tree: Tree | None = None
    times: list[float] = field(default_factory=list)
    note: str = ""
    _snapshots: list[bytes] = field(default_factory=list)

    def snapshot(self, number: int) -> Snapshot:
        """Return one snapshot."""
        return _read_snapshot(self.times[number], self._snapshots[number])

    def keep(self, numbers: list[int]) -> None:
        """Drop all other snapshots."""
        self.times = [self.times[number] for number in numbers]
        self._snapshots = [self._snapshots[number] for number in numbers]

    def add(self, taken: Snapshot) -> None:
        """Add a snapshot."""
        self.times.append(taken.time)
        self._snapshots.append(_write_snapshot(taken))


def cache_file(directory: Path, root: bytes) -> Path:
    """Return the path of a root's cache file. Pure."""
    return directory / f"{hashlib.sha256(root).hexdigest()[:24]}.scan"


def write_cache(path: Path, root: bytes, tree: Tree, known: CachedScan) -> None:
    """Write the cache file atomically, readable by its owner only. Raise StateDirectoryError if that fails.

    Without fsync: a file damaged by a power cut is detected and rebuilt.
    """
    make_directory(path.parent, mode=0o700)
    kept = tree if len(tree) <= MOST_DIRECTORIES else _nearest(tree, MOST_DIRECTORIES)
    columns = [getattr(kept, name).tobytes() for name in NUMBERS]
    names = b"\0".join(kept.names)
    links = array("Q", [n for row, pairs in kept.links.items() for pair in pairs for n in (row, *pair)]).tobytes()
    hot = json.dumps([[row, [[_text(h.name), h.blocks, h.mtime] for h in h_]] for row, h_ in _hottest(kept).items()])
    parts = [*columns, names, links, hot.encode("utf-8", "surrogateescape"), *known._snapshots]
    content = b"".join(parts)
    head = {
        "format": FORMAT,
        "root": _text(root),
        "order": sys.byteorder,
        "rows": len(kept),
        "parts": [len(part) for part in parts],
        "times": known.times,
        "check": zlib.crc32(content),
    }
    write_atomic(path, json.dumps(head).encode() + b"\n" + content, mode=0o600, durable=False)


def read_cache(path: Path, root: bytes) -> CachedScan:
    """Return what the cache file holds. Quarantine a damaged one, with a note; the scan then starts from scratch."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return CachedScan()
    except OSError as error:
        return CachedScan(note=f"cannot read the scan cache {path}: {error.strerror}")
    try:
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise ValueError("too large")
            return _parse(file.read(), root)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, OSError) as error:
        aside = path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            path.replace(aside)
        reason = str(error) or type(error).__name__
        return CachedScan(note=f"damaged scan cache ({reason}) quarantined as {aside}; starting from scratch")


def tidy(directory: Path, most: int = MOST_CACHES) -> None:
    """Delete the least recently scanned roots' cache files if there are more than `most`."""
    with contextlib.suppress(OSError):
        files = sorted(directory.glob("*.scan"), key=lambda file: file.lstat().st_mtime)
        for file in files[:-most]:
            file.unlink(missing_ok=True)


def _parse(raw: bytes, root: bytes) -> CachedScan:
    line, _, content = raw.partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"format {str(head['format'])[:40]!r} instead of {FORMAT!r}")
    if head["root"] != _text(root) or head["order"] != sys.byteorder:
        raise ValueError("of another directory or machine")
    if zlib.crc32(content) != head["check"]:
        raise ValueError("checksum mismatch")
    parts: list[bytes] = []
    begin = 0
    for length in head["parts"]:
        parts.append(content[begin : begin + length])
        begin += length
    columns: dict[str, array[int]] = {}
    for (name, kind), part in zip(NUMBERS.items(), parts, strict=False):
        columns[name] = array(kind)
        columns[name].frombytes(part)
    names_part, links_part, hot_part, *snapshots = parts[len(NUMBERS) :]
    tree = Tree.of_columns(names_part.split(b"\0"), columns)
    rows = head["rows"]
    if len(tree.names) != rows or any(len(column) != rows for column in columns.values()):
        raise ValueError("columns of different lengths")
    if any(not -1 <= above < row for row, above in enumerate(tree.parent)) or len(snapshots) != len(head["times"]):
        raise ValueError("rows out of order")
    numbers = array("Q")
    numbers.frombytes(links_part)
    links: dict[int, list[tuple[int, int]]] = {}
    for row, inode, blocks in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        links.setdefault(row, []).append((inode, blocks))
    tree.links = {row: tuple(pairs) for row, pairs in links.items()}
    tree.hot = {row: tuple(Hot(_raw(n), int(b), int(m)) for n, b, m in hot) for row, hot in json.loads(hot_part)}
    return CachedScan(tree, [float(time) for time in head["times"]], _snapshots=snapshots)


def _hottest(tree: Tree) -> dict[int, tuple[Hot, ...]]:
    """Return at most MOST_HOT files: those that changed last, which are most likely to grow."""
    if sum(map(len, tree.hot.values())) <= MOST_HOT:
        return tree.hot
    every = [(hot.mtime, hot.blocks, row, hot) for row, files in tree.hot.items() for hot in files]
    every.sort(reverse=True)
    kept: dict[int, list[Hot]] = {}
    for _, _, row, hot in every[:MOST_HOT]:
        kept.setdefault(row, []).append(hot)
    return {row: tuple(files) for row, files in sorted(kept.items())}


def _nearest(tree: Tree, most: int) -> Tree:
    """Return the tree of the directories closest to the root; those cut off below them are UNREAD rows. Pure."""
    kept = sorted(tree.records(), key=lambda record: record.path.count(b"/"))[: most // 2]
    return grow({record.path: record for record in kept})


def _write_snapshot(taken: Snapshot) -> bytes:
    counts: Any = array("q", [n for pair in taken.sums.values() for n in pair]).tobytes()
    paths, holes = b"\0".join(taken.sums), b"\0".join(taken.holes)
    head = {"counts": len(counts), "paths": len(paths), "rows": len(taken.sums), "holes": len(taken.holes)}
    line = json.dumps(head | {"whole": taken.whole}).encode() + b"\n"
    return b"".join((line, counts, paths, holes))


def _read_snapshot(time: float, raw: bytes) -> Snapshot:
    line, _, content = raw.partition(b"\n")
    head = json.loads(line)
    counts, rest = content[: head["counts"]], content[head["counts"] :]
    paths, holes = rest[: head["paths"]], rest[head["paths"] :]
    numbers = array("q")
    numbers.frombytes(counts)
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    sums = dict(zip(paths.split(b"\0") if head["rows"] else (), pairs, strict=True))
    return Snapshot(time, sums, tuple(holes.split(b"\0")) if head["holes"] else (), head["whole"])


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


READ_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 120.0
"""A million directories are 100 MB, and the home directory may be slow."""


class ScanCache:
    """The cache of one root.

    Attributes:
        notes: warnings for the user.
    """

    def __init__(self, directory: Path | None, fallback: Path | None, root: bytes) -> None:
        """`directory` is the regular location; `fallback` is on this node, and trusted only if this user owns it."""
        self.notes: list[str] = []
        self._root = root
        self._spare = cache_file(fallback, root) if fallback is not None else None
        home = [cache_file(directory, root)] if directory is not None else []
        self._files = home + ([self._spare] if self._spare is not None else [])

    def read(self, deadline_s: float | None = None) -> CachedScan:
        """Return the most recent cache, from whichever location holds it, within a fifth of the scan's deadline."""
        timeout_s = READ_TIMEOUT_S if deadline_s is None else min(READ_TIMEOUT_S, max(1.0, deadline_s / 5))
        written: dict[Path, float] = {}
        for file, answer in run_in_child({file: (partial(self._written_at, file), timeout_s) for file in self._files}):
            if answer.error is None:
                written[file] = answer.value
            else:
                self.notes.append(f"scan cache in {file.parent}: {answer.error.message}")
        self._files = [file for file in self._files if file in written]
        if not self._files:
            return CachedScan()
        known = read_cache(max(self._files, key=written.__getitem__), self._root)
        if known.note:
            self.notes.append(known.note)
        return known

    def write(self, tree: Tree, known: CachedScan) -> None:
        """Write the cache to the first directory that accepts it."""
        errors: list[str] = []
        for file in self._files:
            ((_, answer),) = run_in_child({0: (partial(self._write_file, file, tree, known), WRITE_TIMEOUT_S)})
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
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                opened.read(1)
                return os.fstat(opened.fileno()).st_mtime
        except OSError:
            return 0.0

    def _write_file(self, file: Path, tree: Tree, known: CachedScan) -> None:
        if file == self._spare and (own_directory(file.parent.parent) is None or own_directory(file.parent) is None):
            raise StateDirectoryError(f"{file.parent} is not a directory that only this user can write to")
        write_cache(file, self._root, tree, known)
        tidy(file.parent)
