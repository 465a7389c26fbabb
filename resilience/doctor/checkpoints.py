"""Whether the directory of checkpoints can be used: it can be written, is one file system, and has room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.base.files import exists
from resilience.base.mounts import MEMORY_TYPES, current_mounts, mount_of
from resilience.checkpoints.directory import StoreDirectory
from resilience.checkpoints.names import BAD, OWN, TRASH
from resilience.doctor.diagnosis import WRITE_S, Diagnosis, try_to_write
from resilience.errors import CheckpointError
from resilience.finding import Verdict
from resilience.messages import plural, quoted
from resilience.quantities import format_bytes

if TYPE_CHECKING:
    from resilience.runs.project import Project

TOPIC = "checkpoints"
ROOM = "free space, or keep fewer: resil watch fs"
SET_IT = "set path under [checkpoints] in resil.toml to a directory of yours on the shared file system"


def diagnose_checkpoints(project: Project) -> Iterator[Diagnosis]:
    """Look at [checkpoints] path in a child with a deadline; yield nothing without a path."""
    from resilience.system.child import run_in_child

    run, settings = project.default_run(), project.loaded.settings.checkpoints
    path = project.loaded.store_path(run)
    if path is None or settings is None:
        return

    def look() -> list[tuple[str, str, str]]:
        found = _look(path, run, settings.latest + 1)
        return [(one.verdict.value, one.text, one.advice) for one in found]

    ((_, answer),) = run_in_child({0: (look, WRITE_S)})
    if answer.is_overdue:
        text = f"{path}: the file system did not respond within {WRITE_S:g} s"
        yield Diagnosis(TOPIC, Verdict.CRITICAL, text, f"ls {quoted(path)}")
        return
    if answer.error is not None:
        yield Diagnosis(TOPIC, Verdict.UNKNOWN, f"{path}: {answer.error.message}", answer.error.hint)
        return
    for verdict, text, advice in answer.value:
        yield Diagnosis(TOPIC, Verdict(verdict), text, advice)
    mount = mount_of(path, current_mounts())
    if (
        mount is not None
        and mount.is_node_local
        and (project.scheduler_name() != "local" or mount.type in MEMORY_TYPES)
    ):
        text = f"{path} is on {mount.type} at {mount.point}, which is probably local to this node"
        yield Diagnosis(TOPIC, Verdict.WARNING, text, f"jobs on other nodes would not find the checkpoints; {SET_IT}")


def _look(path: Path, run: str, slots: int) -> Iterator[Diagnosis]:
    """Write into the directory, or into its nearest parent, and look at what is there. `slots`: checkpoints to keep
    room for."""
    place = path
    try:
        while not exists(place) and place != place.parent:
            place = place.parent
        try_to_write(place)
    except OSError as error:
        yield Diagnosis(TOPIC, Verdict.CRITICAL, f"cannot write in {place}: {error.strerror or error}", SET_IT)
        return
    wrote = f"wrote a file in {place} and removed it"
    if not StoreDirectory(path).is_there():
        later = f"{path} is made at the first save" if place != path else "it holds no checkpoints yet"
        yield Diagnosis(TOPIC, Verdict.OK, f"{wrote}; {later}")
        return
    try:
        store = StoreDirectory.open(path)
        faults = list(_faults(store, run, slots))
        yield from faults
        if not faults:
            held = plural(len(store.checkpoints()), "checkpoint")
            free = os.statvfs(path)
            text = f"{path} holds {held}; {format_bytes(free.f_bavail * free.f_frsize)} free"
            yield Diagnosis(TOPIC, Verdict.OK, text)
    except CheckpointError as error:
        yield Diagnosis(TOPIC, Verdict.CRITICAL, error.message, error.hint)


def _faults(store: StoreDirectory, run: str, slots: int) -> Iterator[Diagnosis]:
    path, checkpoints, owner = store.path, store.checkpoints(), store.run()
    if owner not in ("", run):
        text = f"{path} holds the checkpoints of the run {owner}, not of {run}"
        hint = 'give each run a directory of its own: path = "checkpoints/{run}" under [checkpoints]'
        yield Diagnosis(TOPIC, Verdict.WARNING, text, hint)
    for name in (OWN, BAD, TRASH, *(one.name for one in checkpoints[-1:])):
        if (path / name).exists() and (path / name).stat().st_dev != path.stat().st_dev:
            text = f"{path / name} is on another file system than {path}: saves are renamed there"
            yield Diagnosis(TOPIC, Verdict.CRITICAL, text, "use a directory of one file system")
    if not checkpoints:
        return
    newest, free = checkpoints[-1].manifest(), os.statvfs(path)
    more = max(1, slots - len(checkpoints))
    if newest.size_bytes * more > free.f_bavail * free.f_frsize:
        have, one = format_bytes(free.f_bavail * free.f_frsize), format_bytes(newest.size_bytes)
        text = f"{have} free, and {more} more checkpoints of {one} are kept"
        yield Diagnosis(TOPIC, Verdict.WARNING, text, ROOM)
    if free.f_files and newest.inodes * more > free.f_favail:
        text = f"{free.f_favail:,} inodes free, and {more} more checkpoints of {newest.inodes:,} are kept"
        yield Diagnosis(TOPIC, Verdict.WARNING, text, ROOM)
