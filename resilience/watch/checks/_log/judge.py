"""The findings of a log or a run, with figures, evidence and advice: which log counts, whether the heartbeat does, and
since when there was no progress. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from shlex import quote
from typing import NamedTuple

from resilience.finding import Figure, Finding, Verdict
from resilience.messages import plural
from resilience.quantities import format_bytes, format_duration
from resilience.watch.checks._log.losses import loss_faults
from resilience.watch.checks._log.reading import (
    CONFIRMED,
    CONFIRMED_S,
    LEARNED,
    LEAST_PAUSE_S,
    NO_PROGRESS,
    ODD_S,
    PATIENCE_S,
    RANK_GONE,
    Allowance,
    Beat,
    LogReading,
    LogSettings,
    LogState,
    Pause,
    allowance,
    describe,
    in_blocks,
    phase_of,
    unpacked,
)
from resilience.watch.checks._log.runs import beat_of, failed_save


class View(NamedTuple):
    """The parts of a reading that findings are made from.

    Attributes:
        path: of the log that counts; `log` is its state, None without one.
        beats: whether the heartbeat takes precedence over the log.
        since: the time of the last progress; `quiet_s` is how long ago that is.
        allowed: the time allowed without progress.
    """

    subject: str
    reading: LogReading
    settings: LogSettings
    now: float
    path: str
    log: LogState | None
    beat: Beat | None
    beats: bool
    since: float
    allowed: Allowance
    quiet_s: float


def view_of(subject: str, reading: LogReading, settings: LogSettings, now: float) -> View:
    """Return the view of a reading: the log or heartbeat that counts."""
    path, log = _main_log(reading, settings, now)
    beat = beat_of(reading)
    beats = beat is not None and _beat_counts(beat, log, settings, now)
    if beat is not None and beat.ranks > beat.left:
        phase = phase_of(beat.phase)
    else:
        # The lines of an earlier job in the same log do not apply to the current one.
        phase = log.phase if log is not None and log.last_progress_at >= reading.began else "start"
    intervals = beat.intervals if beat is not None and beat.intervals else log.intervals if log is not None else ()
    if beats:
        # A training that marks its evaluations or saves is not silent for other reasons.
        is_marked = any(one[0] in ("eval", "save") for one in reading.pauses)
        is_confirmed = beat is not None and beat.is_confirmed(now)
        least_s = settings.floor_s if is_marked else max(settings.floor_s, ODD_S) if is_confirmed else None
        allowed = allowance(intervals, phase, settings, reading.pauses, least_s=least_s, ceiling_s=BEAT_CEILING_S)
    else:
        least_s = CONFIRMED_S if is_idle(reading.cpu) else None
        learned_s = now - reading.learns if reading.learns else 0.0
        allowed = allowance(intervals, phase, settings, reading.pauses, least_s=least_s, learned_s=learned_s)
    since = max(log.last_progress_at if log is not None else 0.0, reading.began)
    if beats and beat is not None:
        since = max(beat.advanced, reading.began)
    return View(subject, reading, settings, now, path, log, beat, beats, since, allowed, max(0.0, now - since))


def _main_log(reading: LogReading, settings: LogSettings, now: float) -> tuple[str, LogState | None]:
    """Return the log with the latest progress, among the readable ones if any."""
    if len(reading.logs) == 1:
        path, text = reading.logs[0]
        return path, unpacked(text)
    logs = [(path, unpacked(text)) for path, text in reading.logs]
    read = [one for one in logs if not one[1].trouble or is_rotating(one[1], settings, now)]
    return max(read or logs, key=lambda one: one[1].last_progress_at, default=("", None))


def is_rotating(log: LogState, settings: LogSettings, now: float) -> bool:
    """Return whether a log that just disappeared may come back: renamed, and not created again yet."""
    return (
        log.trouble_kind == "missing"
        and log.looked > 0
        and now - log.troubled <= min(settings.floor_s, settings.timeout_s or 1e9)
    )


IDLE = 0.1
"""A job is idle below this part of its usual CPU time. A busy one proves nothing: NCCL spins while it hangs."""


def is_idle(cpu: Sequence[Sequence[float]]) -> bool:
    """Return whether the CPU time of a job confirms a hang; `cpu` as in LogReading."""
    return len(cpu) > 2 and cpu[2][1] >= cpu[1][1] and _load(cpu[1:]) < IDLE * _load(cpu)


def _load(cpu: Sequence[Sequence[float]]) -> float:
    """Return the CPU cores used between the first two of these questions."""
    (began, used), (ended, total) = cpu[0], cpu[1]
    return (total - used) / max(1.0, ended - began)


def _beat_counts(beat: Beat, log: LogState | None, settings: LogSettings, now: float) -> bool:
    """Return whether the heartbeat takes precedence over the log: not if it is older because its writer is dead."""
    if beat.ranks == beat.left or len(beat.gone) == beat.ranks:
        return False
    is_alive = now - beat.written <= min(settings.floor_s, settings.timeout_s or settings.floor_s)
    return is_alive or log is None or log.step is None or log.last_progress_at <= beat.written


BEAT_CEILING_S = 3600.0
"""The most time allowed without progress by the heartbeat, unless ceiling_s is set."""
UNSURE_TIMES = 2.0
"""A hang that only a log shows is a WARNING until this many times the time allowed."""
TOLD_S = 43200.0
"""How long the watchdog says that it finds no step in a log. The training may hang at its start, so an incident of an
hour, which then resolves, would hide that."""
MANY_RESTARTS = 3
REPORTED_SKEW_S = 120.0


def findings(subject: str, reading: LogReading, settings: LogSettings, now: float) -> list[Finding]:
    """Return the findings about the reading of one subject; one OK finding without a fault."""
    if reading.nothing:
        return [_nothing(subject, reading)]
    view = view_of(subject, reading, settings, now)
    wrong = [
        _finding(view, verdict, fault, text, advice=advice)
        for verdict, fault, text, advice in (*loss_faults(reading, now), *failed_save(reading, now))
    ]
    if reading.over:
        text = f"{reading.over}{_at_step(view, named=True)}"
        return wrong or [_finding(view, Verdict.OK, "", text, with_lines=False)]
    if view.log is None and view.beat is None:
        rest = [_no_log(view)]
    else:
        rest = list(_faults(view)) or [_finding(view, Verdict.OK, "", _ok_summary(view), with_lines=False)]
    return [*wrong, *(finding for finding in rest if finding.fault)] or rest


def deadline_of(reading: LogReading, settings: LogSettings, now: float) -> tuple[tuple[str, ...], float, float] | None:
    """Return (paths of its logs, time of the last progress, seconds allowed): when a daemon must probe again.

    None if no progress is expected, or if the last write to the log does not decide.
    """
    if reading.nothing or reading.over or not reading.logs:
        return None
    view = view_of("", reading, settings, now)
    if view.beats or view.log is None or view.log.trouble or view.log.end or view.quiet_s > view.allowed.seconds:
        return None
    return tuple(path for path, _ in reading.logs), view.since, view.allowed.seconds


def _faults(view: View) -> Iterator[Finding]:
    log, beat = view.log, view.beat
    if log is not None and log.trouble and not is_rotating(log, view.settings, view.now) and not view.beats:
        yield _unreadable(view, log)
        return
    is_reported = False
    for finding in (_failing(view), _gone(view)):
        if finding is not None:
            is_reported = True
            yield finding
    if view.quiet_s > view.allowed.seconds and not is_reported:
        if log is not None and log.end and not view.beats:
            if view.reading.run and view.quiet_s > max(view.allowed.seconds, view.settings.ceiling_s or BEAT_CEILING_S):
                yield _finding(
                    view, Verdict.WARNING, "not-ended",
                    f"the training reported its end {format_duration(view.quiet_s)} ago, but its job is still running",
                    advice=f"see what the job waits for: resil logs {view.reading.run}",
                )  # fmt: skip
                return
        elif log is not None and log.size == 0 and not view.beats:
            yield _empty(view)
        else:
            yield _hung(view)
    elif log is not None and not is_reported and view.reading.told and view.now - view.reading.told <= TOLD_S:
        yield _unknown_form(view)
    if log is not None and (wrong := _regressing(view, log)) is not None and beat is None:
        yield wrong


def _failing(view: View) -> Finding | None:
    log = view.log
    if log is None or not log.error:
        return None
    if view.beats and view.since > log.errored:
        return None
    quiet_s = view.now - log.errored
    usual_s = view.allowed.usual_s or 0.0
    soon_s = max(2 * usual_s, min(30.0, view.allowed.seconds))
    is_caught = quiet_s <= {"exception": soon_s, "slurm": view.allowed.seconds}.get(log.error_kind, -1.0)
    verdict = Verdict.WARNING if is_caught else Verdict.CRITICAL
    text = f"{log.error_kind}: {log.error}; no step since{_at_step(view)}"
    return _finding(view, verdict, "failing", text, advice=_debug_advice(view), first=log.error)


def _gone(view: View) -> Finding | None:
    beat = view.beat
    if beat is None or not beat.gone or (beat.left + len(beat.gone) == beat.ranks and view.quiet_s <= 60.0):
        return None
    which = ", ".join(beat.gone[:5]) + (f" and {len(beat.gone) - 5} more" if len(beat.gone) > 5 else "")
    verdict = Verdict.CRITICAL if view.quiet_s > min(view.settings.floor_s, view.allowed.seconds) else Verdict.WARNING
    return _finding(
        view,
        verdict,
        RANK_GONE,
        f"rank {which} exited without a final message{_at_step(view)}",
        advice=_debug_advice(view),
    )


def _hung(view: View) -> Finding:
    log, beat = view.log, view.beat
    quiet = format_duration(view.quiet_s)
    has_step = view.beats or (log is not None and bool(log.kind))
    what = "no new step" if has_step else "nothing new"
    parts = [f"{what} for {quiet}{_at_step(view)}"]
    parts[0] += _usual(view)
    phase = phase_of(beat.phase) if view.beats and beat is not None else log.phase if log is not None else ""
    if phase and phase != "train":
        parts.append(f"phase {phase}")
    has_output = False
    if log is not None and log.last_output_at > log.last_progress_at:
        has_output = log.repeats > 0 or view.now - log.last_output_at <= view.allowed.seconds
    if view.beats and beat is not None:
        parts.append(beat.odd or f"rank {beat.rank} on {beat.host} is the slowest of {beat.ranks}")
        if view.now - beat.written > view.allowed.seconds:
            parts.append(f"its heartbeat shows no progress either, for {format_duration(view.now - beat.written)}")
    if has_output and log is not None:
        many = f", {log.repeats} lines of it repetitions" if log.repeats else ""
        parts.append(f"still writing output{many}")
    if log is not None and not view.beats and in_blocks(log.size, log.unfinished):
        parts.append("or its output is buffered (it grows in blocks): set PYTHONUNBUFFERED=1")
    if view.reading.lines:
        parts.append(f"last line: {view.reading.lines[-1]}")
    is_idle_job = is_idle(view.reading.cpu)
    is_sure = view.beats or view.settings.timeout_s is not None or is_idle_job
    if is_idle_job:
        parts.insert(1, "the job is idle")
    is_banner = not is_sure and log is not None and not log.kind and (has_output or _wrote_only_at_start(view, log))
    verdict = Verdict.CRITICAL
    if view.reading.unsure:  # the job may have ended
        verdict = Verdict.UNKNOWN
        parts.append(_unknown(view.reading))
    elif is_banner:
        verdict = Verdict.WARNING
        parts.insert(1, "it never named a step: the training hangs at its start, or writes to another file")
    elif not is_sure and view.quiet_s <= (sure_s := _sure_s(view.allowed)):
        verdict = Verdict.WARNING
        parts.insert(1, f"CRITICAL after {format_duration(sure_s)}, as only the log shows it")
    advice = _debug_advice(view)
    if is_banner:
        advice = f"if the training writes to another file, watch that: resil watch log PATH; otherwise {advice}"
    # One fault, whatever else is written meanwhile: a hang is one incident.
    found = _finding(view, verdict, NO_PROGRESS, "; ".join(parts), advice=advice)
    is_confirmed = view.beats and beat is not None and beat.is_confirmed(view.now)
    return replace(found, looked=(*found.looked, CONFIRMED)) if is_confirmed else found


def _sure_s(allowed: Allowance) -> float:
    """Return after how long a hang that only a log shows is CRITICAL."""
    return max(UNSURE_TIMES * allowed.seconds, PATIENCE_S if allowed.why.startswith(LEARNED) else 0.0)


BANNER_S = 300.0
"""A log that is written only this long after the start of its job may be that of the batch shell alone."""


def _wrote_only_at_start(view: View, log: LogState) -> bool:
    """Return whether the log of a user's own script may not be the training's: with `srun --output` or `tee`, that is
    another file."""
    is_own = bool(view.reading.run) and not view.reading.attempt
    return is_own and log.last_output_at - view.reading.began <= BANNER_S


def _unknown_form(view: View) -> Finding:
    text = (
        "no step found: the training has not begun, or the form of its log is unknown; then only the growth of the log "
        "is checked, and a hang that still writes is not noticed"
    )
    if view.log is not None and view.log.kind:
        text = (
            f"no step found: the training hangs at its start, or its form is unknown; lines like {view.log.shape!r} "
            "count as progress, as their numbers change regularly"
        )
    return _finding(
        view, Verdict.WARNING, "no-step", text,
        advice="set progress_regex in [watch.log], or call the guard in the training",
    )  # fmt: skip


def _empty(view: View) -> Finding:
    return _finding(
        view, Verdict.WARNING, "empty",
        f"empty for {format_duration(view.quiet_s)}: its output is buffered, or the training has not written any yet",
        advice="set PYTHONUNBUFFERED=1 (or python -u) in the job, so that output is written at once",
    )  # fmt: skip


def _regressing(view: View, log: LogState) -> Finding | None:
    if log.fell_from is not None:
        text = f"the step went back from {log.fell_from:g} to {log.text} without a new attempt"
        return _finding(view, Verdict.WARNING, "regressing", text, advice=_debug_advice(view))
    if log.restarts >= MANY_RESTARTS and log.best is not None:
        text = f"{log.restarts} restarts without progress beyond step {log.best:g}"
        return _finding(view, Verdict.WARNING, "regressing", text, advice=_debug_advice(view))
    return None


def _nothing(subject: str, reading: LogReading) -> Finding:
    kind = reading.notes[0] if reading.notes else "missing"
    if kind == "none":
        return Finding(subject=subject, verdict=Verdict.OK, summary=reading.nothing, looked=(reading.nothing,))
    advice = {
        "missing": "check the path, or whether the job has begun: resil status",
        "old": "name the log to watch it anyway",
    }.get(kind, "check its permissions and the file system")
    return Finding(
        subject=subject, verdict=Verdict.UNKNOWN, fault=kind, summary=reading.nothing, advice=advice, run=reading.run,
        looked=(reading.nothing,),
    )  # fmt: skip


def _no_log(view: View) -> Finding:
    reading = view.reading
    if reading.unsure:
        text = f"no log and no heartbeat found; {_unknown(reading)}"
        return _finding(view, Verdict.UNKNOWN, "missing", text, advice=f"see its jobs: resil status {reading.run}")
    if not reading.began:
        return _finding(view, Verdict.OK, "", "not started: no log yet", with_lines=False)
    waited_s = view.now - reading.began
    if waited_s <= view.settings.startup_s:
        text = f"job {reading.label} began {format_duration(waited_s)} ago: no log and no heartbeat yet"
        return _finding(view, Verdict.OK, "", text, with_lines=False)
    return _finding(
        view, Verdict.UNKNOWN, "missing",
        f"no log and no heartbeat of job {reading.label} found, which began {format_duration(waited_s)} ago"
        + "".join(f"; {note}" for note in reading.notes),
        advice="name its log: resil watch log PATH",
    )  # fmt: skip


def _unknown(reading: LogReading) -> str:
    return f"whether its job still runs is unknown: {reading.unsure}"


def _unreadable(view: View, log: LogState) -> Finding:
    if log.trouble_kind == "missing" and log.looked:
        text = f"missing for {format_duration(view.now - log.troubled)}{_at_step(view)}"
        advice = "check whether it was renamed and not reopened: resil status"
    else:
        text = log.trouble
        advice = (
            "check the path, or whether the job has begun: resil status" if log.trouble_kind == "missing"
            else "check its permissions and the file system"
        )  # fmt: skip
    return _finding(view, Verdict.UNKNOWN, log.trouble_kind, text, advice=advice)


def _ok_summary(view: View) -> str:
    log = view.log
    if log is not None and log.end and not view.beats:
        return f"the training reports its end: {log.end}"
    ago = f"{format_duration(view.quiet_s)} ago"
    if view.beats and view.beat is not None:
        return (
            f"step {view.beat.step} {ago}{_usual(view)}{_phase(view.beat.phase)} "
            f"(heartbeat of {plural(view.beat.ranks, 'rank')})"
        )
    if log is None:
        return f"no progress expected before {format_duration(view.allowed.seconds)}"
    if log.size == 0:
        return f"empty since {ago.removesuffix(' ago')}"
    if not log.kind:
        return f"grew {ago}; no step found, so only growth is checked{_phase(log.phase)}"
    return f"{_step(log)} {ago}{_usual(view)}{_phase(log.phase)}"


def _usual(view: View) -> str:
    usual_s = view.allowed.usual_s
    if usual_s is None:
        return ""
    return f", usually every {format_duration(usual_s)}" if usual_s >= 0.1 else ", usually many in a second"


def _phase(phase: str) -> str:
    return "" if phase in ("", "train") else f", phase {phase}"


def _step(log: LogState) -> str:
    if not log.turned_at:
        return "no step yet; the last line of the start"
    return log.text if log.text.startswith("epoch") else f"step {log.text}" if log.text else "new figures"


def _at_step(view: View, *, named: bool = False) -> str:
    """` (42780 at 13:02:11)`; if `named`, ` (step 42780 at 13:02:11)`."""
    if view.beats and view.beat is not None:
        step = f"step {view.beat.step}" if named else view.beat.step
        return f" ({step} at {_clock(view.since, view.now)})"
    if view.log is None or not view.log.text:
        return ""
    return f" ({_step(view.log) if named else view.log.text} at {_clock(view.log.last_progress_at, view.now)})"


def _clock(at: float, now: float) -> str:
    return time.strftime("%H:%M:%S" if now - at < 43200 else "%Y-%m-%d %H:%M:%S", time.localtime(at))


def _debug_advice(view: View) -> str:
    run = view.reading.run
    read = f"resil logs {run}" if run else f"tail -n 50 {quote(view.path)}"
    where = ""
    if view.beats and view.beat is not None and view.beat.host:
        where = f" on {view.beat.host}"
    tool = f"resil stacks {run}" if view.beats and run else "py-spy dump --pid PID of a rank"
    return f"read the log: {read}; then find where it hangs{where}: {tool}, before killing the job"


def _finding(
    view: View,
    verdict: Verdict,
    fault: str,
    summary: str,
    *,
    advice: str = "",
    with_lines: bool = True,
    first: str = "",
) -> Finding:
    reading = view.reading
    lines = reading.lines if with_lines else ()
    if first and first not in lines:
        lines = (first, *lines)
    return Finding(
        subject=view.subject, verdict=verdict, fault=fault, summary=summary, advice=advice, run=reading.run,
        figures=_figures(view), evidence=lines, looked=_explanation(view),
    )  # fmt: skip


def _figures(view: View) -> tuple[Figure, ...]:
    if not view.since:  # neither log nor heartbeat
        return ()
    quiet = Figure(label="quiet", value=round(view.quiet_s, 1), unit="s", crit=round(view.allowed.seconds, 1))
    step = view.beat.step if view.beats and view.beat is not None else view.log.step if view.log is not None else None
    return (quiet,) if step is None else (quiet, Figure(label="step", value=step))


def _explanation(view: View) -> tuple[str, ...]:
    log, beat, reading = view.log, view.beat, view.reading
    explanation = []
    if beat is not None:
        age = format_duration(max(0.0, view.now - beat.written))
        explanation.append(
            f"heartbeat of {plural(beat.ranks, 'rank')}, written {age} ago; slowest: rank {beat.rank} on {beat.host}"
        )
        if not view.beats and beat.ranks > beat.left + len(beat.gone):
            explanation.append("heartbeat ignored, older than the log: its writer is dead or cannot write")
    if log is not None:
        how = f"heartbeat: {log.shape or log.kind}" if log.kind else "no step found: set progress_regex"
        size, silent = format_bytes(log.size), format_duration(max(0.0, view.now - log.last_output_at))
        explanation.append(f"{view.path}: {size}, last written {silent} ago; {how}")
        if log.skipped:
            explanation.append(f"{format_bytes(log.skipped)} of new output skipped: more than read_bytes")
        if abs(log.skew_s) >= REPORTED_SKEW_S:
            way = "ahead of" if log.skew_s > 0 else "behind"
            explanation.append(f"the file server's clock is at least {format_duration(abs(log.skew_s))} {way} ours")
        if in_blocks(log.size, log.unfinished):
            explanation.append("it grows in blocks and ends within a line: set PYTHONUNBUFFERED=1")
        if log.trouble and view.beats:
            explanation.append(f"the log cannot be read: {log.trouble}")
    known = sorted((Pause(*one) for one in reading.pauses), key=lambda one: -one.seconds)
    explanation += [describe(one) for one in known if one.seconds >= LEAST_PAUSE_S]
    if len(reading.cpu) > 2:
        explanation.append(
            f"CPU time: {_load(reading.cpu[1:]):.2g} cores since it is quiet, {_load(reading.cpu):.2g} before"
        )
    explanation.append(f"allowed without progress: {format_duration(view.allowed.seconds)} ({view.allowed.why})")
    return (*explanation, *reading.notes)
