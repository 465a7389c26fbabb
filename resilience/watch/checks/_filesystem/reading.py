"""What was read of one file system, as plain values; and how fast it grows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from resilience.quantities import format_bytes

BYTES = "bytes"
INODES = "inodes"
PERCENT = "percent"
"""What a site command counts in when it tells nothing but percents."""

FILE_SYSTEM = "file system"
"""The scope of statvfs: everybody's files, and what is left of the disk itself."""


class Amount(NamedTuple):
    """How much of something is used.

    Attributes:
        kind: bytes, inodes, or percent.
        source: who says so: `lfs quota`, `statvfs`.
        scope: whose limit it is: `file system`, `user alice`, `group lab`, `project 1001`, `fileset work`.
        used: how much is used.
        limit: where writing ends; None: nothing ends it.
        soft: above it the grace period runs; None: there is none.
        grace_s: seconds left of that period when it was asked; 0 when it is over; None when it does not run.
        age_s: how old the figure was when it was asked; None when that is not known.
        note: what else is known about it.
    """

    kind: str
    source: str
    scope: str
    used: float
    limit: float | None = None
    soft: float | None = None
    grace_s: float | None = None
    age_s: float | None = 0.0
    note: str = ""

    @property
    def key(self) -> str:
        """By which it is known again at the next task."""
        return f"{self.source}/{self.scope}/{self.kind}"


def amount_text(value: float, kind: str) -> str:
    """An amount as people read it: `18.4 TiB`, `450,000`, `12.5%`."""
    if kind == PERCENT:
        return f"{value:.1f}%"
    return format_bytes(value) if kind == BYTES else f"{value:,.0f}"


Point = tuple[float, float]
"""When, in seconds, and how much."""


def median(values: Sequence[float]) -> float:
    """The middle of the values. Raise ValueError if there are none."""
    if not values:
        raise ValueError("no values have no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope_per_s(points: Sequence[Point], least_gap_s: float = 0.0) -> float:
    """The median slope of all pairs that lie more than `least_gap_s` apart; 0.0 where there is none.

    Theil and Sen's (Theil 1950; Sen, P. K., "Estimates of the regression coefficient based on Kendall's tau", JASA 63
    (1968) 1379-1389): up to 29 % of the readings may be anything. Pairs far apart say more where readings rise in
    steps: two on one stair have no slope at all.

    The guard's memory forecast has these few lines as well (guard/memory/forecast.py): a module more would cost the
    start of every rank of every training, and its fit asks for more than that of a file system can.
    """
    slopes = [
        (value - earlier) / (when - before)
        for index, (when, value) in enumerate(points)
        for before, earlier in points[:index]
        if when - before > least_gap_s
    ]
    return median(slopes) if slopes else 0.0


SPACING_S = 300.0
"""Readings closer together than this replace one another."""
KEPT_S = 14 * 86400.0
"""How long a reading is remembered. A clock that jumps by a year starts afresh."""
SPARSENESS = 24.0
"""A reading of age t has a neighbour within about t / SPARSENESS: about 200 readings in 14 days."""
LEAST_READINGS = 6
LEAST_SPAN_S = 1500.0
REACH = 6.0
SHARE = (1 / 3, 2.0)
"""How much of its even share of the rise each third of the time has, at least and at most."""
HIGHER = 0.05
"""The last third rises above all before by so much of the range."""
LEAST_RISE = 4.0
"""The rise is at least so many times the scatter around the line."""
MOST_FITTED = 64
"""Readings in one fit: 2,016 pairs, about 0.5 ms."""


class Growth(NamedTuple):
    """A growth that can be trusted.

    Attributes:
        per_s: how much more it is each second; more than 0.
        span_s: how long it was seen.
    """

    per_s: float
    span_s: float

    def reaches_in_s(self, free: float) -> float | None:
        """In how many seconds `free` is used up; None if that is further off than can be told."""
        wait_s = max(0.0, free) / self.per_s
        return wait_s if wait_s <= REACH * self.span_s else None


def remembered(points: Sequence[Point], now: float, used: float) -> tuple[Point, ...]:
    """Given what was remembered, oldest first, return it with a new reading; bounded, the old ones further apart.

    Time is cut into boxes that double in length with the age, and each box keeps its first reading: boxes lie in boxes,
    so that what is kept stays kept. Readings that claim to be of the future were taken while a clock was wrong.
    """
    boxes: dict[tuple[float, int], Point] = {}
    for when, value in points:
        if not 0 < now - when <= KEPT_S:
            continue
        length_s = SPACING_S
        while length_s * SPARSENESS < now - when:
            length_s *= 2
        boxes.setdefault((length_s, int(when // length_s)), (when, value))
    kept = sorted(boxes.values())
    return (*kept, (now, used))


def growth(points: Sequence[Point], healthy: float) -> tuple[Growth | None, str]:
    """Given readings, oldest first, return how fast they grow, or None; and a sentence that says why.

    A growth is reported only if
    - it is steady: each third of the time has its share of the rise. A data set copied in an hour is no growth;
    - it leads somewhere: the last third reaches higher than ever before. The slow side of a sawtooth (checkpoints that
      are pruned) does not; neither does a disk that fills again after a pruning, up to the height it had in good
      health. `healthy` is that height: one that was reached below it and left again proves that something makes room
      in time;
    - it stands out of the scatter. One outlier moves nothing.
    It is told no further ahead than `REACH` times as long as it was seen. The longest stretch that passes counts: the
    whole of what is remembered, else its last half, quarter, eighth ...
    """
    if len(points) < LEAST_READINGS or points[-1][0] - points[0][0] < LEAST_SPAN_S:
        return None, f"{len(points)} readings remembered: too few to tell a growth"
    start, end = points[0][0], points[-1][0]
    reason = "it does not grow"
    span_s = end - start
    while span_s >= LEAST_SPAN_S:
        part = [point for point in points if point[0] >= end - span_s]
        if len(part) < LEAST_READINGS:
            break
        found, why = _fit(part)
        if found is not None:
            before = [value for when, value in points if when < part[0][0]]
            height = median([value for _, value in part[-3:]])
            margin = HIGHER * (max(before) - min(before)) if before else 0.0
            if before and max(before) <= healthy and height <= max(before) + margin:
                return None, "it grows, and not yet higher than it was before something made room"
            return found, why
        reason = why
        span_s /= 2
    return None, reason


def _fit(points: Sequence[Point]) -> tuple[Growth | None, str]:
    start, end = points[0][0], points[-1][0]
    span_s = end - start
    chosen = _thinned(points)
    thirds = _thirds(points)
    if any(len(third) < 2 for third in thirds):
        return None, "too few readings in a part of the time"
    slope = slope_per_s(chosen, span_s / 4)
    if slope <= 0:
        return None, "it does not grow"
    rise = slope * span_s
    levels = [median([value for _, value in near]) for near in _boundaries(points)]
    shares = [after - before for before, after in pairwise(levels)]
    if not all(SHARE[0] * rise / 3 <= share <= SHARE[1] * rise / 3 for share in shares):
        return None, "it rose, and not steadily"
    before, last = [v for third in thirds[:2] for _, v in third], [v for _, v in thirds[2]]
    values = before + last
    # The third highest of the last third: an outlier or two do not make a height.
    height = sorted(last)[-min(3, len(last))]
    if height <= sorted(before)[-1 - (len(before) > LEAST_READINGS)] + HIGHER * (max(values) - min(values)):
        return None, "it does not reach higher than before"
    base = median([value - slope * when for when, value in chosen])
    scatter = 1.4826 * median([abs(value - slope * when - base) for when, value in chosen])
    if rise < LEAST_RISE * scatter:
        return None, "it does not stand out of its ups and downs"
    return Growth(slope, span_s), "it grows"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most MOST_FITTED of them, evenly; the last one always."""
    if len(points) <= MOST_FITTED:
        return list(points)
    step = (len(points) - 1) / (MOST_FITTED - 1)
    return [points[round(index * step)] for index in range(MOST_FITTED)]


def _thirds(points: Sequence[Point]) -> tuple[list[Point], list[Point], list[Point]]:
    start, span_s = points[0][0], points[-1][0] - points[0][0]
    parts: tuple[list[Point], list[Point], list[Point]] = ([], [], [])
    for point in points:
        parts[min(2, int(3 * (point[0] - start) / span_s))].append(point)
    return parts


def _boundaries(points: Sequence[Point]) -> list[list[Point]]:
    """The three readings nearest to the start, to the thirds, and to the end of the time."""
    start, span_s = points[0][0], points[-1][0] - points[0][0]
    return [sorted(points, key=lambda p, at=start + k * span_s / 3: abs(p[0] - at))[:3] for k in range(4)]  # type: ignore[misc]


SILENT_S = 86400.0
"""What a source told is kept for so long when it gives no answer."""
MOST_KEYS = 12
"""Limits of one subject whose growth is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReading:
    """What was seen of one subject.

    Attributes:
        path: what was looked at.
        roles: what it is to the training: `project directory`, `$SCRATCH`.
        mount: where the file system is mounted.
        type: ext4, lustre ...
        device: what is mounted.
        is_local: whether other nodes most probably have another one in its place.
        is_needed: whether the training writes there.
        is_named: whether somebody named it.
        trouble: missing, dangling, unreadable, stale: why nothing could be read; empty when it could.
        detail: that, as a sentence.
        advice: what to do about it.
        read_only: whether the mount refuses to write.
        seen_writable: whether it ever was seen otherwise.
        amounts: how much is used, and of which limits.
        history: by the key of an amount: what was used when, oldest first.
        mounts: by path: mount point, type and device it was last seen on in good order, and when.
        checkpoint: what one checkpoint takes, and how often one is written; see measure.Learned.
        purge: which files will be deleted for their age; see measure.Doomed.
        du: when du last counted, and its total.
        silent: what was to be told, and was not, and why: a limit that may be passed meanwhile.
        looked: what was done, for `--explain`.
    """

    path: str
    roles: tuple[str, ...] = ()
    mount: str = ""
    type: str = ""
    device: str = ""
    is_local: bool = False
    is_needed: bool = False
    is_named: bool = False
    trouble: str = ""
    detail: str = ""
    advice: str = ""
    read_only: bool = False
    seen_writable: bool = False
    amounts: tuple[Amount, ...] = ()
    history: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    mounts: dict[str, tuple[str, str, str, float]] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=dict)
    purge: dict[str, Any] = field(default_factory=dict)
    du: dict[str, float] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    looked: tuple[str, ...] = ()


class KnownMount(NamedTuple):
    """The mount that a path was last seen on in good order; remembered as a plain tuple."""

    point: str
    type: str
    device: str
    time: float


def is_whole(reading: FileSystemReading) -> bool:
    """Whether what was remembered is what was written: somebody may have edited the file by hand."""
    tables: tuple[Any, ...] = (reading.history, reading.mounts, reading.du)
    return (
        all(isinstance(table, dict) for table in tables)
        and all(
            isinstance(row, list | tuple) and len(row) == 4 and isinstance(row[3], int | float)
            for row in reading.mounts.values()
        )
        and all(isinstance(value, int | float) for value in reading.du.values())
        and (not reading.du or set(reading.du) == {"time", "total"})
    )


def points_of(history: Mapping[str, Any], key: str) -> tuple[Point, ...]:
    """The remembered readings of one amount; what is none of them (a file edited by hand) is passed over."""
    rows = history.get(key) if isinstance(history, dict) else None
    if not isinstance(rows, list | tuple):
        return ()
    return tuple(
        (float(row[0]), float(row[1]))
        for row in rows
        if isinstance(row, list | tuple) and len(row) == 2 and all(isinstance(item, int | float) for item in row)
    )


def history_after(
    old: FileSystemReading | None, amounts: Sequence[Amount], now: float
) -> dict[str, tuple[tuple[float, float], ...]]:
    """What was used when. A source that gives no answer today, a quota tool for instance, is not forgotten for that."""
    past = old.history if old is not None else {}
    now_known = {item.key: remembered(points_of(past, item.key), now, item.used) for item in amounts}
    silent = {key: points for key in past if key not in now_known and (points := points_of(past, key))}
    lasting = {key: points for key, points in silent.items() if 0 <= now - points[-1][0] < SILENT_S}
    return dict(list({**now_known, **lasting}.items())[:MOST_KEYS])


def unanswered(
    old: FileSystemReading | None, amounts: Sequence[Amount], failed: Mapping[str, str], wanted: Sequence[str]
) -> tuple[str, ...]:
    """Given who gave no answer and why, return what should have been told: who of `wanted`, and limits known before.

    A quota tool that never told anything is not missed: at many sites one is installed, and no server answers it.
    """
    said = [f"{name}: {failed[name]}" for name in wanted if name in failed]
    if said or not failed or old is None:
        return tuple(said)
    why = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    known = {item.key for item in amounts}
    keys = [key.split("/") for key in old.history if key not in known and points_of(old.history, key)]
    scopes = [f"{scope} ({source})" for source, scope, _ in (key for key in keys if len(key) == 3)
              if scope not in (FILE_SYSTEM, "directory", "quota")]  # fmt: skip
    return (f"the limit of {', '.join(scopes)}: {why}",) if scopes else ()
