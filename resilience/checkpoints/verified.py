"""What verifications have shown: one small record per checkpoint, in `.resil/verified/`.

A commit's own digest is no verification: a record means that the files were read again, later.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from resilience.checkpoints.directory import Checkpoint, StoreDirectory, read_record, write_record
from resilience.checkpoints.names import OWN, VERIFIED
from resilience.checkpoints.verify import LEVELS, Fault, Verification, stamp_of, verify

TRUSTED_S = 24 * 3600.0
"""A checkpoint read and found good within this time is not read again, unless it changed."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The record of one verification.

    Attributes:
        token: of the manifest that was verified.
        level: of `verify.LEVELS`.
        at: when, in seconds since the epoch.
        fault: None if the checkpoint was good.
        stamp: of what was read, see `stamp_of`; empty if it was not all read.
    """

    token: str
    level: str
    at: float
    fault: Fault | None = None
    stamp: str = ""


def read_verified(checkpoint: Checkpoint) -> Verified | None:
    """Return a checkpoint's record, or None if it was never verified as it is now. Raise CheckpointError; OSError.

    A good one that was copied since is not verified: the copy was not read. Its files are not looked at.
    """
    found = _read(checkpoint)
    if found is None or found.token != checkpoint.manifest().token:
        return None
    is_copy = found.stamp and found.stamp.split()[0] != str(os.lstat(checkpoint.manifest_path).st_ctime_ns)
    return None if is_copy and found.fault is None else found


def read_trusted(checkpoint: Checkpoint, now: float) -> Verified | None:
    """Return the record of all content, if it was read within TRUSTED_S before `now` (seconds since the epoch), and no
    file has changed since. Raise CheckpointError; OSError."""
    found = read_verified(checkpoint)
    if found is None or found.level != "digest" or not 0 <= now - found.at < TRUSTED_S:
        return None
    is_same = found.fault is not None or found.stamp == stamp_of(checkpoint, checkpoint.manifest())
    return found if is_same else None


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
    record = Verified(verification.token, verification.level, now, verification.fault, verification.stamp)
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
        return Verified(str(record["token"]), level, float(record["at"]), fault, str(record.get("stamp") or ""))
    except (ValueError, TypeError, KeyError):
        return None
