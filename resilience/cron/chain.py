"""Sees to the successors of a job of the scheduler's chain, and writes down what keeps them from being queued."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from resilience.cron.records import Outcome, RunRecord
from resilience.errors import EX_TEMPFAIL, ResilError, UsageError

if TYPE_CHECKING:
    from resilience.cron.drivers._slurm.keeper import Kept
    from resilience.cron.project import CronProject
    from resilience.cron.records import Installation

CHAIN = "scheduler"
"""The name, in the histories, of the chain itself: what kept it from going on, and that it goes on again."""

EXIT_ENDED = 3
"""Of `--keep`: there shall be no chain any more."""

KEPT_OUTPUTS = 20
"""So many outputs of the chain's jobs are kept."""


class Words(NamedTuple):
    """The arguments: whose job it is, and of a pulse its slot. `keep`: only see to the successors."""

    token: str
    scheduler: str
    slot: int = 0
    keep: bool = False


def parse_words(words: Sequence[str]) -> Words:
    """Given the arguments, return what they say. Pure. Raise UsageError for others: only the batch script calls."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    keep = "--keep" in words
    if set(words[::2]) - {"--token", "--scheduler", "--slot", "--keep"} or not given.get("--token"):
        raise UsageError("`resil cron job` is called by the scheduler's batch script", hint="resil cron install")
    slot = given.get("--slot", "")
    return Words(given["--token"], given.get("--scheduler", ""), int(slot) if slot.isdigit() else 0, keep)


def keep(cron: CronProject, installation: Installation, told: Words) -> int:
    """See to the successors, and write down what kept them from being queued. Return 0, EXIT_ENDED or EX_TEMPFAIL."""
    from resilience.cron.drivers._slurm.keeper import Keeper, script_path

    project = cron.project
    environ = project.system.environ
    keeper = Keeper(
        cron.state,
        installation,
        cron.settings,
        project.scheduler(told.scheduler),
        project.system.clock,
        own=_own_id(environ.get("SLURM_JOB_ID", "")),
        slot=told.slot,
        script=script_path(cron.state, environ.get("RESIL_CRON_SCRIPT", "")),
    )
    kept = keeper.keep()
    for words, ids in (("queued", kept.submitted), ("cancelled, too many waited:", kept.cancelled)):
        if ids:
            say(f"{words} {', '.join(map(str, ids))}")
    if kept.ended:
        say(f"{kept.ended}: no successor")
        return EXIT_ENDED
    if kept.trouble:
        what = "a successor is stuck" if kept.is_stuck else "the successors are not all queued"
        say(f"{what}: {kept.trouble}" + (f" ({kept.hint})" if kept.hint else ""))
    with suppress(ResilError):
        record = chain_record(cron.state.history(CHAIN), kept, project.system.clock.now(),
                              cron.project.system.host.name, environ.get("SLURM_JOB_ID", ""))  # fmt: skip
        if record is not None:
            cron.state.record(CHAIN, record)
    _prune(cron)
    return EX_TEMPFAIL if kept.trouble else 0


def chain_record(history: Sequence[RunRecord], kept: Kept, now: float, host: str, job_id: str) -> RunRecord | None:
    """What to write into the chain's history, or None where it says so already. Pure.

    A new trouble, the same once an hour, and that it is over.
    """
    last = history[-1] if history else None
    if kept.trouble:
        left = "none" if kept.waiting is None else kept.waiting
        what = "will not start" if kept.is_stuck else "could not be queued"
        summary = f"a successor of the scheduler's job {what} ({left} wait): {kept.trouble}"
        if last is not None and last.outcome is Outcome.REFUSED and last.summary == summary and now - last.time < 3600:
            return None
        outcome = Outcome.REFUSED
    elif last is not None and last.outcome.is_failure:
        outcome, summary = Outcome.DONE, "the scheduler's chain is whole again"
    else:
        return None
    slot = max(int(now), last.slot + 1 if last is not None else 0)
    return RunRecord(name=CHAIN, slot=slot, outcome=outcome, time=now, host=host, job_id=job_id, summary=summary[:500])


def _own_id(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _prune(cron: CronProject) -> None:
    """Keep the newest outputs of the chain's jobs."""
    directory = cron.state.path / "driver"
    with suppress(OSError):
        outputs = sorted((path for path in directory.glob("*.out")), key=lambda path: path.stat().st_mtime)
        for path in outputs[:-KEPT_OUTPUTS]:
            path.unlink(missing_ok=True)


def say(line: str) -> None:
    """Into the job's output. It may be gone: that is no reason to stop."""
    with suppress(OSError, ValueError):
        os.write(1, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n".encode("utf-8", "backslashreplace"))
