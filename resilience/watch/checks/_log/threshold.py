"""How long a training may show no progress. Pure.

A multiple of the usual time between two steps, with a floor and a ceiling; what the training does now may have more.
Published guards use fixed limits (an hour in io-watchdog, 10 minutes in NCCL), which are too long for small models and
too short for large ones: 105 s a step and 40 s a save were BLOOM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from resilience.watch.checks._log.words import LogSettings

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
