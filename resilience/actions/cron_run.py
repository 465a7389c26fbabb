"""`resil cron run`: ticks on and on, in the foreground of a terminal, a container or a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.actions.cron_project import CronProject
    from resilience.actions.cron_tick import Ticked


@dataclass(frozen=True, slots=True)
class Ran:
    """How a loop ended.

    Attributes:
        ticks: how many ticks it made.
        last: what the last one did; None: there was none, or it failed.
        why: why it ended: one sentence.
    """

    ticks: int
    last: Ticked | None
    why: str


def run(
    cron: CronProject,
    *,
    driver: str,
    once: bool = False,
    until: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda _: None,
    grace_s: float = 10.0,
) -> Ran:
    """Tick at every slot, and at least every `tick_s`, until `until` (seconds since the epoch), a stop, or a signal.

    Args:
        driver: who makes the ticks, for the heartbeat.
        once: one tick, and wait for what it started.
        until: end then; what could not end before is left to the next scheduler, unless it could never end before.
        stop: asked at least every second; True ends the loop (a signal handler sets it).
        say: told each line for people as it comes.
        grace_s: how long what still runs at the end gets between SIGTERM and SIGKILL.
    """
    raise NotImplementedError
