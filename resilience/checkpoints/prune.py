"""Deletes the checkpoints that retention lets go: reads the newest first, and renames before it deletes.

Killed at any moment, each checkpoint is complete in its place or in the trash, and the next call goes on. Runs in a
child process beside the training (`start_prune`), because deleting 40,000 files takes long, and a file server may hang.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from resilience.checkpoints import starts, trash
from resilience.checkpoints.child import Worker
from resilience.checkpoints.directory import Checkpoint, StoreDirectory, write_record
from resilience.checkpoints.manifest import NewerManifest
from resilience.checkpoints.names import PRUNE
from resilience.checkpoints.pins import is_pinned
from resilience.checkpoints.retention import FLOOR, Best, Candidate, Deleted, Kept, Policy, plan
from resilience.checkpoints.verified import read_trusted, write_verified
from resilience.checkpoints.verify import Verification, verify
from resilience.errors import CheckpointError, ResilError


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did, or with `dry_run` would do.

    Attributes:
        verdicts: of each checkpoint, the oldest first.
        failed: sentences: what could not be deleted, and which checkpoint is damaged.
    """

    verdicts: tuple[Kept | Deleted, ...]
    failed: tuple[str, ...] = ()

    @property
    def deleted(self) -> tuple[Deleted, ...]:
        """Return what went."""
        return tuple(one for one in self.verdicts if isinstance(one, Deleted))

    @property
    def freed_bytes(self) -> int:
        """Return the size of what went."""
        return sum(one.size_bytes for one in self.deleted)


def start_prune(store: StoreDirectory, policy: Policy, *, manage: bool = False) -> Worker:
    """Start `run` in a child process with low priority, which ends with this one. Raise CheckpointError.

    Its answer, and `.resil/prune.json`, have `deleted` (names), `freed_bytes` and `failed` (sentences).
    """
    return Worker.start(
        {"do": "prune", "store": str(store.path), "policy": asdict(policy), "manage": manage, "with_parent": True}
    )


def prune_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store`, `policy` and `manage`. See `run`."""
    values = dict(job["policy"])
    best = values.pop("best")
    policy = Policy(**values, best=Best(**best) if best else None)
    return _to_record(run(StoreDirectory.open(job["store"]), policy, now=time.time(), manage=job["manage"]))


def run(store: StoreDirectory, policy: Policy, *, now: float, dry_run: bool = False, manage: bool = False) -> Pruned:
    """Verify the newest checkpoints, delete what the policy lets go, and empty the trash; record it in `prune.json`.

    A commit's own digest is no verification: the newest two are read again before anything is deleted, unless they
    were within TRUSTED_S. If nothing can go anyway, nothing is read.

    Args:
        store: the directory.
        policy: what to keep.
        now: seconds since the epoch.
        dry_run: look and read as well, and delete nothing.
        manage: also delete sealed checkpoints, which a framework named.

    Raises:
        UsageError: the policy's metric is unknown; nothing was deleted.
        OSError: the directory cannot be read.
    """
    if dry_run:
        return _prune(store, policy, now, True, manage)
    pruned = Pruned(())
    try:
        pruned = _prune(store, policy, now, False, manage)
        pruned = replace(pruned, failed=pruned.failed + trash.empty(store).failed)
    except (ResilError, OSError) as error:
        _record(store, now, replace(pruned, failed=(*pruned.failed, _words(error))))
        raise
    return replace(pruned, failed=pruned.failed + _record(store, now, pruned))


def _prune(store: StoreDirectory, policy: Policy, now: float, dry_run: bool, manage: bool) -> Pruned:
    found = {one.name: one for one in store.checkpoints()}
    verdicts: dict[str, Kept | Deleted] = {}
    failed: list[str] = []
    candidates = []
    for one in found.values():
        try:
            candidates.append(_candidate(store, one, is_foreign=one.is_sealed and not manage))
        except (CheckpointError, OSError, TypeError, ValueError) as error:  # not for us to delete
            verdicts[one.name] = Kept(one.name, f"its manifest cannot be read: {_words(error)}")
            if not isinstance(error, NewerManifest):
                failed.append(_words(error))
    resumed_from = starts.read_start(store).checkpoint

    def decide(verified: set[str]) -> tuple[Kept | Deleted, ...]:
        looked = [replace(one, is_verified=one.name in verified) for one in candidates]
        return plan(looked, policy, now, resumed_from=resumed_from)

    decided = decide(set(found))
    if any(isinstance(one, Deleted) for one in decided):
        newest = [one for one in reversed(candidates) if not one.is_foreign]
        decided = decide(_read_newest(found, newest, now, failed))
    for verdict in decided:
        kept = ""
        if isinstance(verdict, Deleted) and not dry_run:
            kept = _discard(store, found[verdict.name], failed)
        verdicts[verdict.name] = Kept(verdict.name, kept) if kept else verdict
    return Pruned(tuple(verdicts[name] for name in found), tuple(failed))


def _candidate(store: StoreDirectory, checkpoint: Checkpoint, *, is_foreign: bool) -> Candidate:
    manifest = checkpoint.manifest()
    return Candidate(
        name=checkpoint.name,
        step=checkpoint.step,
        attempt=manifest.attempt,
        at=manifest.durable_at,
        label=manifest.label,
        metrics={name: float(value) for name, value in manifest.metrics.items()},
        is_pinned=is_pinned(store, checkpoint.name),
        size_bytes=manifest.size_bytes,
        is_foreign=is_foreign,
    )


def _read_newest(
    found: Mapping[str, Checkpoint], newest: Sequence[Candidate], now: float, failed: list[str]
) -> set[str]:
    """Return the names of the newest that verify, as many as the floor of retention needs for those below them."""
    verified: list[Candidate] = []
    for number, one in enumerate(newest):
        attempt = max(other.attempt for other in newest[number:])
        if len({other.step for other in verified if not 0 < other.attempt < attempt}) >= FLOOR:
            break
        shown = _look(found[one.name], now)
        if shown.is_good:
            verified.append(one)
        else:
            failed.append(f"{one.name} does not count as verified, so an older one stays: {shown}")
    return {one.name for one in verified}


def _look(checkpoint: Checkpoint, now: float) -> Verification:
    if (known := read_trusted(checkpoint, now)) is not None:
        return verify(checkpoint, "structure") if known.fault is None else Verification("digest", known.fault)
    found = verify(checkpoint, "digest")
    with suppress(OSError):  # a full disk, which the prune is to relieve
        write_verified(checkpoint, found, now)
    return found


def _discard(store: StoreDirectory, checkpoint: Checkpoint, failed: list[str]) -> str:
    """Rename a checkpoint into the trash; return why it stays after all, or nothing."""
    try:
        if is_pinned(store, checkpoint.name):
            return "pinned"  # while others were read
        trash.discard(store, checkpoint.name, seal=checkpoint.seal)
    except FileNotFoundError:  # another prune was first
        return ""
    except OSError as error:
        failed.append(f"cannot delete {checkpoint.path}: {error.strerror}")
        return failed[-1]
    return ""


def _record(store: StoreDirectory, now: float, pruned: Pruned) -> tuple[str, ...]:
    """Write `prune.json`; return why it could not be written, if so: a full disk takes renames only."""
    path = store.own / PRUNE
    try:
        write_record(path, {"at": now} | _to_record(pruned))
    except OSError as error:
        return (f"cannot write {path}: {error.strerror}",)
    return ()


def _words(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)


def _to_record(pruned: Pruned) -> dict[str, Any]:
    deleted = [one.name for one in pruned.deleted]
    return {"deleted": deleted, "freed_bytes": pruned.freed_bytes, "failed": pruned.failed[: trash.MOST_FAILURES]}
