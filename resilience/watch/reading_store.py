"""Stores the readings of each watchdog between ticks: one JSON file per watchdog in the state directory.

Two hosts may save at the same time: each save merges its readings with those in the file, the newest of each subject
winning, and rewrites the file. A race can lose one tick's readings at most.

The state directory may be on the file system that hangs, so a child with a deadline makes each access. If the state
directory does not respond or refuses the write, the store uses a fallback directory on this node
(system/fallback_directory.py: fallback_path). If neither responds, the tick has no earlier readings, and `--explain`
reports the error.
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
from resilience.system.stuck import ChildProbe, StuckMemory, probe_in_child, state_probe
from resilience.watch.reading import Memory, Timed, remember

if TYPE_CHECKING:
    from resilience.runs.context import Context

Series = Mapping[str, Sequence[Timed[Any]]]
"""The readings of each subject, oldest first; each reading is a record."""

KEPT_S = 30 * 86400.0
"""The retention of a subject that is no longer probed: its job has ended, its directory is gone."""

AHEAD_S = 3600.0
"""Readings further in the future than clocks differ are dropped: they would stay the newest forever."""

LIMIT_BYTES = 256 * 2**20
"""The most that is read of one file."""

_SCHEMA = "resil/1"
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
"""json.dumps creates a new encoder per call when separators are given."""


class Remembered(NamedTuple):
    """The content of a file of readings.

    Attributes:
        series: readings as records.
        error: why the file could not be read, or empty.
    """

    series: Series
    error: str = ""


class ReadingFile(NamedTuple):
    """The file with one watchdog's readings.

    Attributes:
        path: its path; the first save creates the directory.
        directory_mode, file_mode: the modes of new directories and files.
        gid: the group of a new directory, or None.
    """

    path: Path
    directory_mode: int = 0o700
    file_mode: int = 0o600
    gid: int | None = None

    def load(self, now: float) -> Remembered:
        """Return the content; quarantine a damaged file. Raise StateDirectoryError if it cannot be read."""
        raw = _read(self.path)
        if raw is None:
            return Remembered({})
        try:
            return Remembered(parse_readings(raw, now))
        except ValueError as error:
            quarantine = self.path.with_name(f"{self.path.name}.damaged-{int(now)}")
            try:
                self.path.replace(quarantine)
                action = f"renamed to {quarantine.name}"
            except OSError as problem:
                action = f"could not be renamed: {problem.strerror}"
            return Remembered({}, f"{self.path} was damaged ({error}), {action}; starting without earlier readings")

    def save(self, new: Series, memory: Memory, now: float) -> str:
        """Merge readings into the file; return the error of reading its earlier content, or an empty text.

        Raise StateDirectoryError if the file cannot be written.
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
    """Merge two stores of the same watchdog, dropping subjects older than KEPT_S. Pure."""
    merged: dict[str, Sequence[Timed[Any]]] = {}
    for subject in {**before, **new}:
        older, newer = before.get(subject, ()), new.get(subject, ())
        series: Sequence[Timed[Any]]
        if memory.count == 1 and len(older) < 2 and len(newer) < 2:  # fast path for ten thousand logs
            series = tuple(sorted((*older, *newer), key=lambda one: one.time)[-1:])
        else:
            series = remember(older, newer, memory)
        if series and now - series[-1].time < KEPT_S:
            merged[subject] = series
    return merged


def parse_readings(raw: bytes, now: float) -> Series:
    """Return the readings in a file's content. Raise ValueError if it is damaged. Pure."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON" if raw else "empty") from error
    if not isinstance(document, dict) or not isinstance(document.get("subjects"), dict):
        raise ValueError("not a file of readings")
    series = {}
    for subject, rows in document["subjects"].items():
        try:
            timed = [Timed(float(time), record) for time, record in rows]
        except (TypeError, ValueError) as error:
            raise ValueError(f"invalid readings of {subject!r}") from error
        if not all(isinstance(one.reading, dict) for one in timed):
            raise ValueError(f"invalid readings of {subject!r}")
        series[subject] = [one for one in timed if one.time < now + AHEAD_S]
    return series


def compose_readings(series: Series) -> str:
    """Return the file's content, with one line per subject to be readable. Pure."""
    lines = (
        f"{_ENCODE(subject)}: {_ENCODE([[one.time, one.reading] for one in rows])}" for subject, rows in series.items()
    )
    body = ",\n".join(lines)
    return f'{{"schema": "{_SCHEMA}", "kind": "readings", "subjects": {{\n{body}\n}}}}\n'


def _read(path: Path) -> bytes | None:
    """Return the content of a regular file, or None if the file does not exist."""
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


DIRECTORY = ".watch"


class ReadingStore(NamedTuple):
    """The remembered readings of one project's watchdogs.

    Attributes:
        context: the project's context.
        stuck: the places known to hang on this node.
        deadline_s: the deadline of each access to the state directory.
    """

    context: Context
    stuck: StuckMemory
    deadline_s: float

    def load(self, requested: Mapping[str, Memory]) -> tuple[dict[str, Remembered], bool]:
        """Return the remembered readings by watchdog, and whether the state directory does not respond.

        Empty, with the error, where they could not be read.
        """
        if not requested:
            return {}, False

        def from_all() -> dict[str, Any]:
            fallback = (self._fallback(),) if self._may_have_fallback() else ()
            return self._load((self._primary(), *fallback), requested)

        def from_fallback() -> dict[str, Any]:
            return self._load((self._fallback(),), requested)

        found, error, hangs = self._first_success("remembered readings", from_all, from_fallback)
        return {
            name: Remembered(_timed(found[name][0]), "; ".join(filter(None, (error, found[name][1]))))
            if found is not None
            else Remembered({}, error)
            for name in requested
        }, hangs

    def save(self, new: Mapping[str, tuple[Series, Memory]]) -> str:
        """Store the readings of this tick; return the errors of the state directory, or an empty text."""
        new = {name: given for name, given in new.items() if given[0]}
        if not new:
            return ""

        def to_primary() -> list[str]:
            return self._save(self._primary(), new, or_fallback=True)

        def to_fallback() -> list[str]:
            return self._save(self._fallback(), new)

        notes, error, _ = self._first_success("readings", to_primary, to_fallback)
        return "; ".join(dict.fromkeys(filter(None, (error, *(notes or ())))))

    def _first_success(
        self, what: str, primary: Callable[[], Any], fallback: Callable[[], Any]
    ) -> tuple[Any, str, bool]:
        """Return the result of the first work that succeeds, the errors before it, and whether the first one hangs."""
        state_dir = self.context.state_dir
        place = ChildProbe(f"{what} of {state_dir} (fallback)", fallback, self.deadline_s)
        errors: list[str] = []
        hangs = False
        for name, look in ((what, state_probe(state_dir, primary, self.deadline_s)), (f"{what} (fallback)", place)):
            for _, answer in probe_in_child({0: look}, self.stuck, self.context.system.clock):
                if answer.error is None:
                    return answer.value, "; ".join(errors), hangs
                hangs = hangs or answer.is_overdue
                errors.append(f"{name} of {state_dir}: {answer.error.message}")
        return None, "; ".join(errors), hangs

    def _primary(self) -> Path:
        """Return the primary directory. Accesses the disk, so call only in a child."""
        context = self.context
        if context.has_settings or context.state_dir.is_dir():
            return context.state_dir / DIRECTORY
        # This directory is no project yet: do not create a state directory wherever `resil watch` is run.
        project = f"{context.project.name or 'root'}-{crc32(os.fsencode(context.project)):08x}"
        return context.system.cache_home / "resil" / "watch" / project

    def _fallback(self) -> Path:
        from resilience.system.fallback_directory import fallback_path

        return fallback_path(self.context.system, self.context.state_dir / DIRECTORY)

    def _may_have_fallback(self) -> bool:
        """Return whether this node may have fallback files. Usually not, which saves hashing the name."""
        places = [f"/tmp/resil-{self.context.system.host.uid}"]
        if base := self.context.system.environ.get("XDG_STATE_HOME"):
            places.append(f"{base}/resil")
        return any(name.startswith(DIRECTORY.strip(".")) for place in places for name in _names(place))

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

    def _save(
        self, directory: Path, new: Mapping[str, tuple[Series, Memory]], *, or_fallback: bool = False
    ) -> list[str]:
        """Write to a directory; with `or_fallback`, write to the fallback directory what the first refuses."""
        now, notes = self.context.system.clock.now(), []
        if not or_fallback and (own_directory(directory.parent) is None or own_directory(directory) is None):
            raise StateDirectoryError(f"cannot write {directory}: it cannot be created or belongs to another user")
        moves = or_fallback and self._may_have_fallback()
        for name, (series, memory) in new.items():
            fallback = self._file(self._fallback(), name) if moves else None
            try:
                if fallback is not None:
                    with suppress(StateDirectoryError):  # move fallback readings back
                        series = merge(fallback.load(now).series, series, memory, now)
                notes.append(self._file(directory, name).save(series, memory, now))
                if fallback is not None:
                    with suppress(OSError):
                        fallback.path.unlink(missing_ok=True)
            except ResilError as error:
                notes.append(error.message)
                if or_fallback:
                    notes += self._save(self._fallback(), {name: (series, memory)})
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
            return ReadingFile(path)  # `resil submit` reports an unknown group
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
