"""Readings that watchdogs remember from tick to tick: one JSON file for each, in the state directory if it answers.

Two hosts may save at the same time. So what is saved is merged with what lies there by then, the newest of each subject
winning, and written whole; a reading that is lost between two of them costs nothing but that reading.

The state directory may be the very disk that hangs, so each access is made by a child with a deadline. Where the state
directory does not respond or refuses the write, a fallback directory on this node is used
(system/fallback_directory.py: fallback_path); where neither responds, the readings of this tick stand alone, and
`--explain` says so.
"""

from __future__ import annotations

import json
import os
import stat
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resilience.errors import ResilError, StateDirectoryError
from resilience.system.files import explain_os_error, make_directory, own_directory, write_atomic
from resilience.system.stuck import Look, StuckMemory, look_apart
from resilience.watch.reading import Memory, Timed, remember

if TYPE_CHECKING:
    from resilience.runs.context import Context

Series = Mapping[str, Sequence[Timed[Any]]]
"""The readings of each subject, oldest first; each reading is a record."""

KEPT_S = 30 * 86400.0
"""A subject that nobody has seen for so long is forgotten: its job has ended, its directory is gone."""

AHEAD_S = 3600.0
"""A reading from further in the future than clocks differ is damage, and would be the newest for ever."""

LIMIT_BYTES = 256 * 2**20
"""No memory is larger."""

_SCHEMA = "resil/1"
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
"""json.dumps makes a new encoder each time it is asked for separators."""


class Remembered(NamedTuple):
    """What a file of readings says.

    Attributes:
        series: readings as records.
        error: one sentence on what was wrong with it, or empty.
    """

    series: Series
    error: str = ""


class ReadingFile(NamedTuple):
    """The file that remembers one watchdog's readings.

    Attributes:
        path: where it lies; the directory is made when it is first written.
        directory_mode, file_mode: for directories and files that are made.
        gid: the group of a new directory, or None.
    """

    path: Path
    directory_mode: int = 0o700
    file_mode: int = 0o600
    gid: int | None = None

    def load(self, now: float) -> Remembered:
        """Read it; a damaged file is set aside and said. Raise StateDirectoryError if it cannot be read."""
        raw = _read(self.path)
        if raw is None:
            return Remembered({})
        try:
            return Remembered(parse_readings(raw, now))
        except ValueError as error:
            aside = self.path.with_name(f"{self.path.name}.damaged-{int(now)}")
            try:
                self.path.replace(aside)
                said = f"set aside as {aside.name}"
            except OSError as problem:
                said = f"and could not be set aside: {problem.strerror}"
            return Remembered({}, f"{self.path} was damaged ({error}), {said}; it begins afresh")

    def save(self, new: Series, memory: Memory, now: float) -> str:
        """Add readings to it; return what was wrong with what lay there, or nothing.

        Raise StateDirectoryError if it cannot be written.
        """
        before = self.load(now)
        merged = merge(before.series, new, memory, now)
        directory = self.path.parent
        for made in make_directory(directory, mode=self.directory_mode):
            if self.gid is not None:
                with suppress(OSError):
                    os.chown(made, -1, self.gid)
                    made.chmod(self.directory_mode)  # chown clears the set-group-id bit
        write_atomic(self.path, compose_readings(merged), mode=self.file_mode, durable=False)
        return before.error


def merge(before: Series, new: Series, memory: Memory, now: float) -> Series:
    """Given two memories of the same watchdog, return one: every subject of both that is not long gone. Pure."""
    merged: dict[str, Sequence[Timed[Any]]] = {}
    for subject in {**before, **new}:
        older, newer = before.get(subject, ()), new.get(subject, ())
        series: Sequence[Timed[Any]]
        if memory.count == 1 and len(older) < 2 and len(newer) < 2:  # ten thousand logs: the newest is all there is
            series = tuple(sorted((*older, *newer), key=lambda one: one.time)[-1:])
        else:
            series = remember(older, newer, memory)
        if series and now - series[-1].time < KEPT_S:
            merged[subject] = series
    return merged


def parse_readings(raw: bytes, now: float) -> Series:
    """Given the file's content, return the readings in it. Raise ValueError if it is no such file. Pure."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError("no JSON" if raw else "it is empty") from error
    if not isinstance(document, dict) or not isinstance(document.get("subjects"), dict):
        raise ValueError("no readings in it")
    series = {}
    for subject, rows in document["subjects"].items():
        try:
            timed = [Timed(float(time), record) for time, record in rows]
        except (TypeError, ValueError) as error:
            raise ValueError(f"the readings of {subject!r} are none") from error
        if not all(isinstance(one.reading, dict) for one in timed):
            raise ValueError(f"the readings of {subject!r} are none")
        series[subject] = [one for one in timed if one.time < now + AHEAD_S]
    return series


def compose_readings(series: Series) -> str:
    """The file's content: one line for each subject, for people who look. Pure."""
    lines = (
        f"{_ENCODE(subject)}: {_ENCODE([[one.time, one.reading] for one in rows])}" for subject, rows in series.items()
    )
    body = ",\n".join(lines)
    return f'{{"schema": "{_SCHEMA}", "kind": "readings", "subjects": {{\n{body}\n}}}}\n'


def _read(path: Path) -> bytes | None:
    """The content of a regular file, or None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StateDirectoryError(f"{path} is not a regular file")
        try:
            return file.read(LIMIT_BYTES)
        except OSError as error:
            raise explain_os_error(error, "read", path) from error


FOLDER = ".watch"


class ReadingStore(NamedTuple):
    """The memory of one project's watchdogs.

    Attributes:
        context: whose.
        stuck: what is known to hang on this node.
        deadline_s: how long the state directory may take.
    """

    context: Context
    stuck: StuckMemory
    deadline_s: float

    def load(self, requested: Mapping[str, Memory]) -> dict[str, Remembered]:
        """What is remembered, by the name of the watchdog. What could not be looked at is empty and says why."""
        if not requested:
            return {}

        def everywhere() -> dict[str, Any]:
            return self._load((self._home(), self._spare()) if self._may_be_spare() else (self._home(),), requested)

        def here() -> dict[str, Any]:
            return self._load((self._spare(),), requested)

        found, error = self._first_answer("remembered readings", everywhere, here)
        return {
            name: Remembered(_timed(found[name][0]), "; ".join(filter(None, (error, found[name][1]))))
            if found is not None
            else Remembered({}, error)
            for name in requested
        }

    def save(self, new: Mapping[str, tuple[Series, Memory]]) -> str:
        """Remember the readings of this tick; return what was wrong with the state directory, or nothing."""
        new = {name: given for name, given in new.items() if given[0]}
        if not new:
            return ""

        def at_home() -> list[str]:
            return self._save(self._home(), new, and_else=True)

        def here() -> list[str]:
            return self._save(self._spare(), new)

        notes, error = self._first_answer("readings", at_home, here)
        return "; ".join(dict.fromkeys(filter(None, (error, *(notes or ())))))

    def _first_answer(self, what: str, *works: Callable[[], Any]) -> tuple[Any, str]:
        """What the first of these works returns that does not fail, and what was wrong with those before it."""
        errors: list[str] = []
        for number, work in enumerate(works):
            place = f"{what} of {self.context.state_dir}{' (fallback)' if number else ''}"
            look = Look(place, work, self.deadline_s)
            for _, answer in look_apart({0: look}, self.stuck, self.context.system.clock):
                if answer.error is None:
                    return answer.value, "; ".join(errors)
                errors.append(f"{place}: {answer.error.message}")
        return None, "; ".join(errors)

    def _home(self) -> Path:
        """Where they belong; looks at the disk, so for a child only."""
        context = self.context
        if context.has_settings or context.state_dir.is_dir():
            return context.state_dir / FOLDER
        # Nobody has decided to keep anything here; do not leave a directory in every place that somebody looks from.
        project = f"{context.project.name or 'root'}-{crc32(os.fsencode(context.project)):08x}"
        return context.system.cache_home / "resil" / "watch" / project

    def _spare(self) -> Path:
        from resilience.system.fallback_directory import fallback_path

        return fallback_path(self.context.system, self.context.state_dir / FOLDER)

    def _may_be_spare(self) -> bool:
        """Whether anything of ours was ever put aside on this node: mostly not, and then a name need not be hashed."""
        places = [f"/tmp/resil-{self.context.system.host.uid}"]
        if base := self.context.system.environ.get("XDG_STATE_HOME"):
            places.append(f"{base}/resil")
        return any(name.startswith(FOLDER.strip(".")) for place in places for name in _names(place))

    def _load(self, directories: Iterable[Path], requested: Mapping[str, Memory]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        now = self.context.system.clock.now()
        for name, memory in requested.items():
            merged: Series = {}
            errors = []
            for directory in directories:
                try:
                    remembered = self._file(directory, name).load(now)
                except StateDirectoryError as error:
                    remembered = Remembered({}, error.message)
                errors.append(remembered.error)
                if remembered.series:
                    merged = merge(merged, remembered.series, memory, now) if merged else remembered.series
            found[name] = (_plain(merged), "; ".join(filter(None, errors)))
        return found

    def _save(self, directory: Path, new: Mapping[str, tuple[Series, Memory]], *, and_else: bool = False) -> list[str]:
        """Write into a directory; where that takes nothing `and_else` the fallback does."""
        now, notes = self.context.system.clock.now(), []
        if not and_else and (own_directory(directory.parent) is None or own_directory(directory) is None):
            raise StateDirectoryError(f"cannot write {directory}: it cannot be made a directory of our own")
        moves = and_else and self._may_be_spare()
        for name, (series, memory) in new.items():
            beside = self._file(self._spare(), name) if moves else None
            try:
                if beside is not None:
                    with suppress(StateDirectoryError):  # what was kept there meanwhile moves home
                        series = merge(beside.load(now).series, series, memory, now)
                notes.append(self._file(directory, name).save(series, memory, now))
                if beside is not None:
                    with suppress(OSError):
                        beside.path.unlink(missing_ok=True)
            except ResilError as error:
                notes.append(error.message)
                if and_else:
                    notes += self._save(self._spare(), {name: (series, memory)})
        return notes

    def _file(self, directory: Path, name: str) -> ReadingFile:
        path = directory / f"{name}.json"
        group = self.context.group
        if not group or directory.parent != self.context.state_dir:
            return ReadingFile(path)
        import grp

        try:
            gid = grp.getgrnam(group).gr_gid
        except KeyError:
            return ReadingFile(path)  # submitting says that there is no such group
        return ReadingFile(path, 0o2770, 0o660, gid)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names only
    except OSError:
        return []


def _plain(series: Series) -> dict[str, Any]:
    return {subject: [(one.time, one.reading) for one in rows] for subject, rows in series.items()}


def _timed(found: Mapping[str, Any]) -> Series:
    return {subject: tuple(Timed(time, record) for time, record in rows) for subject, rows in found.items()}
