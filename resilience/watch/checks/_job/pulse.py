"""Status lines: an hourly `PULSE:` line about each job, as `slurm-status.py` writes it (BigScience, ml-engineering).

The wording is the same except for its errors: here a start in the past is not a negative time, a held job is not
`waiting to be scheduled`, and no state is `fix me`.

The lines go to a separate log, at most one per job and hour, even if several hosts share that log.
"""

from __future__ import annotations

import os
import re
import stat
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from resilience import layout
from resilience.errors import ResilError
from resilience.job import JobId, JobState
from resilience.quantities import format_slurm_time
from resilience.runs.context import Context
from resilience.schedulers import Scheduler
from resilience.watch.checks._job.judge import sort
from resilience.watch.checks._job.reading import JobReading, SeenJob
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks._job.subjects import QueueAnswer, Subject

MARK = "PULSE:"
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] PULSE: (.*)", re.ASCII)
_VERB = re.compile(r" (?=(?:is|was|will|waits) )")
"""The end of a name: every sentence of `describe_pulse` begins with one of these verbs."""
_FORM = "%Y-%m-%d %H:%M:%S"
_STATES = {
    JobState.CONFIGURING: "is being configured",
    JobState.POWER_UP_NODE: "waits for nodes to be powered up",
    JobState.COMPLETING: "is ending",
    JobState.SUSPENDED: "is suspended",
    JobState.STOPPED: "is stopped",
}


def pulse_line(name: str, words: str, now: float) -> str:
    """Return `[2022-05-01 03:00:00] PULSE: gpt is running for ...`, in local time."""
    return f"[{time.strftime(_FORM, time.localtime(now))}] {MARK} {name} {words}"


def describe_pulse(seen: Sequence[SeenJob], now: float) -> str:
    """Return the state of the live jobs of one subject, of which there is at least one."""
    by_state = sort(seen)
    if by_state.running:
        lead = by_state.running[0]
        where = f"({lead.label} on '{lead.partition}' partition ({lead.nodes}))"
        since = f"for {_span(now, lead.start)} since {_moment(lead.start)}"
        if lead.job_state is JobState.RUNNING:
            return f"is running {since} {where}"
        return f"{_STATES.get(lead.job_state, f'is in state {lead.state},')} {since} {where}"
    lead = (*by_state.startable, *by_state.blocked, *by_state.behind, *by_state.never)[0]
    where = f"({lead.label} on '{lead.partition}' partition)"
    why = lead.why
    if why.blocks_for_ever:
        return f"will not start: {why.words} {where}"
    if why.needs_others:
        return f"is waiting for unavailable resources: {why.words} {where}"
    if lead.start is not None and lead.start > now:
        return f"is scheduled to start in {format_slurm_time(lead.start - now)} (at {_moment(lead.start)}) {where}"
    if lead.reason == "JobArrayTaskLimit":
        return f"is waiting for the previous Job Array job to finish before scheduling a new one {where}"
    if lead.reason == "Dependency":
        return (
            "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism "
            f"{where}"
        )
    if lead.start is not None:
        return f"is due to start now (at {_moment(lead.start)}) {where}"
    return f"is waiting to be scheduled {where}"


def last_pulses(text: str) -> dict[str, float]:
    """Return the time of the newest status line about each name in a log, in seconds since the epoch.

    A name may contain blanks, so every possible end of the name is returned. The repeated hour at the end of daylight
    saving time is ambiguous.
    """
    newest: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            moment = time.mktime((*time.strptime(match[1], _FORM)[:8], -1))
        except (ValueError, OverflowError):
            continue
        for verb in _VERB.finditer(match[2]):
            newest[match[2][: verb.start()]] = moment
    return newest


def is_due(last: float | None, now: float, pulse_s: float) -> bool:
    """Return whether a line is due. A line far in the future (a wrong clock) does not suppress later lines."""
    if last is None:
        return True
    age_s = now - last
    return age_s >= pulse_s or age_s < -pulse_s


def slot_of(now: float, pulse_s: float) -> int:
    """Return the number of the interval that contains `now`; the first host to claim it writes the line."""
    return int(now // pulse_s)


def _span(now: float, start: float | None) -> str:
    return format_slurm_time(max(0.0, now - start) if start is not None else 0.0)


def _moment(moment: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)) if moment is not None else "N/A"


TAIL_BYTES = 2**18
"""The size of the log's tail that is searched for the last lines, some thousand of them."""
ASKED_FOR_OUTPUT = 10
"""The most jobs whose output path is queried each time lines are due."""

_WHY = "a line there would make a hung training look alive"

Due = tuple[Subject, JobReading | None]


def add_pulses(
    settings: JobSettings, context: Context, client: Scheduler | None, answer: QueueAnswer, subjects: Sequence[Due]
) -> dict[str, str]:
    """Append the lines that are due, and return the errors by subject. Never raises.

    The log itself shows which lines are due: two hosts that share it see each other's lines. If both check at the same
    moment, a claim, an empty file per interval, decides which one writes.
    """
    path = Path(os.path.join(context.project, os.path.expanduser(settings.pulse_file)))  # noqa: PTH111, PTH118
    now = context.system.clock.now()
    try:
        last = last_pulses(_tail(path))
        due = [
            (subject, reading)
            for subject, reading in subjects
            if (reading is not None or answer.error) and is_due(last.get(subject.shown), now, settings.pulse_s)
        ]
        if not due:
            return {}
        refused = _refuse(path, context, client, due)
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
        _remove_old_claims(path, slot)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
        return {subject.name: why for subject, _ in subjects}
    return {}


def _words(reading: JobReading | None, answer: QueueAnswer, now: float) -> str:
    if reading is None:
        return f"is unknown: the scheduler did not answer ({answer.error})"
    if reading.trouble:
        return f"is unknown: {reading.trouble}"
    seen = reading.jobs
    if seen:
        return describe_pulse(seen, now)
    if reading.over:
        return f"is {reading.over}" if reading.over.startswith("finished") else f"was {reading.over}"
    if not reading.gone:
        return f"is unknown: {reading.unsure or 'the queue does not show it'}"
    return "is neither running nor scheduled to run"


def _refuse(path: Path, context: Context, client: Scheduler | None, due: Sequence[Due]) -> str:
    """Return why no line may be appended: a line in the training's own log would hide a hang."""
    real, runs = os.path.realpath(path), os.path.realpath(context.state_dir)
    below = Path(os.path.relpath(real, runs)).parts
    if len(below) > 2 and below[0] != os.pardir and below[1] == layout.LOGS:
        return f"{path} is the training's own log: {_WHY}"
    try:
        own = os.stat(real)  # noqa: PTH116
    except FileNotFoundError:
        own = None
    asked = 0
    for _, reading in due:
        running = [job for job in reading.jobs if not job.waits] if reading is not None else []
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
            raise OSError(None, "not a regular file")
        file.seek(max(0, info.st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode("utf-8", "surrogateescape")


def _claim(path: Path, name: str, slot: int) -> bool:
    """Return whether this host claimed the interval for this name: only one can create the file (open(2), O_EXCL)."""
    try:
        os.close(os.open(_claim_file(path, name, slot), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    return True


def _claim_file(path: Path, name: str, slot: int) -> Path:
    return path.with_name(f".{path.name}.{zlib.crc32(os.fsencode(name)):08x}.{slot}")


def _remove_old_claims(path: Path, slot: int) -> None:
    """Remove the claims of earlier intervals."""
    is_claim = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.([0-9]{{1,18}})").fullmatch
    with os.scandir(path.parent) as entries:
        old = [entry.path for entry in entries if (match := is_claim(entry.name)) and int(match[1]) < slot]
    for claim in old:
        with suppress(OSError):
            os.unlink(claim)  # noqa: PTH108


def _append(path: Path, lines: Sequence[str]) -> None:
    """Append the lines with one write, which is atomic on a local file system."""
    if not lines:
        return
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        info = os.fstat(descriptor)
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
        if info.st_size and os.pread(descriptor, 1, info.st_size - 1) != b"\n":
            text = b"\n" + text  # the last line is truncated
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
