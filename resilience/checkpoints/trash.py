"""Checkpoints to be deleted: renamed into `.trash/` first, so that none is ever visible in part, and deleted later."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from resilience.base.files import sync_directory
from resilience.checkpoints.names import PINS, SEALS, TRASH, VERIFIED
from resilience.errors import CheckpointError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resilience.checkpoints.directory import StoreDirectory

SLICE_S = 0.02
BUSY = 0.1
"""`empty` deletes for SLICE_S at a time, and this part of the time: a file server that is slow has others to serve.

A training that uses all cores is slowed by 0.7 %; with 0.2, by 1.8 % (benchmarks/checkpoint_prune.py, 2 cores).
"""
MOST_FAILURES = 8


class Emptied(NamedTuple):
    """What `empty` did.

    Attributes:
        deleted: number of files and directories.
        failed: sentences on what is still there, at most MOST_FAILURES.
    """

    deleted: int
    failed: tuple[str, ...]


def discard(store: StoreDirectory, name: str, *, seal: str = "") -> None:
    """Take a checkpoint or a part away, by one rename. `seal`: its seal's file name, if a framework named it.

    The seal goes last: it is ignored without its checkpoint, which otherwise would not be one any more if the rename
    failed. Raise OSError; FileNotFoundError if there is none.
    """
    trash = store.path / TRASH
    with suppress(FileExistsError):
        trash.mkdir()
    os.rename(store.path / name, trash / f"{name}.{os.urandom(4).hex()}")
    if seal:
        with suppress(FileNotFoundError):
            os.unlink(store.own / SEALS / seal)
    with suppress(OSError):  # of no use without it, and known by its token as another's
        os.unlink(store.own / VERIFIED / f"{name}.json")


def discard_replaced(store: StoreDirectory) -> list[str]:
    """Discard each checkpoint that a later one of its step replaces, unless it is pinned; return their names.

    Not while a manifest of the two cannot be read: nobody knows which of them is good. Raise OSError.
    """
    names = []
    found = [one for one in store.checkpoints() if not one.is_sealed]
    for one, newer in pairwise(found):
        if one.step != newer.step or os.path.lexists(store.own / PINS / f"{one.name}.json"):
            continue
        with suppress(CheckpointError, FileNotFoundError):
            newer.manifest()
            one.manifest()
            discard(store, one.name)
            names.append(one.name)
    return names


def empty(
    store: StoreDirectory,
    *,
    busy: float = BUSY,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Emptied:
    """Delete what is in the trash, slowly. A call after one that was killed goes on.

    `busy`: part of the time that it may work, up to 1. A file that cannot be deleted stops no other. Raise OSError if
    the directory of checkpoints cannot be read or synced: then nothing is deleted.
    """
    trash = store.path / TRASH
    names = store.trash()
    if not names:
        return Emptied(0, ())
    sync_directory(store.path)  # otherwise a power cut might undo the renames but not the deletes
    sync_directory(trash)
    deleted = 0
    failed: list[str] = []
    began = clock()
    for name in names:
        path = f"{trash}/{name}"
        for error in _delete(path, os.path.isdir(path) and not os.path.islink(path)):
            if error is None:
                deleted += 1
            elif len(failed) < MOST_FAILURES:
                failed.append(f"cannot delete {error.filename}: {error.strerror}")
            worked_s = clock() - began
            if worked_s >= SLICE_S:
                sleep(worked_s * (1 / busy - 1))
                began = clock()
    return Emptied(deleted, tuple(failed))


def _delete(path: str, is_directory: bool) -> Iterator[OSError | None]:
    """Delete a file or a directory with its content; yield None for each thing deleted, and the error of each other."""
    try:
        if is_directory:
            with os.scandir(path) as entries:
                for entry in entries:
                    yield from _delete(entry.path, entry.is_dir(follow_symlinks=False))
        (os.rmdir if is_directory else os.unlink)(path)
        yield None
    except FileNotFoundError:
        return
    except OSError as error:
        yield error
