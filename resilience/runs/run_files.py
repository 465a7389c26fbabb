"""Reads the files of a run: its attempts and journals. Format: docs/reference/run-directory.md."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.attempts import Attempt, AttemptEnd, LastSave, last_save
from resilience.runs.run_directory import RunDirectory
from resilience.switch import printable
from resilience.system.files import explain_os_error, open_without_waiting, parse_lines, read_regular

_NUMBER = re.compile(r"[0-9]{4,18}")
TAIL_BYTES = 65536
"""Bytes read from the end of a log, a heartbeat or a journal: about three hundred events."""
FAR_BYTES = 1048576
"""Bytes read from a journal whose tail has no durable save."""
ATTEMPTS_WITHOUT_SAVE = 20
"""The newest save is looked up in the journals of this many attempts."""
SIGN_OF_LIFE_S = 30.0
"""A heartbeat younger than this contradicts an empty queue. Heartbeats come every 10 s by default."""


# ---- attempts -------------------------------------------------------------------------------------------------------


def attempt_numbers(directory: RunDirectory) -> list[int]:
    """Return the numbers of a run's attempts, oldest first. Raise OSError if they cannot be listed."""
    names = os.listdir(directory.path / layout.ATTEMPTS)  # noqa: PTH208
    return sorted({int(name) for name in names if _NUMBER.fullmatch(name)})


def read_attempts(directory: RunDirectory, newest: int | None = None) -> tuple[Attempt, ...]:
    """Return the attempts of a run, oldest first; with `newest`, only that many of the last. Damaged files are skipped.

    Raise StateDirectoryError for a transient read error: an attempt must not vanish.
    """
    path = directory.path / layout.ATTEMPTS
    try:
        numbers = attempt_numbers(directory)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    attempts = (_read_attempt(path, number) for number in (numbers if newest is None else numbers[-newest:]))
    return tuple(attempt for attempt in attempts if attempt is not None)


def _read_attempt(path: Path, number: int) -> Attempt | None:
    start = _table(path / layout.attempt_file(number))
    if not start:  # or empty, of a full disk
        return None
    end = _table(path / layout.attempt_end_file(number)) or {}
    word, start_time, end_time = str(end.get("end", "")), _seconds(start.get("start")) or 0.0, _seconds(end.get("time"))
    if word == AttemptEnd.LOST and end_time is not None:  # found by another attempt, which may have begun days later
        with suppress(OSError):
            end_time = max(start_time, min(end_time, (path / layout.attempt_beat_file(number)).stat().st_mtime))
    return Attempt(
        number=number,
        job_id=_integer(start.get("job_id")),
        label=str(start.get("label", "")),
        restart=_integer(start.get("restart")),
        host=str(start.get("host", "")),
        pid=_integer(start.get("pid")),
        start_time=start_time,
        end_time=end_time,
        end=AttemptEnd(word) if word in set(AttemptEnd) else None,
        exit_code=_integer(end["exit_code"]) if "exit_code" in end else None,
        why=printable(str(end.get("why", ""))),
        oom_kills=_integer(end["oom_kills"]) if "oom_kills" in end else None,
    )


def _table(path: Path) -> dict[str, Any] | None:
    import tomllib  # imported late: 4 ms

    try:
        found = read_regular(path)
        return None if found is None else tomllib.loads(found[0].decode("utf-8", "replace"))
    except StateDirectoryError as error:
        if error.transient:
            raise
        return None
    except (ValueError, RecursionError):  # ValueError: broken TOML, or a number of a thousand digits
        return None


def _integer(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


def _seconds(value: object) -> float | None:
    with suppress(ValueError):
        seconds = float(str(value))
        return seconds if math.isfinite(seconds) else None
    return None


def last_beat(directory: RunDirectory, attempt: Attempt) -> float | None:
    """Return when the batch shell of an attempt last wrote its heartbeat, in seconds since the epoch by the file
    server's clock; None if there is none."""
    try:
        return (directory.path / layout.ATTEMPTS / layout.attempt_beat_file(attempt.number)).stat().st_mtime
    except OSError:
        return None


# ---- journals -------------------------------------------------------------------------------------------------------


def last_events(
    directory: RunDirectory, job_id: int | str, whose: str = "batch", words: Sequence[bytes] = (b"",)
) -> tuple[dict[str, Any], ...]:
    """Return the last events in the journal of a job's batch shell, or of the rank `whose`, in lines that contain one
    of the `words`; none if it cannot be read."""
    return _journal_tail(directory, job_id, whose, words, TAIL_BYTES)[0]


def newest_save(directory: RunDirectory, job_ids: Sequence[int | str]) -> LastSave | None:
    """Return the saves that the guards of the newest attempts journalled, back to the newest durable one.

    `job_ids` belong to the attempts, oldest first; the attempts of a requeued job share one journal.
    """
    events: list[dict[str, Any]] = []
    is_whole = len(job_ids) <= ATTEMPTS_WITHOUT_SAVE
    for job_id in dict.fromkeys(reversed(job_ids[-ATTEMPTS_WITHOUT_SAVE:])):
        for limit in (TAIL_BYTES, FAR_BYTES):
            older, reaches_back = _journal_tail(directory, job_id, "0", (b'"save', b'"start"'), limit)
            save = last_save([*older, *events])
            if save is not None and save.step is not None:
                return save
            if reaches_back:
                break
        events[:0] = older
        is_whole = is_whole and reaches_back
    save = last_save(events)
    return None if save is None else replace(save, is_whole=is_whole)


def _journal_tail(
    directory: RunDirectory, job_id: int | str, whose: str, words: Sequence[bytes], limit: int
) -> tuple[tuple[dict[str, Any], ...], bool]:
    """Return events as `last_events` does, and whether the whole journal was read."""
    try:
        raw, is_whole = read_tail(directory.path / layout.JOURNAL / f"{job_id}.{whose}.jsonl", limit)
    except OSError as error:
        return (), isinstance(error, FileNotFoundError)  # a training without a guard has none
    lines = raw.splitlines() if any(word in raw for word in words) else []
    return tuple(parse_lines(line for line in lines if any(word in line for word in words))), is_whole


# ---- files ---------------------------------------------------------------------------------------------------------


def read_tail(path: Path | str, limit: int) -> tuple[bytes, bool]:
    """Return at most `limit` bytes of the end of a file, and whether that is all of it. Raise OSError."""
    with open(path, "rb", opener=open_without_waiting) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit))
        return file.read(limit), size <= limit
