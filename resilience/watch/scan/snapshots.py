"""What folders added up to at earlier times, so that growth can be told; few, and the older the fewer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilience.watch.scan.tree import Totals, Tree

EVERY_S = 600
"""Scans in quick succession do not push out what they are to be compared with."""

AGES_S = (3600, 6 * 3600, 86400, 3 * 86400, 8 * 86400, 32 * 86400)
"""One snapshot is kept between each two of these ages, so there is always one from about an hour, a day, a week ago."""

GOOD_AGE_S = 3600
WANTED_AGE_S = 86400
MOST_FOLDERS = 5000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the largest folders added up to at one time.

    Attributes:
        time: seconds since the epoch.
        sums: path from the root -> (blocks of 512 bytes, files and folders); a folder that was not read to its end is
            not among them.
        holes: paths that were not read: nothing is known of what lay below them.
        whole: whether every folder that there was is in one of the two.
    """

    time: float
    sums: dict[bytes, tuple[int, int]]
    holes: tuple[bytes, ...] = ()
    whole: bool = True


def snapshot(tree: Tree, totals: Totals, time: float, most: int = MOST_FOLDERS) -> Snapshot:
    """Take down what each folder adds up to; of very many only the largest, by bytes and by count. Pure."""
    paths = tree.paths
    rows = [row for row, missing in enumerate(totals.missing) if not missing]
    whole = len(rows) <= most
    if not whole:
        by_blocks = sorted(rows, key=totals.blocks.__getitem__)[-most // 2 :]
        by_count = sorted(rows, key=lambda row: totals.files[row] + totals.folders[row])[-most // 2 :]
        rows = sorted({*by_blocks, *by_count})
    sums = {paths[row]: (totals.blocks[row], totals.files[row] + totals.folders[row]) for row in rows}
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
