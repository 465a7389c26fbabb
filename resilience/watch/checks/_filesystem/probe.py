"""Probes file systems: the only I/O of `fs` and `inodes`, in a child process.

A missing or dangling path is a reading, not an error: reporting these is the purpose of the watchdog.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from resilience import layout
from resilience.base.mounts import Mount, current_mounts, mount_of, resolve_local_links
from resilience.errors import ProbeError, UsageError
from resilience.runs.context import Context
from resilience.runs.used_paths import used_paths
from resilience.watch.checks._filesystem.quota import DU
from resilience.watch.checks._filesystem.reading import (
    PERCENT,
    FileSystemReading,
    KnownMount,
    history_after,
    is_whole,
    missing_limits,
)
from resilience.watch.checks._filesystem.sources import Sources, query_du, query_quota, statvfs_amounts
from resilience.watch.checks._filesystem.task import Task
from resilience.watch.places import (
    CHECKPOINT_DIRECTORIES,
    Place,
    by_mount,
    named_places,
    needed_places,
)
from resilience.watch.reading import Target, Timed

_GONE = {
    errno.ESTALE: "stale file handle: the server has replaced or removed the exported file system",
    errno.ENOTCONN: "the file system's server process has exited (transport endpoint is not connected)",
    errno.EHOSTDOWN: "its server is down",
    errno.EHOSTUNREACH: "its server is unreachable",
    errno.ETIMEDOUT: "its server did not respond in time",
    errno.EIO: "input/output error of the disk or its server",
    errno.ESHUTDOWN: "the file system was shut down (usually after an error)",
    errno.EUCLEAN: "the file system is damaged and needs cleaning",
}


class PlaceState(NamedTuple):
    """The state of one path.

    Attributes:
        path: the path.
        fault: missing, dangling, unreadable or stale; empty if the path is accessible.
        detail: the fault as a sentence.
        advice: what to try.
        real: the path with symbolic links resolved.
        mount: the file system; for a missing path, that of the nearest existing parent.
        device: st_dev.
        status: the result of statvfs; None with a fault.
        note: a remark for `--explain`.
        is_file: whether the path is not a directory.
    """

    path: str
    fault: str = ""
    detail: str = ""
    advice: str = ""
    real: str = ""
    mount: Mount | None = None
    device: int = 0
    status: os.statvfs_result | None = None
    note: str = ""
    is_file: bool = False


def state_of(path: str) -> PlaceState:
    """Return the state of one path. Raise ProbeError for an error that says nothing about the file system."""
    try:
        info = os.stat(path)  # noqa: PTH116 - before reading the mounts, because stat triggers autofs
        status = os.statvfs(path)
        real = os.path.realpath(path)
    except OSError as error:
        return _state_after(error, path)
    mount = mount_of(Path(real), current_mounts())
    note = f"resolves to {real}" if real != os.path.normpath(path) else ""
    is_file = not stat.S_ISDIR(info.st_mode)
    return PlaceState(path, real=real, mount=mount, device=info.st_dev, status=status, note=note, is_file=is_file)


def _state_after(error: OSError, path: str) -> PlaceState:
    mounts = current_mounts()
    if isinstance(error, FileNotFoundError):
        return _missing(path, mounts)
    if isinstance(error, NotADirectoryError):
        parent = _nearest(path)
        return PlaceState(path, "missing", f"does not exist: {parent} is a file, not a directory",
                          "correct the path", mount=mount_of(Path(parent), mounts))  # fmt: skip
    if isinstance(error, PermissionError):
        return PlaceState(path, "unreadable", "permission denied for a parent directory",
                          "ask the owner for permission, or run the watchdog as another user",
                          mount=mount_of(Path(path), mounts))  # fmt: skip
    if error.errno == errno.ELOOP:
        return PlaceState(path, "dangling", "too many levels of symbolic links", f"ls -l {shlex.quote(path)}")
    if error.errno in _GONE:
        mount = mount_of(Path(path), mounts)
        where = f" ({mount.source} at {mount.point})" if mount is not None else ""
        return PlaceState(path, "stale", _GONE[error.errno] + where,
                          "ask the administrators to remount it; jobs here cannot use it", mount=mount)  # fmt: skip
    raise ProbeError(f"cannot stat {path}: {error.strerror or error}", hint="is the path correct?")


def _missing(path: str, mounts: Sequence[Mount]) -> PlaceState:
    parent = _nearest(path)
    mount = mount_of(Path(os.path.realpath(parent)), mounts)
    where = f"the nearest existing parent is {parent}" + (
        f", on the file system mounted at {mount.point} ({mount.type})" if mount is not None else ""
    )
    first = _first_missing(path)
    try:
        target = os.readlink(first)  # noqa: PTH115
    except OSError:
        return PlaceState(path, "missing", f"does not exist: {where}", "is its file system mounted on this node?",
                          mount=mount)  # fmt: skip
    return PlaceState(path, "dangling", f"does not exist: {first} is a dangling symbolic link to {target}",
                      "is the file system of the link's target mounted on this node?", mount=mount)  # fmt: skip


def _nearest(path: str) -> str:
    """Return the nearest existing parent directory."""
    parent = os.path.dirname(path)  # noqa: PTH120
    while parent not in ("/", "") and not os.path.exists(parent):  # noqa: PTH110
        parent = os.path.dirname(parent)  # noqa: PTH120
    return parent or "/"


def _first_missing(path: str) -> str:
    """Return the shortest prefix of a path that does not exist."""
    parent = _nearest(path)
    rest = path[len(parent) :].lstrip("/").split("/")
    return f"{parent.rstrip('/')}/{rest[0]}"


DEADLINE_S = 10.0
"""The deadline of a probe whose target has none."""
TOOLS_SHARE = 0.7
"""The share of the deadline for all quota tools together."""
ACCEPTED_S = 7 * 86400.0
"""A path that has been on another file system for this long was moved on purpose."""
A_FILE = "the file system of this file"

Before = Mapping[str, Timed[FileSystemReading]]


def targets_of(task: Task, context: Context) -> tuple[Target, ...]:
    """Return the targets: each named path, or the file systems that a training needs. Accesses no disk.

    An invalid path is a target too, whose probe fails, so that the others are checked. Raise UsageError if all are.
    """
    probe = _Probe(task, context, {})
    mounts = current_mounts()
    places, invalid = probe.named()
    if invalid and not places:
        raise next(iter(invalid.values()))
    named = [*(probe.name_of(place.path, mounts) for place in places), *invalid]
    names = named if task.settings.paths else probe.needed()
    deadline_s = task.settings.du_deadline_s + DEADLINE_S if task.du_limit is not None else None
    return tuple(Target(name, deadline_s=deadline_s) for name in names)


def probe_target(target: Target, task: Task, context: Context, before: Before) -> dict[str, FileSystemReading]:
    """Probe one target and return a reading for each subject. Raise ProbeError if there is none, UsageError if the
    target is an invalid path."""
    clock = context.system.clock
    deadline = clock.monotonic() + TOOLS_SHARE * (target.deadline_s or DEADLINE_S)
    probe = _Probe(task, context, {subject: timed for subject, timed in before.items() if is_whole(timed.reading)})
    if error := probe.named()[1].get(target.name):
        raise error
    readings = {
        subject: probe.read(group, subject, Sources(context.system, deadline))
        for subject, group in probe.groups(target.name).items()
    }
    if not readings:
        raise ProbeError(f"none of the paths is on {target.name} any more", transient=True)
    return readings


class _Probed(NamedTuple):
    """One place and its state."""

    place: Place
    state: PlaceState


class _Probe:
    """One probe of the file systems of a task.

    Attributes:
        known: by path: its subject, and the mount on which it was last accessible.
    """

    def __init__(self, task: Task, context: Context, before: Before) -> None:
        self.task, self.settings, self.context, self.before = task, task.settings, context, before
        self.now = context.system.clock.now()
        self.known: dict[str, tuple[str, KnownMount]] = {}
        for subject, timed in before.items():
            for path, row in timed.reading.mounts.items():
                mount = KnownMount(*row)
                if path not in self.known or mount.time > self.known[path][1].time:
                    self.known[path] = subject, mount

    def _state_of(self, path: str) -> PlaceState:
        """Return the state of a path, read once in a child that probes several amounts."""
        shared = self.context.shared if self.context.shared is not None else {}
        if path not in shared:
            shared[path] = state_of(path)
        state: PlaceState = shared[path]
        return state

    # ---- places and subjects ----------------------------------------------------------------------------------------

    def named(self) -> tuple[tuple[Place, ...], dict[str, UsageError]]:
        """Return the paths in the settings, relative ones relative to the project, and the errors by invalid path."""
        places: dict[str, Place] = {}
        invalid: dict[str, UsageError] = {}
        for text in self.settings.paths:
            try:
                places |= {place.path: place for place in self._places((text,))}
            except UsageError as error:
                invalid[text if text.strip() and text.isprintable() else repr(text)] = error
        return tuple(places.values()), invalid

    def needed(self) -> dict[str, tuple[Place, ...]]:
        """Return the places that a training needs, by the name of their file system."""
        context, mounts, groups = self.context, current_mounts(), {}
        places = needed_places(
            project=context.project, state_dir=context.state_dir, home=context.system.host.home,
            environ=context.system.environ,
            checkpoints=self._store(),
            reads=used_paths(context),
        )  # fmt: skip
        for point, group in by_mount(places, mounts).items():
            mount = next((item for item in reversed(mounts) if item.point == point), None)
            groups[self._local(point, mount)] = group
        return groups

    def _places(self, paths: Sequence[str]) -> tuple[Place, ...]:
        system = self.context.system
        return named_places(paths, base=self.context.project, home=system.host.home, environ=system.environ)

    def _local(self, path: str, mount: Mount | None) -> str:
        """Return `n01:/tmp` for a node-local file system, else the path: usage differs from node to node."""
        return f"{self.context.system.host.name}:{path}" if mount is not None and mount.is_node_local else path

    def name_of(self, path: str, mounts: Sequence[Mount]) -> str:
        """Return the target name of a path."""
        return self._local(path, mount_of(Path(resolve_local_links(path, mounts)), mounts))

    def groups(self, target: str) -> dict[str, list[_Probed]]:
        """Return the places of a target with their states, by subject."""
        if self.settings.paths:
            groups = {}
            for place in self.named()[0]:
                if target.endswith(place.path) and self.name_of(place.path, current_mounts()) == target:
                    state = self._state_of(place.path)
                    # A path whose file system was unmounted is on a local disk now, but keeps its subject.
                    groups[self._lost_from(place.path, state.mount) or target] = [_Probed(place, state)]
            return groups
        # By file system and reported size: a directory with a project quota reports another size.
        found: dict[tuple[object, ...], list[_Probed]] = {}
        for place in self.needed().get(target, ()):
            one = _Probed(place, self._state_of(place.path))
            is_lost = bool(self._lost_from(place.path, one.state.mount))
            # A script may name paths of a container or of other nodes.
            unseen = ("missing", "dangling", "unreadable") if place.is_read else ("missing",)
            if place.is_optional and one.state.fault in unseen and not is_lost:
                continue
            if one.state.status is None or is_lost:
                found[place.path,] = [one]
            else:
                found.setdefault((one.state.device, one.state.status.f_blocks), []).append(one)
        return {self._subject(group): group for group in found.values()}

    def _subject(self, group: Sequence[_Probed]) -> str:
        """Return the subject of a group: the mount point where possible, the same from cron and a shell."""
        (place, state), mount = group[0], group[0].state.mount
        if known := self._lost_from(place.path, mount):
            return known
        if mount is None or state.status is None:
            return self._local(place.path, mount)
        if mount.is_node_local:
            return self._local(mount.point, mount)
        try:
            is_whole_mount = os.statvfs(mount.point).f_blocks == state.status.f_blocks
        except OSError:
            is_whole_mount = False
        return mount.point if is_whole_mount else min((one.place.path for one in group), key=len)

    def _lost_from(self, path: str, mount: Mount | None) -> str:
        """Return the subject of a path whose earlier mount is gone; empty if the mount is the same."""
        subject, known = self.known.get(path, ("", None))
        if known is None or self.now - known.time >= ACCEPTED_S or (mount is not None and known.point == mount.point):
            return ""
        return "" if any(item.point == known.point for item in current_mounts()) else subject

    # ---- one reading ------------------------------------------------------------------------------------------------

    def read(self, group: Sequence[_Probed], subject: str, sources: Sources) -> FileSystemReading:
        """Return the reading of one subject."""
        (place, state), mount = group[0], group[0].state.mount
        timed = self.before.get(subject)
        old = timed.reading if timed is not None else None
        is_named = bool(self.settings.paths)
        base = FileSystemReading(
            path=place.path,
            roles=_roles(group) + ((A_FILE,) if state.is_file else ()),
            mount=mount.point if mount is not None else "",
            type=mount.type if mount is not None else "",
            device=mount.source if mount is not None else "",
            is_local=mount is not None and mount.is_node_local,
            is_needed=any(one.place.is_needed for one in group) or (is_named and self._is_written(place.path, mount)),
            is_named=is_named,
            is_read=all(one.place.is_read for one in group),
            looked=tuple(f"{one.place.path}: {one.state.note}" for one in group if one.state.note),
        )
        if state.status is None or (mount is not None and self._lost_from(place.path, mount)):
            return self._read_faulty(base, state, old)
        read_only = bool(state.status.f_flag & os.ST_RDONLY) or (mount is not None and "ro" in mount.options)
        query_quota(sources, self.task, [one.state.real for one in group], mount, self.context.shared)
        du = query_du(sources, self.task, state.real, old.du if old is not None else None)
        sources.amounts += statvfs_amounts(state.status)
        amounts = [item for item in sources.amounts if item.kind in (self.task.kind, PERCENT)]
        # A site's command need not know node-local file systems such as /dev/shm.
        counts = base.is_needed or is_named or not base.is_local
        requested = [name for name in sources.failed if name.startswith("`") or name == DU] if counts else []
        return replace(
            base,
            mounts={one.place.path: known[:] for one in group if (known := self._known_mount(one)) is not None},
            read_only=read_only,
            seen_writable=not read_only or (old is not None and old.seen_writable),
            amounts=tuple(amounts),
            history=history_after(old, amounts, self.now),
            checkpoint=self._checkpoint(mount),
            purge=self._purge(place.path, mount),
            du={"time": du[0], "total": du[1]} if du is not None else {},
            silent=missing_limits(old, amounts, sources.failed, requested),
            looked=(*base.looked, *sources.explanation,
                    f"statvfs({place.path}): just now; returns the server's last figures without accessing the disk"),
        )  # fmt: skip

    def _known_mount(self, one: _Probed) -> KnownMount | None:
        mount = one.state.mount
        return KnownMount(mount.point, mount.type, mount.source, self.now) if mount is not None else None

    def _read_faulty(
        self, base: FileSystemReading, state: PlaceState, old: FileSystemReading | None
    ) -> FileSystemReading:
        """Return the reading of a path that is not accessible or whose file system is not mounted, with its history."""
        fault, detail, advice, mount = state.fault, state.detail, state.advice, state.mount
        _, known = self.known.get(base.path, ("", None))
        if not fault and known is not None and mount is not None:
            fault = "missing"
            detail = (
                f"its file system is not mounted any more: {known.device} ({known.type}), earlier at {known.point}; "
                f"the path is now on the file system at {mount.point} ({mount.type})"
            )
            advice = f"ask for it to be mounted again; writes to {base.path} now go to the wrong disk"
        return replace(
            base,
            trouble=fault,
            detail=detail,
            advice=advice,
            looked=(*base.looked, f"stat({base.path}): {detail}"),
            mounts=(old.mounts if old is not None else {}) | ({base.path: known[:]} if known is not None else {}),
            history=old.history if old is not None else {},
            seen_writable=old is not None and old.seen_writable,
            du=old.du if old is not None else {},
        )

    def _checkpoint(self, mount: Mount | None) -> dict[str, Any]:
        """Return the measurements of checkpoints, if they are written to this file system."""
        task, settings, context = self.task, self.settings, self.context
        directory = self._checkpoint_directory(mount)
        given = task.checkpoint is not None or settings.checkpoint_every_s is not None
        if not directory and not (given and not self._store() and self._is_on_mount(str(context.project), mount)):
            return {}
        from resilience.watch.checks._filesystem.measure import CheckpointStats, measure_checkpoints

        journal = str(context.state_dir / context.run / layout.JOURNAL)
        if not self._is_on_mount(journal, mount):
            journal = ""  # on another file system, which may hang
        known = (
            measure_checkpoints(directory, journal, task.kind, self.now) if directory else CheckpointStats(directory="")
        )
        found = asdict(known) | {"is_pruned": known.is_pruned}
        if task.checkpoint is not None:
            found["size"] = task.checkpoint
        if settings.checkpoint_every_s is not None:
            found |= {"every_s": settings.checkpoint_every_s, "source": "the settings"}
        return found

    def _checkpoint_directory(self, mount: Mount | None) -> str:
        """Return the directory of checkpoints, if it is on this file system; otherwise empty."""
        if directory := self._store():
            return directory if self._is_on_mount(directory, mount) else ""
        for name in CHECKPOINT_DIRECTORIES:
            directory = str(self.context.project / name)
            if self._is_on_mount(directory, mount) and os.path.isdir(directory):  # noqa: PTH112
                return directory
        return ""

    def _store(self) -> str:
        """Return the directory of checkpoints that the settings name; empty: none."""
        named = self.settings.checkpoints or self.context.checkpoints.replace("{run}", self.context.run)
        return self._places((named,))[0].path if named else ""

    def _purge(self, path: str, mount: Mount | None) -> dict[str, Any]:
        """Find files to be purged: among the checkpoints, else below the named path, else in the project."""
        if not self.task.purge_s:
            return {}
        from resilience.watch.checks._filesystem.measure import find_purge_candidates

        project = str(self.context.project)
        directory = self._checkpoint_directory(mount) or (path if self.settings.paths else "")
        directory = directory or (project if self._is_on_mount(project, mount) else "")
        unused_s = max(0.0, self.task.purge_s - self.task.purge_warn_s)
        return asdict(find_purge_candidates(directory, unused_s, self.now)) if directory else {}

    def _is_written(self, path: str, mount: Mount | None) -> bool:
        """Return whether the project or its state directory is below a named path, on the same file system."""
        directory = path.rstrip("/") + "/"
        needed = [str(item) for item in (self.context.project, self.context.state_dir)]
        return any((item + "/").startswith(directory) and self._is_on_mount(item, mount) for item in needed)

    def _is_on_mount(self, path: str, mount: Mount | None) -> bool:
        """Return whether a path is on the probed file system, without accessing another one, which may hang."""
        mounts = current_mounts()  # read again, because stat triggers autofs
        return mount is not None and mount_of(Path(resolve_local_links(path, mounts)), mounts) == mount


def _roles(group: Sequence[_Probed]) -> tuple[str, ...]:
    """Return the roles of the places, each once; those that the training only reads count if there is no other."""
    written = [one.place.role for one in group if one.place.role and not one.place.is_read]
    return tuple(dict.fromkeys(written or (one.place.role for one in group if one.place.role)))
