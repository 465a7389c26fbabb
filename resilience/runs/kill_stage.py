"""How far the end of a training by force has come: what the batch shell journalled of it, as a sentence. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from resilience.switch import describe_age, printable


class Stage(StrEnum):
    """The stages, in their order (slurm_templates/_attempt.bash, "ending what does not stop")."""

    NOTICED = "noticed"
    """The kill switch was seen; the training may stop at a step."""
    TAKEN = "taken"
    """The guard has told the training to stop; it may save and end."""
    STACKS = "stacks"
    """The bound is over; all ranks are asked for their stacks."""
    TERM = "term"
    """SIGTERM was sent."""
    KILL = "kill"
    """SIGKILL was sent."""


@dataclass(frozen=True, slots=True)
class KillStage:
    """The stage that an attempt is in.

    Attributes:
        stage: which one.
        since: when it was reached, in seconds since the epoch; None when that is not known.
        until: when the next one is due; None when that is not known, or there is none.
        why: the batch shell's sentence: who threw the switch and why, or that stop_after is over.
    """

    stage: Stage
    since: float | None
    until: float | None
    why: str


def kill_stage(events: Iterable[Mapping[str, Any]], attempt: int) -> KillStage | None:
    """Given the batch shell's journal, return the stage of an attempt; None when nothing is under way.

    The last event counts: `kill_cleared` and `attempt_end` are the end of it. What is no such event is passed over.
    """
    found: KillStage | None = None
    for event in events:
        name = event.get("event")
        if event.get("attempt") != attempt or not isinstance(name, str):
            continue
        if name in ("kill_cleared", "attempt_end", "attempt_start"):
            found = None
        elif name.startswith("kill_") and name.removeprefix("kill_") in set(Stage):
            since = _seconds(event.get("time"))
            wait_s = _seconds(event.get("kill_wait_s" if name == "kill_term" else "bound_s"))
            until = None if since is None or wait_s is None else since + wait_s
            found = KillStage(Stage(name.removeprefix("kill_")), since, until, printable(str(event.get("why", ""))))
    return found


def describe(stage: KillStage, now: float) -> str:
    """Say what was done and what comes, and when. For instance, `SIGTERM sent 8 s ago, SIGKILL at 10:43:00`."""
    ago = "" if stage.since is None else describe_age(now - stage.since) or " just now"
    at = "" if stage.until is None else f" at {clock_time(stage.until, now)}"
    match stage.stage:
        case Stage.NOTICED:
            return f"noticed{ago}, SIGTERM{at} unless it stops at a step"
        case Stage.TAKEN:
            return f"the training was told to stop{ago}, SIGTERM{at} unless it saves and ends"
        case Stage.STACKS:
            return f"no end in time: asked all ranks for their stacks{ago}, then SIGTERM"
        case Stage.TERM:
            return f"SIGTERM sent{ago}, SIGKILL{at}"
        case Stage.KILL:
            return f"SIGKILL sent{ago}"


def clock_time(moment: float, now: float) -> str:
    """Given two moments in seconds since the epoch, return the first as people here write it: the date if it is not
    today's."""
    from datetime import UTC, datetime  # 5 ms that only those pay who kill

    local, today = (datetime.fromtimestamp(seconds, tz=UTC).astimezone() for seconds in (moment, now))
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def _seconds(value: object) -> float | None:
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11
    return float(value) if is_time else None  # type: ignore[arg-type]
