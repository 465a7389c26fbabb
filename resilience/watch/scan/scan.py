"""One scan: verifies the cached directories, reads the others, and updates the cache."""

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
from resilience.watch.scan.cache import EVERY_S, CachedScan, ScanCache, Snapshot, baseline, snapshot, thin
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
from resilience.watch.scan.worker import Assignment, Known, Parallelism

VERIFIED_AT_ONCE = 250


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a scan.

    Attributes:
        directories: read or verified.
        stat_calls: files and directories probed.
        expected: directories in the last scan; 0 if there was none.
    """

    directories: int
    stat_calls: int
    expected: int


class ScanState:
    """The results of a scan so far."""

    def __init__(
        self, directory: bytes, tree: Tree | None, now: float, full_pass_s: float, report: Callable[[Progress], None]
    ) -> None:
        self.tree, self.now, self.full_pass_s, self.report = tree, now, full_pass_s, report
        self.records: dict[bytes, Record] = {}
        self.verified: set[int] = set()
        self.changed: set[int] = set()
        self.stat_calls = 0
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
        self, records: Sequence[tuple[Any, ...]], verified: Sequence[tuple[int, int, list[int]]], stat_calls: int
    ) -> None:
        """Add the results of a worker."""
        for plain in records:
            record = Record.from_plain(plain)
            self.records[record.path] = record
        for begin, end, changed in verified:
            self.verified.update(range(begin, end))
            self.changed.update(changed)
        self.stat_calls += stat_calls

    def tick(self) -> None:
        """Report the progress."""
        expected = len(self.tree) if self.tree is not None else 0
        self.report(Progress(len(self.records) + len(self.verified) - len(self.changed), self.stat_calls, expected))

    def work(self, pool: WorkerPool) -> None:
        """Verify the cached directories, read new and changed ones, then those due for the full pass."""
        if self.tree is None:
            self._read(pool, [b""])
            return
        self._verify(pool)
        paths = self.tree.paths
        to_read = [paths[row] for row in unknown(self.tree)] + [paths[self.rows[number]] for number in self.changed]
        self._read(pool, to_read)
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

    def _read(self, pool: WorkerPool, paths: list[bytes]) -> None:
        """Read directories and their subdirectories; retry those whose results were lost with a worker that hung."""
        lost = len(pool.abandoned)
        while paths:
            pool.run(paths[::-1])  # the last is taken first
            if len(pool.abandoned) == lost or pool.out_of_time or pool.interrupted or pool.closed:
                return
            lost = len(pool.abandoned)
            pool.renew()
            known = self.assignment.is_known
            below = {joined(record.path, name) for record in list(self.records.values()) for name in record.children}
            ahead = [*paths, *(path for path in below if not known(path))]
            paths = [path for path in dict.fromkeys(ahead) if path not in self.records and not _hangs(path, pool.stuck)]

    def result(self, pool: WorkerPool) -> Tree:
        """Return the tree: the cached one, updated."""
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
    """Return the record to keep of a directory: the last full one rather than a new partial one. Pure."""
    if before is None or before.state not in (READ, PARTIAL) or record.state not in (PARTIAL, STUCK):
        return record
    if record.state == PARTIAL and record.files >= before.files:
        return record
    return before._replace(state=record.state, mtime_ns=UNTRUSTED)


FULL_PASS_S = 86400.0
"""Interval at which every directory is read: files that grow in place do not change their directory's mtime."""

STALL_S = 30.0
"""A worker without progress for longer than this hangs; less if the deadline is short."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan.

    Attributes:
        root: the directory, as requested.
        real: the same without symbolic links; empty if it could not be opened.
        tree: the directories; one empty row if the root could not be read.
        totals: the totals of each subtree.
        time: of the scan, in seconds since the epoch.
        took_s: its duration.
        error: why the root could not be scanned; empty if it could.
        before: the snapshot to compare with, or None.
        read: directories read in this scan.
        verified: cached directories that were unchanged.
        unverified: cached directories that could not be verified in time.
        looks: number of stat calls.
        oldest: when the oldest of the figures was read, in seconds since the epoch.
        interrupted: whether a signal ended the scan.
        out_of_time: whether the deadline ended the scan.
        pace: the number of workers and why, as text; empty for few directories.
        notes: warnings for the user.
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
        """Return whether every readable directory was read or verified."""
        return not self.error and not self.unverified and not self.unfinished

    @property
    def unfinished(self) -> int:
        """The number of directories not fully read because of the deadline or a hang."""
        return sum(state not in (READ, ELSEWHERE) and not trouble for state, trouble in self._ends())

    def _ends(self) -> Iterator[tuple[int, int]]:
        return zip(self.tree.state, self.tree.trouble, strict=True)


def scan(
    root: Path,
    cache: Path | None,
    *,
    now: float,
    fallback: Path | None = None,
    deadline_s: float | None = None,
    full_pass_s: float = FULL_PASS_S,
    report: Callable[[Progress], None] = lambda _: None,
    cores: int | None = None,
    parallelism: Parallelism | None = None,
) -> Scan:
    """Return the disk usage of a directory tree.

    Counts allocated blocks, as du does; a file with several hard links counts once; symbolic links are not followed and
    other file systems are not entered. `cache` is the cache directory, or None for no cache; `fallback` is a
    directory on this node that is used if `cache` cannot be.

    This process itself touches nothing below `root`, so it returns at the deadline even if the file system never
    responds. Ctrl-C, SIGTERM and SIGHUP end the scan early. In every case the results are cached, and the next scan
    continues from there.
    """
    began = time.monotonic()
    directory = os.fsencode(root)
    scan_cache = ScanCache(cache, fallback, directory)
    known = scan_cache.read(deadline_s)
    deadline = None if deadline_s is None else began + deadline_s
    state = ScanState(directory, known.tree, now, full_pass_s, report)
    pool = WorkerPool(
        state.assignment,
        state.found,
        deadline=deadline,
        stall_s=STALL_S if deadline_s is None else min(STALL_S, max(0.5, deadline_s / 5)),
        tick=state.tick,
        cores=cores,
        parallelism=parallelism,
    )
    with _ctrl_c(pool), no_collection():
        try:
            state.work(pool)
        finally:
            pool.end()
        tree = state.result(pool)
        totals = tree.totals()
        error = _error(pool, tree)
        before = None
        if not error:
            before = _compare(known, now)
            _update_cache(scan_cache, known, state, tree, totals, now)
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
        looks=state.stat_calls,
        oldest=min(read_at, default=now),
        interrupted=pool.interrupted,
        out_of_time=pool.out_of_time,
        pace=pool.parallelism.reason if pool.parallelism else "",
        notes=tuple(scan_cache.notes),
    )


def _compare(known: CachedScan, now: float) -> Snapshot | None:
    number = baseline(known.times, now)
    if number is None:
        return None
    try:
        return known.snapshot(number)
    except (ValueError, KeyError):
        return None


def _update_cache(
    scan_cache: ScanCache, known: CachedScan, state: ScanState, tree: Tree, totals: Totals, now: float
) -> None:
    """Update the cache."""
    is_time = not known.times or now - max(known.times) >= EVERY_S or now < max(known.times)
    if not state.records and not is_time:
        return
    if is_time:
        known.add(snapshot(tree, totals, now))
        known.keep(thin(known.times, now))
    scan_cache.write(tree, known)


def _error(pool: WorkerPool, tree: Tree) -> str:
    """Return why the root could not be scanned; empty if it could."""
    number = pool.closed
    if not number and tree.trouble[0] and not tree.files[0] and len(tree) == 1:
        number = tree.trouble[0]
    if number == errno.ETIMEDOUT or (not number and tree.state[0] == STUCK and len(tree) == 1):
        return "no response: the file system hangs"
    if number == errno.ENOENT:
        return "does not exist"
    if number == errno.ENOTDIR:
        return "is a file, not a directory"
    if number:
        return os.strerror(number)
    if tree.read_at[0] == 0 and len(tree) == 1 and not pool.interrupted:
        return "no response within the deadline"
    return ""


@contextmanager
def _ctrl_c(pool: WorkerPool) -> Iterator[None]:
    """End the scan in an orderly way on the first Ctrl-C, SIGTERM (`timeout`, SLURM) or SIGHUP (a lost ssh connection);
    restore the previous handler for a second one."""
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
