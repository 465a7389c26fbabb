"""`resil watch fs --top`: the largest and the fastest growing directories, without redundant ancestors."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.system.fallback_directory import fallback_path
from resilience.watch.scan.cache import Snapshot
from resilience.watch.scan.scan import Progress, Scan, scan
from resilience.watch.scan.tree import BLOCK_BYTES, ELSEWHERE, PARTIAL, STUCK, UNREAD, UNREADABLE, Tree

if TYPE_CHECKING:
    from resilience.runs.project import Project
    from resilience.system.ports import System

NEARLY_ALL = 0.95
"""A directory with this share of its parent is listed instead: `runs/gpt/checkpoints` is more precise than `runs`."""

MOST_OF_IT = 0.9
HALF = 0.5
DAY_S = 86400.0

CHECKPOINT_DIRECTORY = re.compile(rb"(?:checkpoint|ckpt)[-_].+|global_step_?\d+|iter_\d+|.+\.(?:ckpt|distcp)")
"""Hugging Face: checkpoint-500. DeepSpeed: global_step500. Megatron-LM: iter_0000500. Lightning: step=5.ckpt."""


@dataclass(frozen=True, slots=True)
class TopDirectory:
    """One line of the list.

    Attributes:
        path: relative to the root of the scan; empty for the root itself.
        bytes: allocated to the subtree.
        files: in the subtree; entries that are not directories.
        directories: in the subtree, including the directory itself.
        share: of the total, 0 to 1, by the sort criterion.
        rest: the share outside other listed directories.
        newest: the newest change, seconds since the epoch.
        owners: login names with their share of the bytes, largest first.
        grew_bytes, grew_inodes: growth since the compared scan; None if unknown.
        is_lower_bound: whether the subtree was not fully read.
    """

    path: bytes
    bytes: int
    files: int
    directories: int
    share: float
    rest: float
    newest: int
    owners: tuple[tuple[str, float], ...] = ()
    grew_bytes: int | None = None
    grew_inodes: int | None = None
    is_lower_bound: bool = False


@dataclass(frozen=True, slots=True)
class TopReport:
    """The report about one scanned directory.

    Attributes:
        scan: the source of the figures.
        largest: by bytes or inodes, largest first.
        growing: directories that grew, fastest first.
        checkpoint_bytes, checkpoint_directories: bytes of checkpoints, and number of directories with checkpoints.
        since_s: age of the compared scan; None if there was none.
        owners: whether the tree has files of several users.
        unread: directories not fully read.
        stuck: directories that do not respond.
        unreadable: (path, errno) of directories that could not be read.
        elsewhere: mount points of other file systems.
    """

    scan: Scan
    largest: tuple[TopDirectory, ...] = ()
    growing: tuple[TopDirectory, ...] = ()
    checkpoint_bytes: int = 0
    checkpoint_directories: int = 0
    since_s: float | None = None
    owners: bool = False
    unread: tuple[bytes, ...] = ()
    stuck: tuple[bytes, ...] = ()
    unreadable: tuple[tuple[bytes, int], ...] = ()
    elsewhere: tuple[bytes, ...] = ()


def scan_directory(system: System, root: Path, deadline_s: float | None, report: Callable[[Progress], None]) -> Scan:
    """Scan a directory; cache the result in the user's cache directory, or on this node if that fails."""
    cache = system.cache_home / "resil" / "scan"
    fallback = fallback_path(system, cache)
    return scan(root, cache, fallback=fallback, now=system.clock.now(), deadline_s=deadline_s, report=report)


def compose(found: Scan, *, limit: int, by: str, login_name: Callable[[int], str] = str) -> TopReport:
    """Return the report. `by`: "bytes" or "inodes". Pure, except for `login_name`."""
    if found.error:
        return TopReport(found)
    tree, totals = found.tree, found.totals
    bytes_of = [count * BLOCK_BYTES for count in totals.blocks]
    inodes_of = [files + directories for files, directories in zip(totals.files, totals.directories, strict=True)]
    weights = bytes_of if by == "bytes" else inodes_of
    children = tree.below()
    before = found.before
    grew = {"bytes": growth(tree, bytes_of, totals.missing, before, 0, BLOCK_BYTES)}
    grew["inodes"] = growth(tree, inodes_of, totals.missing, before, 1, 1)
    several = len({uid for uid in tree.uid if uid >= 0}) > 1
    ends = tree.ends() if several else []

    def line(row: int, rest: float) -> TopDirectory:
        whole = weights[0] or 1
        return TopDirectory(
            path=tree.paths[row],
            bytes=bytes_of[row],
            files=totals.files[row],
            directories=totals.directories[row],
            share=weights[row] / whole,
            rest=rest / whole,
            newest=totals.newest[row],
            owners=_owners(tree, row, ends[row], login_name) if several else (),
            grew_bytes=grew["bytes"][row],
            grew_inodes=grew["inodes"][row],
            is_lower_bound=totals.missing[row] > 0,
        )

    gains = gross(tree, grew[by], children)
    growing = [row for row in choose(gains, children, limit) if (grew[by][row] or 0) > 0]
    growing.sort(key=lambda row: -(grew[by][row] or 0))
    checkpoint_bytes, checkpoint_directories = checkpoints(tree, totals.blocks)
    return TopReport(
        found,
        largest=tuple(line(row, rest) for row, rest in choose(weights, children, limit).items()),
        growing=tuple(line(row, 0.0) for row in growing),
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_directories=checkpoint_directories,
        since_s=None if before is None else found.time - before.time,
        owners=several,
        unread=_in_state(tree, UNREAD, PARTIAL),
        stuck=_in_state(tree, STUCK),
        unreadable=tuple((tree.paths[r], tree.trouble[r]) for r, s in enumerate(tree.state) if s == UNREADABLE),
        elsewhere=_in_state(tree, ELSEWHERE),
    )


def choose(weights: Sequence[float], children: Sequence[Sequence[int]], limit: int) -> dict[int, float]:
    """Return the most informative rows: row -> its weight outside the other chosen rows. Pure.

    Starts with the root and, largest first, replaces a directory by its subdirectories while they are more informative:
    by the one that holds nearly all of it, or by several that hold at least half of it. A directory of a thousand equal
    subdirectories stays one line. A directory stays beside its subdirectories if they hold too little of it. Remaining
    lines go to the largest directories that were skipped.
    """
    if not weights or weights[0] <= 0 or limit < 1:
        return {}
    final: set[int] = set()
    skipped: list[int] = []
    heap: list[tuple[float, int]] = [(-weights[0], 0)]
    while heap:
        row = heapq.heappop(heap)[1]
        inside = sorted((child for child in children[row] if weights[child] > 0), key=lambda child: -weights[child])
        if inside and weights[inside[0]] >= NEARLY_ALL * weights[row]:
            heapq.heappush(heap, (-weights[inside[0]], inside[0]))
            skipped += inside[1:]
            continue
        free = limit - len(final) - len(heap)
        parts: list[int] = []
        held = 0.0
        for child in inside[:free]:
            if held >= MOST_OF_IT * weights[row]:
                break
            parts.append(child)
            held += weights[child]
        stays = held < MOST_OF_IT * weights[row]
        if stays and len(parts) == free and parts:
            held -= weights[parts.pop()]
        is_informative = len(parts) >= 2 and held >= HALF * weights[row]
        if parts and (is_informative or row == 0):
            for child in parts:
                heapq.heappush(heap, (-weights[child], child))
            skipped += inside[len(parts) :]
            if stays:
                final.add(row)
        else:
            final.add(row)
    parents = {child: row for row, inside_ in enumerate(children) for child in inside_}
    for row in sorted(set(skipped) - final, key=lambda row: -weights[row])[: max(0, limit - len(final))]:
        final.add(row)
    rest = {row: float(weights[row]) for row in sorted(final, key=lambda row: (-weights[row], row))}
    for row in final:
        above = parents.get(row)
        while above is not None and above not in rest:
            above = parents.get(above)
        if above is not None:
            rest[above] -= weights[row]
    return rest


def growth(
    tree: Tree, sums: Sequence[int], missing: Sequence[int], before: Snapshot | None, which: int, unit: int
) -> list[int | None]:
    """Return the growth of each row since the snapshot; None where unknown. Pure.

    `which`: 0 for blocks, 1 for inodes; `unit`: bytes or inodes per count. A new directory grew by everything in it;
    the growth of one that the earlier scan had not fully read is unknown.
    """
    if before is None:
        return [None] * len(tree)
    holes = set(before.holes)
    above_holes = {b"/".join(hole.split(b"/")[:depth]) for hole in holes for depth in range(hole.count(b"/") + 1)}
    known: list[int | None] = []
    in_hole: list[bool] = []
    for row, path in enumerate(tree.paths):
        parent = tree.parent[row]
        in_hole.append(path in holes or (parent >= 0 and in_hole[parent]))
        earlier = before.sums.get(path)
        if missing[row] or tree.state[row] == ELSEWHERE:
            known.append(None)
        elif earlier is not None:
            known.append(sums[row] - earlier[which] * unit)
        elif before.whole and not in_hole[row] and path not in above_holes:
            known.append(sums[row])
        else:
            known.append(None)
    return known


def gross(tree: Tree, grew: Sequence[int | None], children: Sequence[Sequence[int]]) -> list[float]:
    """Return each row's additions in its subtree, regardless of deletions elsewhere: the weight to choose by. Pure."""
    gains = [0.0] * len(tree)
    for row in range(len(tree) - 1, -1, -1):
        gain = grew[row]
        below = sum(gains[child] for child in children[row])
        own = 0.0 if gain is None else gain - sum(grew[child] or 0 for child in children[row])
        gains[row] = below + max(0.0, own)
    return gains


def checkpoints(tree: Tree, blocks: Sequence[int]) -> tuple[int, int]:
    """Return the bytes and the number of directories of checkpoints, recognized by directory or file name. Pure."""
    ends = tree.ends()
    total = directories = row = 0
    while row < len(tree):
        if row and blocks[row] and CHECKPOINT_DIRECTORY.fullmatch(tree.names[row]):
            total += blocks[row]
            directories += 1
            row = ends[row]
            continue
        if tree.checkpoint_blocks[row]:
            total += tree.checkpoint_blocks[row]
            directories += 1
        row += 1
    return total * BLOCK_BYTES, directories


def _owners(tree: Tree, row: int, end: int, login_name: Callable[[int], str]) -> tuple[tuple[str, float], ...]:
    held: dict[int, int] = {}
    for number in range(row, end):
        if tree.uid[number] >= 0:
            held[tree.uid[number]] = held.get(tree.uid[number], 0) + tree.blocks[number]
    whole = sum(held.values()) or 1
    most = sorted(held, key=lambda uid: -held[uid])[:3]
    return tuple((login_name(uid), held[uid] / whole) for uid in most)


def _in_state(tree: Tree, *states: int) -> tuple[bytes, ...]:
    return tuple(tree.paths[row] for row, state in enumerate(tree.state) if state in states)


def scanned_directories(project: Project, paths: Sequence[str]) -> tuple[Path, ...]:
    """Return the directories for these arguments, each once, as the `fs` watchdog resolves them; the project's without
    any.

    Raise UsageError for an invalid path. Touches no file system.
    """
    from resilience.watch.places import named_places

    system, base = project.system, project.loaded.project
    places = named_places(paths, base=base, home=system.host.home, environ=system.environ)
    return tuple(Path(place.path) for place in places) or (base,)


def login_name(uid: int) -> str:
    """Return the login name of a user id, or the id itself."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
