"""Probes logs given by path or pattern: finds the files, and reads what is new in them."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH114, PTH116, PTH119, PTH120, PTH207

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from resilience.watch.checks._log.reading import (
    ANY,
    NEWEST,
    LogReading,
    LogState,
    merged_pauses,
    packed,
    unpacked,
)
from resilience.watch.checks._log.tail import LogReader, expected_of

_MAGIC = re.compile(r"[*?\[]")
_ROTATED = re.compile(r"[.-](?:\d{1,3}|\d{8}(?:-\d+)?|old|bak|orig)$")
_PACKED = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".Z")
_NUMBERS = re.compile(r"\d+")
_RANK = re.compile(
    r"((?:rank|worker|proc|node)s?[-_.=]?)\d{1,3}(?!\d)"
    r"|(?<=\d{4}[.-])\d{1,3}(?!\d)"  # sbatch(1), filename pattern: %j.%t, %j-%n; the task of an array is %A_%a
    r"|(?<=/)\d{1,3}(?=/(?:stdout|stderr)\.log$)",  # torchrun --redirects
    re.IGNORECASE,
)
JOB_DIGITS = 4
"""The least digits of a job number; ranks, nodes and array tasks usually have fewer."""


def is_pattern(path: str) -> bool:
    """Return whether a path is a glob pattern."""
    return _MAGIC.search(path) is not None


def probe_paths(
    subject: str, places: Sequence[str], before: Mapping[str, LogReading], reader: LogReader
) -> dict[str, LogReading]:
    """Probe one path or pattern and return the readings by subject, including `subject` itself.

    `places` are its possible locations, most likely first.
    """
    place = next((place for place in places if os.path.lexists(place)), None)
    if place is not None or not is_pattern(subject):
        place = place or places[0]
        return {subject: reader.reading((place,), before.get(subject) or _of_family(place, before, reader))}
    pattern, found = next(((p, f) for p in places if (f := _matches(p))), (places[0], {}))
    files = reader.settings.files
    known = {path: text for reading in before.values() for path, text in reading.logs}
    current = _without_rotated(found, known)
    since = reader.now - reader.settings.ignore_older_s
    fresh = [path for path, info in current.items() if info.st_mtime >= since or path in known]
    if files == NEWEST and fresh:
        fresh = [max(fresh, key=lambda path: (current[path].st_mtime, path))]
    if files in (NEWEST, ANY) and fresh:
        return {subject: reader.reading(fresh, before.get(subject), current)}
    taught = before.get(subject) or LogReading()
    readings = {path: reader.reading((path,), _known(path, before, taught, reader), current) for path in fresh}
    if not fresh:
        readings[subject] = _nothing(pattern, current, reader)
    else:
        readings[subject] = LogReading(nothing=f"{len(fresh)} logs", notes=("none",), clock=reader.moment)
    if taught.pauses:
        readings[subject] = replace(readings[subject], pauses=taught.pauses, taught=taught.taught)
    readings |= _vanished(pattern, readings, before, reader)
    _mark_births(readings, before, reader)
    for path, successor in _superseded(readings, reader):
        why = f"{os.path.basename(successor)} has taken over"
        readings[path] = replace(readings[path], over=why)
    for path, other in _covered_by_other_ranks(readings, reader):
        readings[path] = replace(readings[path], over=f"no steps in this log; {os.path.basename(other)} has them")
    return readings


def _known(path: str, before: Mapping[str, LogReading], taught: LogReading, reader: LogReader) -> LogReading | None:
    """Return the previous reading of a log of a pattern, with what the pattern was taught."""
    known = before.get(path) or _of_family(path, before, reader)
    if not taught.pauses or (known is not None and known.taught == taught.taught):
        return known
    known = known or LogReading()
    pauses = tuple(map(tuple, merged_pauses(known.pauses, taught.pauses)))
    return replace(known, pauses=pauses, taught=taught.taught)


def _of_family(path: str, before: Mapping[str, LogReading], reader: LogReader) -> LogReading | None:
    """Return what the logs of earlier jobs taught about a new one: their names differ only in numbers."""
    if reader.families is None:
        reader.families = {}
        for name, one in before.items():
            if len(one.logs) == 1:
                known = reader.families.get(_family(name), LogReading())
                pauses = tuple(map(tuple, merged_pauses(known.pauses, one.pauses)))
                told, expected = max(known.told, one.told), expected_of(one) or known.expected
                learns = min(filter(None, (known.learns, one.learns)), default=0.0)
                known = LogReading(pauses=pauses, told=told, expected=expected, learns=learns)
                reader.families[_family(name)] = known
    return reader.families.get(_family(path))


def _matches(pattern: str) -> dict[str, os.stat_result]:
    """Return the regular files that match; of several names of one file, the one that is not a link."""
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


def _without_rotated(found: Mapping[str, os.stat_result], known: Mapping[str, str]) -> dict[str, os.stat_result]:
    """Return the files without those rotated by logrotate and the like: `train.log.1`, `train.log-20261120.gz`."""
    has_news = any(path not in known for path in found)
    inodes = {unpacked(text).inode: path for path, text in known.items()} if has_news else {}
    kept = {}
    for path, info in found.items():
        base = next((path[: -len(end)] for end in _PACKED if path.endswith(end)), path)
        base = _ROTATED.sub("", base)
        if base != path and base in found:
            continue
        former = inodes.get(info.st_ino, path)
        if former != path and former in found and found[former].st_ino != info.st_ino:
            continue
        kept[path] = info
    return kept


def _vanished(
    pattern: str, readings: Mapping[str, LogReading], before: Mapping[str, LogReading], reader: LogReader
) -> dict[str, LogReading]:
    """Return readings of the logs that matched in the previous probe, so that their incidents are resolved."""
    from fnmatch import fnmatch

    gone = {}
    for path, reading in before.items():
        if path in readings or len(reading.logs) != 1 or reading.logs[0][0] != path or not fnmatch(path, pattern):
            continue
        if not unpacked(reading.logs[0][1]).inode:
            continue  # a path that was given and never existed
        if os.path.lexists(path):  # rotated away, or old by now
            gone[path] = replace(reading, over="the log was rotated or is old", lines=(), clock=reader.moment)
            continue
        text = reader.log(path, reading.logs[0][1], reading)
        state = reader.states[path]
        is_gone = state.trouble_kind == "missing" and reader.now - state.troubled > reader.settings.floor_s
        over = "the log was renamed or deleted" if is_gone else ""
        if is_gone and reading.over:
            continue  # already reported
        gone[path] = LogReading(logs=((path, text),), over=over, clock=reader.moment, pauses=reading.pauses)
    return gone


def _nothing(pattern: str, found: Mapping[str, os.stat_result], reader: LogReader) -> LogReading:
    if found:
        newest = max(found, key=lambda path: found[path].st_mtime)
        why, kind = f"all {len(found)} logs are old; the newest is {newest}", "old"
    else:
        match = _MAGIC.search(pattern)
        directory = os.path.dirname(pattern[: match.start()] if match is not None else pattern) or "/"
        why, kind = "no log matches", "missing"
        try:
            with os.scandir(directory):
                pass
        except OSError as error:
            why, kind = f"cannot read {directory}: {error.strerror}", "not-read"
    return LogReading(nothing=why, notes=(kind,), clock=reader.moment)


def _logs(readings: Mapping[str, LogReading], reader: LogReader) -> Iterator[tuple[str, LogState]]:
    for path in readings:
        state = reader.states.get(path)
        if state is not None:
            yield path, state


def _mark_births(readings: dict[str, LogReading], before: Mapping[str, LogReading], reader: LogReader) -> None:
    """Mark the logs that appeared while their siblings were already watched."""
    fresh = [path for path, _ in _logs(readings, reader) if path not in before]
    if not fresh or len(fresh) == len(readings) - 1:
        return
    watched = {_family(path) for path, _ in _logs(readings, reader) if path in before}
    for path in fresh:
        if _family(path) in watched:
            state = reader.states[path] = reader.states[path]._replace(appeared_at=reader.now)
            readings[path] = replace(readings[path], logs=((path, packed(state)),))


def _family(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/{_NUMBERS.sub('#', name)}"


def _superseded(readings: Mapping[str, LogReading], reader: LogReader) -> list[tuple[str, str]]:
    """Return (log, successor) pairs: logs of ended jobs, whose name differs from a later log only in its numbers.

    A successor appeared after the last line of the older log. If both existed before the first probe, it has the larger
    job number and still grows, and the older one was already silent; logs of concurrent jobs all grow.
    """

    def was_quiet(state: LogState) -> bool:
        return state.last_output_at <= state.first_seen - reader.settings.floor_s

    families: dict[str, list[tuple[str, LogState]]] = {}
    for path, state in _logs(readings, reader):
        families.setdefault(_family(path), []).append((path, state))
    found = []
    for logs in families.values():
        if len(logs) < 2:
            continue
        youngest, child = max(logs, key=lambda one: one[1].appeared_at)
        numbered = [(_job_number(path), state.last_output_at, path) for path, state in logs]
        number, last_output, largest = max(numbered)
        for (path, state), (own, _, _) in zip(logs, numbered, strict=True):
            if state.trouble:
                continue
            if child.appeared_at > state.last_output_at and child.appeared_at > state.appeared_at:
                found.append((path, youngest))
            elif own < number and last_output > state.last_output_at and not state.appeared_at and was_quiet(state):
                found.append((path, largest))
    return found


def _covered_by_other_ranks(readings: Mapping[str, LogReading], reader: LogReader) -> list[tuple[str, str]]:
    """Return (log, other rank's log) pairs: often only rank 0 logs steps, and it waits for all ranks.

    Only names with an explicit rank count: `exp1.log` and `exp2.log` may be two trainings.
    """
    logs = list(_logs(readings, reader))
    silent = {path for path, state in logs if not (state.kind or state.error or state.trouble)}
    if not silent:
        return []
    ranks: dict[str, list[tuple[str, LogState]]] = {}
    for path, state in logs:
        name, count = _RANK.subn(lambda match: f"{match[1] or ''}#", path)
        if count and not readings[path].over:
            ranks.setdefault(name, []).append((path, state))
    found = []
    for family in ranks.values():
        with_steps = [one for one in family if one[1].kind and not one[1].trouble]
        if with_steps:
            best, _ = max(with_steps, key=lambda one: one[1].last_progress_at)
            found += [(path, best) for path, _ in family if path in silent]
    return found


def _job_number(path: str) -> int:
    numbers = _NUMBERS.findall(path.rpartition("/")[2])
    return max((int(text) for text in numbers if JOB_DIGITS <= len(text) <= 18), default=0)
