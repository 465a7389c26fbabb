"""Reads run directories: the current attempt, its logs, heartbeat, journalled losses, and end."""

# pathlib takes three times as long, and there are ten thousand paths in a tick.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from resilience import layout
from resilience.errors import ResilError
from resilience.runs.attempts import Attempt
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import last_beat, read_attempts, read_tail
from resilience.system.files import read_regular
from resilience.watch.checks._log.losses import (
    MOST_IN_A_ROW,
    MOST_JOURNALS,
    Event,
    Training,
    parse_events,
    trainings_of,
)

JOURNAL_BYTES = 32768
"""How much of the end of a journal is read: some 250 events, or the longest possible line."""
MOST_LOGS = 4096
"""The most logs of one run: one per rank is common."""
RUN_IS_FINISHED = "the run is finished"


@dataclass(frozen=True, slots=True)
class RunNow:
    """The current state of a run.

    Attributes:
        attempt: the newest one; None if none has started.
        job_id: as in the names of heartbeats and journals; empty if nothing has started.
        over: why no progress is expected; empty while it is.
        ended: when it ended, in seconds since the epoch; 0 if unknown.
        logs: the paths of the attempt's logs, or of the log written to last.
        notes: further information for the user.
    """

    attempt: Attempt | None
    job_id: str
    over: str
    ended: float
    logs: tuple[str, ...]
    notes: tuple[str, ...] = ()


def run_now(directory: RunDirectory, now: float) -> RunNow:
    """Return the current state of a run. Raise StateDirectoryError if it cannot be read."""
    attempts = read_attempts(directory, newest=1)
    attempt = attempts[-1] if attempts else None
    job_id = str(attempt.job_id) if attempt is not None else _newest_job(directory.path / layout.BEATS)
    over, ended = _over(directory, attempt, job_id)
    notes: list[str] = []
    if attempt is not None and not over:
        beat = last_beat(directory, attempt)
        if beat is not None and now - beat > 600:
            notes.append(f"no heartbeat of the batch shell of job {attempt.label} for {(now - beat) / 60:.0f} min")
    return RunNow(attempt, job_id, over, ended, logs_of(directory, attempt), tuple(notes))


def _over(directory: RunDirectory, attempt: Attempt | None, job_id: str) -> tuple[str, float]:
    with suppress(OSError):
        ended = (directory.path / layout.FINISHED).stat().st_mtime
        return RUN_IS_FINISHED, ended
    if attempt is not None and attempt.end is not None:
        code = "" if attempt.exit_code is None else f" with {attempt.exit_code}"
        return f"job {attempt.label} is over: {attempt.end.value}{code}", attempt.end_time or 0.0
    if attempt is None and job_id:
        return _journal_end(f"{directory.path}/{layout.JOURNAL}/{job_id}.0.jsonl")
    return "", 0.0


def _journal_end(path: str) -> tuple[str, float]:
    """Return the end from the last event of rank 0's journal, for jobs without the batch shell of a template."""
    with suppress(OSError):
        for event in parse_events(read_tail(path, JOURNAL_BYTES)[0])[-1:]:
            if event.name == "end":
                return f"the guard was closed at step {event.step}", event.time
    return "", 0.0


def read_trainings(directory: RunDirectory, job_id: str, *, earlier: bool) -> list[Training]:
    """Return the trainings in a job's readable journals, oldest first.

    With `earlier`, also those of previous attempts, back to the first one that its loss did not stop. Raise
    StateDirectoryError if the attempts cannot be read.
    """
    jobs = [job_id]
    if earlier:
        jobs += [str(attempt.job_id) for attempt in reversed(read_attempts(directory, newest=MOST_IN_A_ROW))]
    paths = _names(directory.path / layout.JOURNAL)
    found: list[Training] = []
    for job in dict.fromkeys(jobs):
        trainings = trainings_of(job, _events(job, paths, quick=not earlier))
        found += trainings
        if job != job_id and trainings and trainings[-1].stop is None:
            break
    return sorted(found, key=lambda training: (training.attempt, training.began))


def _events(job: str, paths: Sequence[str], *, quick: bool) -> Iterator[Event]:
    """Yield the events of a job's journals; with `quick`, only of those that mention the loss."""
    journal = re.compile(rf".*/{re.escape(job)}\.([0-9]{{1,9}})\.jsonl")
    ranks = {int(match[1]): path for path in paths if (match := journal.fullmatch(path))}
    for rank in sorted(ranks)[:MOST_JOURNALS]:
        with suppress(OSError):
            raw, _ = read_tail(ranks[rank], JOURNAL_BYTES)
            yield from () if quick and b'"loss' not in raw else parse_events(raw)


def _newest_job(directory: Path) -> str:
    """Return the job whose heartbeat was written last, for a training started without a template."""
    newest = max(((_mtime(path), path) for path in _names(directory)), default=(0.0, ""))[1]
    return Path(newest).name.split(".", 1)[0]


def logs_of(directory: RunDirectory, attempt: Attempt | None) -> tuple[str, ...]:
    """Return the attempt's logs, by the label in their names; otherwise the one written to last."""
    paths = _names(directory.path / layout.LOGS)
    if not paths:
        return ()
    if attempt is not None and attempt.label:
        own = [path for path in paths if _is_of(Path(path).name, attempt.label)]
        if own:
            return tuple(sorted(own)[:MOST_LOGS])
    return (max(paths, key=lambda path: (_mtime(path), path)),)


def _is_of(name: str, label: str) -> bool:
    """Return whether a log's name contains the job's label as a word: `gpt-1233_2.out`, `gpt-1233_2.rank7.out`."""
    position = name.find(label)
    while position >= 0:
        before, after = name[:position][-1:], name[position + len(label) :][:1]
        if not (before.isdigit() or before == "_") and not (after.isdigit() or after == "_"):
            return True
        position = name.find(label, position + 1)
    return False


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return []


def _mtime(path: str) -> float:
    try:
        info = os.stat(path)
    except OSError:
        return 0.0
    return info.st_mtime if stat.S_ISREG(info.st_mode) else 0.0


def beat_files(directory: RunDirectory, job_id: str) -> list[tuple[str, bytes, float]]:
    """Return (name, content, mtime) of the job's heartbeats, one per node."""
    found = []
    for path in _names(directory.path / layout.BEATS):
        name = Path(path).name
        if job_id and name.startswith(f"{job_id}."):
            with suppress(ResilError, OSError):
                content = read_regular(Path(path), limit_bytes=2**20)
                if content is not None:
                    found.append((name, content[0], content[1].st_mtime))
    return found
