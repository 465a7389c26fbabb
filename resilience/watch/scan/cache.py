"""Remembers a scan in one compact file for each root: the columns of its tree, and a few snapshots.

The file is a line of JSON that says what follows, then the columns as they lie in memory, then the names. Nothing in it
is executed when it is read; a checksum tells damage. It can be made again, so a damaged one is set aside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.system.files import make_folder, write_atomic
from resilience.watch.scan.record import MOST_HOT, Hot
from resilience.watch.scan.snapshots import Snapshot
from resilience.watch.scan.tree import NUMBERS, Tree, grow

FORMAT = "resil scan 1"
MOST_FOLDERS = 1_000_000
"""Folders remembered of one root, those nearest to it: about 100 bytes each. Those further down are read again."""

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


def cache_file(folder: Path, root: bytes) -> Path:
    """Where the scan of a root is remembered. Pure."""
    return folder / f"{hashlib.sha256(root).hexdigest()[:24]}.scan"


def remember(path: Path, root: bytes, tree: Tree, known: Remembered) -> None:
    """Write the file, whole or not at all, readable by its owner only. Raise StateDirectoryError if it cannot be.

    Not synchronised with the disk: after a power cut it may be damaged, which is seen, and then it is made again.
    """
    make_folder(path.parent, mode=0o700)
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


def tidy(folder: Path, most: int = MOST_CACHES) -> None:
    """Forget the roots that nobody has scanned for longest, when there are too many."""
    with contextlib.suppress(OSError):
        files = sorted(folder.glob("*.scan"), key=lambda file: file.lstat().st_mtime)
        for file in files[:-most]:
            file.unlink(missing_ok=True)


def _understand(raw: bytes, root: bytes) -> Remembered:
    line, _, content = raw.partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"its format is {str(head['format'])[:40]!r}, not {FORMAT!r}")
    if head["root"] != _text(root) or head["order"] != sys.byteorder:
        raise ValueError("it belongs to another folder or machine")
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
    """The folders nearest to the root; the cut-off ones below them are rows that nobody has read. Pure."""
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
