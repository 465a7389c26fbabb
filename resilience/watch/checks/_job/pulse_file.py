"""Adds PULSE lines to a log of their own, at most one for a job in an hour, whoever else does so too."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from resilience import layout
from resilience.errors import ResilError
from resilience.job import JobId
from resilience.runs.context import Context
from resilience.schedulers import Scheduler
from resilience.watch.checks._job.pulse import is_due, last_pulses, pulse_line, pulse_words, slot_of
from resilience.watch.checks._job.queue import Answer
from resilience.watch.checks._job.reading import JobReading
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks._job.subjects import Subject

TAIL_BYTES = 2**18
"""What is read of the log to find the last lines: some thousand of them."""
ASKED_FOR_OUTPUT = 10
"""So many jobs are asked for where they write, each time lines are due."""

_WHY = "a line there would make a hung training look alive"

Wish = tuple[Subject, JobReading | None]


def add_pulses(
    settings: JobSettings, scene: Context, client: Scheduler | None, answer: Answer, wishes: Sequence[Wish]
) -> dict[str, str]:
    """Add the lines that are due, and return by subject why one could not be. Never raises.

    The log itself is the memory: two hosts that share it see each other's lines. A claim, one empty file for each span
    of time, settles who writes when both look at the same moment.
    """
    path = Path(os.path.join(scene.project, os.path.expanduser(settings.pulse_file)))  # noqa: PTH111, PTH118
    now = scene.world.clock.now()
    try:
        last = last_pulses(_tail(path))
        due = [
            (subject, reading)
            for subject, reading in wishes
            if (reading is not None or answer.trouble) and is_due(last.get(subject.shown), now, settings.pulse_s)
        ]
        if not due:
            return {}
        refused = _refuse(path, scene, client, due)
        if refused:
            return {subject.name: refused for subject, _ in due}
        slot = slot_of(now, settings.pulse_s)
        ours = {subject.shown: reading for subject, reading in due if _claim(path, subject.shown, slot)}
        try:
            _append(path, [pulse_line(name, _words(reading, answer, now), now) for name, reading in ours.items()])
        except OSError:
            for name in ours:
                _claim_file(path, name, slot).unlink(missing_ok=True)
            raise
        _sweep(path, slot)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
        return {subject.name: why for subject, _ in wishes}
    return {}


def _words(reading: JobReading | None, answer: Answer, now: float) -> str:
    if reading is None:
        return f"is unknown: the scheduler did not answer ({answer.trouble})"
    if reading.trouble:
        return f"is unknown: {reading.trouble}"
    seen = reading.seen()
    if seen:
        return pulse_words(seen, now)
    if reading.over:
        return f"is {reading.over}" if reading.over.startswith("finished") else f"was {reading.over}"
    if not reading.gone:
        return f"is unknown: {reading.unsure or 'the queue does not show it'}"
    return "is neither running nor scheduled to run"


def _refuse(path: Path, scene: Context, client: Scheduler | None, due: Sequence[Wish]) -> str:
    """Why no line may be added there: it would make the training's own log look alive."""
    real, runs = os.path.realpath(path), os.path.realpath(scene.state_dir)
    below = Path(os.path.relpath(real, runs)).parts
    if len(below) > 2 and below[0] != os.pardir and below[1] == layout.LOGS:
        return f"{path} is the training's own log: {_WHY}"
    try:
        own = os.stat(real)  # noqa: PTH116
    except FileNotFoundError:
        own = None
    asked = 0
    for _, reading in due:
        running = [job for job in reading.seen() if not job.waits] if reading is not None else []
        if not running or client is None or asked == ASKED_FOR_OUTPUT:
            continue
        asked += 1
        try:
            output = client.job(JobId.parse(running[0].label)).stdout
        except ResilError:
            continue
        if output and _is_same(output, real, own):
            return f"{path} is the output of job {running[0].label}: {_WHY}"
    return ""


def _is_same(output: str, real: str, own: os.stat_result | None) -> bool:
    if os.path.realpath(output) == real:
        return True
    with suppress(OSError):
        return own is not None and os.path.samestat(os.stat(output), own)  # noqa: PTH116
    return False


def _tail(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(None, "it is no regular file")
        file.seek(max(0, info.st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode("utf-8", "surrogateescape")


def _claim(path: Path, name: str, slot: int) -> bool:
    """Whether this span of time is ours to write about this name: one host alone creates a file (open(2), O_EXCL)."""
    try:
        os.close(os.open(_claim_file(path, name, slot), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def _claim_file(path: Path, name: str, slot: int) -> Path:
    return path.with_name(f".{path.name}.{zlib.crc32(os.fsencode(name)):08x}.{slot}")


def _sweep(path: Path, slot: int) -> None:
    """Remove the claims of earlier spans."""
    is_claim = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.([0-9]{{1,18}})").fullmatch
    with os.scandir(path.parent) as entries:
        old = [entry.path for entry in entries if (match := is_claim(entry.name)) and int(match[1]) < slot]
    for claim in old:
        with suppress(OSError):
            os.unlink(claim)  # noqa: PTH108


def _append(path: Path, lines: Sequence[str]) -> None:
    """Add whole lines by one write, which no other writer's can come between on a local file system."""
    if not lines:
        return
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        info = os.fstat(descriptor)
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        if info.st_size and os.pread(descriptor, 1, info.st_size - 1) != b"\n":
            text = b"\n" + text  # a line that was cut
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
