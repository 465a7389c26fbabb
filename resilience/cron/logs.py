"""`resil cron logs`: the output of an entry's runs; of a submitted entry, the output of its job."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resilience.cron.entries import find_name, known_names, runs_of
from resilience.cron.records import Outcome, RunRecord
from resilience.cron.words import slot_text
from resilience.errors import ResilError, StateDirectoryError, UsageError
from resilience.job import JobId, Liveness
from resilience.system.files import explain_os_error, open_without_waiting

if TYPE_CHECKING:
    from resilience.cron.project import CronProject

POLL_S = 0.5
"""Interval at which `--follow` checks for more output."""

JOB_POLL_S = 20.0
"""Interval at which `--follow` asks the controller whether a submitted job is still alive."""

SHOWN_BYTES, POLL_BYTES = 4 * 2**20, 2**20
"""Of a longer output, only the end is shown. `--follow` reads so much at once."""

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""ECMA-48 control sequences and xterm's operating system commands, which set titles and write to the clipboard."""


@dataclass(frozen=True, slots=True)
class Log:
    """Output of one run.

    Attributes:
        path: None if the run wrote nothing or its output was removed; `reason` says which.
    """

    run: RunRecord
    path: Path | None
    reason: str = ""


def find_logs(cron: CronProject, wanted: str, *, slot: str = "", last: int = 1) -> tuple[Log, ...]:
    """Return the outputs of an entry's last runs, or of one slot, oldest first.

    Raise UsageError if the entry or slot is unknown, or the entry has not run.
    """
    name = find_name(known_names(cron), wanted)
    key = name.replace("/", "+")
    began = [run for run in runs_of(cron, key) if run.outcome not in (Outcome.SKIPPED, Outcome.MISSED)]
    if not began:
        raise UsageError(f"{name} has not run yet", hint="next run: resil cron list")
    runs = [find_slot(began, slot, cron.project.system.clock.now())] if slot else began[-last:]
    return tuple(_log(cron, key, run) for run in runs)


def find_slot(runs: Sequence[RunRecord], wanted: str, now: float) -> RunRecord:
    """Return the newest record whose slot matches the given text.

    `1800000000` is seconds since the epoch; `18:00` the last such time; `2026-12-24T18:00` and `24 Dec 18:00` (as the
    history shows it) are local time. Raise UsageError if none matches. Pure, except for the time zone.
    """
    text = " ".join(wanted.split())
    for run in reversed(runs):
        if text in _names_of(run.slot, now):
            return run
    newest = ", ".join(slot_text(run.slot, now) for run in runs[-3:])
    raise UsageError(f"no run in slot {wanted!r}", hint=f"last slots: {newest}; all slots: resil cron history NAME")


def _names_of(slot: int, now: float) -> set[str]:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(slot).astimezone()
    forms = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%H:%M:%S", "%d %b %H:%M:%S")
    names = {moment.strftime(form) for form in forms}
    if not moment.second:
        names |= {name.removesuffix(":00") for name in names}
    utc = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return names | {str(slot), slot_text(slot), slot_text(slot, now), moment.isoformat(), utc}


def _log(cron: CronProject, key: str, run: RunRecord) -> Log:
    if not run.output:
        what = "the output file of its job is unknown" if run.job_id else "no output"
        return Log(run, None, "no output yet" if run.outcome is Outcome.RUNNING else what)
    # A job's path is absolute and replaces the directory.
    path = cron.state.path / "output" / key / run.output
    if not path.exists():
        waits = run.outcome in (Outcome.RUNNING, Outcome.SUBMITTED)
        return Log(run, path if waits else None, "no output yet" if waits else "its output was removed")
    return Log(run, path)


def read_text(
    path: Path, limit_bytes: int = SHOWN_BYTES, *, start: int | None = None, flags: int = 0
) -> tuple[str, int, int]:
    """Return the end of an output, the position after it, and the number of bytes before it.

    `start`: read from this position on instead; a file that was truncated is read from its end. Raise
    StateDirectoryError if the output cannot be read.
    """
    try:
        descriptor = open_without_waiting(str(path), os.O_RDONLY | flags)
    except FileNotFoundError:
        return "", start or 0, 0
    except OSError as error:
        raise explain_os_error(error, "read", path) from error
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise StateDirectoryError(f"{path} is not a regular file")
        begin = max(0, info.st_size - limit_bytes) if start is None else min(start, info.st_size)
        file.seek(begin)
        raw = file.read(limit_bytes)
    return raw.decode("utf-8", "replace"), begin + len(raw), begin


def follow(cron: CronProject, log: Log, position: int) -> Iterator[str]:
    """Yield output written after `position` until the run has ended and all output was read."""
    clock, path, job_id, is_over = cron.project.system.clock, log.path, log.run.job_id, False
    key, asked = log.run.name.replace("/", "+"), clock.now()
    while True:
        if not job_id or path is None:  # nothing written yet: the path is known after the first write
            same = [_log(cron, key, run) for run in runs_of(cron, key) if run.slot == log.run.slot]
            path = path or next((found.path for found in same if found.path is not None), None)
            is_over = not job_id and all(found.run.outcome is not Outcome.RUNNING for found in same)
        if job_id and clock.now() - asked >= JOB_POLL_S:
            asked = clock.now()
            with suppress(ResilError):  # a scheduler that does not answer does not end the run
                is_over = cron.project.scheduler().presence(JobId.parse(job_id)).liveness is Liveness.GONE
        if path is not None:
            text, position, _ = read_text(path, POLL_BYTES, start=position)
            if text:
                yield text
                continue
        if is_over:
            return
        clock.sleep(POLL_S)


def without_escapes(text: str) -> str:
    """Return program output without control sequences, and progress bars in their final state. Pure.

    For instance, `10%\\r20%\\r100%` gives `100%`.
    """
    lines = []
    for line in _ESCAPE.sub("", text).split("\n"):
        ended = line.rstrip("\r").rpartition("\r")[2].expandtabs()
        lines.append("".join(c if c.isprintable() else "?" for c in ended))
    return "\n".join(lines)
