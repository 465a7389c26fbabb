"""One scan from the beginning to the end: what is remembered is verified, the rest is read, and all is remembered."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from resilience.watch.scan.cache import Remembered
from resilience.watch.scan.crew import Crew
from resilience.watch.scan.effort import Effort, Progress
from resilience.watch.scan.memory import LOOK_S, ScanMemory
from resilience.watch.scan.pace import Pace
from resilience.watch.scan.record import ELSEWHERE, READ, STUCK
from resilience.watch.scan.snapshots import EVERY_S, Snapshot, baseline, snapshot, thin
from resilience.watch.scan.tree import Totals, Tree

FULL_PASS_S = 86400.0
"""Each folder is read at least that often: files that grow in place do not change their folder's mtime."""

STALL_S = 30.0
"""A look that takes longer than this hangs; less where the deadline is short."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found.

    Attributes:
        root: the folder, as it was asked for.
        real: the same without symbolic links; empty if it could not be opened.
        tree: the folders; one row of nothing if the root could not be looked at.
        totals: what they add up to.
        time: when, in seconds since the epoch.
        took_s: how long it took.
        error: why nothing at all could be seen; empty otherwise.
        before: what to compare with, or None.
        read: folders read in this scan.
        verified: folders that were as an earlier scan had found them.
        unverified: folders of which nobody could see in time whether they are as they were.
        looks: how many files and folders were looked at.
        oldest: when the oldest of the figures was read, in seconds since the epoch.
        interrupted: whether a person ended it.
        out_of_time: whether the deadline did.
        pace: how it went about it, in words; empty for few folders.
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
        """Whether every folder was seen, those apart that may not be read."""
        return not self.error and not self.unverified and not self.unfinished

    @property
    def unfinished(self) -> int:
        """Folders that were not read to their end, for want of time or of an answer."""
        return sum(state not in (READ, ELSEWHERE) and not trouble for state, trouble in self._ends())

    def _ends(self) -> Iterator[tuple[int, int]]:
        return zip(self.tree.state, self.tree.trouble, strict=True)


def scan(
    root: Path,
    memory: Path | None,
    *,
    now: float,
    spare: Path | None = None,
    deadline_s: float | None = None,
    full_pass_s: float = FULL_PASS_S,
    tell: Callable[[Progress], None] = lambda _: None,
    cores: int | None = None,
    pace: Pace | None = None,
) -> Scan:
    """Add up what lies in a folder and below.

    Allocated blocks, as du counts; a file with several names counts once; symbolic links are not followed; other file
    systems are not entered. `memory` is the folder of what is remembered between scans; None: nothing is. `spare`, a
    folder on this node, takes that where `memory` does not.

    This process itself touches nothing below `root`: it comes back at the deadline even if the file system never
    answers. Ctrl-C, SIGTERM and SIGHUP end it early. In all cases what was found is remembered, and the next scan goes
    on from there.
    """
    began = time.monotonic()
    folder = os.fsencode(root)
    kept = ScanMemory(memory, spare, folder)
    known = kept.recall(LOOK_S if deadline_s is None else min(LOOK_S, max(1.0, deadline_s / 5)))
    deadline = None if deadline_s is None else began + deadline_s
    effort = Effort(folder, known.tree, now, full_pass_s, tell)
    crew = Crew(
        effort.assignment,
        effort.found,
        deadline=deadline,
        stall_s=STALL_S if deadline_s is None else min(STALL_S, max(0.5, deadline_s / 5)),
        tick=effort.tick,
        cores=cores,
        pace=pace,
    )
    with _ctrl_c(crew), _no_collection():
        try:
            effort.work(crew)
        finally:
            crew.end()
        tree = effort.result(crew)
        totals = tree.totals()
        error = _why(crew, tree)
        before = None
        if not error:
            before = _compare(known, now)
            _keep(kept, known, effort, tree, totals, now)
    read_at = [at for at in tree.read_at if at]
    return Scan(
        root=root,
        real=crew.real,
        tree=tree,
        totals=totals,
        time=now,
        took_s=time.monotonic() - began,
        error=error,
        before=before,
        read=len(effort.records),
        verified=len(effort.verified) - len(effort.changed),
        unverified=len(effort.rows) - len(effort.verified),
        looks=effort.looks,
        oldest=min(read_at, default=now),
        interrupted=crew.interrupted,
        out_of_time=crew.out_of_time,
        pace=crew.pace.reason if crew.pace else "",
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


def _keep(kept: ScanMemory, known: Remembered, effort: Effort, tree: Tree, totals: Totals, now: float) -> None:
    """Remember what is new."""
    is_time = not known.times or now - max(known.times) >= EVERY_S or now < max(known.times)
    if not effort.records and not is_time:
        return
    if is_time:
        known.add(snapshot(tree, totals, now))
        known.keep(thin(known.times, now))
    kept.keep(tree, known)


def _why(crew: Crew, tree: Tree) -> str:
    """Why nothing at all could be seen; empty if something could."""
    number = crew.closed
    if not number and tree.trouble[0] and not tree.files[0] and len(tree) == 1:
        number = tree.trouble[0]
    if number == errno.ETIMEDOUT or (not number and tree.state[0] == STUCK and len(tree) == 1):
        return "it does not answer: the file system hangs"
    if number == errno.ENOENT:
        return "it does not exist"
    if number == errno.ENOTDIR:
        return "it is a file, not a folder"
    if number:
        return os.strerror(number)
    if tree.read_at[0] == 0 and len(tree) == 1 and not crew.interrupted:
        return "there was no answer within the deadline"
    return ""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing here has cycles; looking for them among millions of records takes longer than the records do."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _ctrl_c(crew: Crew) -> Iterator[None]:
    """Let the first Ctrl-C, SIGTERM (`timeout`, SLURM) or SIGHUP (a lost ssh) end the scan in an orderly way; a second
    is as before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        del before[signal.SIGHUP]

    def interrupt(number: int, _frame: object) -> None:
        crew.interrupted = True
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
