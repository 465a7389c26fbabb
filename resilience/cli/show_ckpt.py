"""How `resil ckpt list` and `show` print checkpoints, from manifests and small records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from resilience.checkpoints.directory import Checkpoint, StoreDirectory
from resilience.checkpoints.manifest import Manifest
from resilience.checkpoints.names import BAD, OWN, TRASH, parse_part
from resilience.checkpoints.pins import Pin, read_pins
from resilience.checkpoints.quarantine import reason
from resilience.checkpoints.verified import Verified, read_verified
from resilience.cli.output import clean, paint, print_json, print_table
from resilience.errors import CheckpointError
from resilience.messages import plural, quoted
from resilience.quantities import format_bytes, format_duration
from resilience.system.ports import iso_time

NAMES_SHOWN = 4
_FIELDS = (
    "run", "attempt", "label", "world", "started_at", "durable_at", "stall_s", "algorithm", "metrics",
    "size_bytes", "inodes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint, as its manifest and small records tell.

    Attributes:
        checkpoint: the one.
        manifest: None if it cannot be read.
        problem: why not.
        verified: the newest verification, or None.
        pin: why it is kept, or None.
    """

    checkpoint: Checkpoint
    manifest: Manifest | None
    problem: str
    verified: Verified | None
    pin: Pin | None

    @property
    def is_damaged(self) -> bool:
        """Return whether the newest verification found a fault."""
        return self.verified is not None and self.verified.fault is not None


def show_list(store: StoreDirectory, now: float, *, as_json: bool) -> None:
    """Print all that is in a directory of checkpoints. Raise CheckpointError, OSError."""
    pins = read_pins(store)
    rows = [_row(one, pins.get(one.name)) for one in store.checkpoints()]
    rows = [row for row in rows if not row.problem or os.path.lexists(row.checkpoint.path)]  # deleted meanwhile
    aside = {name: reason(store, name) for name in store.bad()}
    parts, trash, others = store.parts(), store.trash(), foreign(store)
    if as_json:
        content = {"store": store.path, "run": store.run(), "checkpoints": [_json(row) for row in rows]}
        bad = [{**why, "name": name} for name, why in aside.items()]
        print_json("checkpoints", content | {"parts": parts, "bad": bad, "trash": trash, "foreign": others})
        return
    if rows:
        headers = ("CHECKPOINT", "STEP", "SAVED", "SIZE", "FILES", "VERIFIED", "NOTES")
        print_table(headers, [_cells(row, now) for row in rows], ["red" if row.is_damaged else "" for row in rows])
    else:
        print(f"no checkpoint yet in {clean(str(store.path))}")
    for name in parts:
        print(f"  {clean(name)}: a save in flight, or left by one that was killed")
    for name, why in aside.items():
        print(f"  {clean(name)} is set aside: {clean(_why(why))}")
    if trash:
        print(f"  {plural(len(trash), 'checkpoint')} still to be deleted: resil ckpt prune")
    if others:
        shown = ", ".join(clean(name) for name in others[:NAMES_SHOWN])
        more = f" and {len(others) - NAMES_SHOWN:,} more" if len(others) > NAMES_SHOWN else ""
        print(f"  not checkpoints, or not sealed: {shown}{more}")


def show_checkpoint(checkpoint: Checkpoint, pin: Pin | None, now: float, *, as_json: bool) -> None:
    """Print what is known of a checkpoint. Raise OSError."""
    row = _row(checkpoint, pin)
    if as_json:
        print_json("checkpoint", _json(row) | {"files": row.manifest.files if row.manifest is not None else ()})
        return
    print(f"{paint(clean(checkpoint.name), 'bold')}  {clean(str(checkpoint.path))}")
    for key, text in _facts(row, now):
        print(f"  {key:<9} {clean(text)}")


def show_set_aside(store: StoreDirectory, name: str, *, as_json: bool) -> None:
    """Print why a checkpoint was set aside. Raise CheckpointError, OSError."""
    why = reason(store, name)
    if as_json:
        print_json("checkpoint", {"name": name, "set_aside": why})
        return
    at = why.get("at")
    when = f", {iso_time(float(at))[:16].replace('T', ' ')}" if isinstance(at, int | float) else ""
    print(f"{clean(name)}  set aside by {clean(str(why.get('who') or 'resil'))}{when}")
    print(f"  {clean(_why(why))}")
    if "file" in why and str(why.get("found")) not in _why(why):
        print(clean(f"  {why['file']}: expected {why.get('expected')}, found {why.get('found')}"))
    print(f"  take it back: resil ckpt restore {quoted(name)}")


def foreign(store: StoreDirectory) -> list[str]:
    """Return the names in the directory that are neither checkpoints nor ours. Raise OSError."""
    known = {OWN, BAD, TRASH, *(one.name for one in store.checkpoints())}
    names = os.listdir(store.path)  # noqa: PTH208 - there may be two million
    return sorted(name for name in names if name not in known and parse_part(name) is None)


def _why(why: dict[str, Any]) -> str:
    return str(why.get("why") or "no reason is known")


def _row(checkpoint: Checkpoint, pin: Pin | None) -> Row:
    try:
        return Row(checkpoint, checkpoint.manifest(), "", read_verified(checkpoint), pin)
    except CheckpointError as error:
        problem = error.message
    except OSError as error:
        problem = f"its manifest cannot be read: {error.strerror}"
    return Row(checkpoint, None, problem, None, pin)


def _json(row: Row) -> dict[str, Any]:
    one = row.checkpoint
    known = {"name": one.name, "path": one.path, "step": one.step, "is_sealed": one.is_sealed}
    found = row.verified
    verified = found and {"token": found.token, "level": found.level, "at": found.at, "fault": found.fault}
    known |= {"problem": row.problem, "pin": row.pin, "verified": verified}
    return known | {name: None if row.manifest is None else getattr(row.manifest, name) for name in _FIELDS}


def _cells(row: Row, now: float) -> tuple[str, ...]:
    checkpoint, manifest = row.checkpoint, row.manifest
    notes = [f"label {manifest.label}"] if manifest is not None and manifest.label else []
    if row.pin is not None:
        notes.append(f"pinned: {row.pin.why}" if row.pin.why else "pinned")
    if checkpoint.is_sealed:
        notes.append("sealed")
    if row.problem:
        notes.append(row.problem)
    if row.verified is not None and row.verified.fault is not None:
        notes.append(str(row.verified.fault))
    return (
        checkpoint.name,
        str(checkpoint.step),
        "" if manifest is None else ago(manifest.durable_at, now),
        "" if manifest is None else format_bytes(manifest.size_bytes),
        "" if manifest is None else f"{len(manifest.files):,}",
        "damaged" if row.is_damaged else _describe(row.verified, now),
        "; ".join(notes),
    )


def ago(at: float, now: float) -> str:
    """Return the age of a moment, both in seconds since the epoch; empty if it is unknown."""
    return f"{format_duration(now - at)} ago" if 0 < at <= now - 1 else "just now" if at else ""


def _describe(verified: Verified | None, now: float) -> str:
    if verified is not None and verified.fault is not None:
        return f"damaged: {verified.fault}"
    return ago(verified.at, now) if verified is not None and verified.level == "digest" else "no"


def _facts(row: Row, now: float) -> Iterator[tuple[str, str]]:
    manifest = row.manifest
    yield "step", f"{row.checkpoint.step}{', sealed' if row.checkpoint.is_sealed else ''}"
    if manifest is None:
        yield "problem", row.problem
        return
    by = f" by attempt {manifest.attempt}" if manifest.attempt else ""
    ranks = f", {plural(manifest.world, 'rank')}" if manifest.world else ""
    when = iso_time(manifest.durable_at)[:16].replace("T", " ")
    yield (
        "saved",
        f"{when} ({ago(manifest.durable_at, now)}){by}{f' of {manifest.run}' if manifest.run else ''}{ranks}",
    )
    if manifest.stall_s is not None and manifest.durable_at > manifest.started_at > 0:
        took_s = manifest.durable_at - manifest.started_at
        yield "took", f"{format_duration(took_s)}, of which the training waited {format_duration(manifest.stall_s)}"
    if manifest.label:
        yield "label", manifest.label
    if manifest.metrics:
        yield "metrics", ", ".join(f"{name} {value:g}" for name, value in sorted(manifest.metrics.items()))
    size = format_bytes(manifest.size_bytes)
    yield "size", f"{size} in {plural(len(manifest.files), 'file')}, digests by {manifest.algorithm}"
    for entry in sorted(manifest.files, key=lambda one: -one.size)[:NAMES_SHOWN]:
        yield "", f"{format_bytes(entry.size)}  {entry.path or row.checkpoint.name}"
    yield "verified", _describe(row.verified, now)
    if row.pin is not None:
        yield "pinned", f"{row.pin.why or 'no reason given'}{f', by {row.pin.who}' if row.pin.who else ''}"
