"""`resil watch fs --top`: the largest and the fastest growing directories, without redundant ancestors."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.system.fallback_directory import fallback_path
from resilience.watch.scan.cache import HOLE, PARTLY, Snapshot
from resilience.watch.scan.scan import STALL_S, Progress, Scan, scan
from resilience.watch.scan.tree import BLOCK_BYTES, ELSEWHERE, Tree

if TYPE_CHECKING:
    from resilience.runs.project import Project

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
    """

    scan: Scan
    largest: tuple[TopDirectory, ...] = ()
    growing: tuple[TopDirectory, ...] = ()
    checkpoint_bytes: int = 0
    checkpoint_directories: int = 0
    since_s: float | None = None
    owners: bool = False


def scan_directory(
    project: Project, root: Path, deadline_s: float | None, report: Callable[[Progress], None], *, fresh: bool = False
) -> Scan:
    """Scan a directory; cache the result in the user's cache directory, or on this node if that fails."""
    system, stall_s = project.system, min(STALL_S, project.loaded.settings.watch.deadline_s)
    cache, now = system.cache_home / "resil" / "scan", system.clock.now()
    fallback = fallback_path(system, cache)
    return scan(
        root, cache, fallback=fallback, now=now, deadline_s=deadline_s, stall_s=stall_s, fresh=fresh, report=report
    )


def compose(found: Scan, *, limit: int, by: str, login_name: Callable[[int], str] = str) -> TopReport:
    """Return the report. `by`: "bytes" or "inodes". Pure, except for `login_name`."""
    if found.error:
        return TopReport(found)
    tree, children = found.tree, found.tree.below()
    sums = {
        "bytes": [count * BLOCK_BYTES for count in tree.blocks],
        "inodes": [files + directories for files, directories in zip(tree.files, tree.directories, strict=True)],
    }
    grew = {key: growth(tree, sums[key], found.before, *how) for key, how in HOW.items()}
    weights, changes = sums[by], grew[by]
    several = len({record.uid for record in tree.records if record.uid >= 0}) > 1

    def line(row: int, rest: float) -> TopDirectory:
        whole = weights[0] or 1
        return TopDirectory(
            path=tree.records[row].path,
            bytes=sums["bytes"][row],
            files=tree.files[row],
            directories=tree.directories[row],
            share=weights[row] / whole,
            rest=rest / whole,
            newest=tree.newest[row],
            owners=_owners(tree, row, login_name) if several else (),
            grew_bytes=grew["bytes"][row],
            grew_inodes=grew["inodes"][row],
            is_lower_bound=tree.missing[row] > 0,
        )

    growing = [row for row in choose(gross(changes, children), children, limit) if (changes[row] or 0) > 0]
    growing.sort(key=lambda row: -(changes[row] or 0))
    checkpoint_bytes, checkpoint_directories = checkpoints(tree)
    return TopReport(
        found,
        largest=tuple(line(row, rest) for row, rest in choose(weights, children, limit).items()),
        growing=tuple(line(row, 0.0) for row in growing),
        checkpoint_bytes=checkpoint_bytes,
        checkpoint_directories=checkpoint_directories,
        since_s=None if found.before is None else found.time - found.before.time,
        owners=several,
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


HOW = {"bytes": (0, BLOCK_BYTES), "inodes": (1, 1)}
"""The position in a snapshot's totals, and the bytes or inodes per count."""


def growth(tree: Tree, sums: Sequence[int], before: Snapshot | None, which: int, unit: int) -> list[int | None]:
    """Return the growth of each row since the snapshot; None where unknown. Pure.

    A new directory grew by everything in it; the growth of one that the earlier scan had not fully read is unknown.
    """
    if before is None:
        return [None] * len(tree)
    known: list[int | None] = []
    in_hole: list[bool] = []
    for row, record in enumerate(tree.records):
        earlier = before.sums.get(record.path)
        in_hole.append(earlier == HOLE or (row > 0 and in_hole[tree.parent[row]]))
        is_unknown = tree.missing[row] or record.state == ELSEWHERE or in_hole[row] or earlier == PARTLY
        if is_unknown or (earlier is None and not before.whole):
            known.append(None)
        else:
            known.append(sums[row] - (earlier[which] * unit if earlier else 0))
    return known


def gross(grew: Sequence[int | None], children: Sequence[Sequence[int]]) -> list[float]:
    """Return each row's additions in its subtree, regardless of deletions elsewhere: the weight to choose by. Pure."""
    gains = [0.0] * len(grew)
    for row in range(len(grew) - 1, -1, -1):
        gain = grew[row]
        own = 0.0 if gain is None else gain - sum(grew[child] or 0 for child in children[row])
        gains[row] = sum(gains[child] for child in children[row]) + max(0.0, own)
    return gains


def checkpoints(tree: Tree) -> tuple[int, int]:
    """Return the bytes and the number of directories of checkpoints, recognized by directory or file name. Pure."""
    total = directories = row = 0
    while row < len(tree):
        record, step = tree.records[row], 1
        held = record.checkpoint_blocks
        if row and tree.blocks[row] and CHECKPOINT_DIRECTORY.fullmatch(record.path.rpartition(b"/")[2]):
            held, step = tree.blocks[row], tree.directories[row]
        total += held
        directories += held > 0
        row += step
    return total * BLOCK_BYTES, directories


def _owners(tree: Tree, row: int, login_name: Callable[[int], str]) -> tuple[tuple[str, float], ...]:
    held: dict[int, int] = {}
    for record in tree.records[row : row + tree.directories[row]]:
        if record.uid >= 0:
            held[record.uid] = held.get(record.uid, 0) + record.blocks
    whole = sum(held.values()) or 1
    return tuple((login_name(uid), held[uid] / whole) for uid in sorted(held, key=lambda uid: -held[uid])[:3])


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
