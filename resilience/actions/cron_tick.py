"""`resil cron tick`: looks once at the table, and runs and submits what is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resilience.actions.cron_project import CronProject
    from resilience.model.cron import Heartbeat, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """What one tick did.

    Attributes:
        heartbeat: the sign of life that it left; None: it left none, because the scheduler is stopped.
        started: what was begun by this scheduler, as it stood then (RUNNING).
        ended: what ended and is known since the last tick, those of earlier ticks included.
        submitted: what was queued as a job.
        skipped: slots passed over: SKIPPED and MISSED.
        refused: what could not be started or was refused.
        lines: what to tell people on standard error, one sentence each.
        stopped: why nothing runs: somebody stopped the scheduler; empty: nobody did.
    """

    heartbeat: Heartbeat | None = None
    started: tuple[RunRecord, ...] = ()
    ended: tuple[RunRecord, ...] = ()
    submitted: tuple[RunRecord, ...] = ()
    skipped: tuple[RunRecord, ...] = ()
    refused: tuple[RunRecord, ...] = ()
    lines: tuple[str, ...] = ()
    stopped: str = ""


def tick(cron: CronProject, *, driver: str, wait: bool = True) -> Ticked:
    """Do what is due, and leave a sign of life. `driver`: who makes the ticks: `crontab`, `slurm`, `foreground` ...

    With `wait`, return when all that was started has ended; without, when it is under way.
    Raise StateDirectoryError if nothing can be written: then nothing runs, because nobody could know that it ran.
    """
    raise NotImplementedError
