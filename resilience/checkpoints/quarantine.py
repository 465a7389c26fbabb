"""Sets bad checkpoints aside: renamed into `.bad/`, each with a record that says why. Nothing is deleted here."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress

from resilience.base.files import read_regular, replace_file, sync_directory
from resilience.checkpoints.directory import (
    MOST_MANIFEST_BYTES,
    Checkpoint,
    StoreDirectory,
    read_record,
    write_record,
)
from resilience.checkpoints.names import BAD, SEALS, VERIFIED, WHY, parse_committed, parse_seal
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from resilience.checkpoints.verify import Fault

SEAL = ".seal.json"
"""Ending of the seal of a sealed checkpoint, in `.bad/`."""


def set_aside(
    store: StoreDirectory, checkpoint: Checkpoint, *, fault: Fault | None = None, why: str = "", who: str = "resil"
) -> Path:
    """Rename a checkpoint into `.bad/`, where nothing loads or deletes it, and return its path there.

    Args:
        store: the directory of checkpoints.
        checkpoint: one of its checkpoints.
        fault: what was found: file, expected and found are recorded.
        why: a sentence; default: the fault.
        who: the program or person that sets it aside.

    The record is written first: a checkpoint in `.bad/` always has one. Raise CheckpointError if it is gone; OSError.
    """
    bad = store.path / BAD
    bad.mkdir(exist_ok=True)
    name = _free_name(bad, checkpoint.name)
    record = {
        "name": checkpoint.name, "step": checkpoint.step, "seal": checkpoint.seal, "why": why or str(fault or ""),
        "who": who, "at": time.time(),
    }  # fmt: skip
    if fault is not None:
        record |= {"file": fault.file, "expected": fault.expected, "found": fault.found}
    write_record(bad / f"{name}{WHY}", record, durable=True)
    if checkpoint.is_sealed:
        _copy(checkpoint.manifest_path, bad / f"{name}{SEAL}")
    try:
        os.rename(checkpoint.path, bad / name)
    except OSError as error:
        for ending in (WHY, SEAL):
            with suppress(FileNotFoundError):
                os.unlink(bad / f"{name}{ending}")
        if isinstance(error, FileNotFoundError):
            raise CheckpointError(f"{checkpoint.path} is gone", hint="resil ckpt list") from None
        if error.errno == errno.EXDEV:
            hint = f"make {bad} a directory of its own there, neither a mount nor a link"
            raise CheckpointError(f"{bad} is not on the file system of {checkpoint.path}", hint=hint) from None
        raise
    if checkpoint.is_sealed:  # a seal without its checkpoint is ignored
        with suppress(FileNotFoundError):
            os.unlink(checkpoint.manifest_path)
    with suppress(FileNotFoundError):  # restored, it is judged anew
        os.unlink(store.own / VERIFIED / f"{checkpoint.name}.json")
    sync_directory(bad)
    sync_directory(store.path)
    return bad / name


def restore(store: StoreDirectory, name: str) -> Checkpoint:
    """Take a checkpoint out of `.bad/`, under its old name, and return it. The next verification judges it again.

    Raise CheckpointError if there is none, or if another checkpoint has that name now; OSError.
    """
    bad = store.path / BAD
    record = reason(store, name)
    old = str(record.get("name") or name)
    if os.path.lexists(store.path / old):
        raise CheckpointError(
            f"{store.path / old} exists: {name} cannot be restored", hint=f"resil ckpt quarantine {old}"
        )
    step, seal = parse_committed(old), str(record.get("seal") or "")
    if step is None:
        sealed = parse_seal(seal)
        if sealed is None or sealed[1] != old:
            raise CheckpointError(f"the record of {name} is damaged", hint=f"move {bad / name} by hand")
        step = sealed[0]
        _copy(bad / f"{name}{SEAL}", store.own / SEALS / seal)
    os.rename(bad / name, store.path / old)
    sync_directory(store.path)
    for ending in (SEAL, WHY):
        with suppress(FileNotFoundError):
            os.unlink(bad / f"{name}{ending}")
    sync_directory(bad)
    return Checkpoint(store.path, old, step, seal)


def reason(store: StoreDirectory, name: str) -> dict[str, Any]:
    """Return the record of a checkpoint in `.bad/`: name, step, why, who, at (seconds since the epoch), and, for damage
    that was found by reading, file, expected and found. Raise CheckpointError if it is not there; OSError."""
    if name not in store.bad():
        others = ", ".join(store.bad()[-3:])
        raise CheckpointError(
            f"no {name} in {store.path / BAD}", hint=f"there are {others}" if others else "nothing was set aside"
        )
    return read_record(store.path / BAD / f"{name}{WHY}")


def _copy(seal: Path, to: Path) -> None:
    """Copy a seal, if there is one: killed before the rename of its checkpoint or after, the checkpoint has it. Raise
    OSError."""
    found = read_regular(seal, limit_bytes=MOST_MANIFEST_BYTES)
    if found is not None:
        replace_file(to, found[0], mode=0o644, durable=True)


def _free_name(bad: Path, name: str) -> str:
    taken = set(os.listdir(bad))
    names = (f"{name}.{number}" if number else name for number in range(len(taken) + 2))
    return next(one for one in names if not {one, f"{one}{WHY}", f"{one}{SEAL}"} & taken)
