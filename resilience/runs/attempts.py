"""Reads the attempts of a run, as its batch shells wrote them. Format: docs/reference/run-directory.md."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from resilience import layout
from resilience.errors import StateDirectoryError
from resilience.runs.attempt import Attempt, AttemptEnd
from resilience.runs.last_save import LastSave, last_save
from resilience.runs.run_directory import RunDirectory
from resilience.switch import printable
from resilience.system.files import explain_os_error, open_without_waiting, parse_lines, read_regular

_NUMBER = re.compile(r"[0-9]{4,18}")
TAIL_BYTES = 65536
"""So much of a journal is read: some three hundred events. A batch shell writes four in most attempts."""
FAR_BYTES = 1048576
"""So much of a journal is read where the tail shows no durable save."""
ATTEMPTS_WITHOUT_SAVE = 20
"""In so many attempts the newest save is looked for."""


def read_attempts(directory: RunDirectory, newest: int | None = None) -> tuple[Attempt, ...]:
    """The attempts of a run, oldest first; with `newest` only that many of the last. A damaged file is passed over.

    Raise StateDirectoryError when one cannot be looked at now and perhaps can later: its attempt must not vanish.
    """
    folder = directory.path / layout.ATTEMPTS
    try:
        names = sorted((name for name in os.listdir(folder) if _NUMBER.fullmatch(name)), key=int)  # noqa: PTH208
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise explain_os_error(error, "read", folder) from error
    wanted = names if newest is None else names[-newest:]
    attempts = (_read_attempt(folder, int(name), name) for name in wanted)
    return tuple(attempt for attempt in attempts if attempt is not None)


def last_beat(directory: RunDirectory, attempt: Attempt) -> float | None:
    """When the batch shell of an attempt last showed that it lives, in seconds since the epoch by the file server's
    clock; None when it shows nothing."""
    path = directory.path / layout.ATTEMPTS / layout.attempt_beat_file(attempt.number)
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def last_events(
    directory: RunDirectory, job_id: int | str, whose: str = "batch", words: Sequence[bytes] = (b"",)
) -> tuple[dict[str, Any], ...]:
    """The last events in the journal of a job's batch shell, or of the rank `whose`, in lines that hold one of the
    `words`; none when it cannot be read."""
    return _tail(directory, job_id, whose, words, TAIL_BYTES)[0]


def newest_save(directory: RunDirectory, job_ids: Sequence[int | str]) -> LastSave | None:
    """What the guards of the newest attempts tell about saves, back to the newest one that is durable.

    `job_ids` are of the attempts, oldest first; those of a job that was requeued have one journal.
    """
    events: list[dict[str, Any]] = []
    is_whole = len(job_ids) <= ATTEMPTS_WITHOUT_SAVE
    for job_id in dict.fromkeys(reversed(job_ids[-ATTEMPTS_WITHOUT_SAVE:])):
        for limit in (TAIL_BYTES, FAR_BYTES):
            older, reaches_back = _tail(directory, job_id, "0", (b'"save', b'"start"'), limit)
            save = last_save([*older, *events])
            if save is not None and save.step is not None:
                return save
            if reaches_back:
                break
        events[:0] = older
        is_whole = is_whole and reaches_back
    save = last_save(events)
    return None if save is None else replace(save, is_whole=is_whole)


def _tail(
    directory: RunDirectory, job_id: int | str, whose: str, words: Sequence[bytes], limit: int
) -> tuple[tuple[dict[str, Any], ...], bool]:
    """Events as `last_events` has them, and whether nothing of the journal was left unread."""
    path = directory.path / layout.JOURNAL / f"{job_id}.{whose}.jsonl"
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
            raw = file.read(limit)
    except OSError as error:
        return (), isinstance(error, FileNotFoundError)  # a training without a guard has none
    lines = raw.splitlines() if any(word in raw for word in words) else []
    return tuple(parse_lines(line for line in lines if any(word in line for word in words))), size <= limit


def _read_attempt(folder: Path, number: int, name: str) -> Attempt | None:
    start = _table(folder / name)
    if start is None:
        return None
    end = _table(folder / layout.attempt_end_file(number)) or {}
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
    import tomllib  # 4 ms that nobody pays who has no attempts yet

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
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None
