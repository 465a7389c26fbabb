"""Logs that were named by path or pattern: which files those are, and what is new in them."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH100, PTH111, PTH114, PTH116, PTH118, PTH119, PTH120, PTH207

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import Template

from resilience.checks._log.tail import last_lines
from resilience.checks._log.threshold import allowance
from resilience.checks._log.words import ANY, NEWEST, LogReading, LogSettings, LogState
from resilience.system.world import World

Look = Callable[[str, LogState | None], LogState]
EVIDENCE_LINES = 5
_MAGIC = re.compile(r"[*?\[]")
_ROTATED = re.compile(r"(?P<base>.+?)(?:[.-](?:\d{1,3}|\d{8}(?:-\d+)?|old|bak|orig))?(?:\.(?:gz|xz|zst|bz2|lz4|Z))?")
_JOB_NUMBER = re.compile(r"\d{4,}")
_DIGITS = re.compile(r"\d+")


def candidates(text: str, world: World, project: str) -> tuple[str, ...]:
    """Where a path may lie, most likely first: below the current folder, below the project's."""
    whole = os.path.expanduser(Template(text).safe_substitute(world.environ))
    places = (os.path.abspath(os.path.join(folder, whole)) for folder in (str(world.cwd), project))
    return tuple(dict.fromkeys(places))


def is_pattern(path: str) -> bool:
    """Whether it may stand for several files."""
    return _MAGIC.search(path) is not None


def look_at(
    places: Sequence[str], settings: LogSettings, before: Mapping[str, LogReading], look: Look, now: float
) -> dict[str, LogReading]:
    """Look at what one path or pattern stands for, and return a reading of each subject."""
    place = next((place for place in places if os.path.lexists(place)), None)
    if place is not None or not is_pattern(places[0]):
        return {(path := place or places[0]): reading_of((path,), before.get(path), look, settings, now)}
    pattern, found = places[0], dict[str, os.stat_result]()
    for pattern in places:
        found = _matches(pattern)
        if found:
            break
    else:
        pattern = places[0]
    known = {path: state for reading in before.values() for path, state in states(reading)}
    current = _without_rotated(found, known)
    fresh = [
        path for path, info in current.items()
        if path in known or now - info.st_mtime <= settings.ignore_older_s
    ]  # fmt: skip
    old = before.get(pattern)
    if not fresh:
        return {pattern: _nothing(pattern, current)}
    if settings.files == NEWEST:
        newest = max(fresh, key=lambda path: (current[path].st_mtime, path))
        return {pattern: reading_of((newest,), old, look, settings, now)}
    if settings.files == ANY:
        return {pattern: reading_of(tuple(fresh), old, look, settings, now)}
    readings = {path: reading_of((path,), before.get(path), look, settings, now) for path in fresh}
    readings = _with_births(readings, before, now)
    vanished = [path for path in before if path not in readings and path in known and _is_match(path, pattern, found)]
    for path in vanished:
        reading = reading_of((path,), before.get(path), look, settings, now)
        if states(reading)[0][1].trouble_kind == "missing" and now - states(reading)[0][1].troubled > settings.floor_s:
            reading = _over(reading, "the log is gone: renamed or removed")
        readings[path] = reading
    for path, successor in _superseded(readings):
        readings[path] = _over(readings[path], f"{os.path.basename(successor)} has taken over")
    return readings


def states(reading: LogReading) -> list[tuple[str, LogState]]:
    """The logs of a reading and what is known of them."""
    return [(path, LogState(*state)) for path, state in reading.logs]


def reading_of(
    paths: Sequence[str], before: LogReading | None, look: Look, settings: LogSettings, now: float
) -> LogReading:
    """Look at these logs as one subject."""
    known = dict(before.logs) if before is not None else {}
    logs: list[tuple[str, LogState]] = []
    for path in paths:
        old = known.get(path)
        logs.append((path, look(path, LogState(*old) if old is not None else None)))
    path, newest = max(logs, key=_advanced) if len(logs) > 1 else logs[0]
    lines: tuple[str, ...] = ()
    is_odd = newest.error or newest.end or newest.fell_from is not None
    if is_odd or now - newest.advanced > 0.9 * allowance(newest.intervals, newest.phase, settings).seconds - 1:
        lines = last_lines(path, EVIDENCE_LINES)
    return LogReading(logs=tuple([(path, tuple(state)) for path, state in logs]), lines=lines)


def _advanced(log: tuple[str, LogState]) -> float:
    return log[1].advanced


def _over(reading: LogReading, why: str) -> LogReading:
    return replace(reading, over=why)


def _matches(pattern: str) -> dict[str, os.stat_result]:
    """The regular files that a pattern stands for; of several names of one file, the one that is no link."""
    from glob import glob

    named: dict[tuple[int, int], str] = {}
    found: dict[str, os.stat_result] = {}
    for path in sorted(glob(pattern, recursive=True)):
        try:
            info = os.stat(path)
        except OSError:
            continue
        if not stat.S_ISREG(info.st_mode):
            continue
        file = (info.st_dev, info.st_ino)
        other = named.get(file)
        if other is not None:
            if not os.path.islink(other):
                continue
            del found[other]
        named[file] = path
        found[path] = info
    return found


def _without_rotated(found: Mapping[str, os.stat_result], known: Mapping[str, LogState]) -> dict[str, os.stat_result]:
    """Leave out what logrotate and its like have put aside: `train.log.1`, `train.log-20261120.gz`."""
    inodes = {state.inode: path for path, state in known.items() if state.inode}
    kept = {}
    for path, info in found.items():
        match = _ROTATED.fullmatch(path)
        base = match["base"] if match is not None else path
        if base != path and base in found:
            continue
        former = inodes.get(info.st_ino)
        if former is not None and former != path and former in found and found[former].st_ino != info.st_ino:
            continue
        kept[path] = info
    return kept


def _is_match(path: str, pattern: str, found: Mapping[str, os.stat_result]) -> bool:
    """Whether a log that was known belongs to this pattern and is not there now."""
    from fnmatch import fnmatch

    return path not in found and fnmatch(path, pattern)


def _nothing(pattern: str, found: Mapping[str, os.stat_result]) -> LogReading:
    if found:
        newest = max(found, key=lambda path: found[path].st_mtime)
        return LogReading(nothing=f"all {len(found)} logs are old; the newest is {newest}", notes=("old",))
    root = pattern[: _MAGIC.search(pattern).start()] if _MAGIC.search(pattern) else pattern  # type: ignore[union-attr]
    folder = os.path.dirname(root) or "/"
    try:
        with os.scandir(folder):
            pass
    except OSError as error:
        return LogReading(nothing=f"cannot read {folder}: {error.strerror}", notes=("not-read",))
    return LogReading(nothing="no log matches", notes=("missing",))


def _with_births(
    readings: dict[str, LogReading], before: Mapping[str, LogReading], now: float
) -> dict[str, LogReading]:
    """Mark the logs that have appeared while their siblings were watched."""
    watched = {_family(path) for path in readings if path in before}
    for path, reading in readings.items():
        if path not in before and _family(path) in watched:
            state = LogState(*reading.logs[0][1])._replace(born=now)
            readings[path] = replace(reading, logs=((path, tuple(state)),))
    return readings


def _family(path: str) -> str:
    return _DIGITS.sub("#", os.path.basename(path)) + "/" + os.path.dirname(path)


def _superseded(readings: Mapping[str, LogReading]) -> list[tuple[str, str]]:
    """(log, its successor): the log of a job that is over, told by a later one with the same name but its numbers.

    A successor appeared after the last line of the older one; or, when both were there before we looked, it has the
    larger job number (four digits or more: ranks and tasks have fewer), goes on, and the older one never did.
    """
    families: dict[str, list[str]] = {}
    for path in readings:
        families.setdefault(_family(path), []).append(path)
    found = []
    for paths in families.values():
        if len(paths) < 2:
            continue
        known = {path: LogState(*readings[path].logs[0][1]) for path in paths}
        youngest = max(paths, key=lambda path: known[path].born)
        largest = max(paths, key=lambda path: (_job_number(path), known[path].talked))
        for path in paths:
            mine = known[path]
            if known[youngest].born > mine.talked and path != youngest and mine.born < known[youngest].born:
                found.append((path, youngest))
            elif (
                _job_number(path) < _job_number(largest)
                and known[largest].talked > mine.talked
                and not mine.born
                and mine.talked <= mine.first_seen
                and not mine.trouble
            ):
                found.append((path, largest))
    return found


def _job_number(path: str) -> int:
    numbers = _JOB_NUMBER.findall(os.path.basename(path))
    return int(numbers[-1][:18]) if numbers else 0
