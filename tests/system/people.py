"""Another person on this machine, for tests of what file permissions allow. Needs root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root (sudo make test)")


@contextmanager
def acting_as(uid: int, gid: int | None = None) -> Iterator[None]:
    """Let the kernel judge file accesses as it would for this person."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid if gid is None else gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def open_the_way(path: Path) -> None:
    """pytest's directories are private; let others pass through them.

    A pytest that starts closes `pytest-of-USER` again: one in a test has a --basetemp of its own.
    """
    for directory in path.parents:
        if directory.owner() == "root" and directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(0o755)
