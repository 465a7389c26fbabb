"""What was seen of one file system: plain values, to remember and to judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resilience.model.trend import Point


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
        amounts: rows of Amount.
        history: by the key of an amount: what was used when, oldest first.
        mounts: by path: mount point, type and device it was last seen on in good order, and when.
        checkpoint: what one checkpoint takes, and how often one is written; see checkpoints.Learned.
        purge: which files will be deleted for their age; see purge.Doomed.
        du: when du last counted, and its total.
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
    amounts: tuple[dict[str, Any], ...] = ()
    history: dict[str, tuple[Point, ...]] = field(default_factory=dict)
    mounts: dict[str, tuple[str, str, str, float]] = field(default_factory=dict)
    checkpoint: dict[str, Any] = field(default_factory=dict)
    purge: dict[str, Any] = field(default_factory=dict)
    du: dict[str, float] = field(default_factory=dict)
    looked: tuple[str, ...] = ()


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
