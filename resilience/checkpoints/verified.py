"""What verifications have shown: one small record per checkpoint, in `.resil/verified/`.

A commit's own digest is no verification: a record means that the files were read again, later.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from resilience.checkpoints.directory import Checkpoint, StoreDirectory, read_record, write_record
from resilience.checkpoints.names import OWN, VERIFIED
from resilience.checkpoints.verify import LEVELS, Fault, Verification, verify


@dataclass(frozen=True, slots=True)
class Verified:
    """The record of one verification.

    Attributes:
        token: of the manifest that was verified.
        level: of `verify.LEVELS`.
        at: when, in seconds since the epoch.
        fault: None if the checkpoint was good.
    """

    token: str
    level: str
    at: float
    fault: Fault | None = None


def read_verified(checkpoint: Checkpoint) -> Verified | None:
    """Return a checkpoint's record, or None if it was never verified as it is now. Raise CheckpointError; OSError."""
    found = _read(checkpoint)
    return found if found is not None and found.token == checkpoint.manifest().token else None


def write_verified(checkpoint: Checkpoint, verification: Verification, now: float) -> None:
    """Record a verification of all shares, `now` in seconds since the epoch. Raise OSError.

    An unknown or incomplete one is not recorded. One of a lower level does not replace one of a higher, unless that was
    good and this found a fault: sizes and structure show nothing of the content.
    """
    if verification.fault is None and not verification.is_good:
        return
    old = _read(checkpoint)
    is_deeper = old is not None and LEVELS.index(old.level) > LEVELS.index(verification.level)
    if old is not None and is_deeper and old.token == verification.token and (old.fault or not verification.fault):
        return
    record = Verified(verification.token, verification.level, now, verification.fault)
    path = checkpoint.store / OWN / VERIFIED
    path.mkdir(parents=True, exist_ok=True)
    write_record(path / f"{checkpoint.name}.json", asdict(record))


def verify_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store` and `name`. Read all files, record that, and return the fault, or nothing."""
    checkpoint = StoreDirectory.open(job["store"]).find(job["name"])
    found = verify(checkpoint)
    with suppress(OSError):  # a directory that may only be read
        write_verified(checkpoint, found, time.time())
    return {"fault": str(found.fault or "")}


def _read(checkpoint: Checkpoint) -> Verified | None:
    record = read_record(checkpoint.store / OWN / VERIFIED / f"{checkpoint.name}.json")
    try:
        fault = Fault(**record["fault"]) if record["fault"] is not None else None
        level = LEVELS[LEVELS.index(record["level"])]
        return Verified(str(record["token"]), level, float(record["at"]), fault)
    except (ValueError, TypeError, KeyError):
        return None
