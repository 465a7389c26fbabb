"""Probes the runs of a state directory: heartbeat, losses, saves, and the logs of the attempt.

A heartbeat (docs/reference/run-directory.md) shows the slowest rank, and whether its writer is alive. All its times are
of its node's clock, so only their differences are used, and its age is measured between probes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, fields, replace
from typing import Any

from resilience.errors import StateDirectoryError
from resilience.finding import Verdict
from resilience.ranks.beats import NodeBeat
from resilience.ranks.beats import parse_beat as parse_node
from resilience.ranks.verdict import HangVerdict
from resilience.ranks.verdict import judge as judge_ranks
from resilience.runs.attempts import LastSave, when
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import ATTEMPTS_WITHOUT_SAVE, last_events, newest_save, read_attempts
from resilience.runs.run_jobs import Queues
from resilience.watch.checks._log import lines
from resilience.watch.checks._log.digest import INTERVALS
from resilience.watch.checks._log.losses import Loss, losses_of, unresolved
from resilience.watch.checks._log.reading import (
    Beat,
    LogReading,
    Pause,
    is_pause,
    median,
    merged_pauses,
    packed,
    pause_of,
    phase_of,
    unpacked,
    with_pause,
)
from resilience.watch.checks._log.rundirs import RUN_IS_FINISHED, RunNow, beat_files, read_trainings, run_now
from resilience.watch.checks._log.tail import EVIDENCE_LINES, LogReader, expected_of, last_lines


def parse_beat(content: bytes) -> Mapping[str, Any] | None:
    """Return the table of a heartbeat file, or None if it is damaged."""
    import tomllib

    try:
        table = tomllib.loads(content.decode("utf-8", "replace"))
        float(table["time"]), dict(table["rank"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return table


def merge_beats(
    files: Sequence[tuple[str, bytes, float]], attempt: int, before: Beat | None, now: float, since: float = 0.0
) -> Beat | None:
    """Return the attempt's slowest rank from the heartbeats of all nodes; None without any.

    `attempt` 0 accepts heartbeats of all attempts. `files` are (name, content, mtime). `since` is the time of the
    previous probe: a changed heartbeat was written after that, whatever the file server's clock reports.
    """
    known = {name: (value, since) for name, value, since in before.stamps} if before is not None else {}
    stamps: list[tuple[str, float, float]] = []
    ranks: list[tuple[float, int, int, str, str, float]] = []
    gone: list[str] = []
    nodes: list[NodeBeat] = []
    left = count = 0
    for name, content, mtime in files:
        table = parse_beat(content)
        if table is None or (attempt and table.get("attempt") not in (attempt, 0)):
            continue
        value = float(table["time"])
        old = known.get(name)
        changed_at = min(now, mtime if old is None else max(since, mtime))
        written = old[1] if old is not None and old[0] == value else changed_at
        stamps.append((name, value, written))
        host = str(table.get("host", ""))
        with suppress(ValueError, TypeError, OverflowError):
            nodes.append(parse_node(name.partition(".")[0], host, table, written))
        for number, rank in dict(table["rank"]).items():
            try:
                step, advanced = int(rank["step"]), float(rank["advanced"])
            except (KeyError, TypeError, ValueError):
                continue
            count += 1
            if rank.get("gone"):
                gone.append(f"{number} on {host}")
            elif rank.get("left"):
                left += 1
            else:
                quiet_s = max(0.0, value - advanced)
                ranks.append((written - quiet_s, step, int(number), host, str(rank.get("phase", "")), written))
    if not count:
        return None
    if not ranks:
        written = max(since for _, _, since in stamps)
        return Beat(stamps=tuple(stamps), written=written, advanced=written, ranks=count, gone=tuple(gone), left=left)
    # Ranks wait for each other: the one with the fewest steps blocks the others, and so does any that hangs.
    advanced = min(rank[0] for rank in ranks)
    _, step, number, host, phase, written = min(ranks, key=lambda rank: (rank[1], rank[0], rank[2]))
    phases = {phase_of(rank[4]) for rank in ranks}
    phase = next((word for word in ("save", "eval", "start") if word in phases), phase)
    intervals = before.intervals if before is not None else ()
    if before is not None and step > before.step and advanced > before.advanced > 0:
        intervals = (*intervals, (advanced - before.advanced) / (step - before.step))[-INTERVALS:]
    beat = Beat(
        step=step, rank=number, host=host, phase=phase, advanced=advanced, written=written, stamps=tuple(stamps),
        intervals=intervals, ranks=count, gone=tuple(gone), left=left,
    )  # fmt: skip
    stands = before is not None and step <= before.step
    return _with_odd(beat, judge_ranks(nodes), before, now) if stands and before is not None else beat


WORK_BYTES, WORK_CPU = 2**20, 0.05
"""Ranks that have read or written more bytes since they were named, or used more of a core, may be saving, loading data
or evaluating, although the training does not say so."""


def _with_odd(beat: Beat, found: HangVerdict, before: Beat, now: float) -> Beat:
    """Return the heartbeat with the ranks that keep the others waiting."""
    is_known = before.odd_since and tuple(before.odd_ranks) == found.ranks
    cpu_s, read = found.cpu_s - before.odd_cpu_s, found.io_bytes - before.odd_bytes
    works = read > WORK_BYTES or cpu_s > max(1.0, WORK_CPU * (now - before.odd_since))
    works |= found.entered != before.odd_entered
    is_same = is_known and not works
    return replace(
        beat,
        odd=found.why,
        odd_ranks=found.ranks,
        odd_since=0.0 if not found.is_witnessed else before.odd_since if is_same else now,
        odd_cpu_s=before.odd_cpu_s if is_same else found.cpu_s,
        odd_bytes=before.odd_bytes if is_same else found.io_bytes,
        odd_entered=found.entered,
    )


def save_of(reading: LogReading | None) -> LastSave | None:
    """Return the failed newest save of a reading; None without one, or if another version of resil wrote it."""
    return LastSave(*reading.save) if reading is not None and len(reading.save) == len(fields(LastSave)) else None


def still_failed(save: LastSave | None, known: LastSave | None) -> LastSave | None:
    """Return the failed save to report, from the journals and the failure known before, or None.

    A known failure persists if its journal could not be read, or not as far back.
    """
    if known is not None and (save is None or _newest(save) < _newest(known)):
        return known
    if save is None or save.failed_step is None:
        return None
    if known is not None and (known.attempt, known.time) > (save.attempt, save.time):
        return replace(save, step=known.step, time=known.time, attempt=known.attempt)
    return save


def _newest(save: LastSave) -> tuple[int, float]:
    """Return a sort key with the attempt first, since clocks of nodes differ."""
    return max((save.attempt, save.time), (save.failed_attempt, save.failed_time))


def failed_save(reading: LogReading, now: float) -> Iterator[tuple[Verdict, str, str, str]]:
    """Yield (verdict, fault, summary, advice) if the newest save of a reading failed."""
    save = save_of(reading)
    if save is None:
        return
    is_earlier = 0 < save.failed_attempt < reading.attempt
    text = f"the save of step {save.failed_step}" + (f" in attempt {save.failed_attempt}" if is_earlier else "")
    text += " failed" + (f": {save.why}" if save.why else "")
    text += f"; attempt {reading.attempt} has not saved yet" if is_earlier else ""
    nothing = "there is no durable save yet" if save.is_whole else "no durable save in the newest journals"
    text += (
        f"; {nothing}"
        if save.step is None
        else f"; the newest durable save is of step {save.step}{when(save.time, now)}"
    )
    text += f"; {reading.over}" if reading.over else ""
    advice = (
        f"resil watch fs shows whether the disk is full; see also: resil status {reading.run}; resil logs {reading.run}"
    )
    yield Verdict.CRITICAL, "save-failed", text, advice


_BEAT_FIELDS = tuple(field.name for field in fields(Beat))


def beat_of(reading: LogReading) -> Beat | None:
    """Return the heartbeat of a reading, with the lists from JSON as tuples."""
    if not reading.beat:
        return None
    known = {key: value for key, value in reading.beat.items() if key in _BEAT_FIELDS}
    known["stamps"] = tuple((str(n), float(v), float(s)) for n, v, s in known.get("stamps", ()))
    known["intervals"] = tuple(known.get("intervals", ()))
    known["gone"] = tuple(known.get("gone", ()))
    return Beat(**known)


def probe_runs(
    directories: Sequence[RunDirectory],
    before: Mapping[str, LogReading],
    reader: LogReader,
    queues: Queues,
    *,
    named: bool = False,
) -> dict[str, LogReading]:
    """Return a reading of each run; of runs that ended long ago only if they are `named`."""
    readings = {}
    for directory in directories:
        known = before.get(directory.run)
        try:
            run = run_now(directory, reader.now, queues)
            reading = _probe_run(directory, run, known, reader, named=named)
        except StateDirectoryError as error:
            readings[directory.run] = LogReading(
                run=directory.run, nothing=error.message, notes=("not-read",), clock=reader.moment,
                losses=known.losses if known is not None else (), save=known.save if known is not None else (),
                **lessons(known),
            )  # fmt: skip
            continue
        if named or not reading.over or reader.now - run.ended <= reader.settings.ignore_older_s:
            readings[directory.run] = reading
        for job in run.beside:
            subject = f"{directory.run} {job.label}"
            before_job = before.get(subject) or LogReading(clock=reader.moment, **lessons(reading))
            with suppress(StateDirectoryError):
                readings[subject] = _probe_run(directory, job, before_job, reader, named=named)
        if run.beside:  # what one of them learned is known to all
            own = {subject: one for subject, one in readings.items() if one.run == directory.run}
            pauses = tuple(map(tuple, merged_pauses(*(one.pauses for one in own.values()))))
            readings |= {subject: replace(one, pauses=pauses) for subject, one in own.items()}
    return readings


def _probe_run(
    directory: RunDirectory, run: RunNow, before: LogReading | None, reader: LogReader, *, named: bool
) -> LogReading:
    now = reader.now
    number, began = run.attempt.number if run.attempt is not None else 0, run.began
    about: dict[str, Any] = {
        "run": directory.run,
        "attempt": number,
        "label": run.label,
        "began": min(began, now),
        "over": run.over,
        "notes": run.notes,
        "unsure": run.unsure,
    }
    if before is not None and (before.attempt != number or (not number and run.began and before.label != run.label)):
        before = _of_new_attempt(before, min(began, now) or now)
    beat = None
    if reader.settings.heartbeat and run.job_id:
        since = before.clock[0] if before is not None else 0.0
        beat = merge_beats(beat_files(directory, run.job_id), number, beat_of(before) if before else None, now, since)
    if run.logs:
        reading = reader.reading(run.logs, before, ignored=lines.OURS)
    else:
        reading = LogReading(clock=reader.moment, **lessons(before))
    last = beat_of(before) if before is not None else None
    pauses = _pauses_of_beats(reading.pauses, beat, last, before.clock[0] if before is not None else 0.0)
    reading = replace(reading, beat=_record(beat), pauses=pauses, **about)
    if beat is None and not run.over:
        reading = _with_cpu(reading, before, directory, reader)
    if run.over != RUN_IS_FINISHED and (named or not run.over or now - run.ended <= reader.settings.ignore_older_s):
        losses = _losses(directory, run.job_id, reading, before)
        save = _failed_save(directory, run.job_id, reading, before)
        reading = replace(
            reading, losses=tuple(tuple(loss) for loss in losses), save=astuple(save) if save is not None else ()
        )
    if beat is not None and run.logs and not reading.lines and now - beat.advanced > min(60.0, reader.settings.floor_s):
        reading = replace(reading, lines=last_lines(run.logs[0], EVIDENCE_LINES))
    return reading


def lessons(before: LogReading | None) -> dict[str, Any]:
    """Return what a reading has learned, as fields of the next one."""
    if before is None:
        return {}
    return {
        "pauses": before.pauses, "told": before.told, "taught": before.taught, "expected": expected_of(before),
        "learns": before.learns,
    }  # fmt: skip


def _pauses_of_beats(
    pauses: tuple[tuple[Any, ...], ...], beat: Beat | None, before: Beat | None, since: float
) -> tuple[tuple[Any, ...], ...]:
    """Return the pauses of a run with the one that ended since the heartbeat of the previous probe at `since`."""
    if beat is None or before is None or beat.step <= before.step or before.advanced <= 0:
        return pauses
    usual = median(before.intervals) if before.intervals else None
    whole_s, silent_s = beat.advanced - before.advanced, max(0.0, since - before.advanced)
    gap_s = pause_of(silent_s, whole_s, beat.step - before.step, usual)
    phase = phase_of(before.phase)
    if not is_pause(gap_s, phase, usual):
        return pauses
    return tuple(map(tuple, with_pause(pauses, Pause(phase, gap_s, str(before.step)))))


QUIET_S = 300.0
"""The CPU time of a job is asked for only when its log has been quiet for this long, and at this interval."""


def _with_cpu(reading: LogReading, before: LogReading | None, directory: RunDirectory, reader: LogReader) -> LogReading:
    """Return a reading with the CPU time of its job if the log is quiet; otherwise the scheduler is not asked."""
    states = [reader.states[path] for path, _ in reading.logs]
    since = max((state.last_progress_at for state in states), default=0.0)
    quiet_s = reader.now - max(since, reading.began)
    if reader.cpu_seconds is None or not states or not reading.label or quiet_s < QUIET_S:
        return reading
    is_same = before is not None and before.label == reading.label
    cpu, asked = (before.cpu, before.asked) if is_same and before is not None else ((), 0.0)
    if reader.now - asked >= QUIET_S / 2:
        asked, seconds = reader.now, reader.cpu_seconds(directory, reading.label)
        if seconds is not None:
            cpu = (*(cpu[:2] or ((reading.began, 0.0),)), (reader.now, seconds))
    return replace(reading, cpu=cpu, asked=asked)


def _losses(directory: RunDirectory, job_id: str, reading: LogReading, before: LogReading | None) -> tuple[Loss, ...]:
    known = losses_of(before)
    is_open = before is None or before.attempt != reading.attempt or any(not loss.until for loss in known)
    trainings = read_trainings(directory, job_id, earlier=is_open)
    beat, last = beat_of(reading), beat_of(before) if before is not None else None
    if beat is not None and last is not None and trainings and 0 < trainings[-1].attempt == reading.attempt:
        # The journal is written seconds after the heartbeat: count a step that was done in the previous probe.
        trainings[-1].reached = max(trainings[-1].reached, min(beat.step, last.step))
    return unresolved(trainings, known)


def _failed_save(
    directory: RunDirectory, job_id: str, reading: LogReading, before: LogReading | None
) -> LastSave | None:
    known = save_of(before)
    is_open = before is None or before.attempt != reading.attempt or known is not None
    # Do not parse the journals while no save has failed.
    if not is_open and not last_events(directory, job_id, "0", (b'"save_failed"',)):
        return None
    job_ids = [str(attempt.job_id) for attempt in read_attempts(directory, newest=ATTEMPTS_WITHOUT_SAVE + 1)]
    return still_failed(newest_save(directory, job_ids or [job_id]), known)


def _of_new_attempt(before: LogReading, began: float) -> LogReading:
    """Return the reading for a new attempt that continues the same logs: the step restarts at a checkpoint."""
    logs = []
    for path, text in before.logs:
        known = unpacked(text)
        known = known._replace(
            best=None, fell_from=None, restarts=0, phase="start", end="", error="", error_kind="", errored=0.0,
            last_progress_at=max(known.last_progress_at, began),
        )  # fmt: skip
        logs.append((path, packed(known)))
    return replace(before, logs=tuple(logs), beat=None, expected=expected_of(before))


def _record(beat: Beat | None) -> dict[str, Any] | None:
    return None if beat is None else {name: getattr(beat, name) for name in _BEAT_FIELDS}
