"""Reads the files of a run: its attempts, journals, logs and heartbeats. Format: docs/reference/run-directory.md."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
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
LOGS_READ = 8
BEATS_READ = 64
"""Newest heartbeats that are read; a run of a thousand nodes has as many."""
SIGN_OF_LIFE_S = 30.0
"""A heartbeat younger than this contradicts an empty queue. Heartbeats come every 10 s by default."""
# At most 18 digits: int() refuses very long texts. No line ends: the number on the next line may be a date.
_BEAT_STEP = re.compile(rb"^step[ \t]*=[ \t]*([0-9]{1,18})", re.MULTILINE)
_LOG_STEP = re.compile(rb"\b(?:global[_ ]step|step|iteration|iter)\b[ \t:=#\[(]*([0-9]{1,18})(?![0-9])", re.IGNORECASE)


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
    if start is None:
        return None
    end = _table(path / layout.attempt_end_file(number)) or {}
    word = str(end.get("end", ""))
    return Attempt(
        number=number,
        job_id=_integer(start.get("job_id")),
        label=str(start.get("label", "")),
        restart=_integer(start.get("restart")),
        host=str(start.get("host", "")),
        pid=_integer(start.get("pid")),
        start_time=_seconds(start.get("start")) or 0.0,
        end_time=_seconds(end.get("time")),
        end=AttemptEnd(word) if word in set(AttemptEnd) else None,
        exit_code=_integer(end["exit_code"]) if "exit_code" in end else None,
        why=printable(str(end.get("why", ""))),
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


# ---- logs and heartbeats --------------------------------------------------------------------------------------------


def last_step(directory: RunDirectory) -> int | None:
    """Return the last step in a heartbeat, else in the newest log that names one; None if unknown."""
    beats = reversed(_by_age(directory.path / layout.BEATS)[-BEATS_READ:])
    step = next(_steps(beats, _BEAT_STEP, 0), None)  # the steps of single ranks come later in the file
    if step is not None:
        return step
    # A job that has just started has written nothing yet; the previous one has.
    newest = newest_log(directory)
    older = [path for path in reversed(logs_by_age(directory)[-LOGS_READ:]) if path != newest]
    return next(_steps(older if newest is None else (newest, *older), _LOG_STEP, -1), None)


def _steps(paths: Iterable[Path], pattern: re.Pattern[bytes], which: int) -> Iterator[int]:
    """Yield the first or last step in the tail of each file that names one."""
    for path in paths:
        with suppress(OSError):
            if found := pattern.findall(read_tail(path, TAIL_BYTES)[0]):
                yield int(found[which])


def newest_log(directory: RunDirectory) -> Path | None:
    """Return the log of the last attempt, else the newest log, or None.

    A job that found the run finished or killed writes a log as well, which would hide the log of the training.
    """
    logs = own = logs_by_age(directory)
    with suppress(StateDirectoryError):
        for attempt in read_attempts(directory, newest=1):
            own = [path for path in logs if path.stem.endswith(f"-{attempt.label}")] or logs
    return own[-1] if own else None


def logs_by_age(directory: RunDirectory) -> list[Path]:
    """Return the run's logs, oldest first."""
    return _by_age(directory.path / layout.LOGS)


def _by_age(directory: Path) -> list[Path]:
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            # Files are often renamed here: one that vanished must not hide the others.
            with suppress(OSError):
                if not entry.name.startswith(".") and entry.is_file():
                    found.append((entry.stat().st_mtime, entry.path))
    return [Path(path) for _, path in sorted(found)]


def read_tail(path: Path | str, limit: int) -> tuple[bytes, bool]:
    """Return at most `limit` bytes of the end of a file, and whether that is all of it. Raise OSError."""
    with open(path, "rb", opener=open_without_waiting) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - limit))
        return file.read(limit), size <= limit
