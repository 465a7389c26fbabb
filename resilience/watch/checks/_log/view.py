"""All that a sentence about a log or a run may need: which log counts, whether the heartbeat does, since when. Pure."""

from __future__ import annotations

from typing import NamedTuple

from resilience.watch.checks._log.look_runs import beat_of
from resilience.watch.checks._log.threshold import Allowance, allowance, phase_of
from resilience.watch.checks._log.words import Beat, LogReading, LogSettings, LogState, unpacked


class View(NamedTuple):
    """All that a sentence may need.

    Attributes:
        path: of the log that counts, `log` what is known of it; None when there is none.
        beats: whether the heartbeat counts more than the log.
        since: when it last went on; `quiet_s` is how long ago that is.
        allowed: how long it may show nothing.
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
    """Given a reading, say what counts in it."""
    path, log = _main_log(reading, settings, now)
    beat = beat_of(reading)
    if beat is not None and beat.ranks > beat.left:
        phase = phase_of(beat.phase)
    else:
        # What a job before has left in the log says nothing of the one that has begun since.
        phase = log.phase if log is not None and log.advanced >= reading.began else "start"
    intervals = beat.intervals if beat is not None and beat.intervals else log.intervals if log is not None else ()
    allowed = allowance(intervals, phase, settings)
    since = max(log.advanced if log is not None else 0.0, reading.began)
    beats = beat is not None and _beat_counts(beat, log, allowed, settings, now)
    if beats and beat is not None:
        since = max(beat.advanced, reading.began)
    return View(subject, reading, settings, now, path, log, beat, beats, since, allowed, max(0.0, now - since))


def _main_log(reading: LogReading, settings: LogSettings, now: float) -> tuple[str, LogState | None]:
    """The log that has gone on last, of those that can be read if there are any."""
    if len(reading.logs) == 1:
        path, text = reading.logs[0]
        return path, unpacked(text)
    logs = [(path, unpacked(text)) for path, text in reading.logs]
    read = [one for one in logs if not one[1].trouble or is_rotating(one[1], settings, now)]
    return max(read or logs, key=lambda one: one[1].advanced, default=("", None))


def is_rotating(log: LogState, settings: LogSettings, now: float) -> bool:
    """Whether a log that was there a moment ago may come back: renamed, and not made again yet."""
    return (
        log.trouble_kind == "missing"
        and log.looked > 0
        and now - log.troubled <= min(settings.floor_s, settings.timeout_s or 1e9)
    )


def _beat_counts(beat: Beat, log: LogState | None, allowed: Allowance, settings: LogSettings, now: float) -> bool:
    """Whether the heartbeat beats the log: unless its mirror is dead, and the log has gone on without it."""
    if beat.ranks == beat.left or len(beat.gone) == beat.ranks:
        return False
    is_alive = now - beat.written <= min(settings.floor_s, allowed.seconds)
    return is_alive or log is None or log.step is None or log.advanced <= beat.written
