"""Saves that failed, as rank 0's guard wrote of them, and whether that is over. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from resilience.finding import Verdict
from resilience.runs.attempts import LastSave, when
from resilience.watch.checks._log.words import LogReading


def save_of(reading: LogReading | None) -> LastSave | None:
    """That of a reading, whose newest save failed; None when none did, or when another version of resil wrote it."""
    return LastSave(*reading.save) if reading is not None and len(reading.save) == len(fields(LastSave)) else None


def still_failed(save: LastSave | None, known: LastSave | None) -> LastSave | None:
    """Given what the journals tell now and the failure known before, return the failure that people should hear of.

    It lasts where a journal could not be read, or was not from so far back on.
    """
    if known is not None and (save is None or _newest(save) < _newest(known)):
        return known
    if save is None or save.failed_step is None:
        return None
    if known is not None and (known.attempt, known.time) > (save.attempt, save.time):
        return replace(save, step=known.step, time=known.time, attempt=known.attempt)
    return save


def _newest(save: LastSave) -> tuple[int, float]:
    """The number of the attempt counts first: clocks of nodes differ."""
    return max((save.attempt, save.time), (save.failed_attempt, save.failed_time))


def failed_save(reading: LogReading, now: float) -> Iterator[tuple[Verdict, str, str, str]]:
    """Given a reading, say which save failed, if the newest did: verdict, fault, a sentence, and what to do."""
    save = save_of(reading)
    if save is None:
        return
    is_earlier = 0 < save.failed_attempt < reading.attempt
    text = f"the save of step {save.failed_step}" + (f" in attempt {save.failed_attempt}" if is_earlier else "")
    text += " failed" + (f": {save.why}" if save.why else "")
    text += f"; attempt {reading.attempt} has not saved yet" if is_earlier else ""
    nothing = "there is no durable one yet" if save.is_whole else "no durable one in the newest journals"
    text += (
        f"; {nothing}"
        if save.step is None
        else f"; the newest durable one is of step {save.step}{when(save.time, now)}"
    )
    text += f"; {reading.over}" if reading.over else ""
    advice = (
        f"resil watch fs shows whether the disk is full; see also: resil status {reading.run}; resil logs {reading.run}"
    )
    yield Verdict.CRITICAL, "save-failed", text, advice
