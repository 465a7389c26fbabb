"""What one scan has found until now, and what it does next: verify what is known, read what is new and what is old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from resilience.watch.scan.crew import Crew
from resilience.watch.scan.record import PARTIAL, READ, STUCK, UNTRUSTED, Record, joined
from resilience.watch.scan.tree import Tree, due, grow, unknown
from resilience.watch.scan.worker import Assignment, Known

VERIFIED_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan has come.

    Attributes:
        folders: read or verified.
        looks: files and folders looked at.
        expected: folders that there were last time; 0 when nobody has looked before.
    """

    folders: int
    looks: int
    expected: int


class Effort:
    """What one scan has found until now."""

    def __init__(
        self, folder: bytes, tree: Tree | None, now: float, full_pass_s: float, tell: Callable[[Progress], None]
    ) -> None:
        self.tree, self.now, self.full_pass_s, self.tell = tree, now, full_pass_s, tell
        self.records: dict[bytes, Record] = {}
        self.verified: set[int] = set()
        self.changed: set[int] = set()
        self.looks = 0
        self.rows: Sequence[int] = ()
        known: list[Known] = []
        paths: set[bytes] = set()
        if tree is not None:
            hot = [tree.hot.get(row, ()) for row in range(len(tree))] if tree.hot else repeat((), len(tree))
            known = list(zip(tree.paths, tree.inode, tree.mtime_ns, hot, strict=True))
            paths = set(tree.paths)
            unsure = set(unknown(tree))
            self.rows = [row for row in range(len(tree)) if row not in unsure] if unsure else range(len(tree))
            if unsure:
                known = [known[row] for row in self.rows]
        self.assignment = Assignment(folder, int(now), known, paths.__contains__)

    def found(
        self, records: Sequence[tuple[Any, ...]], verified: Sequence[tuple[int, int, list[int]]], looks: int
    ) -> None:
        """Take in what a worker tells."""
        for plain in records:
            record = Record.from_plain(plain)
            self.records[record.path] = record
        for begin, end, changed in verified:
            self.verified.update(range(begin, end))
            self.changed.update(changed)
        self.looks += looks

    def tick(self) -> None:
        """Tell how far it has come."""
        expected = len(self.tree) if self.tree is not None else 0
        self.tell(Progress(len(self.records) + len(self.verified) - len(self.changed), self.looks, expected))

    def work(self, crew: Crew) -> None:
        """Verify what is known; read what is new or has changed; then what it is time to read again."""
        if self.tree is None:
            self._read(crew, [b""])
            return
        self._verify(crew)
        paths = self.tree.paths
        wanted = [paths[row] for row in unknown(self.tree)] + [paths[self.rows[number]] for number in self.changed]
        self._read(crew, wanted)
        again = [path for row in due(self.tree, self.now, self.full_pass_s) if (path := paths[row]) not in self.records]
        self._read(crew, again)

    def _verify(self, crew: Crew) -> None:
        count = len(self.rows)
        ranges = [(begin, min(count, begin + VERIFIED_AT_ONCE)) for begin in range(0, count, VERIFIED_AT_ONCE)]
        lost = len(crew.abandoned)
        while ranges:
            crew.run(ranges)
            if len(crew.abandoned) == lost:
                return
            lost = len(crew.abandoned)
            crew.renew()
            stuck = set(crew.stuck)
            known = self.assignment.known
            left = [n for n in range(count) if n not in self.verified and known[n][0] not in stuck]
            ranges = [(n, n + 1) for n in left]
            if crew.out_of_time or crew.interrupted or crew.closed:
                return

    def _read(self, crew: Crew, wanted: list[bytes]) -> None:
        """Have folders read, and what lies below them; once more what a worker took with it when it hung."""
        lost = len(crew.abandoned)
        while wanted:
            crew.run(wanted[::-1])  # the last is taken first
            if len(crew.abandoned) == lost or crew.out_of_time or crew.interrupted or crew.closed:
                return
            lost = len(crew.abandoned)
            crew.renew()
            known = self.assignment.is_known
            below = {joined(record.path, name) for record in list(self.records.values()) for name in record.children}
            ahead = [*wanted, *(path for path in below if not known(path))]
            wanted = [
                path for path in dict.fromkeys(ahead) if path not in self.records and not _hangs(path, crew.stuck)
            ]

    def result(self, crew: Crew) -> Tree:
        """The tree as it is known now."""
        for path in crew.stuck:
            if path not in self.records:
                self.records[path] = Record(path, STUCK, read_at=int(self.now))
        if not self.records and self.tree is not None:
            return self.tree
        merged = {} if self.tree is None else {record.path: record for record in self.tree.records()}
        for path, record in self.records.items():
            merged[path] = _merge(merged.get(path), record)
        return grow(merged)


def _hangs(path: bytes, stuck: Sequence[bytes]) -> bool:
    return any(path == place or path.startswith(place + b"/") for place in stuck)


def _merge(before: Record | None, record: Record) -> Record:
    """What is known of a folder after it was read again: its last full reading is better than a part. Pure."""
    if before is None or before.state not in (READ, PARTIAL) or record.state not in (PARTIAL, STUCK):
        return record
    if record.state == PARTIAL and record.files >= before.files:
        return record
    return before._replace(state=record.state, mtime_ns=UNTRUSTED)
