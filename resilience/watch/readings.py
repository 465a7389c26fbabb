"""Readings remembered from tick to tick: one JSON file for each watchdog.

Two hosts may look at the same time. So what is saved is merged with what lies there by then, the newest of each subject
winning, and written whole; a reading that is lost between two of them costs nothing but that reading.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from resilience.errors import StateDirectoryError
from resilience.system.files import explain_os_error, make_folder, write_atomic
from resilience.watch.reading import Memory, Timed, remember

Series = Mapping[str, Sequence[Timed[Any]]]
"""The readings of each subject, oldest first; each reading is a record."""

KEPT_S = 30 * 86400.0
"""A subject that nobody has seen for so long is forgotten: its job has ended, its folder is gone."""

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
        trouble: one sentence on what was wrong with it, or empty.
    """

    series: Series
    trouble: str = ""


class ReadingFile(NamedTuple):
    """The file that remembers one watchdog's readings.

    Attributes:
        path: where it lies; the folder is made when it is first written.
        folder_mode, file_mode: for folders and files that are made.
        gid: the group of a new folder, or None.
    """

    path: Path
    folder_mode: int = 0o700
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
        folder = self.path.parent
        for made in make_folder(folder, mode=self.folder_mode):
            if self.gid is not None:
                with suppress(OSError):
                    os.chown(made, -1, self.gid)
                    made.chmod(self.folder_mode)  # chown clears the set-group-id bit
        write_atomic(self.path, compose_readings(merged), mode=self.file_mode, durable=False)
        return before.trouble


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
