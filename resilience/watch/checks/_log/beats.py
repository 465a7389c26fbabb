"""What the guard's heartbeats say of an attempt: the slowest rank, and whether their mirror lives. Pure.

Format: docs/reference/run-directory.md. All times in a heartbeat are of its node's clock, so only their differences are
used, and how long ago it was written is told by our own looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilience.watch.checks._log.digest import INTERVALS
from resilience.watch.checks._log.threshold import phase_of
from resilience.watch.checks._log.words import Beat


def parse_beat(content: bytes) -> Mapping[str, Any] | None:
    """Given a heartbeat's file, return its table, or None when it is damaged."""
    import tomllib

    try:
        table = tomllib.loads(content.decode("utf-8", "replace"))
        float(table["time"]), dict(table["rank"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return table


def merge_beats(
    files: Sequence[tuple[str, bytes, float]], attempt: int, before: Beat | None, now: float, since: float = 0.0
) -> Beat | None:
    """Given the heartbeats of all nodes, return the state of the attempt's slowest rank; None when there is none.

    `attempt` 0 takes them whatever attempt they are of. `files` are (name, content, mtime). `since` is when we looked
    before: a heartbeat that has gone on was written after that, whatever the file server's clock says.
    """
    known = {name: (value, since) for name, value, since in before.stamps} if before is not None else {}
    stamps: list[tuple[str, float, float]] = []
    ranks: list[tuple[float, int, int, str, str, float]] = []
    gone: list[str] = []
    left = count = 0
    for name, content, mtime in files:
        table = parse_beat(content)
        if table is None or (attempt and table.get("attempt") not in (attempt, 0)):
            continue
        value = float(table["time"])
        old = known.get(name)
        went_on = min(now, mtime if old is None else max(since, mtime))
        written = old[1] if old is not None and old[0] == value else went_on
        stamps.append((name, value, written))
        host = str(table.get("host", ""))
        for number, rank in dict(table["rank"]).items():
            try:
                step, advanced = int(rank["step"]), float(rank["advanced"])
            except (KeyError, TypeError, ValueError):
                continue
            count += 1
            if rank.get("gone"):
                gone.append(f"{number} on {host}")
            elif rank.get("left"):
                left += 1
            else:
                quiet_s = max(0.0, value - advanced)
                ranks.append((written - quiet_s, step, int(number), host, str(rank.get("phase", "")), written))
    if not count:
        return None
    if not ranks:
        written = max(since for _, _, since in stamps)
        return Beat(stamps=tuple(stamps), written=written, advanced=written, ranks=count, gone=tuple(gone), left=left)
    # Ranks wait for each other: the one with the fewest steps keeps the others, and any that stands still is too many.
    advanced = min(rank[0] for rank in ranks)
    _, step, number, host, phase, written = min(ranks, key=lambda rank: (rank[1], rank[0], rank[2]))
    phases = {phase_of(rank[4]) for rank in ranks}
    phase = next((word for word in ("save", "eval", "start") if word in phases), phase)
    intervals = before.intervals if before is not None else ()
    if before is not None and step > before.step and advanced > before.advanced > 0:
        intervals = (*intervals, (advanced - before.advanced) / (step - before.step))[-INTERVALS:]
    return Beat(
        step=step, rank=number, host=host, phase=phase, advanced=advanced, written=written, stamps=tuple(stamps),
        intervals=intervals, ranks=count, gone=tuple(gone), left=left,
    )  # fmt: skip
