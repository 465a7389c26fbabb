"""Asks SLURM's clients: with a deadline, in an environment that changes nothing, and no more trust than is due."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from resilience.errors import ProbeError, SchedulerError, SchedulerUnavailable
from resilience.job import Job, JobId
from resilience.schedulers._slurm import commands, json_records, records
from resilience.schedulers._slurm.errors import complains, diagnose, runner_error
from resilience.schedulers._slurm.queue import Wanted, scan_jobs
from resilience.system.process import CommandFailed, Completed
from resilience.system.world import Clock, Runner


class Budget:
    """What is left of a method's deadline, shared by all the commands it runs."""

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


class Asker:
    """Runs the clients that look (and, with `run`, those that tell), and reads what they say of jobs."""

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
        env = commands.client_environment(self.environ)
        try:
            return self.runner.run(argv, timeout_s=budget.left_s(), env=env)
        except ProbeError as error:
            raise runner_error(error, argv[0]) from error

    def ask(self, argv: Sequence[str], budget: Budget) -> Completed:
        """Run a client and return its answer. Raise what its error text means if it failed, or complained."""
        completed = self.run(argv, budget)
        if completed.returncode != 0 or complains(completed.stderr):
            # `scontrol show job 3_9` says "Job 3_9 not found" on its standard output
            said = completed.stderr if completed.stderr.strip() else completed.stdout[:1000]
            raise diagnose(said, completed.returncode).error(argv[0])
        return completed

    def version(self, budget: Budget | None = None) -> str | None:
        """The clients' release, asked once; None if there are no clients. Asks no controller."""
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
        wanted: Wanted | None = None,
        mark: str = "",
    ) -> tuple[Job, ...]:
        """The wanted rows of one queue query. Raise SchedulerUnavailable unless every row is whole."""
        argv = commands.queue_command(users, finished=finished)
        env = commands.client_environment(self.environ)
        try:
            lines = self.runner.stream(argv, timeout_s=budget.left_s(), env=env)
            return tuple(scan_jobs(_without_noise(lines), wanted, mark=mark))
        except CommandFailed as error:
            raise diagnose(error.completed.stderr, error.completed.returncode).error("squeue") from error
        except ProbeError as error:
            raise runner_error(error, "squeue") from error

    def records(self, job_id: JobId, budget: Budget) -> tuple[Job, ...]:
        """What slurmctld has on a job or on all of an array. Raise NoSuchJob if it has nothing."""
        version = self.version(budget)
        if version is not None and _at_least(version, (23, 11)):
            # Exact where names hold anything. An empty list is no answer: 24.11 gives it when the controller is down.
            try:
                completed = self.ask(commands.show_job_command(job_id, json=True), budget)
                if found := json_records.parse_document(completed.stdout):
                    return found
            except SchedulerError:
                pass
        completed = self.ask(commands.show_job_command(job_id), budget)
        return records.parse_jobs(completed.stdout)

    def refuse_several_clusters(self) -> None:
        """Raise SchedulerError if the environment names several clusters."""
        clusters = self.environ.get("SLURM_CLUSTERS", "")
        if "," in clusters or clusters == "all":
            raise SchedulerError(
                f"SLURM_CLUSTERS={clusters} names several clusters, and a job id says nothing across clusters",
                hint="export SLURM_CLUSTERS with one name, or unset it",
            )


def _without_noise(lines: Iterator[str]) -> Iterator[str]:
    """The lines; what others than squeue wrote on standard error is no failure, for whole rows speak for themselves."""
    try:
        yield from lines
    except CommandFailed as error:
        if error.completed.returncode != 0 or complains(error.completed.stderr):
            raise


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= wanted
