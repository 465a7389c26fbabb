"""What `resil status` and `resil watch ckpt` say of a directory of checkpoints, from its names and small records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from resilience.checkpoints.directory import Checkpoint, StoreDirectory, list_names, read_record
from resilience.checkpoints.names import PRUNE, VERIFIED
from resilience.checkpoints.quarantine import reason
from resilience.checkpoints.verified import read_verified
from resilience.errors import CheckpointError
from resilience.messages import plural
from resilience.switch import describe_age

MOST_LOOKED = 8
"""Of so many checkpoints the verifications are read: each needs its manifest, which a million files make large."""
MOST_SENTENCES = 2
VERIFIES = "digest"
"""The level that counts as verified: every file was read again and was found equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One checkpoint, as far as small records tell.

    Attributes:
        name: its name in the directory.
        step: number of completed steps.
        at: when it became durable, in seconds since the epoch; 0: unknown.
        level: the level at which it was last verified; empty: never.
        verified_at: when, in seconds since the epoch; 0: never.
        fault: why it is damaged, as that verification found it; empty if it found no fault.
    """

    name: str
    step: int
    at: float = 0.0
    level: str = ""
    verified_at: float = 0.0
    fault: str = ""

    @property
    def is_verified(self) -> bool:
        """Return whether every file was read again and found equal."""
        return self.level == VERIFIES and not self.fault


class Aside(NamedTuple):
    """One checkpoint that was set aside: why, by whom (`resil`, or a user), and when, in seconds since the epoch."""

    name: str
    why: str
    who: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """A directory of checkpoints.

    Attributes:
        path: of the directory.
        run: name of its run; empty: of none.
        count: number of checkpoints, committed or sealed.
        newest: the one with the highest step; None: there is none.
        verified: the newest that was read again and found equal; None: there is none.
        parts: names of saves in flight, or left by killed processes.
        bad: those that were set aside.
        trash: number of names to be deleted.
        prune_failure: why the last prune failed; empty if it did not.
        trouble: why the directory could not be read; empty if it could.
    """

    path: str
    run: str = ""
    count: int = 0
    newest: Saved | None = None
    verified: Saved | None = None
    parts: tuple[str, ...] = ()
    bad: tuple[Aside, ...] = ()
    trash: int = 0
    prune_failure: str = ""
    trouble: str = ""


def read_summary(path: str) -> StoreSummary | None:
    """Return what is in a directory of checkpoints, or why it could not be read; None if it has none yet."""
    store = StoreDirectory(path)
    try:
        if not store.is_there():
            return None
        return summarize(store)
    except CheckpointError as error:
        return StoreSummary(path=path, trouble=error.message)
    except OSError as error:
        return StoreSummary(path=path, trouble=f"cannot read {error.filename or path}: {error.strerror or error}")


def summarize(store: StoreDirectory) -> StoreSummary:
    """Return what is in a directory of checkpoints. Raise CheckpointError, OSError if it cannot be read."""
    run, checkpoints = store.run(), store.checkpoints()
    records = {name.removesuffix(".json") for name in list_names(store.own / VERIFIED)}
    read = (_saved(one) for one in [one for one in reversed(checkpoints) if one.name in records][:MOST_LOOKED])
    return StoreSummary(
        path=str(store.path),
        run=run,
        count=len(checkpoints),
        newest=_saved(checkpoints[-1]) if checkpoints else None,
        verified=next((saved for saved in read if saved.is_verified), None),
        parts=tuple(store.parts()),
        bad=tuple(_bad(store)),
        trash=len(store.trash()),
        prune_failure=_prune_failure(store),
    )


def _saved(checkpoint: Checkpoint) -> Saved:
    saved, found = Saved(name=checkpoint.name, step=checkpoint.step), None
    for path in (checkpoint.path, checkpoint.manifest_path):
        with suppress(OSError):
            saved = replace(saved, at=os.stat(path).st_mtime)
    with suppress(OSError, CheckpointError):
        found = read_verified(checkpoint)
    if found is None:
        return saved
    fault = str(found.fault) if found.fault is not None else ""
    return replace(saved, level=found.level, verified_at=found.at, fault=fault)


def describe_summary(summary: StoreSummary, now: float) -> str:
    """Return a summary as a sentence: `step 41200 verified, saved 12 min ago (step-00041200)`. Pure."""
    newest, verified = summary.newest, summary.verified
    if summary.trouble:
        return f"unknown: {summary.trouble}"
    if newest is None:
        return "none yet" if not summary.bad else f"none is left: {plural(len(summary.bad), 'checkpoint')} set aside"
    shown = verified or newest
    state = "verified" if verified is not None else "damaged" if newest.fault else "not verified"
    text = f"step {shown.step} {state}, saved{describe_age(now - shown.at) or ' just now'} ({shown.name})"
    if verified is not None and newest.name != verified.name:
        text += f"; step {newest.step} {'is damaged' if newest.fault else 'not verified yet'}"
    return text


def _bad(store: StoreDirectory) -> Iterator[Aside]:
    for name in store.bad():
        record: dict[str, Any] = {}
        with suppress(OSError, CheckpointError):
            record = reason(store, name)
        at = record.get("at")
        why, who = str(record.get("why") or "no reason recorded"), str(record.get("who") or "")
        yield Aside(name, why, who, float(at) if isinstance(at, int | float) else 0.0)


def _prune_failure(store: StoreDirectory) -> str:
    failed: Any = []
    with suppress(OSError):
        failed = read_record(store.own / PRUNE).get("failed")
    return "; ".join(map(str, failed[:MOST_SENTENCES])) if isinstance(failed, list) else ""
