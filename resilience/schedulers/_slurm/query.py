"""Queries SLURM by its clients, with a deadline and in a clean environment.

Manual pages: squeue(1), scontrol(1), sacct(1), sinfo(1). Their INPUT ENVIRONMENT VARIABLES are removed, because they
would change the answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from resilience.errors import ProbeError, SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId
from resilience.schedulers._slurm import records
from resilience.schedulers._slurm.accounting import HISTORY_COLUMNS
from resilience.schedulers._slurm.errors import complains, diagnose, runner_error
from resilience.schedulers._slurm.queue import QUEUE_COLUMNS, ROW_END, SEPARATOR, RowFilter, scan_jobs
from resilience.system.ports import Clock, Runner
from resilience.system.process import CommandFailed, Completed

_QUEUE_FORMAT = ",".join(f"{name}:{SEPARATOR}" for name in QUEUE_COLUMNS) + ROW_END

NODE_FORMAT = SEPARATOR.join(("%N", "%T", "%R", "%E")) + ROW_END
"""%N is SLURM's name of the node; %n is the host name, shared by all nodes of a host."""

NODES_COMMAND = ("sinfo", "--all", "--noheader", "--Node", f"--format={NODE_FORMAT}")
CONFIG_COMMAND = ("scontrol", "show", "config")
PARTITIONS_COMMAND = ("scontrol", "--all", "--oneliner", "show", "partition")
PING_COMMAND = ("scontrol", "ping")

_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET"})
"""Variables that select the cluster and the authentication. Without SLURM_CLUSTERS, which applies to every client,
resil would use another cluster than the user's own `sbatch`."""
_SCRUBBED_PREFIXES = ("SLURM_", "SLURMD_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "RESIL_ATTEMPT")
"""SLURM_* variables are mostly those of the surrounding job: SLURM_JOB_ID, SLURM_NTASKS, SLURM_MEM_PER_NODE ... sbatch
passes them to the new job, and some change or prevent the request (SLURM_MEM_PER_CPU with SLURM_MEM_PER_NODE is fatal).
SCANCEL_INTERACTIVE would prompt, and block. RESIL_ATTEMPT is of an attempt that queues the next job: `resil inject`
would take the batch shell of that job for its training."""


def client_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for squeue, scontrol, sacct, sinfo and scancel.

    Times are seconds since the epoch in any time zone; array expressions are not truncated at 64 characters
    (SLURM_BITSTR_LEN=0: no limit); messages are English; times in arguments are UTC.
    """
    return submit_environment(environ) | {
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
        "LC_ALL": "C",
        "TZ": "UTC0",
    }


def submit_environment(environ: Mapping[str, str], added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for sbatch, with the variables in `added`.

    sbatch passes its environment to the job, so the variables of `client_environment` (LC_ALL, TZ, SLURM_TIME_FORMAT)
    are not set. SBATCH_* variables are kept, because the user set them for sbatch.
    """
    kept = {k: v for k, v in environ.items() if k in _KEPT or not k.startswith(_SCRUBBED_PREFIXES)}
    return kept | dict(added or {})


def queue_command(users: Collection[str] | None, *, finished: bool) -> list[str]:
    """Return the command for the queue of the current user (None), of `users`, or (an empty collection) of all users.

    `--all` includes hidden partitions, where a live job would otherwise read as gone. Never `-j`: with one id squeue
    tries twice, which takes 20 s instead of 10 with a hung controller.
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
    """Return the command for a job or all records of an array. A JobId is never empty, which would select all jobs."""
    return ["scontrol", "--json" if json else "--oneliner", "show", "job", str(job_id)]


def history_command(job_ids: Collection[JobId]) -> list[str]:
    """Return the command for the accounting records of jobs, including earlier runs of requeued jobs.

    `--parsable` ends each row with the separator, which detects truncated rows. With `-j`, sacct covers all times;
    with `-S` or `-s`, it would also need `-E now`.
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


def usage_command(job_id: JobId) -> list[str]:
    """Return the command for the CPU time of all running steps of a job, including the batch step."""
    return ["sstat", "--allsteps", "--noheader", "--parsable2", "--format=JobID,AveCPU,NTasks", f"--jobs={job_id}"]


def search_history_command(since: float, user: str = "") -> list[str]:
    """Return the command for the raw ids and the submit lines of a user's jobs since a time (default: the caller's).

    Times are in UTC, the $TZ of the clients.
    """
    return [
        "sacct",
        "--noheader",
        "--parsable",
        f"--delimiter={SEPARATOR}",
        "--allocations",
        f"--starttime={datetime.fromtimestamp(since, tz=UTC):%Y-%m-%dT%H:%M:%S}",
        "--endtime=now",
        *([f"--user={user}"] if user else []),
        "--format=JobIDRaw,SubmitLine",
    ]


class Budget:
    """The remaining time of a method, shared by all its commands."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.until = clock.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds left. Raise SchedulerUnavailable after the deadline."""
        left = self.until - self._clock.monotonic()
        if left <= 0:
            raise SchedulerUnavailable(f"SLURM did not answer within {self.seconds:g} s")
        return left


class Client:
    """Runs SLURM's command-line clients and parses their answers about jobs."""

    def __init__(self, clock: Clock, runner: Runner, environ: Mapping[str, str], deadline_s: float) -> None:
        self.clock = clock
        self.runner = runner
        self.environ = dict(environ)
        self.deadline_s = deadline_s
        self._release: str | None = None

    def budget(self) -> Budget:
        """Return a new budget for one method."""
        return Budget(self.clock, self.deadline_s)

    def run(self, argv: Sequence[str], budget: Budget) -> Completed:
        """Run a client and return its result, whatever the exit code. Raise SchedulerUnavailable without result."""
        self.refuse_several_clusters()
        env = client_environment(self.environ)
        try:
            return self.runner.run(argv, timeout_s=budget.left_s(), env=env)
        except ProbeError as error:
            raise runner_error(error, argv[0]) from error

    def answer(self, argv: Sequence[str], budget: Budget, *, name: str = "") -> str:
        """Run a client and return its output. Raise the diagnosed error if the client failed or wrote an error.

        `name`: name of the command in the error.
        """
        completed = self.run(argv, budget)
        if completed.returncode != 0 or complains(completed.stderr):
            # `scontrol show job 3_9` writes "Job 3_9 not found" to standard output
            said = completed.stderr if completed.stderr.strip() else completed.stdout[:1000]
            raise diagnose(said, completed.returncode).error(name or argv[0])
        return completed.stdout

    def version(self, budget: Budget | None = None) -> str | None:
        """Return the release of the clients, queried once; None without clients. Needs no controller."""
        if self._release is None:
            try:
                completed = self.run(["scontrol", "--version"], budget or self.budget())
            except SchedulerUnavailable:
                return None
            match = re.search(r"\d+\.\d+[\w.-]*", completed.stdout)
            self._release = match[0] if match else ""
        return self._release

    def queue(
        self,
        users: Collection[str] | None,
        budget: Budget,
        *,
        finished: bool,
        accepts: RowFilter | None = None,
        mark: str = "",
    ) -> tuple[Job, ...]:
        """Return the accepted rows of a queue query. Raise SchedulerUnavailable unless every row is valid."""
        argv = queue_command(users, finished=finished)
        env = client_environment(self.environ)
        try:
            lines = self.runner.stream(argv, timeout_s=budget.left_s(), env=env)
            return tuple(scan_jobs(_without_noise(lines), accepts, mark=mark))
        except CommandFailed as error:
            raise diagnose(error.completed.stderr, error.completed.returncode).error("squeue") from error
        except ProbeError as error:
            raise runner_error(error, "squeue") from error

    def records(self, job_id: JobId, budget: Budget) -> tuple[Job, ...]:
        """Return slurmctld's records of a job or an array. Raise NoSuchJob if there are none."""
        version = self.version(budget)
        if version is not None and _at_least(version, (23, 11)):
            # JSON is exact for any name. An empty list is ignored: 24.11 prints it when the controller is down.
            try:
                output = self.answer(show_job_command(job_id, json=True), budget)
                if found := records.parse_document(output):
                    return found
            except SchedulerError:
                pass
        output = self.answer(show_job_command(job_id), budget)
        return records.parse_jobs(output)

    def refuse_several_clusters(self) -> None:
        """Raise SchedulerError if the environment names several clusters."""
        clusters = self.environ.get("SLURM_CLUSTERS", "")
        if "," in clusters or clusters == "all":
            raise SchedulerError(
                f"SLURM_CLUSTERS={clusters} names several clusters, and job ids are not unique across clusters",
                hint="export SLURM_CLUSTERS with one name, or unset it",
            )


def _without_noise(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines; ignore messages of other programs on standard error, because every row is validated."""
    try:
        yield from lines
    except CommandFailed as error:
        if error.completed.returncode != 0 or complains(error.completed.stderr):
            raise


def _at_least(version: str, least: tuple[int, int]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= least
