"""Records hung probes of this node, so that no tick and no other process starts another probe of the same target.

A probe of a hung file system cannot always be ended (system/child.py). The record is a small file in /tmp or in memory,
never on a probed file system: the target, the start of the hang, the directory and its mount, and the processes by pid
and start time, with their boot and pid namespace. While one of the processes exists, the next probe fails at once.
The target is probed again when

- all processes have ended: the file server responds again;
- another mount is at the directory: an administrator has unmounted the hung one (`umount -l`), and perhaps mounted it
  again. The processes that wait for the old mount may never end;
- RETRY_S has passed, and from then on after double the time, because a server can lose single requests;
- the user asks for it: `resil watch --retry`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.base.mounts import current_mounts, mount_of, resolve_local_links
from resilience.base.processes import blocked_at, is_same, pid_space, start_ticks
from resilience.errors import ProbeError, StateDirectoryError
from resilience.quantities import format_duration
from resilience.system.child import Answer, KeyT, run_in_child
from resilience.system.files import own_directory, read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.system.ports import Clock, System

RETRY_S = 600.0
"""Time from the first probe that hangs to the second; doubled for each further one, so that a day adds eight."""

RETRY_COMMAND = "resil watch --all --retry"
FRESH_S = 3600.0
"""Age at which a record without processes expires, because the target may have recovered."""

KEPT_S = 86400.0
"""Age at which a record without processes is removed when another record is written."""


class ChildProbe(NamedTuple):
    """A probe that may hang.

    Attributes:
        place: the target, the same text in every tick and every process of this user on this node.
        work: the function that probes, called in a child; see run_in_child for its return value.
        deadline_s: timeout of the probe.
        path: the file or directory that the probe accesses, if it is one; the kernel is asked for it first.
    """

    place: str
    work: Callable[[], Any]
    deadline_s: float
    path: str = ""


def state_probe(state_dir: Path, work: Callable[[], Any], deadline_s: float) -> ChildProbe:
    """Return a probe that accesses the state directory. All of them are one target: the directory hangs once."""
    return ChildProbe(f"state directory {state_dir}", work, deadline_s, str(state_dir))


class Stuck(NamedTuple):
    """The record of a target that did not respond.

    Attributes:
        since: start of the first probe without response, seconds since the epoch.
        pids: the processes still blocked; empty if all were killed.
        path: the file or directory that they wait for; empty: unknown.
        tried: when the last probe was started.
    """

    since: float
    pids: tuple[int, ...] = ()
    path: str = ""
    tried: float = 0.0

    @property
    def retry_at(self) -> float:
        """Return when the next probe may start."""
        return self.tried + RETRY_S * 2.0 ** (min(len(self.pids), 30) - 1) if self.pids else 0.0


class StuckMemory:
    """The targets on this node that do not respond. Damaged, foreign and expired records are ignored.

    If records cannot be written (no private directory), every probe is treated as the first.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        """`directories`: records are written to the first usable directory, and read from all."""
        self._directories = tuple(directories)
        self._names: dict[str, list[Path]] | None = None

    @classmethod
    def of(cls, system: System) -> StuckMemory:
        """Return the records of this node. /tmp comes first, because cron has no $XDG_RUNTIME_DIR."""
        own = f"resil-{system.host.uid}"
        directories = [Path("/tmp", own, "stuck"), Path("/dev/shm", own, "stuck")]
        if runtime := system.environ.get("XDG_RUNTIME_DIR"):
            directories.append(Path(runtime, "resil", "stuck"))
        return cls(directories)

    def find(self, place: str, now: float) -> Stuck | None:
        """Return the record of a target, or None; records expire after a reboot, or if no probe ran recently."""
        found = [record for path in self._named(place) if (record := _read(path, place, now)) is not None]
        if not found:
            return None
        pids = tuple(dict.fromkeys(pid for record in found for pid in record.pids))
        newest = max(found, key=lambda record: record.tried)
        return newest._replace(since=min(record.since for record in found), pids=pids)

    def note(self, place: str, stuck: Stuck, now: float) -> None:
        """Record that a target did not respond."""
        began = {str(pid): ticks for pid in stuck.pids if (ticks := start_ticks(pid)) is not None}
        record: dict[str, Any] = {"place": place, "since": stuck.since, "seen": now, "processes": began, **_numbers(),
                                  "path": stuck.path, "tried": stuck.tried, "mount": _mount_of(stuck.path)}  # fmt: skip
        for directory in self._directories:
            if own_directory(directory.parent) is None or own_directory(directory) is None:
                continue
            path = directory / _name(place)
            if (other := _read(path, place, now)) is not None:  # another process is blocked there as well
                began = {str(pid): start_ticks(pid) or 0 for pid in other.pids} | began
                record |= {"since": min(other.since, stuck.since), "processes": began}
            with contextlib.suppress(StateDirectoryError):
                write_atomic(path, json.dumps(record), durable=False)
                self._all().setdefault(path.name, []).append(path)
                _remove_expired(directory, now)
                return

    def forget(self, place: str) -> None:
        """Remove the record of a target that responds again."""
        for path in self._named(place):
            with contextlib.suppress(OSError):
                path.unlink()
        self._all().pop(_name(place), None)

    def release(self) -> None:
        """Let the next probe of every target run, although processes still wait for it."""
        for path in (path for paths in self._all().values() for path in paths):
            with contextlib.suppress(OSError, StateDirectoryError, ValueError, TypeError, AttributeError):
                if (found := read_regular(path)) is not None:
                    record = json.loads(found[0]) | {"processes": {}, "seen": time.time()}
                    write_atomic(path, json.dumps(record), durable=False)

    def _named(self, place: str) -> list[Path]:
        names = self._all()
        return names.get(_name(place), []) if names else []

    def _all(self) -> dict[str, list[Path]]:
        """Return the paths of all records by name. Usually there are none, and `find` is then cheap."""
        if self._names is None:
            self._names = {}
            for directory in self._directories:
                try:
                    info = directory.lstat()
                    if info.st_uid != os.getuid() or info.st_mode & 0o022:
                        continue  # of another user, who could fake records
                    names = os.listdir(directory)  # noqa: PTH208 - names only
                except OSError:
                    continue
                for name in names:
                    self._names.setdefault(name, []).append(directory / name)
        return self._names


def probe_in_child(
    probes: Mapping[KeyT, ChildProbe], memory: StuckMemory, clock: Clock
) -> Iterator[tuple[KeyT, Answer]]:
    """As run_in_child, but fail at once for a target where an earlier probe still hangs.

    Errors name the directory that does not respond, and the start of the hang.
    """
    began = clock.now()
    before = {key: memory.find(look.place, began) for key, look in probes.items()}
    held = {key: stuck for key, stuck in before.items() if stuck is not None and 0 <= began < stuck.retry_at}
    for key, stuck in held.items():
        yield key, Answer(error=_still_stuck(stuck, probes[key], began), is_overdue=True, abandoned=stuck.pids)
    works = {key: (look.work, look.deadline_s) for key, look in probes.items() if key not in held}
    for key, answer in run_in_child(works):
        look, earlier = probes[key], before[key]
        if not answer.is_overdue:
            memory.forget(look.place)
            yield key, answer
            continue
        path = next(filter(None, map(blocked_at, answer.abandoned)), look.path if answer.abandoned else "")
        since = earlier.since if earlier is not None else began
        memory.note(look.place, Stuck(since, answer.abandoned, path, began), clock.now())
        yield key, answer._replace(error=_overdue(answer, look, path, earlier, clock.now()))


def _still_stuck(stuck: Stuck, look: ChildProbe, now: float) -> ProbeError:
    pids = ", ".join(map(str, stuck.pids))
    return ProbeError(
        f"STUCK since {_since(stuck.since, now)}: {_where(stuck.path, look)}process {pids} still waits for it in the "
        f"kernel; next probe at {_time(stuck.retry_at, now)}",
        hint=f"after a repair, probe at once: {RETRY_COMMAND}",
        transient=True,
    )


def _overdue(answer: Answer, look: ChildProbe, path: str, stuck: Stuck | None, now: float) -> ProbeError:
    text = f"{_where(path, look)}no answer within {look.deadline_s:g} s"
    if stuck is not None:
        text += f"; STUCK since {_since(stuck.since, now)}"
    hint = "the probe was ended: the node or a file server is too slow for it; the next probe tries again"
    if answer.abandoned:
        hint = "the probe waits in the kernel: a file server or a disk does not respond"
    return ProbeError(text, hint=hint, transient=True)


def _where(path: str, look: ChildProbe) -> str:
    """Return the directory that hangs as the start of a sentence; empty if the target's name already has it."""
    is_named = look.path and (path.startswith(look.path) or look.path.startswith(path))
    return f"{path} does not respond: " if path and not is_named else ""


def _mount_of(path: str) -> list[str]:
    """Return what identifies the mount of a path in this mount namespace; a new mount has another number."""
    if not path:
        return []
    mounts = current_mounts()
    mount = mount_of(resolve_local_links(path, mounts), mounts)
    try:
        space = os.readlink("/proc/self/ns/mnt")  # noqa: PTH115 - as text
    except OSError:
        return []
    return [space, str(mount.ident), mount.device] if mount is not None else []


def _was_remounted(record: Mapping[str, Any]) -> bool:
    """Return whether another mount is at the directory now; False if it cannot be told, as from another container."""
    before, now = record.get("mount") or [], _mount_of(str(record.get("path", "")))
    return before[:1] == now[:1] and before != now


def _since(moment: float, now: float) -> str:
    return f"{_time(moment, now)} ({format_duration(max(0.0, now - moment))})"


def _time(moment: float, now: float) -> str:
    form = "%H:%M" if abs(now - moment) < 43200 else "%d %b %H:%M"
    return time.strftime(form, time.localtime(moment))


def _name(place: str) -> str:
    """Return the name of the target's record. Records contain the target, which resolves collisions."""
    return short_digest(place.encode("utf-8", "surrogateescape"))


def _numbers() -> dict[str, str]:
    """Return the boot id and pid namespace of this node's pids."""
    return dict(zip(("boot", "namespace"), pid_space(), strict=True))


def _remove_expired(directory: Path, now: float) -> None:
    """Remove expired records: targets that are not probed any more."""
    for path in directory.iterdir():
        with contextlib.suppress(OSError, StateDirectoryError, ValueError, KeyError, TypeError):
            if now - path.stat().st_mtime < KEPT_S or (found := read_regular(path)) is None:
                continue
            if _read(path, json.loads(found[0])["place"], now) is None:
                path.unlink()


def _read(path: Path, place: str, now: float) -> Stuck | None:
    try:
        found = read_regular(path)
        record = json.loads(found[0]) if found is not None else {}
        if record["place"] != place or {key: record[key] for key in ("boot", "namespace")} != _numbers():
            return None
        if _was_remounted(record):
            return None
        alive = [int(pid) for pid, ticks in record["processes"].items() if is_same(int(pid), int(ticks))]
        if not alive and abs(now - float(record["seen"])) > FRESH_S:
            return None
        tried = float(record.get("tried", record["seen"]))
        return Stuck(float(record["since"]), tuple(alive), str(record.get("path", "")), tried)
    except (StateDirectoryError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
