"""Maintains the successors of a scheduler job, and records why they could not be queued."""

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
"""Name of the chain's own history: failures to queue successors, and recoveries."""

EXIT_ENDED = 3
"""Exit code of `--keep` when no successor is wanted any more."""

KEPT_OUTPUTS = 20
"""Number of job outputs kept."""


class Words(NamedTuple):
    """Arguments of `resil cron job`: installation token, scheduler, slot of a pulse.

    `keep`: only maintain the successors.
    """

    token: str
    scheduler: str
    slot: int = 0
    keep: bool = False


def parse_words(words: Sequence[str]) -> Words:
    """Parse the arguments. Pure. Raise UsageError for others: only the batch script calls `resil cron job`."""
    given = dict(zip(words[::2], words[1::2], strict=False))
    keep = "--keep" in words
    if set(words[::2]) - {"--token", "--scheduler", "--slot", "--keep"} or not given.get("--token"):
        raise UsageError("only the scheduler's batch script calls `resil cron job`", hint="resil cron install")
    slot = given.get("--slot", "")
    return Words(given["--token"], given.get("--scheduler", ""), int(slot) if slot.isdigit() else 0, keep)


def keep(cron: CronProject, installation: Installation, arguments: Words) -> int:
    """Queue missing successors, and record failures. Return 0, EXIT_ENDED or EX_TEMPFAIL."""
    from resilience.cron.drivers._slurm.keeper import Keeper, script_path

    project = cron.project
    environ = project.system.environ
    keeper = Keeper(
        cron.state,
        installation,
        cron.settings,
        project.scheduler(arguments.scheduler),
        project.system.clock,
        own=_own_id(environ.get("SLURM_JOB_ID", "")),
        slot=arguments.slot,
        script=script_path(cron.state, environ.get("RESIL_CRON_SCRIPT", "")),
    )
    kept = keeper.keep()
    for words, ids in (("queued", kept.submitted), ("cancelled surplus jobs", kept.cancelled)):
        if ids:
            say(f"{words} {', '.join(map(str, ids))}")
    if kept.ended:
        say(f"{kept.ended}: no successor")
        return EXIT_ENDED
    if kept.problem:
        what = "a successor is stuck" if kept.is_stuck else "some successors could not be queued"
        say(f"{what}: {kept.problem}" + (f" ({kept.hint})" if kept.hint else ""))
    with suppress(ResilError):
        record = chain_record(cron.state.history(CHAIN), kept, project.system.clock.now(),
                              cron.project.system.host.name, environ.get("SLURM_JOB_ID", ""))  # fmt: skip
        if record is not None:
            cron.state.record(CHAIN, record)
    _prune(cron)
    return EX_TEMPFAIL if kept.problem else 0


def chain_record(history: Sequence[RunRecord], kept: Kept, now: float, host: str, job_id: str) -> RunRecord | None:
    """Return the next record for the chain's history, or None if there is nothing new. Pure.

    Recorded are new errors, the same error once an hour, and the recovery.
    """
    last = history[-1] if history else None
    if kept.problem:
        left = "none" if kept.waiting is None else kept.waiting
        what = "will not start" if kept.is_stuck else "could not be queued"
        summary = f"a successor of the scheduler's job {what} ({left} queued): {kept.problem}"
        if last is not None and last.outcome is Outcome.REFUSED and last.summary == summary and now - last.time < 3600:
            return None
        outcome = Outcome.REFUSED
    elif last is not None and last.outcome.is_failure:
        outcome, summary = Outcome.DONE, "the scheduler's chain of jobs is complete again"
    else:
        return None
    slot = max(int(now), last.slot + 1 if last is not None else 0)
    return RunRecord(name=CHAIN, slot=slot, outcome=outcome, time=now, host=host, job_id=job_id, summary=summary[:500])


def _own_id(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _prune(cron: CronProject) -> None:
    """Delete all but the newest outputs of the chain's jobs."""
    directory = cron.state.path / "driver"
    with suppress(OSError):
        outputs = sorted((path for path in directory.glob("*.out")), key=lambda path: path.stat().st_mtime)
        for path in outputs[:-KEPT_OUTPUTS]:
            path.unlink(missing_ok=True)


def say(line: str) -> None:
    """Write a line to the job's output; ignore errors, because the output may be gone."""
    with suppress(OSError, ValueError):
        os.write(1, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {line}\n".encode("utf-8", "backslashreplace"))
