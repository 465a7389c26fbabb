"""Forms the commands that submit, cancel and change jobs, and parses their results. Pure.

Manual pages: sbatch(1), scancel(1), scontrol(1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from resilience.errors import SchedulerError, UsageError
from resilience.hostlist import expand
from resilience.job import JobId, JobUpdate
from resilience.quantities import format_slurm_time
from resilience.schedulers._slurm import records
from resilience.schedulers._slurm.errors import complains, diagnose
from resilience.submission import Submission
from resilience.system.process import Completed

_HARMLESS = re.compile(r"Invalid job id specified|already complet|Job already finished|not pending|not running")
_OF_TASKS = re.compile(r"^\d[\d_,\[\]-]*: (.*\S)", re.MULTILINE)
"""scontrol's messages about tasks of an array: `4_1: Job has already finished`, `4_2-4,7-8: No error`."""
_PASSED_BY = frozenset({"Job has already finished", "Job is no longer pending execution"})


def cancel_command(job_ids: Sequence[JobId], *, pending_only: bool = False) -> list[str]:
    """Return the command that cancels jobs. Raise UsageError if there are none."""
    if not job_ids:
        raise UsageError("no job to cancel")
    return ["scancel", *(["--state=PENDING"] if pending_only else []), *map(str, job_ids)]


def signal_command(job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> list[str]:
    """Return the command that signals the steps, the batch shell only, or all (scancel(1), --batch and --full)."""
    if not signal_name.isalnum():
        raise UsageError(f"{signal_name!r} is not a signal's name", hint="write for instance USR1")
    return [
        "scancel",
        f"--signal={signal_name.upper().removeprefix('SIG')}",
        *(["--full"] if full else ["--batch"] if batch else []),
        str(job_id),
    ]


def check_scancel(completed: Completed) -> None:
    """Raise SchedulerError unless scancel signalled the jobs, or the jobs have ended."""
    bad = [line for line in completed.stderr.splitlines() if line.strip() and not _HARMLESS.search(line)]
    failed = completed.returncode != 0
    if (failed and (bad or not completed.stderr.strip())) or (bad and complains("\n".join(bad))):
        raise diagnose("\n".join(bad), completed.returncode).error("scancel")


def update_command(job_id: JobId, change: JobUpdate) -> list[str]:
    """Return the command that changes a job. Times are in UTC, which is the $TZ of scontrol.

    Raise UsageError for an empty change.
    """
    words: list[str] = []
    if change.exclude is not None:
        words.append(f"ExcNodeList={change.exclude}")
    if change.array_throttle is not None:
        words.append(f"ArrayTaskThrottle={change.array_throttle}")
    if change.end_time is not None:
        words.append(f"EndTime={_utc(change.end_time)}")
    if change.time_limit_s is not None:
        words.append(f"TimeLimit={format_slurm_time(change.time_limit_s)}")
    if change.dependency is not None:
        words.append(f"Dependency={change.dependency}")
    if change.begin_time is not None:
        words.append(f"StartTime={_utc(change.begin_time)}")
    if not words:
        raise UsageError("nothing to change")
    return ["scontrol", "update", f"JobId={job_id}", *words]


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def check_update(completed: Completed) -> bool:
    """Return whether `scontrol update` changed the job; False if the job's record must be checked.

    For tasks that have ended or started, scontrol exits with 1 although the pending tasks were changed. Raise
    SchedulerError for any other failure.
    """
    if completed.returncode == 0 and not complains(completed.stderr):
        return True
    tasks = set(_OF_TASKS.findall(completed.stderr))
    if tasks and tasks <= _PASSED_BY | {"No error"}:
        return False
    raise update_error(completed)


def update_error(completed: Completed) -> SchedulerError:
    """Return the error of a failed `scontrol update`."""
    return diagnose(completed.stderr, completed.returncode).error("scontrol update")


def is_updated(text: str, change: JobUpdate) -> bool:
    """Return whether `scontrol --oneliner show job` shows pending tasks, and all of them have the change.

    Times and dependencies are rewritten by SLURM, and are not compared.
    """
    waiting = [job for job in records.parse_settings(text) if job["JobState"] == "PENDING"]
    return bool(waiting) and all(
        (change.array_throttle is None or job["ArrayTaskThrottle"] == str(change.array_throttle))
        and (change.exclude is None or _nodes(job["ExcNodeList"]) == _nodes(change.exclude))
        for job in waiting
    )


def _nodes(text: str) -> set[str]:
    return set(expand(text.replace("(null)", "")))


def submit_command(submission: Submission, *, test: bool = False) -> list[str]:
    """Return the sbatch command: options, extra arguments, script, arguments of the script.

    The user's comment is appended to resil's, because a second `--comment` would replace resil's, and the job could not
    be found by its token.
    """
    own: list[str] = []
    extra: list[str] = []
    rest = iter(submission.extra_args)
    for word in rest:
        if word == "--comment":
            own.append(next(rest, ""))
        elif word.startswith("--comment="):
            own.append(word.partition("=")[2])
        else:
            extra.append(word)
    if theirs := submission.options.get("comment"):
        own.insert(0, theirs)
    argv = ["sbatch", "--test-only" if test else "--parsable", f"--comment={' '.join([submission.comment, *own])}"]
    for name, value in submission.options.items():
        if name != "comment":
            argv += _option(name, value)
    return [*argv, *extra, submission.script, *submission.script_args]


def _option(name: str, value: str | None) -> list[str]:
    if len(name) == 1:
        return [f"-{name}"] if value is None else [f"-{name}", value]
    return [f"--{name}"] if value is None else [f"--{name}={value}"]
