"""The memory of scans: one compact file for each root, with the columns of its tree and a few snapshots.

The file is a line of JSON that says what follows, then the columns as they lie in memory, then the names. Nothing in it
is executed when it is read; a checksum tells damage. It can be made again, so a damaged one is quarantined. Snapshots
hold the sums of directories at earlier times, so that growth can be computed; few, and the older the fewer.

A memory lies in the first directory that answers and takes it. A scan often looks for what fills a home directory, and
the memory lies right there: the disk may be full, read-only, or hang. So each access is a child with a deadline, and a
directory of this node takes what the first one does not.
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
from resilience.system.child import run_apart
from resilience.system.files import make_directory, own_directory, write_atomic
from resilience.watch.scan.tree import MOST_HOT, NUMBERS, Hot, Totals, Tree, grow

EVERY_S = 600
"""Scans in quick succession do not push out what they are to be compared with."""

AGES_S = (3600, 6 * 3600, 86400, 3 * 86400, 8 * 86400, 32 * 86400)
"""One snapshot is kept between each two of these ages, so there is always one from about an hour, a day, a week ago."""

GOOD_AGE_S = 3600
WANTED_AGE_S = 86400
MOST_SNAPSHOT_FOLDERS = 5000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the largest directories added up to at one time.

    Attributes:
        time: seconds since the epoch.
        sums: path from the root -> (blocks of 512 bytes, files and directories); a directory that was not read to its
            end is not among them.
        holes: paths that were not read: nothing is known of what lay below them.
        whole: whether every directory that there was is in one of the two.
    """

    time: float
    sums: dict[bytes, tuple[int, int]]
    holes: tuple[bytes, ...] = ()
    whole: bool = True


def snapshot(tree: Tree, totals: Totals, time: float, most: int = MOST_SNAPSHOT_FOLDERS) -> Snapshot:
    """Take down what each directory adds up to; of very many only the largest, by bytes and by count. Pure."""
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
    """Given the times of snapshots, return the numbers of those to keep: the oldest of each span of ages. Pure."""
    kept: dict[int, int] = {}
    for number in sorted(range(len(times)), key=lambda number: times[number]):
        age_s = now - times[number]
        if age_s < 0 or age_s > AGES_S[-1]:
            continue  # the clock was wrong, or nobody has looked for a month
        span = next(index for index, limit in enumerate(AGES_S) if age_s <= limit)
        kept.setdefault(span, number)
    return sorted(kept.values(), key=lambda number: times[number])


def baseline(times: Sequence[float], now: float) -> int | None:
    """Given the times of snapshots, return the number of the one to compare with, or None. Pure.

    The one nearest to a day old, if it is at least an hour old: of less, a rate per day is a guess. Otherwise the
    oldest.
    """
    past = [number for number, time in enumerate(times) if time < now]
    good = [number for number in past if now - times[number] >= GOOD_AGE_S]
    if good:
        return min(good, key=lambda number: abs(now - times[number] - WANTED_AGE_S))
    return min(past, key=lambda number: times[number], default=None)


FORMAT = "resil scan 1"
MOST_FOLDERS = 1_000_000
"""Directories remembered of one root, those nearest to it: about 100 bytes each. Those further down are read again."""

MOST_BYTES = 512 * 2**20
MOST_CACHES = 64
"""Roots that are remembered."""


@dataclass(slots=True)
class Remembered:
    """What is known of a root from earlier scans.

    Attributes:
        tree: None for nothing.
        times: of the snapshots, in the order in which they were taken.
        note: what was wrong with the file, for people; empty for nothing.
    """

    tree: Tree | None = None
    times: list[float] = field(default_factory=list)
    note: str = ""
    _snapshots: list[bytes] = field(default_factory=list)

    def snapshot(self, number: int) -> Snapshot:
        """One of the snapshots."""
        return _read_snapshot(self.times[number], self._snapshots[number])

    def keep(self, numbers: list[int]) -> None:
        """Forget the other snapshots."""
        self.times = [self.times[number] for number in numbers]
        self._snapshots = [self._snapshots[number] for number in numbers]

    def add(self, taken: Snapshot) -> None:
        """Remember one more."""
        self.times.append(taken.time)
        self._snapshots.append(_write_snapshot(taken))


def cache_file(directory: Path, root: bytes) -> Path:
    """Where the scan of a root is remembered. Pure."""
    return directory / f"{hashlib.sha256(root).hexdigest()[:24]}.scan"


def remember(path: Path, root: bytes, tree: Tree, known: Remembered) -> None:
    """Write the file, whole or not at all, readable by its owner only. Raise StateDirectoryError if it cannot be.

    Not synchronised with the disk: after a power cut it may be damaged, which is seen, and then it is made again.
    """
    make_directory(path.parent, mode=0o700)
    kept = tree if len(tree) <= MOST_FOLDERS else _nearest(tree, MOST_FOLDERS)
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


def recall(path: Path, root: bytes) -> Remembered:
    """Read the file. What cannot be used is set aside, and said in the note: the scan then starts afresh."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Remembered()
    except OSError as error:
        return Remembered(note=f"the memory of earlier scans cannot be read: {error.strerror} ({path})")
    try:
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise ValueError("it is far too large")
            return _understand(file.read(), root)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, OSError) as error:
        aside = path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            path.replace(aside)
        reason = str(error) or type(error).__name__
        return Remembered(
            note=f"the memory of earlier scans was damaged ({reason}): set aside as {aside}, started afresh"
        )


def tidy(directory: Path, most: int = MOST_CACHES) -> None:
    """Forget the roots that nobody has scanned for longest, when there are too many."""
    with contextlib.suppress(OSError):
        files = sorted(directory.glob("*.scan"), key=lambda file: file.lstat().st_mtime)
        for file in files[:-most]:
            file.unlink(missing_ok=True)


def _understand(raw: bytes, root: bytes) -> Remembered:
    line, _, content = raw.partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"its format is {str(head['format'])[:40]!r}, not {FORMAT!r}")
    if head["root"] != _text(root) or head["order"] != sys.byteorder:
        raise ValueError("it belongs to another directory or machine")
    if zlib.crc32(content) != head["check"]:
        raise ValueError("its checksum is wrong")
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
        raise ValueError("its columns differ in length")
    if any(not -1 <= above < row for row, above in enumerate(tree.parent)) or len(snapshots) != len(head["times"]):
        raise ValueError("its rows are in disorder")
    numbers = array("Q")
    numbers.frombytes(links_part)
    links: dict[int, list[tuple[int, int]]] = {}
    for row, inode, blocks in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        links.setdefault(row, []).append((inode, blocks))
    tree.links = {row: tuple(pairs) for row, pairs in links.items()}
    tree.hot = {row: tuple(Hot(_raw(n), int(b), int(m)) for n, b, m in hot) for row, hot in json.loads(hot_part)}
    return Remembered(tree, [float(time) for time in head["times"]], _snapshots=snapshots)


def _hottest(tree: Tree) -> dict[int, tuple[Hot, ...]]:
    """At most MOST_HOT files: those that changed last, for they are the ones that grow."""
    if sum(map(len, tree.hot.values())) <= MOST_HOT:
        return tree.hot
    every = [(hot.mtime, hot.blocks, row, hot) for row, files in tree.hot.items() for hot in files]
    every.sort(reverse=True)
    kept: dict[int, list[Hot]] = {}
    for _, _, row, hot in every[:MOST_HOT]:
        kept.setdefault(row, []).append(hot)
    return {row: tuple(files) for row, files in sorted(kept.items())}


def _nearest(tree: Tree, most: int) -> Tree:
    """The directories nearest to the root; the cut-off ones below them are rows that nobody has read. Pure."""
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


LOOK_S = 5.0
KEEP_S = 120.0
"""A million directories are 100 MB, and the home directory may be a slow one."""


class ScanMemory:
    """The memory of one root.

    Attributes:
        notes: what people should know of it.
    """

    def __init__(self, directory: Path | None, fallback: Path | None, root: bytes) -> None:
        """`directory` is where it belongs; `fallback` is this node's, and must be nobody else's."""
        self.notes: list[str] = []
        self._root = root
        self._spare = cache_file(fallback, root) if fallback is not None else None
        home = [cache_file(directory, root)] if directory is not None else []
        self._files = home + ([self._spare] if self._spare is not None else [])

    def recall(self, look_s: float = LOOK_S) -> Remembered:
        """What was written last, wherever that is."""
        written: dict[Path, float] = {}
        for file, answer in run_apart({file: (partial(self._written, file), look_s) for file in self._files}):
            if answer.error is None:
                written[file] = answer.value
            else:
                self.notes.append(f"the memory of earlier scans in {file.parent}: {answer.error.message}")
        self._files = [file for file in self._files if file in written]
        if not self._files:
            return Remembered()
        known = recall(max(self._files, key=written.__getitem__), self._root)
        if known.note:
            self.notes.append(known.note)
        return known

    def keep(self, tree: Tree, known: Remembered) -> None:
        """Write it to the first directory that takes it."""
        said: list[str] = []
        for file in self._files:
            ((_, answer),) = run_apart({0: (partial(self._write, file, tree, known), KEEP_S)})
            if answer.error is None:
                self.notes += [f"remembered on this node, in {file.parent}: {text}" for text in said]
                return
            said.append(answer.error.message)
        self.notes += [f"the next scan will start afresh: {text}" for text in said]

    def _written(self, file: Path) -> float:
        """When a file was written; 0 where there is none that can be trusted."""
        try:
            if file == self._spare and file.parent.parent.lstat().st_uid != os.getuid():
                return 0.0
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
                opened.read(1)
                return os.fstat(opened.fileno()).st_mtime
        except OSError:
            return 0.0

    def _write(self, file: Path, tree: Tree, known: Remembered) -> None:
        if file == self._spare and (own_directory(file.parent.parent) is None or own_directory(file.parent) is None):
            raise StateDirectoryError(f"{file.parent} cannot be made a directory of our own")
        remember(file, self._root, tree, known)
        tidy(file.parent)
