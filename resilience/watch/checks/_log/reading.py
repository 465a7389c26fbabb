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
    """What is known of one log. A tuple of plain values, for ten thousand of them are remembered.

    All times are in seconds since the epoch by the watcher's clock, `mtime` alone by the file server's.

    Attributes:
        inode: of the file; 0 when nothing was ever seen there.
        mtime_ns: of the file, when it was last read.
        offset: up to where it was read. An unfinished line behind it is read again.
        mark: CRC-32 of the last bytes before `offset`, by which a file that was rewritten in place is known.
        first_seen: when it was first looked at.
        appeared_at: when it appeared among logs that were watched already, 0 when it was there before.
        looked: when it was last looked at before it changed; 0 when it was never read.
        kind: how its step was found (patterns.py), empty: never.
        step: the newest one.
        text: the step as people read it.
        stride: how far apart the steps are that it tells of.
        last_progress_at: when the step last increased.
        last_output_at: when it last had a line that no watchdog wrote.
        best: the greatest step since the file began.
        fell_from: the step that the log went back from, None when it did not or has caught up.
        restarts: how often it began again below `best`.
        intervals: seconds between the last steps told of, oldest first.
        phase: what the last lines show: `start`, `train`, `eval`, `save`.
        bars: progress bars that were seen: (label and total, position).
        end: the line that says the training is over, empty when none is.
        error: the newest line that tells of an error, with no step behind it.
        error_kind: its word in the table of errors.
        errored: when that was seen.
        said: CRC-32s of the lines said since the last progress.
        repeats: how many of these lines had been said before.
        skipped: bytes passed over in the last look because more than `read_bytes` was new.
        unfinished: whether it ends within a line.
        skew_s: by how much the file server's clock is ahead of ours at least; negative: behind.
        trouble: why it could not be read, empty when it could.
        trouble_kind: `missing` or `not-read`.
        troubled: since when.
        bar: the key of the bar that is the training's own, 0 when none is.
        epoch: the newest one that a line told of besides the step.
        top: the last step of a counter that begins anew, None while none is known to.
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
    """Whether a log of this size, that ends within a line or not, looks like one whose writer buffers its output."""
    return unfinished and size > 0 and size % BLOCK_BYTES == 0


_DEFAULTS = tuple(LogState())
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def packed(state: LogState) -> str:
    """A state as one text without the defaults at its end.

    Ten thousand of them go from process to process and into memory, and most are unchanged.
    """
    count = len(state)
    while state[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    text = _ENCODER.encode(state[:count])
    _known(text, state)
    return text


def unpacked(text: str) -> LogState:
    """The state that `packed` made a text of. Raise ValueError or TypeError for one of another version."""
    return _MEMO.get(text) or _known(text, LogState(*json.loads(text)))


def _known(text: str, state: LogState) -> LogState:
    """Remember what a text means: it is read again when it is judged, and most are the same in every look."""
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
        phase: what it does.
        advanced: when it last advanced, by the watcher's clock.
        written: when its node's beat last went on, by the watcher's clock.
        stamps: per file what its `time` was and when we first saw that: how a dead mirror is told from a wrong clock.
        intervals: seconds per step, measured from look to look.
        ranks: how many ranks there are.
        gone: ranks whose process has ended without a word, as `3 on n17`.
        left: how many ranks have closed their guard.
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
    """What was seen of one subject.

    Attributes:
        run: the run's name, or empty.
        logs: (path, packed LogState) of each of its logs.
        beat: the fields of a Beat; empty without a heartbeat.
        losses: the fields of a Loss (losses.py) for each kind of odd loss that the run has.
        save: the fields of a LastSave while the newest save is one that failed.
        attempt: the newest attempt's number, 0 for none; `began` when it began, `label` its job.
        over: why there is nothing to wait for: finished, attempt ended, a newer log has taken over.
        nothing: why there is no log at all, or what a pattern stands for; its first note is the fault, or `none`.
        lines: the last lines of the log, when they may be asked for.
        notes: what else a person should know.
        clock: (now, monotonic, boot) of the look: how a clock that was set, or a machine that slept, is noticed.
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


LONGEST_TIMES = 1.5
"""The longest of the last intervals is no hang either: an evaluation, a save, a slow disk."""

LEAST_TIMES = 1.2
"""No ceiling is so low that the usual interval itself is too long."""


class Allowance(NamedTuple):
    """How long nothing may come, and why so long."""

    seconds: float
    why: str
    usual_s: float | None = None


def allowance(intervals: Sequence[float], phase: str, settings: LogSettings) -> Allowance:
    """Given the last intervals between steps and what the training does now, return how long it may show nothing."""
    usual = median(intervals) if intervals else None
    if settings.timeout_s is not None:
        return Allowance(settings.timeout_s, "timeout_s", usual)
    if usual is None:
        seconds, why = settings.startup_s, "startup_s: no step interval is measured yet"
    else:
        wanted = max(settings.factor * usual, LONGEST_TIMES * max(intervals))
        # Steps that are further apart than the ceiling would else be an alarm each.
        ceiling_s = max(settings.ceiling_s, LEAST_TIMES * usual)
        seconds = min(max(wanted, settings.floor_s), ceiling_s)
        why = (
            f"{LEAST_TIMES:g} times the usual interval" if seconds == ceiling_s > settings.ceiling_s
            else "ceiling_s" if seconds < wanted else "floor_s" if seconds > wanted
            else f"{settings.factor:g} times the usual interval" if wanted > LONGEST_TIMES * max(intervals)
            else f"{LONGEST_TIMES:g} times the longest interval of late"
        )  # fmt: skip
    more = {"start": settings.startup_s, "eval": settings.evaluation_s, "save": settings.save_s}.get(phase, 0.0)
    names = {"start": "startup_s", "eval": "evaluation_s", "save": "save_s"}
    if more > seconds:
        return Allowance(more, f"{names[phase]}: the phase is {phase}", usual)
    return Allowance(seconds, why, usual)


def phase_of(word: str) -> str:
    """A phase as the guard or a person wrote it, as one of `start`, `train`, `eval`, `save`, or itself."""
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
    """The middle one, without what `statistics` takes to be exact: this is asked for ten thousand logs in a tick."""
    ordered = sorted(intervals)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


JUMP_S = 30.0
"""Less is the usual slewing and stepping of NTP."""
_TIMES = ("first_seen", "appeared_at", "looked", "last_progress_at", "last_output_at", "errored", "troubled")
_BEAT_TIMES = ("advanced", "written")


def jump_s(before: Moment, now: Moment) -> float:
    """By how much the wall clock went further than time did between two looks; 0 where that cannot be told."""
    if not before[2] or before[2] != now[2] or now[1] < before[1]:
        return 0.0
    jump = (now[0] - before[0]) - (now[1] - before[1])
    return jump if abs(jump) > JUMP_S else 0.0


def shifted(reading: LogReading, seconds: float) -> LogReading:
    """A remembered reading, its times moved along with the clock: what was a minute ago is a minute ago again."""
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
