"""Checks that directories are there, mounted, writable, and not much slower than on other nodes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resilience.base.files import write_all
from resilience.base.mounts import current_mounts, mount_of, resolve_local_links
from resilience.nodes.checks import Check, Expected, Fault, Outcome, Reading

WRITE_BYTES = 4 * 2**20
"""Small enough for a throttled disk (1 MB/s) within the deadline, and for a thousand nodes at once."""

ENOUGH_S = 1.0
"""The fastest of a few writes within this time counts: the others are what other nodes wrote meanwhile."""


IS_ON = " is on"


def probe(expected: Expected, environ: Mapping[str, str]) -> Reading:
    """Write a file to each directory, with fsync, and remove it; return the speed in MB/s, or the error.

    And the file system that it is on: below a missing mount there is an empty directory, which can be written.
    """
    chunk, found = os.urandom(2**20), dict[str, Any]()
    for path in dict.fromkeys((expected.directory, *expected.mounts)):
        found[path] = _speed(Path(path), chunk)
        mounts = current_mounts()  # after that: it may be mounted when it is used
        if (mount := mount_of(resolve_local_links(path, mounts), mounts)) is not None:
            found[path + IS_ON] = f"{mount.type}, mounted at {mount.point}"
    return found


def judge(reading: Reading, expected: Expected) -> Iterable[Fault]:
    """A directory that is not there, read-only or full fails."""
    for path, speed in reading.items():
        if isinstance(speed, str) and not path.endswith(IS_ON):
            yield Fault(Outcome.FAIL, f"{path}: {speed}", f"see it there: df {path}; findmnt -T {path}")


def _speed(directory: Path, chunk: bytes) -> float | str:
    end, speed = time.monotonic() + ENOUGH_S, 0.0
    try:
        for _ in range(3):
            speed = max(speed, _write(directory, chunk))
            if time.monotonic() > end:
                break
    except OSError as error:
        return str(error.strerror)
    return speed


def _write(directory: Path, chunk: bytes) -> float:
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".resil-check.", buffering=0) as file:
        began = time.monotonic()
        for _ in range(WRITE_BYTES // len(chunk)):
            write_all(file.fileno(), chunk)
        os.fsync(file.fileno())
        return WRITE_BYTES / 1e6 / max(1e-6, time.monotonic() - began)


# Of file systems that are shared, the speed varies a lot.
CHECK = Check(probe=probe, judge=judge, deadline_s=10.0, rules={"*": "< -90%"}, equal={"*": Outcome.FAIL})
