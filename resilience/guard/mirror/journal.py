"""`journal/<jobid>.<rank>.jsonl`: what happened on a rank, one JSON line each, whole or not there.

One process writes a rank's file at a time. A line that a crash has cut is closed off by the next one, so that it spoils
no other; a line that a full disk has cut is taken back at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat

from resilience import layout
from resilience.guard.mirror.run_folder import file_mode, subfolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

LONGEST_LINE = 32_768
LONGEST_TEXT = 4_000
"""Characters of one text: an error message may carry a whole tensor."""


def as_line(record: Mapping[str, Any]) -> bytes:
    """Given an event, return its line. Never fails: what JSON does not know is written as a text.

    NaN and infinities are no JSON (RFC 8259, section 6): they become the texts `nan`, `inf` and `-inf`.
    """
    try:
        line = json.dumps(_plain(record, depth=6), separators=(",", ":"), allow_nan=False).encode()
        if len(line) <= LONGEST_LINE:
            return line + b"\n"
    except (ValueError, TypeError, RecursionError):
        pass
    kept = {name: _plain(record.get(name), depth=0) for name in ("event", "time", "attempt", "rank", "host")}
    return json.dumps({**kept, "cut": True}, separators=(",", ":")).encode() + b"\n"


def append(run_dir: str, job_id: str, rank: int, lines: Iterable[bytes]) -> None:
    """Add lines to a rank's journal, all or none, and wait until they are on the disk. Raise OSError.

    Opened anew each time: the run directory may have gone and come back. A link, a FIFO or a folder of that name is
    refused.
    """
    path = os.path.join(subfolder(run_dir, layout.JOURNAL), file_name(job_id, rank))
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        size, raw = info.st_size, b"".join(lines)
        if size == 0:
            os.fchmod(descriptor, file_mode(run_dir))
        elif os.pread(descriptor, 1, size - 1) != b"\n":
            raw = b"\n" + raw
        written = 0
        try:
            written = os.write(descriptor, raw)
            if written != len(raw):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)  # only a part was taken
            os.fsync(descriptor)
        except OSError:
            _take_back(descriptor, size, written)
            raise
    finally:
        os.close(descriptor)


def file_name(job_id: str, rank: int) -> str:
    """The name of a rank's journal."""
    return f"{job_id}.{rank}.jsonl"


def _take_back(descriptor: int, size: int, written: int) -> None:
    """Cut off what we have added, unless somebody else has written behind it: a twin of a requeued job."""
    with contextlib.suppress(OSError):
        if written and os.fstat(descriptor).st_size == size + written:
            os.ftruncate(descriptor, size)


def _plain(value: Any, depth: int) -> Any:
    """The value in JSON types. Nothing here asks a device: a tensor is named, not read."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "..."
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth and isinstance(value, dict):
        return {str(name): _plain(inner, depth - 1) for name, inner in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, depth - 1) for inner in value]
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return _plain(value.item(), 0)
    return f"<{type(value).__name__}>"
