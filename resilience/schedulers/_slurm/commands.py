"""The argument lists and the environment of every SLURM command we run. Pure: nothing here runs anything.

Manual pages: squeue(1), scontrol(1), sacct(1), sinfo(1), scancel(1), sbatch(1), each with its INPUT ENVIRONMENT
VARIABLES, which change answers behind one's back; so they are taken out here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from resilience.errors import UsageError
from resilience.job import JobId, JobUpdate
from resilience.quantities import format_slurm_time
from resilience.submission import Submission

SEPARATOR = "\x1f"
"""ASCII unit separator. `|`, blanks and quotes are all seen in names and comments."""
ROW_END = "\x1e"
"""ASCII record separator, printed after the last column: names may hold newlines, and a row without it was cut."""

QUEUE_COLUMNS = (
    # What predicates need comes first, what may hold anything comes last (see _slurm/queue.py).
    *("JobArrayID", "JobID", "UserName", "State"),
    *("ArrayTaskID", "SubmitTime", "StartTime", "EndTime", "TimeLimit", "NumNodes", "Partition", "Account", "QOS"),
    *("RestartCnt", "exit_code", "NodeList", "Reason", "Dependency", "Command", "Comment", "Name"),
)
"""squeue -O's names, the same from 20.11 to 26.05. -O has the exit code and the restarts, which -o has not.
A field without `:SUFFIX` would be cut to 20 characters; with one it is not."""
_QUEUE_FORMAT = ",".join(f"{name}:{SEPARATOR}" for name in QUEUE_COLUMNS) + ROW_END

HISTORY_COLUMNS = (
    *("JobID", "JobIDRaw", "State", "ExitCode", "Submit", "Start", "End", "TimelimitRaw", "NNodes", "NodeList"),
    *("User", "Partition", "Account", "QOS", "Reason", "JobName"),
)
"""sacct's names, valid from 20.11 on (`Restarts` is refused by 22.05)."""

NODE_FORMAT = SEPARATOR.join(("%N", "%T", "%R", "%E")) + ROW_END
"""%N is SLURM's name of the node; %n is the host's, the same for all nodes where one host carries several."""

NODES_COMMAND = ("sinfo", "--all", "--noheader", "--Node", f"--format={NODE_FORMAT}")
CONFIG_COMMAND = ("scontrol", "show", "config")
PARTITIONS_COMMAND = ("scontrol", "--all", "--oneliner", "show", "partition")
PING_COMMAND = ("scontrol", "ping")

_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET"})
"""Which cluster is meant, and how to prove who one is. SLURM_CLUSTERS stays because every client honours it: without
it we would ask, and submit to, another cluster than the person's own `sbatch` does."""
_SCRUBBED_PREFIXES = ("SLURM_", "SLURMD_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
"""SLURM_* is mostly the surrounding job's: SLURM_JOB_ID, SLURM_NTASKS, SLURM_MEM_PER_NODE ... An sbatch inside a job
hands them on to the new job, and some of them change or forbid its request (SLURM_MEM_PER_CPU and _PER_NODE together
are fatal). SCANCEL_INTERACTIVE would ask a question nobody answers."""


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Given the caller's environment, return the one for squeue, scontrol, sacct, sinfo and scancel.

    Times come as seconds since the epoch whatever the time zone; array expressions are not cut at 64 characters
    (SLURM_BITSTR_LEN=0: no limit); messages are English; times we write are read as UTC.
    """
    return submit_environment(environ) | {
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
        "LC_ALL": "C",
        "TZ": "UTC0",
    }


def submit_environment(environ: Mapping[str, str], added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Given the caller's environment, return the one for sbatch, `added` on top.

    sbatch hands its environment on to the job, so nothing of ours (LC_ALL, TZ, SLURM_TIME_FORMAT) may be in it.
    SBATCH_* stays: it is what the person set for sbatch.
    """
    kept = {k: v for k, v in environ.items() if k in _KEPT or not k.startswith(_SCRUBBED_PREFIXES)}
    return kept | dict(added or {})


def queue_command(users: Collection[str] | None, *, finished: bool) -> list[str]:
    """The whole queue of oneself (None), of these users, or (an empty collection) of everybody.

    `--all` shows jobs in hidden partitions as well: without it a living job there would read as gone. Never `-j`:
    with one id it tries twice, so 20 s for a hung controller instead of 10.
    """
    argv = ["squeue", "--all", "--noheader", "--noconvert"]
    if users is None:
        argv.append("--me")
    elif users:
        argv.append(f"--user={','.join(sorted(users))}")
    if finished:
        argv.append("--states=all")
    return [*argv, f"--Format={_QUEUE_FORMAT}"]


def show_job_command(job_id: JobId, *, json: bool = False) -> list[str]:
    """One job, or all records of an array, in full. The id is a JobId, so it is never empty (that prints all jobs)."""
    return ["scontrol", "--json" if json else "--oneliner", "show", "job", str(job_id)]


def history_command(job_ids: Collection[JobId]) -> list[str]:
    """What accounting has on these jobs, earlier runs of requeued ones included.

    `--parsable` ends each row with the separator, so a row that was cut shows. With `-j` sacct looks at all times;
    with `-S` or `-s` it would need `-E now` too, or print nothing.
    """
    return [
        "sacct",
        "--noheader",
        "--parsable",
        f"--delimiter={SEPARATOR}",
        "--duplicates",
        "--allocations",
        f"--format={','.join(HISTORY_COLUMNS)}",
        f"--jobs={','.join(map(str, sorted(set(job_ids))))}",
    ]


def cancel_command(job_ids: Sequence[JobId], *, pending_only: bool = False) -> list[str]:
    """End these jobs. Raise UsageError if there are none: a bare scancel is not a question to ask."""
    if not job_ids:
        raise UsageError("no job to cancel")
    return ["scancel", *(["--state=PENDING"] if pending_only else []), *map(str, job_ids)]


def signal_command(job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> list[str]:
    """Signal the steps, the batch shell alone, or everything (scancel(1), --batch and --full)."""
    if not signal_name.isalnum():
        raise UsageError(f"{signal_name!r} is not a signal's name", hint="write for instance USR1")
    return [
        "scancel",
        f"--signal={signal_name.upper().removeprefix('SIG')}",
        *(["--full"] if full else ["--batch"] if batch else []),
        str(job_id),
    ]


def update_command(job_id: JobId, change: JobUpdate) -> list[str]:
    """Change a job. Times are written as UTC, without a zone: scontrol reads them in $TZ, which is UTC for it.

    Raise UsageError if nothing is to be changed.
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


def submit_command(submission: Submission, *, test: bool = False) -> list[str]:
    """The sbatch call: options, extra arguments, script, its arguments.

    A comment of the person's own is kept behind ours, wherever it was given: a later `--comment` would win, and the
    job could not be found again.
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
