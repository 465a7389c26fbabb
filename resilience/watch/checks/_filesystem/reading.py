"""What was seen of one file system: plain values, to remember and to judge. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilience.watch.checks._filesystem.amount import FILE_SYSTEM, Amount
from resilience.watch.checks._filesystem.growth import remembered
from resilience.watch.checks._filesystem.trend import Point

SILENT_S = 86400.0
"""What a source told is kept for so long when it gives no answer."""
MOST_KEYS = 12
"""Limits of one subject whose growth is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystemReading:
    """What was seen of one subject.

    Attributes:
        path: what was looked at.
        roles: what it is to the training: `project folder`, `$SCRATCH`.
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
        checkpoint: what one checkpoint takes, and how often one is written; see checkpoints.Learned.
        purge: which files will be deleted for their age; see purge.Doomed.
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
              if scope not in (FILE_SYSTEM, "folder", "quota")]  # fmt: skip
    return (f"the limit of {', '.join(scopes)}: {why}",) if scopes else ()
