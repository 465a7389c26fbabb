"""Replacements of scontrol, squeue, scancel and sbatch inside jobs of the embedded scheduler.

They support the common usage in batch scripts; anything else is rejected with an error.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from resilience import hostlist
from resilience.errors import ResilError, UsageError
from resilience.job import Job, JobId, JobState, JobUpdate
from resilience.quantities import format_slurm_time
from resilience.schedulers._local.options import SBATCH, Syntax, words
from resilience.schedulers._local.submit import parse_begin, parse_time_limit_s
from resilience.schedulers.local import LocalScheduler
from resilience.submission import Submission
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner

_COMPACT = {
    JobState.PENDING: "PD", JobState.RUNNING: "R", JobState.COMPLETING: "CG", JobState.COMPLETED: "CD",
    JobState.CANCELLED: "CA", JobState.FAILED: "F", JobState.TIMEOUT: "TO", JobState.NODE_FAIL: "NF",
}  # fmt: skip
_DEFAULT_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_FIELD = re.compile(r"%(?P<right>\.?)(?P<width>\d*)(?P<letter>[A-Za-z])")
_HEADINGS = {
    "i": "JOBID", "A": "JOBID", "F": "ARRAY_JOB_ID", "K": "ARRAY_TASK_ID", "T": "STATE", "t": "ST", "j": "NAME",
    "k": "COMMENT", "r": "REASON", "u": "USER", "P": "PARTITION", "D": "NODES", "N": "NODELIST", "S": "START_TIME",
    "e": "END_TIME", "l": "TIME_LIMIT", "L": "TIME_LEFT", "M": "TIME", "R": "NODELIST(REASON)", "E": "DEPENDENCY",
    "o": "COMMAND", "a": "ACCOUNT", "q": "QOS", "Z": "WORK_DIR", "V": "SUBMIT_TIME",
}  # fmt: skip
_SQUEUE = Syntax(
    "squeue",
    flags=words("noheader array long all me local"),
    values=words("jobs format states user name nodelist partition sort"),
    short={
        "j": "jobs", "o": "format", "t": "states", "u": "user", "n": "name", "w": "nodelist", "p": "partition",
        "S": "sort", "h": "noheader", "r": "array", "l": "long", "a": "all",
    },
    renamed={"users": "user"},
)  # fmt: skip
_SCANCEL = Syntax(
    "scancel",
    flags=words("me batch full quiet verbose interactive ctld"),
    values=words("signal state name user partition"),
    short={
        "s": "signal", "t": "state", "n": "name", "u": "user", "p": "partition", "b": "batch", "f": "full",
        "Q": "quiet", "v": "verbose", "i": "interactive",
    },
    renamed={"jobname": "name"},
)  # fmt: skip
_UPDATES = {"timelimit", "endtime", "arraytaskthrottle", "dependency", "starttime"}


def main(name: str, arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a replacement command and return its exit code."""
    scheduler = LocalScheduler(clock=SystemClock(), runner=ProcessRunner(), environ=environ)
    commands = {"scontrol": _scontrol, "squeue": _squeue, "scancel": _scancel, "sbatch": _sbatch}
    try:
        return commands[name](scheduler, list(arguments), environ)
    except ResilError as error:
        sys.stderr.write(f"{name}: error: {error.message.removeprefix(f'{name}: ')}\n")
        if error.hint:
            sys.stderr.write(f"{name}: {error.hint}\n")
        return 1


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


def _now() -> float:
    return SystemClock().now()


def _scontrol(scheduler: LocalScheduler, arguments: list[str], environ: Mapping[str, str]) -> int:
    words = [word for word in arguments if not word.startswith("-")]
    verb, rest = (words[0].lower(), words[1:]) if words else ("", [])
    if verb == "show" and rest[:1] and "hostnames".startswith(rest[0].lower()) and len(rest[0]) > 4:
        listed = rest[1] if len(rest) > 1 else environ.get("SLURM_JOB_NODELIST", "")
        _out("\n".join(hostlist.expand(listed)))
    elif verb == "show" and rest[:1] and rest[0].lower() in ("job", "jobs", "jobid"):
        jobs = [scheduler.job(JobId.parse(rest[1]))] if len(rest) > 1 else list(scheduler.jobs())
        separator = " " if "-o" in arguments or "--oneliner" in arguments else "\n   "
        _out("\n\n".join(separator.join(_describe(job)) for job in jobs))
    elif verb in ("requeue", "requeuehold", "hold", "release") and rest:
        ids = [JobId.parse(word) for text in rest for word in text.split(",")]
        for job_id in ids:
            if verb.startswith("requeue"):
                scheduler.requeue(job_id, hold=verb == "requeuehold")
            else:
                (scheduler.hold if verb == "hold" else scheduler.release)(job_id)
    elif verb == "update" and rest:
        job_id, change = parse_update(rest, _now())
        scheduler.update(job_id, change)
    elif verb == "ping":
        _out(f"Slurmctld(primary) at {environ.get('SLURMD_NODENAME', 'localhost')} is UP")
    else:
        raise UsageError(f"`scontrol {' '.join(arguments)}` is not supported by the embedded scheduler")
    return 0


def parse_update(words: Sequence[str], now: float) -> tuple[JobId, JobUpdate]:
    """Parse `JobId=5 TimeLimit=10 ...` to a change. Pure. Raise UsageError for an unknown key."""
    given = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
    job = given.pop("jobid", given.pop("job", ""))
    if unknown := set(given) - _UPDATES:
        raise UsageError(f"cannot update {', '.join(sorted(unknown))}", hint=f"known: {', '.join(sorted(_UPDATES))}")
    throttle = given.get("arraytaskthrottle")
    return JobId.parse(job), JobUpdate(
        array_throttle=int(throttle) if throttle is not None and throttle.isdigit() else None,
        end_time=parse_begin(given["endtime"], now) if "endtime" in given else None,
        time_limit_s=parse_time_limit_s(given["timelimit"]) or 0 if "timelimit" in given else None,
        dependency=given.get("dependency"),
        begin_time=parse_begin(given["starttime"], now) if "starttime" in given else None,
    )


def _describe(job: Job) -> list[str]:
    array = [f"ArrayJobId={job.id.array}", f"ArrayTaskId={job.tasks or job.id.task}"]
    return [
        " ".join([f"JobId={job.raw_id}", *(array if job.tasks or job.id.task is not None else [])])
        + f" JobName={job.name}",
        f"UserId={job.user}({os.getuid()}) Partition={job.partition}",
        f"JobState={job.state} Reason={job.reason or 'None'} Dependency={job.dependency or '(null)'}",
        f"Requeue=1 Restarts={job.restarts} BatchFlag=1 ExitCode={job.exit_code or '0:0'}",
        f"RunTime={_elapsed(job)} TimeLimit={format_slurm_time(job.time_limit_s)}",
        f"SubmitTime={_time(job.submit_time, 'Unknown')} StartTime={_time(job.start_time, 'Unknown')} "
        f"EndTime={_time(job.end_time, 'Unknown')}",
        f"NodeList={job.nodes or '(null)'} NumNodes={job.node_count}",
        f"Command={job.command}",
        f"StdOut={job.stdout}",
        f"Comment={job.comment}",
    ]


def _time(seconds: float | None, missing: str) -> str:
    layout = os.environ.get("SLURM_TIME_FORMAT") or "%Y-%m-%dT%H:%M:%S"
    return missing if seconds is None else time.strftime(layout, time.localtime(seconds))


def _elapsed(job: Job) -> str:
    if job.start_time is None:
        return format_slurm_time(0)
    end = job.end_time if job.state.is_final and job.end_time is not None else _now()
    return format_slurm_time(max(0.0, end - job.start_time))


def _squeue(scheduler: LocalScheduler, arguments: list[str], environ: Mapping[str, str]) -> int:
    options, _ = _read(_SQUEUE, arguments)
    states = {word.upper() for word in options.get("states", "").split(",") if word}
    jobs = scheduler.jobs(
        users=options["user"].split(",") if options.get("user") else None,
        names=options["name"].split(",") if options.get("name") else (),
        finished=bool(states),
    )
    if states and "ALL" not in states:
        jobs = tuple(job for job in jobs if str(job.state) in states or _COMPACT.get(job.state) in states)
    if requested := options.get("jobs"):
        ids = {JobId.parse(word) for word in requested.split(",")}
        jobs = tuple(j for j in jobs if j.id in ids or j.id.whole in ids or JobId(j.raw_id) in ids)
        if not jobs and len(ids) == 1:
            scheduler.job(next(iter(ids)))  # raises NoSuchJob if there is none
    layout = options.get("format", _DEFAULT_FORMAT)
    if "noheader" not in options:
        _out(_row(layout, lambda letter: _HEADINGS.get(letter, letter)))
    for job in jobs:
        _out(_row(layout, _columns(job)))
    return 0


def _row(layout: str, value: Callable[[str], str]) -> str:
    def one(match: re.Match[str]) -> str:
        width = int(match["width"] or 0)
        text = value(match["letter"])
        if not width:
            return text
        return text[:width].rjust(width) if match["right"] else text[:width].ljust(width)

    return _FIELD.sub(one, layout)


def _columns(job: Job) -> Callable[[str], str]:
    shown = f"{job.id.array}_[{job.tasks}]" if job.tasks else str(job.id)
    left = None if job.time_limit_s is None or job.end_time is None else max(0.0, job.end_time - _now())
    values = {
        "i": shown, "A": str(job.raw_id), "F": str(job.id.array),
        "K": job.tasks or ("N/A" if job.id.task is None else str(job.id.task)), "T": str(job.state),
        "t": _COMPACT.get(job.state, str(job.state)), "j": job.name, "k": job.comment, "r": job.reason or "None",
        "u": job.user, "P": job.partition, "D": str(job.node_count), "N": job.nodes,
        "S": _time(job.start_time, "N/A"), "e": _time(job.end_time, "N/A" if job.start_time is None else "NONE"),
        "l": format_slurm_time(job.time_limit_s), "L": format_slurm_time(left), "M": _elapsed(job),
        "R": job.nodes or f"({job.reason or 'None'})", "E": job.dependency or "(null)", "o": job.command,
        "V": _time(job.submit_time, "N/A"),
    }  # fmt: skip
    return lambda letter: values.get(letter, "N/A")


def _scancel(scheduler: LocalScheduler, arguments: list[str], environ: Mapping[str, str]) -> int:
    options, others = _read(_SCANCEL, arguments)
    ids = [JobId.parse(word) for word in others]
    if not ids and not options.keys() & {"name", "user", "me", "state"}:
        raise UsageError("No job identification provided")
    if not ids:
        names = options["name"].split(",") if options.get("name") else ()
        ids = sorted({job.id for job in scheduler.jobs(names=names)})
    states = options.get("state", "").upper()
    if "signal" in options:
        for job_id in ids:
            scheduler.signal(job_id, options["signal"], batch="batch" in options, full="full" in options)
        return 0
    if states in ("R", "RUNNING"):
        running = {job.id for job in scheduler.jobs() if job.state is JobState.RUNNING}
        ids = [job_id for job_id in running if job_id in ids or job_id.whole in ids]
    scheduler.cancel(ids, pending_only=states in ("PD", "PENDING"))
    return 0


def _sbatch(scheduler: LocalScheduler, arguments: list[str], environ: Mapping[str, str]) -> int:
    given, rest = SBATCH.parse(arguments)
    if not rest:
        raise UsageError(
            "no script given", hint="a script by standard input is not supported by the embedded scheduler"
        )
    names = dict(given)
    submission = Submission(
        token=secrets.token_hex(8),
        run="",
        script=str(Path(rest[0]).absolute()),
        script_args=tuple(rest[1:]),
        extra_args=tuple(arguments[: len(arguments) - len(rest)]),
        directory=str(Path.cwd()),
    )
    if "test-only" in names:
        sys.stderr.write(f"sbatch: {scheduler.test(submission)}\n")
        return 0
    submitted = scheduler.submit(submission)
    for note in submitted.notes:
        sys.stderr.write(f"sbatch: {note}\n")
    if "quiet" not in names or "parsable" in names:
        _out(str(submitted.id) if "parsable" in names else f"Submitted batch job {submitted.id}")
    return 0


def _read(syntax: Syntax, arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Parse options and other words, in any order."""
    options: dict[str, str] = {}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        given, rest = syntax.parse(rest)
        options |= {name: value or "" for name, value in given}
        others, rest = others + rest[:1], rest[1:]
    return options, others
