"""Tells SLURM: cancel, signal, hold, requeue, update. What clients answer is read, not only their exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from resilience.errors import SchedulerError
from resilience.hostlist import expand
from resilience.job import JobId, JobUpdate
from resilience.schedulers._slurm import commands, records
from resilience.schedulers._slurm.asking import Asker, Budget
from resilience.schedulers._slurm.errors import complains, diagnose
from resilience.schedulers._slurm.queue import concerns

_IDS_PER_CALL = 500
_OF_TASKS = re.compile(r"^\d[\d_,\[\]-]*: (.*\S)", re.MULTILINE)
"""What scontrol says of some tasks of an array: `4_1: Job has already finished`, `4_2-4,7-8: No error`."""
_PASSED_BY = frozenset({"Job has already finished", "Job is no longer pending execution"})


def cancel(asker: Asker, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
    """End them; ended and unknown ones are no error. `pending_only` leaves alone what has begun."""
    budget = asker.budget()
    ids = sorted(set(job_ids))
    for start in range(0, len(ids), _IDS_PER_CALL):
        _scancel(asker, commands.cancel_command(ids[start : start + _IDS_PER_CALL], pending_only=pending_only), budget)


def signal(asker: Asker, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
    """Send a signal to the steps, the batch shell alone (`batch`), or everything below it (`full`)."""
    _scancel(asker, commands.signal_command(job_id, signal_name, batch=batch, full=full), asker.budget())


def _scancel(asker: Asker, argv: list[str], budget: Budget) -> None:
    completed = asker.run(argv, budget)
    harmless = re.compile(r"Invalid job id specified|already complet|Job already finished|not pending|not running")
    bad = [line for line in completed.stderr.splitlines() if line.strip() and not harmless.search(line)]
    if bad and (completed.returncode != 0 or complains("\n".join(bad))):
        raise diagnose("\n".join(bad), completed.returncode).error("scancel")
    if completed.returncode != 0 and not completed.stderr.strip():
        raise diagnose("", completed.returncode).error("scancel")


def hold(asker: Asker, job_id: JobId) -> None:
    """Keep it from starting. Of an array, its running tasks are marked too and stay held if requeued."""
    _scontrol(asker, ["scontrol", "hold", str(job_id)])


def release(asker: Asker, job_id: JobId) -> None:
    """Undo `hold`, and `requeue(hold=True)`."""
    _scontrol(asker, ["scontrol", "release", str(job_id)])


def requeue(asker: Asker, job_id: JobId, *, hold: bool = False) -> None:
    """Put one job or one task back into the queue; `hold` keeps it there until released.

    A raw id of an array's task means that task. A whole array is refused: `scontrol requeue ARRAY` starts all its
    tasks again, those that finished too.
    """
    budget = asker.budget()
    target = job_id
    if job_id.task is None:
        records = [job for job in asker.records(job_id, budget) if concerns(job, job_id)]
        tasks = [job for job in records if job.id.task is not None or job.is_array_record]
        if any(job.id.array == job_id.array for job in tasks):
            example = next((str(job.id) for job in tasks if job.state.may_have_processes), f"{job_id}_1")
            raise SchedulerError(
                f"{job_id} is an array: requeueing it as a whole would start every task again, finished ones too",
                hint=f"name the task, for instance {example}",
            )
        if tasks:
            target = tasks[0].id
    _scontrol(asker, ["scontrol", "requeuehold" if hold else "requeue", str(target)], budget)


def update(asker: Asker, job_id: JobId, change: JobUpdate) -> None:
    """Change a queued or running job.

    An array's throttle is the whole array's. Tasks that have ended or started make scontrol end with 1 although
    the waiting ones were changed: that is verified, and is no error then.
    """
    budget = asker.budget()
    target = job_id.whole if change.array_throttle is not None else job_id
    completed = asker.run(commands.update_command(target, change), budget)
    if completed.returncode == 0 and not complains(completed.stderr):
        return
    tasks = _OF_TASKS.findall(completed.stderr)
    said = {words for words in tasks if words != "No error"}
    if said <= _PASSED_BY and tasks and _is_done(asker, target, change, budget):
        return
    raise diagnose(completed.stderr, completed.returncode).error("scontrol update")


def _is_done(asker: Asker, job_id: JobId, change: JobUpdate, budget: Budget) -> bool:
    """Whether the waiting tasks show the change, and there are some."""
    text = asker.ask(commands.show_job_command(job_id), budget).stdout
    waiting = [job for job in records.parse_settings(text) if job["JobState"] == "PENDING"]
    checks: list[Callable[[Mapping[str, str]], bool]] = []
    if change.array_throttle is not None:
        throttle = str(change.array_throttle)
        checks.append(lambda job: job["ArrayTaskThrottle"] == throttle)
    if change.exclude is not None:
        excluded = set(expand(change.exclude))
        checks.append(lambda job: set(expand(job["ExcNodeList"].replace("(null)", ""))) == excluded)
    if not checks:  # times and dependencies are rewritten by SLURM: that waiting tasks exist must do
        return bool(waiting)
    return bool(waiting) and all(check(job) for job in waiting for check in checks)


def _scontrol(asker: Asker, argv: list[str], budget: Budget | None = None) -> None:
    completed = asker.run(argv, budget or asker.budget())
    if completed.returncode != 0 or complains(completed.stderr):
        raise diagnose(completed.stderr, completed.returncode).error(" ".join(argv[:2]))
