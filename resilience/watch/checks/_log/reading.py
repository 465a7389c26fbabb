"""The values of the `log` watchdog: its settings, the state of one log, the reading of one subject; and the time
allowed without progress. Pure.

That time is a multiple of the typical step interval, with a floor and a ceiling; some phases are allowed more.
Published watchdogs use fixed limits (an hour in io-watchdog, 10 minutes in NCCL), which are too long for small models
and too short for large ones: BLOOM took 105 s per step and 40 s per save.

After a suspended laptop resumes, a virtual machine migrates, or NTP steps the clock, every remembered time would be
hours old and every training would seem to hang. CLOCK_MONOTONIC (clock_gettime(2)) neither jumps nor counts suspension,
so the excess of the wall clock between two probes on one boot is subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

Moment = tuple[float, float, str]
"""The time of a probe: (seconds since the epoch, monotonic seconds, boot id)."""

EACH, NEWEST, ANY = "each", "newest", "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """[watch.log]: the logs to watch, and the time allowed without progress.

    Attributes:
        paths: logs, patterns such as 'logs/*.out', or names of runs. Empty: the runs of the state directory.
        files: which logs of a pattern must make progress: each of them (each), only the one written to last (newest),
            or at least one (any).
        progress_regex: regular expression with one group, which is the step; replaces the built-in patterns.
        timeout_s: a fixed time without progress, in every phase. Unset: measured, with the settings below.
        factor: alert after this many typical step intervals without progress.
        floor_s: the least time allowed without progress: file servers report changes up to a minute late.
        ceiling_s: the most time allowed without progress, except in the phases below.
        startup_s: the time allowed until the first step, and until step intervals are measured.
        evaluation_s: the time allowed in an evaluation.
        save_s: the time allowed in a save.
        heartbeat: prefer the guard's heartbeat to the log.
        ignore_older_s: skip logs of a pattern without a write for this long when first seen.
        read_bytes: the most that is read of the new part of one log per probe, from its end.
    """

    paths: tuple[str, ...] = ()
    files: str = EACH
    progress_regex: str = ""
    timeout_s: float | None = None
    factor: float = 5.0
    floor_s: float = 120.0
    ceiling_s: float = 3600.0
    startup_s: float = 1800.0
    evaluation_s: float = 1800.0
    save_s: float = 1800.0
    heartbeat: bool = True
    ignore_older_s: float = 86400.0
    read_bytes: float = 2.0**20


class LogState(NamedTuple):
    """The state of one log. A tuple of plain values, as ten thousand of them are stored.

    All times are in seconds since the epoch by the watchdog's clock, except `mtime_ns`, which is the file server's.

    Attributes:
        inode: of the file; 0 if the file was never seen.
        mtime_ns: of the file, when it was last read.
        offset: the end of the part that was read; an unfinished line after it is read again.
        mark: CRC-32 of the last bytes before `offset`, to recognize a file that was rewritten in place.
        first_seen: the time of the first probe.
        appeared_at: when the log appeared beside logs already watched; 0 if it was there before.
        looked: the time of the last probe before the log changed; 0 if it was never read.
        kind: how its step was found (patterns.py); empty if it never was.
        step: the newest one.
        text: the step for display.
        stride: the distance between the logged steps.
        last_progress_at: when the step last increased.
        last_output_at: when it last got a line that no watchdog wrote.
        best: the greatest step since the start of the file.
        fell_from: the step before the log went back; None if it did not, or has caught up.
        restarts: number of restarts below `best`.
        intervals: seconds between the last logged steps, oldest first.
        phase: the phase by the last lines: `start`, `train`, `eval`, `save`.
        bars: progress bars: (label and total, position).
        end: the line that reports the end of the training; empty without one.
        error: the newest line with an error, if no step follows it.
        error_kind: its name in the table of errors.
        errored: when the error was found.
        said: CRC-32s of the lines since the last progress.
        repeats: number of those lines that are repetitions.
        skipped: bytes not read in the last probe because more than `read_bytes` were new.
        unfinished: whether the file ends within a line.
        skew_s: the least difference of the file server's clock to ours; positive if it is ahead.
        trouble: why it could not be read; empty if it could.
        trouble_kind: `missing` or `not-read`.
        troubled: when that started.
        bar: the key of the training's own progress bar; 0 without one.
        epoch: the newest epoch in a line with a step.
        top: the last step of a counter that restarts in each epoch; None if no such counter is known.
    """

    inode: int = 0
    mtime_ns: int = 0
    offset: int = 0
    size: int = 0
    mark: int = 0
    first_seen: float = 0.0
    looked: float = 0.0
    kind: str = ""
    step: float | None = None
    text: str = ""
    stride: float = 0.0
    last_progress_at: float = 0.0
    last_output_at: float = 0.0
    best: float | None = None
    phase: str = "start"
    intervals: tuple[float, ...] = ()
    said: tuple[int, ...] = ()
    repeats: int = 0
    bars: tuple[tuple[int, int], ...] = ()
    appeared_at: float = 0.0
    fell_from: float | None = None
    restarts: int = 0
    end: str = ""
    error: str = ""
    error_kind: str = ""
    errored: float = 0.0
    skipped: int = 0
    unfinished: bool = False
    skew_s: float = 0.0
    trouble: str = ""
    trouble_kind: str = ""
    troubled: float = 0.0
    bar: int = 0
    epoch: float | None = None
    top: float | None = None


BLOCK_BYTES = 4096
"""Buffered output comes in blocks of this or a multiple (stdio's and Python's are 4096 and 8192 bytes)."""


def in_blocks(size: int, unfinished: bool) -> bool:
    """Return whether the size and the unfinished last line of a log indicate that its writer buffers the output."""
    return unfinished and size > 0 and size % BLOCK_BYTES == 0


_DEFAULTS = tuple(LogState())
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def packed(state: LogState) -> str:
    """Return a state as text, without the defaults at its end.

    Ten thousand of them are passed between processes and stored, most of them unchanged.
    """
    count = len(state)
    while state[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    text = _ENCODER.encode(state[:count])
    _known(text, state)
    return text


def unpacked(text: str) -> LogState:
    """Return the state of a `packed` text. Raise ValueError or TypeError for one of another version."""
    return _MEMO.get(text) or _known(text, LogState(*json.loads(text)))


def _known(text: str, state: LogState) -> LogState:
    """Memoize the state of a text: the judge parses it again, and most are the same in every probe."""
    if len(_MEMO) >= _MOST_KNOWN:
        _MEMO.clear()
    _MEMO[text] = state
    return state


_MEMO: dict[str, LogState] = {}
_MOST_KNOWN = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The heartbeat of the current attempt, over all nodes: its slowest rank.

    Attributes:
        step: of the slowest rank.
        rank: its number, and `host` its node.
        phase: of that rank.
        advanced: when it last advanced, by the watchdog's clock.
        written: when its node's heartbeat was last updated, by the watchdog's clock.
        stamps: (file, its `time`, when that was first seen), to distinguish a dead heartbeat writer from a wrong clock.
        intervals: seconds per step, measured between probes.
        ranks: number of ranks.
        gone: ranks that exited without a final message, as `3 on n17`.
        left: number of ranks that have closed their guard.
    """

    step: int = 0
    rank: int = 0
    host: str = ""
    phase: str = ""
    advanced: float = 0.0
    written: float = 0.0
    stamps: tuple[tuple[str, float, float], ...] = ()
    intervals: tuple[float, ...] = ()
    ranks: int = 0
    gone: tuple[str, ...] = ()
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """The reading of one subject.

    Attributes:
        run: the run's name, or empty.
        logs: (path, packed LogState) of each of its logs.
        beat: the fields of a Beat; empty without a heartbeat.
        losses: the fields of a Loss (losses.py) for each kind of loss anomaly that the run has.
        save: the fields of a LastSave while the newest save is a failed one.
        attempt: the newest attempt's number, 0 for none; `began` is its start time, `label` its job.
        over: why no progress is expected: finished, attempt ended, a newer log has taken over.
        nothing: why there is no log, or how many a pattern matches; the first note is then the fault, or `none`.
        lines: the last lines of the log, as evidence.
        notes: further information for the user.
        clock: (now, monotonic, boot id) of the probe, to detect a changed clock or a suspended machine.
        unsure: why it is unknown whether the job runs; empty if it is known.
    """

    run: str = ""
    logs: tuple[tuple[str, str], ...] = ()
    beat: dict[str, Any] | None = None
    losses: tuple[tuple[Any, ...], ...] = ()
    save: tuple[Any, ...] = ()
    attempt: int = 0
    label: str = ""
    began: float = 0.0
    over: str = ""
    nothing: str = ""
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    clock: Moment = (0.0, 0.0, "")
    unsure: str = ""


LONGEST_TIMES = 1.5
"""At least this many times the longest of the last intervals is allowed: an evaluation, a save, a slow disk."""

LEAST_TIMES = 1.2
"""At least this many times the typical interval is allowed, even above the ceiling."""


class Allowance(NamedTuple):
    """The time allowed without progress, and its reason."""

    seconds: float
    why: str
    usual_s: float | None = None


def allowance(intervals: Sequence[float], phase: str, settings: LogSettings) -> Allowance:
    """Return the time allowed without progress, from the last step intervals and the current phase."""
    usual = median(intervals) if intervals else None
    if settings.timeout_s is not None:
        return Allowance(settings.timeout_s, "timeout_s", usual)
    if usual is None:
        seconds, why = settings.startup_s, "startup_s: no step interval is measured yet"
    else:
        measured = max(settings.factor * usual, LONGEST_TIMES * max(intervals))
        # Otherwise each step with an interval above the ceiling would be an alert.
        ceiling_s = max(settings.ceiling_s, LEAST_TIMES * usual)
        seconds = min(max(measured, settings.floor_s), ceiling_s)
        why = (
            f"{LEAST_TIMES:g} times the usual interval" if seconds == ceiling_s > settings.ceiling_s
            else "ceiling_s" if seconds < measured else "floor_s" if seconds > measured
            else f"{settings.factor:g} times the usual interval" if measured > LONGEST_TIMES * max(intervals)
            else f"{LONGEST_TIMES:g} times the longest recent interval"
        )  # fmt: skip
    more = {"start": settings.startup_s, "eval": settings.evaluation_s, "save": settings.save_s}.get(phase, 0.0)
    names = {"start": "startup_s", "eval": "evaluation_s", "save": "save_s"}
    if more > seconds:
        return Allowance(more, f"{names[phase]}: the phase is {phase}", usual)
    return Allowance(seconds, why, usual)


def phase_of(word: str) -> str:
    """Return a phase from the guard or the user as `start`, `train`, `eval` or `save`; unknown ones unchanged."""
    lower = word.lower()
    for known, beginnings in {
        "eval": ("eval", "valid", "test", "predict"),
        "save": ("save", "saving", "checkpoint"),
        "start": ("start", "load", "init", "setup", "resum"),
        "train": ("train",),
    }.items():
        if lower.startswith(beginnings):
            return known
    return word


def median(intervals: Sequence[float]) -> float:
    """Return the median; faster than `statistics.median`, for ten thousand logs per tick."""
    ordered = sorted(intervals)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


JUMP_S = 30.0
"""Smaller jumps are normal for NTP."""
_TIMES = ("first_seen", "appeared_at", "looked", "last_progress_at", "last_output_at", "errored", "troubled")
_BEAT_TIMES = ("advanced", "written")


def jump_s(before: Moment, now: Moment) -> float:
    """Return the excess of the wall clock over the monotonic clock between two probes; 0 if unknown."""
    if not before[2] or before[2] != now[2] or now[1] < before[1]:
        return 0.0
    jump = (now[0] - before[0]) - (now[1] - before[1])
    return jump if abs(jump) > JUMP_S else 0.0


def shifted(reading: LogReading, seconds: float) -> LogReading:
    """Return a reading with all times shifted by a clock jump, so that their ages stay the same."""
    if not seconds:
        return reading

    def moved(text: str) -> str:
        known = unpacked(text)
        return packed(known._replace(**{name: at + seconds for name in _TIMES if (at := getattr(known, name))}))

    beat = None
    if reading.beat:
        beat = reading.beat | {name: reading.beat[name] + seconds for name in _BEAT_TIMES if reading.beat.get(name)}
        beat["stamps"] = [(name, value, since + seconds) for name, value, since in beat.get("stamps", ())]
    clock = (reading.clock[0] + seconds, reading.clock[1], reading.clock[2])
    return replace(reading, clock=clock, logs=tuple((path, moved(text)) for path, text in reading.logs), beat=beat)
