"""Queries SLURM through its clients: with a deadline, and in an environment that cannot change the answers.

Manual pages: squeue(1), scontrol(1), sacct(1), sinfo(1), each with its INPUT ENVIRONMENT VARIABLES, which are removed
here because they change answers unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

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
"""%N is SLURM's name of the node; %n is the host's, the same for all nodes where one host carries several."""

NODES_COMMAND = ("sinfo", "--all", "--noheader", "--Node", f"--format={NODE_FORMAT}")
CONFIG_COMMAND = ("scontrol", "show", "config")
PARTITIONS_COMMAND = ("scontrol", "--all", "--oneliner", "show", "partition")
PING_COMMAND = ("scontrol", "ping")

_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET"})
"""Which cluster is meant, and how to authenticate. SLURM_CLUSTERS stays because every client honours it: without
the variable we would query, and submit to, another cluster than the person's own `sbatch` does."""
_SCRUBBED_PREFIXES = ("SLURM_", "SLURMD_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
"""SLURM_* is mostly the surrounding job's: SLURM_JOB_ID, SLURM_NTASKS, SLURM_MEM_PER_NODE ... An sbatch inside a job
hands them on to the new job, and some of them change or forbid its request (SLURM_MEM_PER_CPU and _PER_NODE together
are fatal). SCANCEL_INTERACTIVE would prompt, and wait for ever."""


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

    sbatch hands its environment on to the job, so none of our variables (LC_ALL, TZ, SLURM_TIME_FORMAT) may be in it.
    SBATCH_* stays: the user has set those for sbatch.
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
    """One job, or all records of an array, in full. A JobId is never an empty word, which would print all jobs."""
    return ["scontrol", "--json" if json else "--oneliner", "show", "job", str(job_id)]


def history_command(job_ids: Collection[JobId]) -> list[str]:
    """The accounting records of these jobs, earlier runs of requeued ones included.

    `--parsable` ends each row with the separator, so a row that was cut shows. With `-j` sacct covers all times;
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


class Budget:
    """The rest of a method's deadline, shared by all the commands it runs."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.until = clock.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds left. Raise SchedulerUnavailable when there are none."""
        left = self.until - self._clock.monotonic()
        if left <= 0:
            raise SchedulerUnavailable(f"SLURM did not answer within {self.seconds:g} s")
        return left


class Client:
    """Runs SLURM's command-line clients, and reads their answers about jobs."""

    def __init__(self, clock: Clock, runner: Runner, environ: Mapping[str, str], deadline_s: float) -> None:
        self.clock = clock
        self.runner = runner
        self.environ = dict(environ)
        self.deadline_s = deadline_s
        self._release: str | None = None

    def budget(self) -> Budget:
        """A fresh deadline, for one method."""
        return Budget(self.clock, self.deadline_s)

    def run(self, argv: Sequence[str], budget: Budget) -> Completed:
        """Run a client to its end, whatever its exit code. Raise SchedulerUnavailable if it gave no result."""
        self.refuse_several_clusters()
        env = client_environment(self.environ)
        try:
            return self.runner.run(argv, timeout_s=budget.left_s(), env=env)
        except ProbeError as error:
            raise runner_error(error, argv[0]) from error

    def answer(self, argv: Sequence[str], budget: Budget, *, name: str = "") -> str:
        """Run a client and return its output. Raise the meaning of its error text if it failed, or complained.

        `name`: of the command in that error.
        """
        completed = self.run(argv, budget)
        if completed.returncode != 0 or complains(completed.stderr):
            # `scontrol show job 3_9` says "Job 3_9 not found" on its standard output
            said = completed.stderr if completed.stderr.strip() else completed.stdout[:1000]
            raise diagnose(said, completed.returncode).error(name or argv[0])
        return completed.stdout

    def version(self, budget: Budget | None = None) -> str | None:
        """The clients' release, queried once; None if there are no clients. Needs no controller."""
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
        """The accepted rows of one queue query. Raise SchedulerUnavailable unless every row is whole."""
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
        """slurmctld's records of a job or of all of an array. Raise NoSuchJob if there is none."""
        version = self.version(budget)
        if version is not None and _at_least(version, (23, 11)):
            # Exact where names hold anything. An empty list is no answer: 24.11 gives it when the controller is down.
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
                f"SLURM_CLUSTERS={clusters} names several clusters, and a job id says nothing across clusters",
                hint="export SLURM_CLUSTERS with one name, or unset it",
            )


def _without_noise(lines: Iterator[str]) -> Iterator[str]:
    """The lines; noise of other programs on standard error is no failure, as every row is whole."""
    try:
        yield from lines
    except CommandFailed as error:
        if error.completed.returncode != 0 or complains(error.completed.stderr):
            raise


def _at_least(version: str, least: tuple[int, int]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= least
