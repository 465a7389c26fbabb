"""One scan from the beginning to the end: what is remembered is verified, the rest is read, and all is remembered."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from resilience.watch.processor import no_collection
from resilience.watch.scan.memory import EVERY_S, LOOK_S, Remembered, ScanMemory, Snapshot, baseline, snapshot, thin
from resilience.watch.scan.pool import WorkerPool
from resilience.watch.scan.tree import (
    ELSEWHERE,
    PARTIAL,
    READ,
    STUCK,
    UNTRUSTED,
    Record,
    Totals,
    Tree,
    due,
    grow,
    joined,
    unknown,
)
from resilience.watch.scan.worker import Assignment, Known, Pace

VERIFIED_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan has come.

    Attributes:
        directories: read or verified.
        looks: files and directories looked at.
        expected: directories that there were last time; 0 when nobody has looked before.
    """

    directories: int
    looks: int
    expected: int


class ScanState:
    """What one scan has found until now."""

    def __init__(
        self, directory: bytes, tree: Tree | None, now: float, full_pass_s: float, tell: Callable[[Progress], None]
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
        self.assignment = Assignment(directory, int(now), known, paths.__contains__)

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

    def work(self, pool: WorkerPool) -> None:
        """Verify what is known; read what is new or has changed; then what it is time to read again."""
        if self.tree is None:
            self._read(pool, [b""])
            return
        self._verify(pool)
        paths = self.tree.paths
        wanted = [paths[row] for row in unknown(self.tree)] + [paths[self.rows[number]] for number in self.changed]
        self._read(pool, wanted)
        again = [path for row in due(self.tree, self.now, self.full_pass_s) if (path := paths[row]) not in self.records]
        self._read(pool, again)

    def _verify(self, pool: WorkerPool) -> None:
        count = len(self.rows)
        ranges = [(begin, min(count, begin + VERIFIED_AT_ONCE)) for begin in range(0, count, VERIFIED_AT_ONCE)]
        lost = len(pool.abandoned)
        while ranges:
            pool.run(ranges)
            if len(pool.abandoned) == lost:
                return
            lost = len(pool.abandoned)
            pool.renew()
            stuck = set(pool.stuck)
            known = self.assignment.known
            left = [n for n in range(count) if n not in self.verified and known[n][0] not in stuck]
            ranges = [(n, n + 1) for n in left]
            if pool.out_of_time or pool.interrupted or pool.closed:
                return

    def _read(self, pool: WorkerPool, wanted: list[bytes]) -> None:
        """Have directories read, and what lies below them; once more what a worker took with it when it hung."""
        lost = len(pool.abandoned)
        while wanted:
            pool.run(wanted[::-1])  # the last is taken first
            if len(pool.abandoned) == lost or pool.out_of_time or pool.interrupted or pool.closed:
                return
            lost = len(pool.abandoned)
            pool.renew()
            known = self.assignment.is_known
            below = {joined(record.path, name) for record in list(self.records.values()) for name in record.children}
            ahead = [*wanted, *(path for path in below if not known(path))]
            wanted = [
                path for path in dict.fromkeys(ahead) if path not in self.records and not _hangs(path, pool.stuck)
            ]

    def result(self, pool: WorkerPool) -> Tree:
        """The tree as it is known now."""
        for path in pool.stuck:
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
    """What is known of a directory after it was read again: its last full reading is better than a part. Pure."""
    if before is None or before.state not in (READ, PARTIAL) or record.state not in (PARTIAL, STUCK):
        return record
    if record.state == PARTIAL and record.files >= before.files:
        return record
    return before._replace(state=record.state, mtime_ns=UNTRUSTED)


FULL_PASS_S = 86400.0
"""Each directory is read at least that often: files that grow in place do not change their directory's mtime."""

STALL_S = 30.0
"""A look that takes longer than this hangs; less where the deadline is short."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found.

    Attributes:
        root: the directory, as it was asked for.
        real: the same without symbolic links; empty if it could not be opened.
        tree: the directories; one row of nothing if the root could not be looked at.
        totals: what they add up to.
        time: when, in seconds since the epoch.
        took_s: how long it took.
        error: why nothing at all could be seen; empty otherwise.
        before: what to compare with, or None.
        read: directories read in this scan.
        verified: directories that were as an earlier scan had found them.
        unverified: directories of which nobody could see in time whether they are as they were.
        looks: how many files and directories were looked at.
        oldest: when the oldest of the figures was read, in seconds since the epoch.
        interrupted: whether a person ended it.
        out_of_time: whether the deadline did.
        pace: how it went about it, in words; empty for few directories.
        notes: what else people should know.
    """

    root: Path
    real: bytes
    tree: Tree
    totals: Totals
    time: float
    took_s: float
    error: str = ""
    before: Snapshot | None = None
    read: int = 0
    verified: int = 0
    unverified: int = 0
    looks: int = 0
    oldest: float = 0.0
    interrupted: bool = False
    out_of_time: bool = False
    pace: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every directory was seen, those apart that may not be read."""
        return not self.error and not self.unverified and not self.unfinished

    @property
    def unfinished(self) -> int:
        """Directories that were not read to their end, for want of time or of an answer."""
        return sum(state not in (READ, ELSEWHERE) and not trouble for state, trouble in self._ends())

    def _ends(self) -> Iterator[tuple[int, int]]:
        return zip(self.tree.state, self.tree.trouble, strict=True)


def scan(
    root: Path,
    memory: Path | None,
    *,
    now: float,
    fallback: Path | None = None,
    deadline_s: float | None = None,
    full_pass_s: float = FULL_PASS_S,
    tell: Callable[[Progress], None] = lambda _: None,
    cores: int | None = None,
    pace: Pace | None = None,
) -> Scan:
    """Add up what lies in a directory and below.

    Allocated blocks, as du counts; a file with several names counts once; symbolic links are not followed; other file
    systems are not entered. `memory` is the directory of what is remembered between scans; None: nothing is.
    `fallback`, a directory on this node, takes that where `memory` does not.

    This process itself touches nothing below `root`: it comes back at the deadline even if the file system never
    answers. Ctrl-C, SIGTERM and SIGHUP end it early. In all cases what was found is remembered, and the next scan goes
    on from there.
    """
    began = time.monotonic()
    directory = os.fsencode(root)
    kept = ScanMemory(memory, fallback, directory)
    known = kept.recall(LOOK_S if deadline_s is None else min(LOOK_S, max(1.0, deadline_s / 5)))
    deadline = None if deadline_s is None else began + deadline_s
    state = ScanState(directory, known.tree, now, full_pass_s, tell)
    pool = WorkerPool(
        state.assignment,
        state.found,
        deadline=deadline,
        stall_s=STALL_S if deadline_s is None else min(STALL_S, max(0.5, deadline_s / 5)),
        tick=state.tick,
        cores=cores,
        pace=pace,
    )
    with _ctrl_c(pool), no_collection():
        try:
            state.work(pool)
        finally:
            pool.end()
        tree = state.result(pool)
        totals = tree.totals()
        error = _why(pool, tree)
        before = None
        if not error:
            before = _compare(known, now)
            _keep(kept, known, state, tree, totals, now)
    read_at = [at for at in tree.read_at if at]
    return Scan(
        root=root,
        real=pool.real,
        tree=tree,
        totals=totals,
        time=now,
        took_s=time.monotonic() - began,
        error=error,
        before=before,
        read=len(state.records),
        verified=len(state.verified) - len(state.changed),
        unverified=len(state.rows) - len(state.verified),
        looks=state.looks,
        oldest=min(read_at, default=now),
        interrupted=pool.interrupted,
        out_of_time=pool.out_of_time,
        pace=pool.pace.reason if pool.pace else "",
        notes=tuple(kept.notes),
    )


def _compare(known: Remembered, now: float) -> Snapshot | None:
    number = baseline(known.times, now)
    if number is None:
        return None
    try:
        return known.snapshot(number)
    except (ValueError, KeyError):
        return None


def _keep(kept: ScanMemory, known: Remembered, state: ScanState, tree: Tree, totals: Totals, now: float) -> None:
    """Remember what is new."""
    is_time = not known.times or now - max(known.times) >= EVERY_S or now < max(known.times)
    if not state.records and not is_time:
        return
    if is_time:
        known.add(snapshot(tree, totals, now))
        known.keep(thin(known.times, now))
    kept.keep(tree, known)


def _why(pool: WorkerPool, tree: Tree) -> str:
    """Why nothing at all could be seen; empty if something could."""
    number = pool.closed
    if not number and tree.trouble[0] and not tree.files[0] and len(tree) == 1:
        number = tree.trouble[0]
    if number == errno.ETIMEDOUT or (not number and tree.state[0] == STUCK and len(tree) == 1):
        return "it does not answer: the file system hangs"
    if number == errno.ENOENT:
        return "it does not exist"
    if number == errno.ENOTDIR:
        return "it is a file, not a directory"
    if number:
        return os.strerror(number)
    if tree.read_at[0] == 0 and len(tree) == 1 and not pool.interrupted:
        return "there was no answer within the deadline"
    return ""


@contextmanager
def _ctrl_c(pool: WorkerPool) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM (`timeout`, SLURM) or SIGHUP (a lost ssh) end the scan in an orderly way; a second
    is as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]

    def interrupt(number: int, _frame: object) -> None:
        pool.interrupted = True
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
