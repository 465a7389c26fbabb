"""Probes file systems: the only I/O of `fs` and `inodes`, in a child process.

A path that leads nowhere is no error of the watchdog: that is what the watchdog looks for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from resilience import layout
from resilience.base.mounts import Mount, current_mounts, mount_of
from resilience.errors import ProbeError
from resilience.runs.context import Context
from resilience.watch.checks._filesystem.quota import DU
from resilience.watch.checks._filesystem.reading import (
    PERCENT,
    FileSystemReading,
    KnownMount,
    history_after,
    is_whole,
    unanswered,
)
from resilience.watch.checks._filesystem.sources import Sources, ask_du, ask_quota, of_statvfs
from resilience.watch.checks._filesystem.task import Task
from resilience.watch.places import (
    CHECKPOINT_FOLDERS,
    Place,
    by_mount,
    found_places,
    named_places,
    settled,
)
from resilience.watch.reading import Target, Timed

_GONE = {
    errno.ESTALE: "stale file handle: what was mounted there has been replaced or taken away on the server",
    errno.ENOTCONN: "the file system's server process has ended (transport endpoint is not connected)",
    errno.EHOSTDOWN: "its server is down",
    errno.EHOSTUNREACH: "its server cannot be reached",
    errno.ETIMEDOUT: "its server did not answer in time",
    errno.EIO: "input/output error: the disk or its server fails",
    errno.ESHUTDOWN: "the file system was shut down (after an error, mostly)",
    errno.EUCLEAN: "the file system is damaged and needs cleaning",
}


class PlaceState(NamedTuple):
    """The state of one path.

    Attributes:
        path: the path.
        trouble: missing, dangling, unreadable or stale; empty when it is there.
        detail: that, as a sentence.
        advice: what to try.
        real: the path with its links followed.
        mount: the file system; of the nearest directory above when the path is missing.
        device: st_dev.
        status: statvfs; None with trouble.
        note: what is particular about it.
        is_file: whether it is no directory.
    """

    path: str
    trouble: str = ""
    detail: str = ""
    advice: str = ""
    real: str = ""
    mount: Mount | None = None
    device: int = 0
    status: os.statvfs_result | None = None
    note: str = ""
    is_file: bool = False


def state_of(path: str) -> PlaceState:
    """Task at one path. Raise ProbeError for a failure that is no news about the file system."""
    try:
        info = os.stat(path)  # noqa: PTH116 - before the mounts are read: it makes autofs mount
        status = os.statvfs(path)
        real = os.path.realpath(path)
    except OSError as error:
        return _trouble(path, error)
    mount = mount_of(Path(real), current_mounts())
    note = f"it leads to {real}" if real != os.path.normpath(path) else ""
    is_file = not stat.S_ISDIR(info.st_mode)
    return PlaceState(path, real=real, mount=mount, device=info.st_dev, status=status, note=note, is_file=is_file)


def _trouble(path: str, error: OSError) -> PlaceState:
    mounts = current_mounts()
    if isinstance(error, FileNotFoundError):
        return _missing(path, mounts)
    if isinstance(error, NotADirectoryError):
        parent = _nearest(path)
        return PlaceState(path, "missing", f"does not exist: {parent} is a file, not a directory",
                          "correct the path", mount=mount_of(Path(parent), mounts))  # fmt: skip
    if isinstance(error, PermissionError):
        return PlaceState(path, "unreadable", "a directory above it may not be entered: permission denied",
                          "ask its owner for permission, or watch it as another user",
                          mount=mount_of(Path(path), mounts))  # fmt: skip
    if error.errno == errno.ELOOP:
        return PlaceState(path, "dangling", "its symbolic links lead in a circle", f"see ls -l {path}")
    if error.errno in _GONE:
        mount = mount_of(Path(path), mounts)
        where = f" ({mount.source} at {mount.point})" if mount is not None else ""
        return PlaceState(path, "stale", _GONE[error.errno] + where,
                          "ask the administrators to mount it anew; jobs here cannot use it", mount=mount)  # fmt: skip
    raise ProbeError(f"cannot look at {path}: {error.strerror or error}", hint="is the path meant so?")


def _missing(path: str, mounts: Sequence[Mount]) -> PlaceState:
    parent = _nearest(path)
    mount = mount_of(Path(os.path.realpath(parent)), mounts)
    where = f"the nearest directory above is {parent}" + (
        f", on the file system mounted at {mount.point} ({mount.type})" if mount is not None else ""
    )
    first = _first_missing(path)
    try:
        target = os.readlink(first)  # noqa: PTH115
    except OSError:
        return PlaceState(path, "missing", f"does not exist: {where}", "is its file system mounted on this node?",
                          mount=mount)  # fmt: skip
    return PlaceState(path, "dangling", f"leads nowhere: {first} is a symbolic link to {target}, which does not exist",
                      "is the file system that it leads to mounted on this node?", mount=mount)  # fmt: skip


def _nearest(path: str) -> str:
    """The nearest directory above that exists."""
    parent = os.path.dirname(path)  # noqa: PTH120
    while parent not in ("/", "") and not os.path.exists(parent):  # noqa: PTH110
        parent = os.path.dirname(parent)  # noqa: PTH120
    return parent or "/"


def _first_missing(path: str) -> str:
    """The first part of a path that does not exist, links followed."""
    parent = _nearest(path)
    rest = path[len(parent) :].lstrip("/").split("/")
    return f"{parent.rstrip('/')}/{rest[0]}"


DEADLINE_S = 10.0
"""The deadline of a probe where [watch] deadline_s is not passed on."""
TOOLS_SHARE = 0.7
"""The share of the deadline that all quota tools have together."""
ACCEPTED_S = 7 * 86400.0
"""A path that has lain elsewhere for so long was moved."""
A_FILE = "it is a file, and the file system that it lies on is meant"

Before = Mapping[str, Timed[FileSystemReading]]


def targets_of(task: Task, context: Context) -> tuple[Target, ...]:
    """The targets of a task: each named path by itself, or what a training needs, by file system. Touches no disk."""
    probe = _Probe(task, context, {})
    mounts = current_mounts()
    names = [probe.name_of(place.path, mounts) for place in probe.named()] if task.paths else list(probe.needed())
    deadline_s = task.du_deadline_s + DEADLINE_S if task.du_limit is not None else None
    return tuple(Target(name, deadline_s=deadline_s) for name in names)


def probe_target(target: Target, task: Task, context: Context, before: Before) -> dict[str, FileSystemReading]:
    """Probe one target and return a reading for each subject. Raise ProbeError if nothing could be read at all."""
    clock = context.system.clock
    deadline = clock.monotonic() + TOOLS_SHARE * (target.deadline_s or DEADLINE_S)
    probe = _Probe(task, context, {subject: timed for subject, timed in before.items() if is_whole(timed.reading)})
    readings = {
        subject: probe.read(group, subject, Sources(context.system, deadline))
        for subject, group in probe.groups(target.name).items()
    }
    if not readings:
        raise ProbeError(f"nothing lies on {target.name} any more", transient=True)
    return readings


class _Probed(NamedTuple):
    """One place, and the state it is in."""

    place: Place
    state: PlaceState


class _Probe:
    """One probe of the file systems of a task.

    Attributes:
        known: by path: the subject it belonged to, and the mount it was last seen on in good order.
    """

    def __init__(self, task: Task, context: Context, before: Before) -> None:
        self.task, self.context, self.before = task, context, before
        self.now = context.system.clock.now()
        self.known: dict[str, tuple[str, KnownMount]] = {}
        for subject, timed in before.items():
            for path, row in timed.reading.mounts.items():
                mount = KnownMount(*row)
                if path not in self.known or mount.time > self.known[path][1].time:
                    self.known[path] = subject, mount

    # ---- which places, under which names ----------------------------------------------------------------------------

    def named(self) -> tuple[Place, ...]:
        """The paths of the settings. Those of a settings file are relative to its project."""
        return self._places(self.task.paths)

    def needed(self) -> dict[str, tuple[Place, ...]]:
        """The places that a training needs, by the name of the file system."""
        context, mounts, groups = self.context, current_mounts(), {}
        places = found_places(
            project=context.project, state_dir=context.state_dir, home=context.system.host.home,
            environ=context.system.environ,
            checkpoints=self._places((self.task.checkpoints,))[0].path if self.task.checkpoints else "",
        )  # fmt: skip
        for point, group in by_mount(places, mounts).items():
            mount = next((item for item in reversed(mounts) if item.point == point), None)
            groups[self._local(point, mount)] = group
        return groups

    def _places(self, paths: Sequence[str]) -> tuple[Place, ...]:
        system = self.context.system
        return named_places(paths, base=self.context.project, home=system.host.home, environ=system.environ)

    def _local(self, path: str, mount: Mount | None) -> str:
        """`n01:/tmp` where only that node has the file system: what is full on one node is not so on another."""
        return f"{self.context.system.host.name}:{path}" if mount is not None and mount.is_node_local else path

    def name_of(self, path: str, mounts: Sequence[Mount]) -> str:
        """The name of a path as a target."""
        return self._local(path, mount_of(Path(settled(path, mounts)), mounts))

    def groups(self, target: str) -> dict[str, list[_Probed]]:
        """The places of a target in their states, by subject."""
        if self.task.paths:
            groups = {}
            for place in self.named():
                if target.endswith(place.path) and self.name_of(place.path, current_mounts()) == target:
                    state = state_of(place.path)
                    # A path whose file system is gone lies on a local disk now; it keeps the name that people know.
                    groups[self._lost_from(place.path, state.mount) or target] = [_Probed(place, state)]
            return groups
        # By file system and by the size it reports: a directory with a quota of its own reports another one.
        found: dict[tuple[object, ...], list[_Probed]] = {}
        for place in self.needed().get(target, ()):
            one = _Probed(place, state_of(place.path))
            is_lost = bool(self._lost_from(place.path, one.state.mount))
            if place.may_miss and one.state.trouble == "missing" and not is_lost:
                continue
            if one.state.status is None or is_lost:
                found[place.path,] = [one]
            else:
                found.setdefault((one.state.device, one.state.status.f_blocks), []).append(one)
        return {self._subject(group): group for group in found.values()}

    def _subject(self, group: Sequence[_Probed]) -> str:
        """The name of a file system that was found: its mount point, so that it is the same from cron and a shell."""
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
        """The subject that remembers a path on a mount that is gone; empty when there is none."""
        subject, known = self.known.get(path, ("", None))
        if known is None or self.now - known.time >= ACCEPTED_S or (mount is not None and known.point == mount.point):
            return ""
        return "" if any(item.point == known.point for item in current_mounts()) else subject

    # ---- one reading ------------------------------------------------------------------------------------------------

    def read(self, group: Sequence[_Probed], subject: str, sources: Sources) -> FileSystemReading:
        """The reading of one subject."""
        (place, state), mount = group[0], group[0].state.mount
        timed = self.before.get(subject)
        old = timed.reading if timed is not None else None
        is_named = bool(self.task.paths)
        base = FileSystemReading(
            path=place.path,
            roles=tuple(one.place.role for one in group if one.place.role) + ((A_FILE,) if state.is_file else ()),
            mount=mount.point if mount is not None else "",
            type=mount.type if mount is not None else "",
            device=mount.source if mount is not None else "",
            is_local=mount is not None and mount.is_node_local,
            is_needed=any(one.place.is_needed for one in group) or (is_named and self._is_written(place.path, mount)),
            is_named=is_named,
            looked=tuple(f"{one.place.path}: {one.state.note}" for one in group if one.state.note),
        )
        if state.status is None or (mount is not None and self._lost_from(place.path, mount)):
            return self._read_trouble(base, state, old)
        read_only = bool(state.status.f_flag & os.ST_RDONLY) or (mount is not None and "ro" in mount.options)
        ask_quota(sources, self.task, [one.state.real for one in group], mount)
        du = ask_du(sources, self.task, state.real, old.du if old is not None else None)
        sources.amounts += of_statvfs(state.status)
        amounts = [item for item in sources.amounts if item.kind in (self.task.kind, PERCENT)]
        # What a site's command says of the /dev/shm of a node, nobody asks.
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
            silent=unanswered(old, amounts, sources.failed, requested),
            looked=(*base.looked, *sources.explanation,
                    f"statvfs({place.path}): just now; it reports what its server last told, and touches no disk"),
        )  # fmt: skip

    def _known_mount(self, one: _Probed) -> KnownMount | None:
        mount = one.state.mount
        return KnownMount(mount.point, mount.type, mount.source, self.now) if mount is not None else None

    def _read_trouble(
        self, base: FileSystemReading, state: PlaceState, old: FileSystemReading | None
    ) -> FileSystemReading:
        """The reading of a path that is missing, or whose file system is: with all that was known of it."""
        trouble, detail, advice, mount = state.trouble, state.detail, state.advice, state.mount
        _, known = self.known.get(base.path, ("", None))
        if not trouble and known is not None and mount is not None:
            trouble = "missing"
            detail = (
                f"lies on the file system at {mount.point} ({mount.type}) now; when it was last seen well it lay on "
                f"{known.device} ({known.type}), mounted at {known.point}: that is not mounted any more"
            )
            advice = f"ask for it to be mounted again; what is written to {base.path} now goes to the wrong disk"
        return replace(
            base,
            trouble=trouble,
            detail=detail,
            advice=advice,
            looked=(*base.looked, f"stat({base.path}): {detail}"),
            mounts=(old.mounts if old is not None else {}) | ({base.path: known[:]} if known is not None else {}),
            history=old.history if old is not None else {},
            seen_writable=old is not None and old.seen_writable,
            du=old.du if old is not None else {},
        )

    def _checkpoint(self, mount: Mount | None) -> dict[str, Any]:
        """What is known of checkpoints, if they are written here."""
        task, context = self.task, self.context
        directory = self._checkpoint_directory(mount)
        given = task.checkpoint is not None or task.checkpoint_every_s is not None
        if not directory and not (given and not task.checkpoints and self._lies_on(str(context.project), mount)):
            return {}
        from resilience.watch.checks._filesystem.measure import Learned, learn

        journal = str(context.state_dir / context.run / layout.JOURNAL)
        if not self._lies_on(journal, mount):
            journal = ""  # on another file system, which may hang: that is its own target's news
        known = learn(directory, journal, task.kind, self.now) if directory else Learned(directory="")
        found = asdict(known) | {"is_pruned": known.is_pruned}
        if task.checkpoint is not None:
            found["size"] = task.checkpoint
        if task.checkpoint_every_s is not None:
            found |= {"every_s": task.checkpoint_every_s, "source": "the settings"}
        return found

    def _checkpoint_directory(self, mount: Mount | None) -> str:
        """The directory of checkpoints, if it lies on this file system; empty otherwise."""
        if self.task.checkpoints:
            directory = self._places((self.task.checkpoints,))[0].path
            return directory if self._lies_on(directory, mount) else ""
        for name in CHECKPOINT_FOLDERS:
            directory = str(self.context.project / name)
            if self._lies_on(directory, mount) and os.path.isdir(directory):  # noqa: PTH112
                return directory
        return ""

    def _purge(self, path: str, mount: Mount | None) -> dict[str, Any]:
        """What the site will delete for its age: of the checkpoints, else of the named path, else of the project."""
        if not self.task.purge_s:
            return {}
        from resilience.watch.checks._filesystem.measure import doomed

        project = str(self.context.project)
        directory = self._checkpoint_directory(mount) or (path if self.task.paths else "")
        directory = directory or (project if self._lies_on(project, mount) else "")
        unused_s = max(0.0, self.task.purge_s - self.task.purge_warn_s)
        return asdict(doomed(directory, unused_s, self.now)) if directory else {}

    def _is_written(self, path: str, mount: Mount | None) -> bool:
        """Whether the project or its state lie below a path that was named, on the same file system."""
        directory = path.rstrip("/") + "/"
        needed = [str(item) for item in (self.context.project, self.context.state_dir)]
        return any((item + "/").startswith(directory) and self._lies_on(item, mount) for item in needed)

    def _lies_on(self, path: str, mount: Mount | None) -> bool:
        """Whether a path lies on the file system that is probed, without touching another one, which may hang."""
        mounts = current_mounts()  # read anew: stat makes autofs mount
        return mount is not None and mount_of(Path(settled(path, mounts)), mounts) == mount
