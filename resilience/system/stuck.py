"""Remembers on this node which looks hang, so that no tick and no other process starts a second one.

A look at a hung file system cannot always be ended (system/child.py). What is left of it is remembered in a small file
in /tmp or in memory, never on a file system that is looked at: what it looks at, since when it hangs, and the
processes, by number and start, with the boot and the namespace that these numbers belong to. As long as one of them is
there, the next look is refused at once; when all have ended, the mount has most probably come back: it is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.base.processes import is_same, pid_space, start_ticks
from resilience.errors import ProbeError, StateDirectoryError
from resilience.quantities import format_duration
from resilience.system.child import Answer, KeyT, run_apart
from resilience.system.files import own_directory, read_regular, short_digest, write_atomic

if TYPE_CHECKING:
    from resilience.system.ports import Clock, System

FRESH_S = 3600.0
"""A place that did not answer longer ago than this, and left no process waiting, may have answered since: forgotten."""

KEPT_S = 86400.0
"""A record that is older, and whose processes have all ended, is removed by whoever writes the next."""


class Look(NamedTuple):
    """One look that may hang.

    Attributes:
        place: what is looked at, the same text in every tick and every process of this user on this node.
        work: looks, in a child; see run_apart for what it may return.
        deadline_s: how long it may take.
    """

    place: str
    work: Callable[[], Any]
    deadline_s: float


class Stuck(NamedTuple):
    """The record of a place that did not answer.

    Attributes:
        since: when the first look began that got no answer, seconds since the epoch.
        pids: the processes that still wait there; empty when all could be killed.
    """

    since: float
    pids: tuple[int, ...] = ()


class StuckMemory:
    """The places of this node that do not answer. Damaged, foreign and outlived records are as if they were not there.

    Where nothing can be remembered (no directory of our own), every look is a first one.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        """`directories`: the first that can be used is written to; all are read."""
        self._directories = tuple(directories)
        self._names: dict[str, list[Path]] | None = None

    @classmethod
    def of(cls, system: System) -> StuckMemory:
        """The memory of this node: /tmp first, because cron has no $XDG_RUNTIME_DIR, and both must see the same."""
        own = f"resil-{system.host.uid}"
        directories = [Path("/tmp", own, "stuck"), Path("/dev/shm", own, "stuck")]
        if runtime := system.environ.get("XDG_RUNTIME_DIR"):
            directories.append(Path(runtime, "resil", "stuck"))
        return cls(directories)

    def find(self, place: str, now: float) -> Stuck | None:
        """The record of a place; None after a reboot, or when no probe ran for long."""
        found = [record for path in self._named(place) if (record := _read(path, place, now)) is not None]
        if not found:
            return None
        pids = tuple(dict.fromkeys(pid for record in found for pid in record.pids))
        return Stuck(min(record.since for record in found), pids)

    def note(self, place: str, stuck: Stuck, now: float) -> None:
        """Remember that a place did not answer just now."""
        began = {str(pid): ticks for pid in stuck.pids if (ticks := start_ticks(pid)) is not None}
        record: dict[str, Any] = {"place": place, "since": stuck.since, "seen": now, "processes": began, **_numbers()}
        for directory in self._directories:
            if own_directory(directory.parent) is None or own_directory(directory) is None:
                continue
            path = directory / _name(place)
            if (other := _read(path, place, now)) is not None:  # another process hangs there as well
                began = {str(pid): start_ticks(pid) or 0 for pid in other.pids} | began
                record |= {"since": min(other.since, stuck.since), "processes": began}
            with contextlib.suppress(StateDirectoryError):
                write_atomic(path, json.dumps(record), durable=False)
                self._all().setdefault(path.name, []).append(path)
                _sweep(directory, now)
                return

    def forget(self, place: str) -> None:
        """It answers again."""
        for path in self._named(place):
            with contextlib.suppress(OSError):
                path.unlink()
        self._all().pop(_name(place), None)

    def _named(self, place: str) -> list[Path]:
        names = self._all()
        return names.get(_name(place), []) if names else []

    def _all(self) -> dict[str, list[Path]]:
        """The records there are. Mostly none, and then no place costs more than a look into this."""
        if self._names is None:
            self._names = {}
            for directory in self._directories:
                try:
                    info = directory.lstat()
                    if info.st_uid != os.getuid() or info.st_mode & 0o022:
                        continue  # somebody else's, who would have us believe that all is stuck
                    names = os.listdir(directory)  # noqa: PTH208 - names only
                except OSError:
                    continue
                for name in names:
                    self._names.setdefault(name, []).append(directory / name)
        return self._names


def look_apart(looks: Mapping[KeyT, Look], memory: StuckMemory, clock: Clock) -> Iterator[tuple[KeyT, Answer]]:
    """As run_apart, and a place where an earlier look still hangs is not looked at again: that is said at once.

    The answers of places that did not answer before either say since when.
    """
    began = clock.now()
    before = {key: memory.find(look.place, began) for key, look in looks.items()}
    for key, stuck in before.items():
        if stuck is not None and stuck.pids:
            yield key, Answer(error=_still_stuck(stuck, began), is_overdue=True, abandoned=stuck.pids)
    works = {k: (look.work, look.deadline_s) for k, look in looks.items() if not ((b := before[k]) and b.pids)}
    for key, answer in run_apart(works):
        place, stuck = looks[key].place, before[key]
        if not answer.is_overdue:
            if stuck is not None:
                memory.forget(place)
            yield key, answer
            continue
        since = stuck.since if stuck is not None else began
        memory.note(place, Stuck(since, answer.abandoned), clock.now())
        yield key, answer._replace(error=_overdue(answer, looks[key], stuck, clock.now()))


def _still_stuck(stuck: Stuck, now: float) -> ProbeError:
    pids = ", ".join(map(str, stuck.pids))
    return ProbeError(
        f"STUCK since {_since(stuck.since, now)}: a probe started then still hangs",
        hint=f"process {pids} waits in the kernel; as root, `cat /proc/{stuck.pids[0]}/wchan` shows where",
        transient=True,
    )


def _overdue(answer: Answer, look: Look, stuck: Stuck | None, now: float) -> ProbeError:
    text = f"no answer within {look.deadline_s:g} s"
    if stuck is not None:
        text += f"; STUCK since {_since(stuck.since, now)}"
    hangs = bool(answer.abandoned)
    hint = "the probe waits in the kernel: a file server or a disk does not respond" if hangs else ""
    return ProbeError(text, hint=hint, transient=True)


def _since(moment: float, now: float) -> str:
    form = "%H:%M" if now - moment < 43200 else "%d %b %H:%M"
    return f"{time.strftime(form, time.localtime(moment))} ({format_duration(max(0.0, now - moment))})"


def _name(place: str) -> str:
    """The name of its record. Two places of one name are told apart by what stands in it."""
    return short_digest(place.encode("utf-8", "surrogateescape"))


def _numbers() -> dict[str, str]:
    """The boot and the namespace that process numbers belong to."""
    return dict(zip(("boot", "namespace"), pid_space(), strict=True))


def _sweep(directory: Path, now: float) -> None:
    """Remove what nobody asks for any more: places that were looked at once, from a directory that is gone."""
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
        alive = [int(pid) for pid, ticks in record["processes"].items() if is_same(int(pid), int(ticks))]
        if not alive and abs(now - float(record["seen"])) > FRESH_S:
            return None
        return Stuck(float(record["since"]), tuple(alive))
    except (StateDirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
