"""PULSE lines: once an hour, what a job is doing, in a form that people have grepped for since 2021. Pure.

The wording is that of `slurm-status.py` (BigScience and ml-engineering), where that was right: a start in the past is
no negative time here, a held job is not `waiting to be scheduled`, and no state is `fix me`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from resilience.job import JobState
from resilience.quantities import format_slurm_time
from resilience.watch.checks._job.reading import SeenJob
from resilience.watch.checks._job.waiting import sort

MARK = "PULSE:"
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] PULSE: (.*)", re.ASCII)
_VERB = re.compile(r" (?=(?:is|was|will|waits) )")
"""Where a name ends: every sentence of `pulse_words` begins with one of these."""
_FORM = "%Y-%m-%d %H:%M:%S"
_STATES = {
    JobState.CONFIGURING: "is being configured",
    JobState.POWER_UP_NODE: "waits for nodes to be powered up",
    JobState.COMPLETING: "is ending",
    JobState.SUSPENDED: "is suspended",
    JobState.STOPPED: "is stopped",
}


def pulse_line(name: str, words: str, now: float) -> str:
    """`[2022-05-01 03:00:00] PULSE: gpt is running for ...`, in local time."""
    return f"[{time.strftime(_FORM, time.localtime(now))}] {MARK} {name} {words}"


def pulse_words(seen: Sequence[SeenJob], now: float) -> str:
    """What the living jobs of one subject are doing; there is at least one."""
    standing = sort(seen)
    if standing.running:
        lead = standing.running[0]
        where = f"({lead.label} on '{lead.partition}' partition ({lead.nodes}))"
        since = f"for {_span(now, lead.start)} since {_moment(lead.start)}"
        if lead.job_state is JobState.RUNNING:
            return f"is running {since} {where}"
        return f"{_STATES.get(lead.job_state, f'is in state {lead.state},')} {since} {where}"
    lead = (*standing.startable, *standing.blocked, *standing.behind, *standing.never)[0]
    where = f"({lead.label} on '{lead.partition}' partition)"
    why = lead.why
    if why.blocks_for_ever:
        return f"will not start: {why.words} {where}"
    if why.needs_others:
        return f"is waiting for what it cannot have now: {why.words} {where}"
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
    """When the newest PULSE line about each name in a log was written, in seconds since the epoch.

    A name may hold blanks, so that each place where the words may begin is taken. An hour that comes twice when summer
    time ends may be taken for the other one.
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
    """Whether a line is due. A line from the future, from a clock that was wrong, does not silence us for ever."""
    if last is None:
        return True
    age_s = now - last
    return age_s >= pulse_s or age_s < -pulse_s


def slot_of(now: float, pulse_s: float) -> int:
    """The number of the span of time that `now` lies in: whoever claims it first writes the line."""
    return int(now // pulse_s)


def _span(now: float, start: float | None) -> str:
    return format_slurm_time(max(0.0, now - start) if start is not None else 0.0)


def _moment(moment: float | None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment)) if moment is not None else "N/A"
