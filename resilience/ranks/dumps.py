"""The dumps of torch's flight recorder in a run directory: listed, and read by the user's torch in a child.

Dumps are pickles, which execute code when they are read: resil opens none, and has torchfrtrace read only those that
nobody else could have written.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from resilience import layout
from resilience.errors import ProbeError
from resilience.messages import plural
from resilience.quantities import format_bytes
from resilience.system.ports import iso_time
from resilience.system.process import said_by

if TYPE_CHECKING:
    from resilience.runs.run_directory import RunDirectory
    from resilience.system.ports import System

READ_S = 30.0
"""For torchfrtrace, which imports torch."""
SHOWN_LINES, SHOWN_WIDTH = 40, 240
_NAME = re.compile(r"rank_(\d+)")


class Dump(NamedTuple):
    """The dump of one rank: its file, when it was written, and whether only this user could have written it."""

    rank: int
    path: Path
    bytes: int
    time: float
    is_own: bool


def find_dumps(directory: RunDirectory, job: str) -> tuple[Dump, ...]:
    """Return the dumps of the newest start of a job that has any, by rank."""
    by_start = {path: _dumps(path) for path in (directory.path / layout.TRACES).glob(f"{job}.*")}
    return max(by_start.values(), key=lambda found: max((one.time for one in found), default=0.0), default=())


def _dumps(directory: Path) -> tuple[Dump, ...]:
    found = []
    try:
        is_safe = _is_own(directory.stat())
        for entry in os.scandir(directory):
            about, name = entry.stat(follow_symlinks=False), _NAME.fullmatch(entry.name)
            if name and stat.S_ISREG(about.st_mode):
                is_own = is_safe and _is_own(about)
                found.append(Dump(int(name[1]), Path(entry.path), about.st_size, about.st_mtime, is_own))
    except OSError:
        return ()
    return tuple(sorted(found))


def _is_own(about: os.stat_result) -> bool:
    return about.st_uid == os.geteuid() and not about.st_mode & 0o022


def read_command(dumps: Sequence[Dump]) -> list[str]:
    """Return the command that reads these dumps. Pure."""
    return ["torchfrtrace", "--allow-incomplete-ranks", "--prefix", "rank_", str(dumps[0].path.parent)]


def read_dumps(system: System, dumps: Sequence[Dump]) -> tuple[str, ...]:
    """Return lines: how many dumps there are, how to read them, and what torchfrtrace says where it is installed."""
    if not dumps:
        return ()
    newest, size = iso_time(max(one.time for one in dumps))[:19], format_bytes(sum(one.bytes for one in dumps))
    lines = [
        f"torch's flight recorder has written {plural(len(dumps), 'dump')}, {size}, the newest at {newest}",
        "to read them: " + " ".join(map(quote, read_command(dumps))),
    ]
    program, *words = read_command(dumps)
    if (path := shutil.which(program, path=system.environ.get("PATH"))) is None:
        return tuple(lines)
    if not all(one.is_own for one in dumps):
        return (*lines, "they are not read here: others may write them, and reading a pickle executes it")
    try:
        done = system.runner.run([path, *words], timeout_s=READ_S)
    except ProbeError as error:
        return (*lines, error.message)
    if done.returncode:
        return (*lines, f"torchfrtrace ended with {done.returncode}: {said_by(done)}")
    said = [line.rstrip()[:SHOWN_WIDTH] for line in done.stdout.splitlines() if line.strip()]
    return (*lines, *said[-SHOWN_LINES:])
