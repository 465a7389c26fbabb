"""How a file system with a fault behaves: which operations fail with which error, how late and how slowly. Pure."""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass

LOOK, READ, WRITE, SYNC, CHANGE = "look", "read", "write", "sync", "change"
"""Classes of operations: names and attributes; data out; data in; fsync(2); everything else that changes a file system,
as well as opening a file for writing."""

DIRECTORY_BYTES = 4096
"""What a new directory takes on most file systems: on a full disk `mkdir` fails, while an empty file can be made."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a faulty file system does; without arguments it is healthy.

    Attributes:
        error: errno of the operations in `on`, and of what does not fit into `space_bytes`.
        on: the classes of operations that fail at once.
        space_bytes: how much may still be written before `error`; None: no limit.
        delay_s: how late each answer is.
        bytes_per_s: how fast all together read and write; None: as fast as the real one.
    """

    error: int = 0
    on: tuple[str, ...] = ()
    space_bytes: int | None = None
    delay_s: float = 0.0
    bytes_per_s: int | None = None

    def to_json(self) -> str:
        """Return the text for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Behaviour:
        """Return what `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "on": tuple(values["on"])})


def disk_full(space_bytes: int = 0, *, quota: bool = False) -> Behaviour:
    """Return a disk with so much space left, or a quota."""
    return Behaviour(error=errno.EDQUOT if quota else errno.ENOSPC, space_bytes=space_bytes)


def read_only() -> Behaviour:
    """Return a file system as the kernel leaves it after an error of the disk: remounted read-only."""
    return Behaviour(error=errno.EROFS, on=(WRITE, CHANGE))


def input_output_error(on: str = "all") -> Behaviour:
    """Return a disk whose data cannot be read (`on` = read), written (write) or both (all); names still work."""
    kinds = {"all": (READ, WRITE, SYNC), "write": (WRITE, SYNC), "read": (READ,)}
    return Behaviour(error=errno.EIO, on=kinds[on])


def stale() -> Behaviour:
    """Return a network file system whose server forgot all files: ESTALE for everything, as NFS has it."""
    return Behaviour(error=errno.ESTALE, on=(LOOK, READ, WRITE, SYNC, CHANGE))


def slow(delay_s: float, bytes_per_s: int | None) -> Behaviour:
    """Return a disk that answers late, and moves data slowly."""
    return Behaviour(delay_s=delay_s, bytes_per_s=bytes_per_s)
