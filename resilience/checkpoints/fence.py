"""Which attempt may commit: the newest that has begun. Its number is the fencing token.

An attempt begins with a file in `.resil/attempts/`, then takes all parts away, then looks which checkpoints there are.
A commit looks for the file of a newer attempt and then renames its part. So an older attempt commits before the newer
one has looked, or never: either it sees the file, or its part is gone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from resilience.base.files import create_file, sync_directory
from resilience.checkpoints.names import ATTEMPTS, parse_part
from resilience.checkpoints.trash import discard, discard_replaced
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resilience.checkpoints.directory import StoreDirectory


def begin(store: StoreDirectory, attempt: int) -> None:
    """Fence out older attempts, and discard the parts of killed processes.

    Attempt 0, a process outside of a job, fences nobody out, and discards the parts of attempt 0 only. Raise
    CheckpointError if a newer attempt has begun; OSError.
    """
    if attempt > 0:
        check(store, attempt)
        attempts = store.own / ATTEMPTS
        attempts.mkdir(exist_ok=True)
        create_file(attempts / str(attempt), "", mode=0o644)
        sync_directory(attempts)
        for name in os.listdir(attempts):
            if name.isdigit() and int(name) < attempt:
                with suppress(FileNotFoundError):
                    os.unlink(attempts / name)
    for name in store.parts():
        part = parse_part(name)
        if attempt > 0 or (part is not None and part[1] == 0):
            with suppress(FileNotFoundError):  # committed meanwhile
                discard(store, name)
    discard_replaced(store)  # by a commit that was killed


def newest_attempt(store: StoreDirectory) -> int:
    """Return the number of the newest attempt that has begun; 0 without one. Raise OSError."""
    try:
        names = os.listdir(store.own / ATTEMPTS)
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isdigit()), default=0)


def check(store: StoreDirectory, attempt: int) -> None:
    """Raise CheckpointError if an attempt newer than `attempt` has begun; OSError. Attempt 0 is never fenced out."""
    newest = newest_attempt(store)
    if 0 < attempt < newest:
        raise CheckpointError(
            f"attempt {newest} has begun, so attempt {attempt} no longer commits checkpoints in {store.path}",
            hint="two attempts of a run must not train at once: resil status",
        )
