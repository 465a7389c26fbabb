"""What verifications have shown: one small record per checkpoint, in `.resil/verified/`.

A commit's own digest is no verification: a record means that the files were read again, later.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from resilience.base.files import read_regular, replace_file
from resilience.checkpoints.directory import Checkpoint, StoreDirectory
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

    An unknown or incomplete one is not recorded, and a good one of a lower level does not replace that of a higher.
    """
    if verification.fault is None and not verification.is_good:
        return
    old = _read(checkpoint)
    is_same = old is not None and old.token == verification.token and old.fault == verification.fault
    if old is not None and is_same and LEVELS.index(old.level) > LEVELS.index(verification.level):
        return
    record = Verified(verification.token, verification.level, now, verification.fault)
    path = checkpoint.store / OWN / VERIFIED
    path.mkdir(exist_ok=True)
    replace_file(path / f"{checkpoint.name}.json", json.dumps(asdict(record)) + "\n", mode=0o644)


def verify_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job of the worker: `store`, `name`, and if not the default `level`, `node`, `nodes` and `budget_s`.

    Records the verification, unless it is that of a share. `from_answer` reads the answer.
    """
    checkpoint = StoreDirectory.open(job["store"]).find(job["name"])
    deadline = time.monotonic() + job["budget_s"] if job.get("budget_s") else None
    node, nodes = job.get("node", 0), job.get("nodes", 1)
    found = verify(checkpoint, job.get("level", "digest"), node=node, nodes=nodes, deadline=deadline)
    if nodes <= 1:
        with suppress(OSError):  # a directory that may only be read
            write_verified(checkpoint, found, time.time())
    return asdict(found)


def from_answer(answer: dict[str, Any]) -> Verification:
    """Return the verification in the answer of `verify_job`."""
    return Verification(**answer | {"fault": Fault(**answer["fault"]) if answer["fault"] else None})


def _read(checkpoint: Checkpoint) -> Verified | None:
    found = read_regular(checkpoint.store / OWN / VERIFIED / f"{checkpoint.name}.json")
    try:
        record = json.loads(found[0]) if found is not None else {}
        fault = Fault(**record["fault"]) if record["fault"] is not None else None
        level = LEVELS[LEVELS.index(record["level"])]
        return Verified(str(record["token"]), level, float(record["at"]), fault)
    except (ValueError, TypeError, KeyError):
        return None
