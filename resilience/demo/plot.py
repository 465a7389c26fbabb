"""The demo's plot: what happens to which attempt, when, and how fast. Pure: `demo.py` does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from resilience.demo.story import DemoAttempt

FAULTS: Mapping[str, tuple[str, int]] = {"1": ("crash", 50), "2": ("kill", 110), "4": ("leak", 190)}
"""What the training does to itself: by attempt, the kind and the step."""
SHORTENED_ATTEMPT, STOPPED_ATTEMPT, SAVED_ATTEMPT = 3, 5, 6
"""The attempts that are interfered with from outside."""
AMID_STEPS = 10
"""How many steps an attempt has done when somebody comes with a switch."""
WHY = "a colleague wants the GPUs"
LABEL = "keep-this"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How slow a demo must be for its scheduler.

    Attributes:
        step_s: seconds that a step takes at least.
        walltime_s: what is left to the shortened attempt. SLURM looks at time limits every 30 s.
        lead_s: how long before the limit the signal comes.
        time_limit: of every job.
        look_s: how often the guard looks at its switches.
        deadline_s: after which the demo gives up.
    """

    step_s: float
    walltime_s: float
    lead_s: int
    time_limit: str
    look_s: float
    deadline_s: float


PACES = {
    "local": Pace(step_s=0.015, walltime_s=3.0, lead_s=2, time_limit="5", look_s=0.1, deadline_s=90),
    "slurm": Pace(step_s=0.15, walltime_s=45.0, lead_s=30, time_limit="10", look_s=1.0, deadline_s=600),
}


class Deed(StrEnum):
    """What is done to the run from outside, each once."""

    SHORTEN = "shorten"
    """Cut the running job's time limit."""
    ANNOUNCE_LEAK = "announce the leak"
    """Nothing is done: people are told what the training is about to do to itself."""
    KILL = "kill"
    CLEAR = "clear"
    SAVE = "save"


def due(attempt: DemoAttempt) -> Deed | None:
    """Given the newest attempt, return what is to be done now, if it was not done before."""
    runs = attempt.seconds is None
    if attempt.number == STOPPED_ATTEMPT and not runs:
        return Deed.CLEAR
    if not runs:
        return None
    if attempt.number == SHORTENED_ATTEMPT:
        return Deed.SHORTEN
    if FAULTS.get(str(attempt.number), ("",))[0] == "leak":
        return Deed.ANNOUNCE_LEAK
    amid = attempt.last_step >= attempt.first_step + AMID_STEPS
    return {STOPPED_ATTEMPT: Deed.KILL, SAVED_ATTEMPT: Deed.SAVE}.get(attempt.number) if amid else None
