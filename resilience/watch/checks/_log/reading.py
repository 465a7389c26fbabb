"""The values of the `log` watchdog: its settings, the state of one log, the reading of one subject; and the time
allowed without progress. Pure.

A log alone cannot tell a hang from an evaluation that it does not mention. It is therefore given PATIENCE_S, and then
twice its longest pause that ended by itself. Published watchdogs use fixed limits (an hour in io-watchdog, 10 minutes
in NCCL), which are too long for small models and too short for large ones: BLOOM took 105 s per step and 40 s per save.
With a second witness, the guard's heartbeat or the CPU time of the job, a few step intervals are enough.

After a suspended laptop resumes, a virtual machine migrates, or NTP steps the clock, every remembered time would be
hours old and every training would seem to hang. CLOCK_MONOTONIC (clock_gettime(2)) neither jumps nor counts suspension,
so the excess of the wall clock between two probes on one boot is subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from resilience.quantities import format_duration

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
        timeout_s: a fixed time without progress, in every phase. Unset: learned, with `factor`, `floor_s` and
            `ceiling_s`.
        factor: alert after this many typical step intervals without progress, where the heartbeat or an idle job
            confirms a hang. Where only a log shows it: twice the longest pause so far, at least 28 minutes;
            after six hours of watching three times that pause, if that is less, and at least 10 minutes.
        floor_s: the least time allowed without progress: file servers report changes up to a minute late.
        ceiling_s: the most time allowed without progress, except at the start, in an evaluation and in a save. Unset:
            an hour by the heartbeat,
            unlimited by the log.
        startup_s: the time allowed until the first step.
        evaluation_s: the time allowed in an evaluation. Unset: an hour, until one of this run has ended.
        save_s: the time allowed in a save. Unset: an hour, until one of this run has ended.
        learn: logs of earlier jobs, with times in their lines, that teach how long this run pauses.
        heartbeat: prefer the guard's heartbeat to the log.
        ignore_older_s: skip logs of a pattern without a write for this long when first seen.
        read_bytes: the most that is read of the new part of one log per probe, from its end.
        on_hang: what is done about a run once its heartbeats confirm that a rank hangs: nothing more than telling
            (tell), ask it to save (save), end its launch, so that the next job goes on (restart_step), or requeue its
            job (requeue). Once for each hang, after its evidence was collected, and only with `enabled = true` under
            [act].
    """

    paths: tuple[str, ...] = ()
    files: str = EACH
    progress_regex: str = ""
    timeout_s: float | None = None
    factor: float = 5.0
    floor_s: float = 120.0
    ceiling_s: float | None = None
    startup_s: float = 1680.0
    evaluation_s: float | None = None
    save_s: float | None = None
    learn: tuple[str, ...] = ()
    heartbeat: bool = True
    ignore_older_s: float = 86400.0
    read_bytes: float = 2.0**20
    on_hang: str = "tell"


class Pause(NamedTuple):
    """The pauses of one phase that ended by themselves.

    Attributes:
        phase: `eval`, `save`, `start`, or `train` for those that the log does not explain.
        seconds: how long the longest one was; 0 if none was remarkable.
        step: the step at that time, for display.
        times: how many were at least half as long.
    """

    phase: str
    seconds: float
    step: str = ""
    times: int = 1


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
        kind: the kind of its heartbeat (positions.py); empty without one.
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
        templates: the fields of each Template (digest.py), and `main` the key of the one that is the heartbeat.
        turn: how often the heartbeat advanced; `turned_at` is when it last did.
        pauses: the fields of each Pause.
        shape: the heartbeat's line with its digits masked.
        stamp: the timestamp of the last line with progress; 0 without one.
        end: the line that reports the end of the training; empty without one.
        error: the newest line with an error, if no step follows it.
        error_kind: its name in the table of errors.
        errored: when the error or the end was found.
        said: CRC-32s of the lines since the last progress.
        repeats: number of those lines that are repetitions.
        skipped: bytes not read in the last probe because more than `read_bytes` were new.
        unfinished: whether the file ends within a line.
        skew_s: the least difference of the file server's clock to ours; positive if it is ahead.
        trouble: why it could not be read; empty if it could.
        trouble_kind: `missing` or `not-read`.
        troubled: when that started.
        epoch: the newest epoch in any line, -1 without one.
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
    templates: tuple[tuple[Any, ...], ...] = ()
    main: int = 0
    turn: int = 0
    turned_at: float = 0.0
    pauses: tuple[tuple[Any, ...], ...] = ()
    shape: str = ""
    stamp: float = 0.0
    epoch: float = -1.0
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


BLOCK_BYTES = 4096
"""Buffered output comes in blocks of this or a multiple (stdio's and Python's are 4096 and 8192 bytes)."""


def in_blocks(size: int, unfinished: bool) -> bool:
    """Return whether the size and the unfinished last line of a log indicate that its writer buffers the output."""
    return unfinished and size > 0 and size % BLOCK_BYTES == 0


FORMAT = "log-3"
"""The first item of a packed state. States of another version are ignored."""
_DEFAULTS = tuple(LogState())
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def packed(state: LogState) -> str:
    """Return a state as text, without the defaults at its end.

    Ten thousand of them are passed between processes and stored, most of them unchanged.
    """
    count = len(state)
    while count and state[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    text = _ENCODER.encode((FORMAT, *state[:count]))
    _known(text, state)
    return text


def unpacked(text: str) -> LogState:
    """Return the state of a `packed` text. Raise ValueError or TypeError for one of another version."""
    known = _MEMO.get(text)
    if known is not None:
        return known
    version, *values = json.loads(text)
    if version != FORMAT:
        raise ValueError(f"a state of another version: {version!r}")
    return _known(text, LogState(*values))


def _known(text: str, state: LogState) -> LogState:
    """Memoize the state of a text: the judge parses it again, and most are the same in every probe."""
    if len(_MEMO) >= _MOST_KNOWN:
        _MEMO.clear()
    _MEMO[text] = state
    return state


_MEMO: dict[str, LogState] = {}
_MOST_KNOWN = 50_000


TELL, SAVE, RESTART_STEP, REQUEUE = ON_HANG = ("tell", "save", "restart_step", "requeue")
NO_PROGRESS, RANK_GONE = "no-progress", "rank-gone"
"""Faults of a training that hangs."""
CONFIRMED = "confirmed: several heartbeats name the same ranks, which do nothing, or show all in the same collective"
"""In `looked` of a finding."""
CONFIRM_S = 120.0
"""How long signs must name the same ranks: three passes of a watchdog that runs every minute."""


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
        odd: which ranks keep the others waiting and why, in words; empty while steps are made, or without a sign.
        odd_ranks: their numbers.
        odd_since: since when signs besides the steps name these ranks while they neither compute nor read, by the
            watchdog's clock; 0 if none does.
        odd_cpu_s: CPU seconds that they had used then.
        odd_bytes: bytes that they had read and written then.
        odd_entered: collectives that all ranks had entered, if all are inside one.
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
    odd: str = ""
    odd_ranks: tuple[int, ...] = ()
    odd_since: float = 0.0
    odd_cpu_s: float = 0.0
    odd_bytes: int = 0
    odd_entered: int = 0

    def is_confirmed(self, now: float) -> bool:
        """Return whether the same ranks have been named by several heartbeats, and did nothing meanwhile."""
        return self.odd_since > 0 and now - self.odd_since >= CONFIRM_S


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
        pauses: the fields of each Pause of this run or family of logs, over all its jobs.
        told: when the watchdog first said that it finds no step, by its clock; 0 if it has not.
        expected: the packed LogState with the heartbeat of the job before, until the log of this job has it.
        learns: since when a heartbeat is known, by the watchdog's clock; 0 without one.
        taught: (path, size, mtime in ns) of each log of `learn` that was read.
        cpu: (time, CPU seconds of the job) of the first and the last answer of the scheduler since the log is quiet,
            preceded by the start of the job, with 0 CPU seconds; `asked` is when the scheduler was last asked.
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
    pauses: tuple[tuple[Any, ...], ...] = ()
    told: float = 0.0
    expected: str = ""
    learns: float = 0.0
    taught: tuple[tuple[Any, ...], ...] = ()
    cpu: tuple[tuple[float, float], ...] = ()
    asked: float = 0.0
    unsure: str = ""


PATIENCE_S = 1680.0
"""Where only a log shows a hang: at least this long without progress. Most evaluations and saves are shorter."""

PHASE_S = 3600.0
"""The time allowed in the first evaluation or save that the log or the heartbeat reports."""

PAUSE_TIMES = 2.0
"""This many times the longest pause so far is allowed."""

LEAST_PAUSE_S = 60.0
"""A shorter silence without a known phase is no pause."""

CONFIRMED_S = 600.0
"""Where a log shows a hang and the job is idle: at least this long without progress."""

ODD_S = 300.0
"""Where several heartbeats confirm which rank the others wait for: at least this long without progress. NCCL's watchdog
ends a training after 10 minutes, and its evidence with it."""

LEARNED = "after hours of watching: "
LEARNED_S, LEARNED_TIMES, LEARNED_LEAST_S = 6 * 3600.0, 3.0, 600.0
"""After so many seconds of watching: so many times the longest pause so far is allowed, and at least so long."""


class Allowance(NamedTuple):
    """The time allowed without progress, and its reason."""

    seconds: float
    why: str
    usual_s: float | None = None


def allowance(
    intervals: Sequence[float],
    phase: str,
    settings: LogSettings,
    pauses: Sequence[Sequence[Any]] = (),
    *,
    least_s: float | None = None,
    ceiling_s: float | None = None,
    learned_s: float = 0.0,
) -> Allowance:
    """Return the time allowed without progress, from the last step intervals, the current phase and the pauses so far.

    `least_s` is given with a second witness. A log alone is given PATIENCE_S, or less after `learned_s` of watching.
    """
    usual = median(intervals) if intervals else None
    if settings.timeout_s is not None:
        return Allowance(settings.timeout_s, "timeout_s", usual)
    known = [Pause(*one) for one in pauses]
    longest = max((one for one in known if one.phase != "start"), key=lambda one: one.seconds, default=Pause("", 0.0))
    choices = [(least_s or PATIENCE_S, "confirmed by a second witness" if least_s else "until a longer pause is known")]
    if least_s is None and learned_s > LEARNED_S:
        least_of_learned = max(LEARNED_LEAST_S, LEARNED_TIMES * longest.seconds)
        choices = [min(choices[0], (least_of_learned, f"{LEARNED}{LEARNED_TIMES:g} times {describe(longest)}"))]
    choices.append((settings.floor_s, "floor_s"))
    if usual is not None:
        times = settings.factor if least_s else PAUSE_TIMES
        choices.append((times * usual, f"{times:g} times the usual interval"))
    choices.append((PAUSE_TIMES * longest.seconds, f"{PAUSE_TIMES:g} times {describe(longest)}"))
    seconds, why = max(choices)
    ceiling_s = settings.ceiling_s if settings.ceiling_s is not None else ceiling_s
    if ceiling_s is not None and seconds > ceiling_s:
        # Otherwise each step with an interval above the ceiling would be an alert.
        seconds = max(ceiling_s, 1.2 * (usual or 0.0))
        why = "ceiling_s"
    seconds, why = _of_phase(phase, settings, known, usual) or (seconds, why)
    return Allowance(seconds, why, usual)


def _of_phase(
    phase: str, settings: LogSettings, known: Sequence[Pause], usual: float | None
) -> tuple[float, str] | None:
    """Return the time allowed in a phase, and why; None if it is that of any other silence."""
    if phase == "start":
        longest = max((PAUSE_TIMES * one.seconds for one in known if one.phase == "start"), default=0.0)
        return max((settings.startup_s, "startup_s: the phase is start"), (longest, "twice the longest start"))
    name = {"eval": "evaluation_s", "save": "save_s"}.get(phase, "")
    given = getattr(settings, name) if name else None
    if given is not None:
        return max((given, f"{name}: the phase is {phase}"), (2 * (usual or 0.0), "twice the usual interval"))
    if not name or any(one.phase == phase for one in known):
        return None
    return max((PHASE_S, f"the first {WORDS[phase]} of this run"), (2 * (usual or 0.0), "twice the usual interval"))


WORDS = {"eval": "evaluation", "save": "save", "start": "start"}


def describe(pause: Pause) -> str:
    """Return a pause in words. For instance, `the longest quiet: evaluation 41 min at step 1440, 3 times`."""
    word = WORDS.get(pause.phase, "")
    at = f" at step {pause.step}" if pause.step else ""
    times = f", {pause.times} times" if pause.times > 1 else ""
    return f"the longest quiet: {word}{' ' if word else ''}{format_duration(pause.seconds)}{at}{times}"


def with_pause(pauses: Sequence[Sequence[Any]], new: Pause) -> tuple[Pause, ...]:
    """Return the pauses with another one, which has ended by itself."""
    known = {one[0]: Pause(*one) for one in pauses}
    old = known.get(new.phase)
    if old is None or new.seconds > 2 * old.seconds:
        known[new.phase] = new
    elif new.seconds >= 0.5 * old.seconds:
        longest = max(old, new, key=lambda one: one.seconds)
        known[new.phase] = longest._replace(times=old.times + new.times)
    return tuple(known.values())


def merged_pauses(*several: Sequence[Sequence[Any]]) -> tuple[Pause, ...]:
    """Return the longest pause of each phase of several logs."""
    known: dict[str, Pause] = {}
    for one in (Pause(*one) for pauses in several for one in pauses):
        if one.phase not in known or (one.seconds, one.times) > (known[one.phase].seconds, known[one.phase].times):
            known[one.phase] = one
    return tuple(known.values())


UNSEEN_S = 900.0
"""The most that a pause before several steps is estimated to have lasted beyond the silence that the probes saw."""


def pause_of(silent_s: float, whole_s: float, steps: int, usual: float | None) -> float:
    """Return how long a pause was, of which the probes saw `silent_s`, if `steps` steps followed within `whole_s`."""
    if steps == 1:
        return max(silent_s, whole_s)
    rest_s = whole_s - (steps - 1) * usual if usual is not None else 0.0
    return max(silent_s, min(rest_s, silent_s + UNSEEN_S))


def is_pause(seconds: float, phase: str, usual: float | None) -> bool:
    """Return whether a silence is worth remembering: a known phase, or much longer than usual."""
    return phase in ("eval", "save", "start") or seconds > max(LEAST_PAUSE_S, 2 * (usual or 0.0))


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
_TIMES = (
    "first_seen",
    "appeared_at",
    "looked",
    "last_progress_at",
    "last_output_at",
    "turned_at",
    "errored",
    "troubled",
)
_BEAT_TIMES = ("advanced", "written", "odd_since")


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
