"""The runs of a state directory as subjects: their heartbeat, their loss, their saves, the logs of their attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import Any

from resilience.errors import StateDirectoryError
from resilience.runs.attempts import LastSave
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_files import ATTEMPTS_WITHOUT_SAVE, last_events, newest_save, read_attempts
from resilience.watch.checks._log.beats import merge_beats
from resilience.watch.checks._log.losses import Loss, losses_of, standing
from resilience.watch.checks._log.rundirs import RUN_IS_FINISHED, beat_files, read_trainings, run_now
from resilience.watch.checks._log.saves import save_of, still_failed
from resilience.watch.checks._log.tail import EVIDENCE_LINES, Looker, last_lines
from resilience.watch.checks._log.words import Beat, LogReading, packed, unpacked

_BEAT_FIELDS = tuple(field.name for field in fields(Beat))


def beat_of(reading: LogReading) -> Beat | None:
    """The heartbeat of a reading; JSON has made lists of its tuples."""
    if not reading.beat:
        return None
    known = {key: value for key, value in reading.beat.items() if key in _BEAT_FIELDS}
    known["stamps"] = tuple((str(n), float(v), float(s)) for n, v, s in known.get("stamps", ()))
    known["intervals"] = tuple(known.get("intervals", ()))
    known["gone"] = tuple(known.get("gone", ()))
    return Beat(**known)


def look_at_runs(
    directories: Sequence[RunDirectory],
    before: Mapping[str, LogReading],
    looker: Looker,
    *,
    named: bool = False,
) -> dict[str, LogReading]:
    """Look at these runs, and return a reading of each; runs that were over long ago only when they are `named`."""
    readings = {}
    for directory in directories:
        known = before.get(directory.run)
        try:
            reading, ended = _look_at_run(directory, known, looker, named=named)
        except StateDirectoryError as error:
            readings[directory.run] = LogReading(
                run=directory.run, nothing=error.message, notes=("not-read",), clock=looker.moment,
                losses=known.losses if known is not None else (), save=known.save if known is not None else (),
            )  # fmt: skip
            continue
        if named or not reading.over or looker.now - ended <= looker.settings.ignore_older_s:
            readings[directory.run] = reading
    return readings


def _look_at_run(
    directory: RunDirectory, before: LogReading | None, looker: Looker, *, named: bool
) -> tuple[LogReading, float]:
    now = looker.now
    run = run_now(directory, now)
    attempt = run.attempt
    number, began = (attempt.number, attempt.start_time) if attempt is not None else (0, 0.0)
    about: dict[str, Any] = {
        "run": directory.run,
        "attempt": number,
        "label": attempt.label if attempt is not None else run.job_id,
        "began": min(began, now),
        "over": run.over,
        "notes": run.notes,
    }
    if before is not None and before.attempt != number:
        before = _of_new_attempt(before, min(began, now) or now)
    beat = None
    if looker.settings.heartbeat and run.job_id:
        since = before.clock[0] if before is not None else 0.0
        beat = merge_beats(beat_files(directory, run.job_id), number, beat_of(before) if before else None, now, since)
    reading = looker.reading(run.logs, before) if run.logs else LogReading(clock=looker.moment)
    reading = replace(reading, beat=_record(beat), **about)
    if run.over != RUN_IS_FINISHED and (named or not run.over or now - run.ended <= looker.settings.ignore_older_s):
        losses = _losses(directory, run.job_id, reading, before)
        save = _failed_save(directory, run.job_id, reading, before)
        reading = replace(
            reading, losses=tuple(tuple(loss) for loss in losses), save=astuple(save) if save is not None else ()
        )
    if beat is not None and run.logs and not reading.lines and now - beat.advanced > min(60.0, looker.settings.floor_s):
        reading = replace(reading, lines=last_lines(run.logs[0], EVIDENCE_LINES))
    return reading, run.ended


def _losses(directory: RunDirectory, job_id: str, reading: LogReading, before: LogReading | None) -> tuple[Loss, ...]:
    known = losses_of(before)
    is_open = before is None or before.attempt != reading.attempt or any(not loss.until for loss in known)
    trainings = read_trainings(directory, job_id, earlier=is_open)
    beat, last = beat_of(reading), beat_of(before) if before is not None else None
    if beat is not None and last is not None and trainings and 0 < trainings[-1].attempt == reading.attempt:
        # The journal is written seconds after the heartbeat: a step counts that was done at the look before.
        trainings[-1].reached = max(trainings[-1].reached, min(beat.step, last.step))
    return standing(trainings, known)


def _failed_save(
    directory: RunDirectory, job_id: str, reading: LogReading, before: LogReading | None
) -> LastSave | None:
    known = save_of(before)
    is_open = before is None or before.attempt != reading.attempt or known is not None
    # As long as no save fails, the lines are not worth the time to parse.
    if not is_open and not last_events(directory, job_id, "0", (b'"save_failed"',)):
        return None
    job_ids = [str(attempt.job_id) for attempt in read_attempts(directory, newest=ATTEMPTS_WITHOUT_SAVE + 1)]
    return still_failed(newest_save(directory, job_ids or [job_id]), known)


def _of_new_attempt(before: LogReading, began: float) -> LogReading:
    """What is remembered of the logs when another attempt goes on with them: the step begins at a checkpoint again."""
    logs = []
    for path, text in before.logs:
        known = unpacked(text)
        known = known._replace(
            best=None, fell_from=None, restarts=0, phase="start", end="", error="", error_kind="", errored=0.0,
            advanced=max(known.advanced, began),
        )  # fmt: skip
        logs.append((path, packed(known)))
    return replace(before, logs=tuple(logs), beat=None)


def _record(beat: Beat | None) -> dict[str, Any] | None:
    return None if beat is None else {name: getattr(beat, name) for name in _BEAT_FIELDS}
