"""The reading of one file system, and its growth. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from resilience.quantities import format_bytes

BYTES = "bytes"
INODES = "inodes"
PERCENT = "percent"
"""The kind of an amount when a site command prints percentages only."""

FILE_SYSTEM = "file system"
"""The scope of statvfs: all users' files on the whole file system."""


class Amount(NamedTuple):
    """The usage of one limit.

    Attributes:
        kind: bytes, inodes, or percent.
        source: where the figure comes from: `lfs quota`, `statvfs`.
        scope: the owner of the limit: `file system`, `user alice`, `group lab`, `project 1001`, `fileset work`.
        used: how much is used.
        limit: the hard limit; None: no limit.
        soft: the soft limit, above which the grace period runs; None: no soft limit.
        grace_s: seconds left of the grace period when probed; 0: expired; None: not running.
        age_s: the age of the figure when probed; None: unknown.
        note: a remark.
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
        """Return the key that identifies this amount from probe to probe."""
        return f"{self.source}/{self.scope}/{self.kind}"


def amount_text(value: float, kind: str) -> str:
    """Format an amount: `18.4 TiB`, `450,000`, `12.5%`."""
    if kind == PERCENT:
        return f"{value:.1f}%"
    return format_bytes(value) if kind == BYTES else f"{value:,.0f}"


Point = tuple[float, float]
"""A time, in seconds, and a usage."""


def median(values: Sequence[float]) -> float:
    """Return the median of the values. Raise ValueError without values."""
    if not values:
        raise ValueError("median of no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def slope_per_s(points: Sequence[Point], least_gap_s: float = 0.0) -> float:
    """Return the median slope of all pairs more than `least_gap_s` apart; 0.0 if there is none.

    The Theil-Sen estimator (Theil 1950; Sen, P. K., "Estimates of the regression coefficient based on Kendall's tau",
    JASA 63 (1968) 1379-1389), which tolerates up to 29 % outliers. Pairs far apart are better if the usage rises in
    steps, because two readings of the same step have slope 0.

    guard/memory/forecast.py duplicates these few lines: another module would slow the start of every rank, and its fit
    has stricter conditions.
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
"""The retention of readings. A clock that jumps by a year discards all of them."""
SPARSENESS = 24.0
"""Readings of age t are about t / SPARSENESS apart: about 200 readings in 14 days."""
LEAST_READINGS = 6
LEAST_SPAN_S = 1500.0
REACH = 6.0
SHARE = (1 / 3, 2.0)
"""The range of the rise in each third of the time, relative to an even rise."""
HIGHER = 0.05
"""The last third must exceed the maximum before it by this share of the range."""
LEAST_RISE = 4.0
"""The least rise, as a multiple of the scatter around the fitted line."""
MOST_FITTED = 64
"""Readings in one fit: 2,016 pairs, about 0.5 ms."""


class Growth(NamedTuple):
    """A growth that passed the conditions of `growth`.

    Attributes:
        per_s: the growth per second, more than 0.
        span_s: the time over which it was measured.
    """

    per_s: float
    span_s: float

    def reaches_in_s(self, free: float) -> float | None:
        """Return the seconds until `free` is used up; None if that is beyond the forecast horizon."""
        wait_s = max(0.0, free) / self.per_s
        return wait_s if wait_s <= REACH * self.span_s else None


def remembered(points: Sequence[Point], now: float, used: float) -> tuple[Point, ...]:
    """Return the remembered readings, oldest first, with a new one added and old ones thinned out.

    Time is divided into boxes whose length doubles with the age, and each box keeps its first reading. The boxes are
    nested, so that thinning is consistent over time. Readings from the future (a wrong clock) are dropped.
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
    """Return the growth of the readings, given oldest first, or None; and the reason.

    A growth counts only if
    - it is steady: each third of the time has its share of the rise. A data set copied within an hour does not count;
    - it exceeds the earlier maximum: the rising edge of a sawtooth (checkpoints that are pruned) does not, nor does a
      disk that refills after pruning to a level below `healthy`, because it was pruned at that level before;
    - it is significant compared with the scatter, so that one outlier has no effect.
    The forecast horizon is `REACH` times the time over which the growth was measured. The longest span that passes
    counts: all remembered readings, else their last half, quarter, eighth ...
    """
    if len(points) < LEAST_READINGS or points[-1][0] - points[0][0] < LEAST_SPAN_S:
        return None, f"too few readings for a forecast ({len(points)})"
    start, end = points[0][0], points[-1][0]
    reason = "no growth"
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
                return None, "growing, but below the level at which space was freed before"
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
        return None, "too few readings in a third of the time"
    slope = slope_per_s(chosen, span_s / 4)
    if slope <= 0:
        return None, "no growth"
    rise = slope * span_s
    levels = [median([value for _, value in near]) for near in _boundaries(points)]
    shares = [after - before for before, after in pairwise(levels)]
    if not all(SHARE[0] * rise / 3 <= share <= SHARE[1] * rise / 3 for share in shares):
        return None, "no steady growth"
    before, last = [v for third in thirds[:2] for _, v in third], [v for _, v in thirds[2]]
    values = before + last
    # The third highest of the last third is not affected by one or two outliers.
    height = sorted(last)[-min(3, len(last))]
    if height <= sorted(before)[-1 - (len(before) > LEAST_READINGS)] + HIGHER * (max(values) - min(values)):
        return None, "not above the earlier maximum"
    base = median([value - slope * when for when, value in chosen])
    scatter = 1.4826 * median([abs(value - slope * when - base) for when, value in chosen])
    if rise < LEAST_RISE * scatter:
        return None, "growth not significant compared with the scatter"
    return Growth(slope, span_s), "growing"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most MOST_FITTED of the points, evenly spaced, the last one included."""
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
    """Return the three readings nearest to the start, to each third, and to the end of the time."""
    start, span_s = points[0][0], points[-1][0] - points[0][0]
    return [sorted(points, key=lambda p, at=start + k * span_s / 3: abs(p[0] - at))[:3] for k in range(4)]  # type: ignore[misc]


SILENT_S = 86400.0
"""How long the history of a source is kept while the source does not respond."""
MOST_KEYS = 12
"""The most limits of one subject with a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReading:
    """The reading of one subject.

    Attributes:
        path: the path that was probed.
        roles: its roles in the training: `project directory`, `$SCRATCH`.
        mount: the mount point of the file system.
        type: ext4, lustre ...
        device: the mounted device or export.
        is_local: whether the file system is probably local to this node.
        is_needed: whether the training writes there.
        is_named: whether the settings name the path.
        is_read: whether the training only reads there.
        trouble: why nothing could be read: missing, dangling, unreadable, stale; otherwise empty.
        detail: the same as a sentence.
        advice: what to do about it.
        read_only: whether the file system is mounted read-only.
        seen_writable: whether it was ever seen writable.
        amounts: the usage of each limit.
        history: times and usage by the key of an amount, oldest first.
        mounts: by path: mount point, type and device on which it was last accessible, and when.
        checkpoint: size and interval of checkpoints; see measure.CheckpointStats.
        purge: files that will be purged; see measure.PurgeCandidates.
        du: the time and total of the last du.
        silent: limits that could not be read, and why; they may be exceeded.
        looked: the explanation for `--explain`.
    """

    path: str
    roles: tuple[str, ...] = ()
    mount: str = ""
    type: str = ""
    device: str = ""
    is_local: bool = False
    is_needed: bool = False
    is_named: bool = False
    is_read: bool = False
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
    """The mount on which a path was last accessible; stored as a plain tuple."""

    point: str
    type: str
    device: str
    time: float


def is_whole(reading: FileSystemReading) -> bool:
    """Return whether a remembered reading is well-formed; the file may have been edited by hand."""
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
    """Return the remembered readings of one amount, skipping malformed rows (a file edited by hand)."""
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
    """Return the history with the new amounts; sources that do not respond keep theirs for SILENT_S."""
    past = old.history if old is not None else {}
    now_known = {item.key: remembered(points_of(past, item.key), now, item.used) for item in amounts}
    silent = {key: points for key in past if key not in now_known and (points := points_of(past, key))}
    lasting = {key: points for key, points in silent.items() if 0 <= now - points[-1][0] < SILENT_S}
    return dict(list({**now_known, **lasting}.items())[:MOST_KEYS])


def missing_limits(
    old: FileSystemReading | None, amounts: Sequence[Amount], failed: Mapping[str, str], required: Sequence[str]
) -> tuple[str, ...]:
    """Return the errors of sources that matter: those in `required`, and those with limits known from earlier probes.

    Errors of quota tools that never reported a limit are ignored: many sites install one without a quota server.
    """
    said = [f"{name}: {failed[name]}" for name in required if name in failed]
    if said or not failed or old is None:
        return tuple(said)
    why = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
    known = {item.key for item in amounts}
    keys = [key.split("/") for key in old.history if key not in known and points_of(old.history, key)]
    scopes = [f"{scope} ({source})" for source, scope, _ in (key for key in keys if len(key) == 3)
              if scope not in (FILE_SYSTEM, "directory", "quota")]  # fmt: skip
    return (f"the limit of {', '.join(scopes)}: {why}",) if scopes else ()
