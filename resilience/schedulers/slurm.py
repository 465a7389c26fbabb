"""The SLURM client: queries by squeue, scontrol, sacct, sinfo; control by sbatch, scancel, scontrol. 20.11 to 26.05.

The functions in `_slurm/` form the commands and parse the answers. This module decides which commands run, in which
order and with which deadline, and whether an answer is reliable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from resilience.cluster import ClusterConfig, Node
from resilience.errors import NoSuchJob, ProbeError, SchedulerError, UsageError
from resilience.job import ExitCode, Job, JobId, JobUpdate, Liveness, Presence
from resilience.schedulers import Keep
from resilience.schedulers._slurm import commands, query, records
from resilience.schedulers._slurm.accounting import loses_exit_codes, parse_history
from resilience.schedulers._slurm.errors import diagnose, quote, runner_error
from resilience.schedulers._slurm.presence import SETTLED_AFTER_S, Evidence, judge
from resilience.schedulers._slurm.query import Budget, Client
from resilience.schedulers._slurm.queue import SEPARATOR, concerns, only
from resilience.schedulers._slurm.submit import Submitter, carries
from resilience.submission import Submission, Submitted
from resilience.system.ports import Clock, Runner
from resilience.system.process import Completed, ProgramMissing

RECHECK_S = 2.0
"""Time between two queries that confirm the absence of a job."""

_SUCCESS = ExitCode(0)
_IDS_PER_CALL = 500


class Slurm:
    """SLURM, by its command-line clients.

    Args:
        clock: clock for deadlines and pauses.
        runner: runs the clients.
        environ: the user's environment; variables that change answers are removed (see `client_environment`).
        deadline_s: deadline of every method. squeue blocks for 29 s on a dead host, for 59 s without slurm.conf.
        lookup_deadline_s: how long `submit` searches for the job after an ambiguous failure of sbatch, in addition to
            `deadline_s`; three times MessageTimeout (10 s by default).
    """

    name = "slurm"

    def __init__(
        self,
        *,
        clock: Clock,
        runner: Runner,
        environ: Mapping[str, str],
        deadline_s: float = 60.0,
        lookup_deadline_s: float = 30.0,
    ) -> None:
        self._client = Client(clock, runner, environ, deadline_s)
        self._lookup_deadline_s = lookup_deadline_s

    # ---- submitting -------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job, or return the existing job with this token.

        Raise SchedulerError with a hint if SLURM rejected the submission, SubmissionUncertain if the outcome is
        unknown, SchedulerUnavailable if no job was queued. Ends within deadline_s + lookup_deadline_s.
        """
        self._client.refuse_several_clusters()
        budget = Budget(self._client.clock, self._client.deadline_s + self._lookup_deadline_s)
        submitter = Submitter(
            submission,
            self._client.clock,
            send=lambda: self._sbatch(submission, min(self._client.deadline_s, budget.left_s())),
            find=lambda: self._find(submission.token, budget),
            cancel=lambda job_id: self.cancel([job_id]),
            until=budget.until,
            lookup_s=self._lookup_deadline_s,
        )
        return submitter.submit()

    def test(self, submission: Submission) -> str:
        """Return SLURM's message on when and where the job would start. Raise SchedulerError if rejected."""
        completed = self._sbatch(submission, self._client.deadline_s, test=True)
        if completed.returncode != 0:
            raise diagnose(completed.stderr, completed.returncode).error("sbatch --test-only")
        return quote(completed.stderr or completed.stdout).removeprefix("sbatch: ")

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """Return the argv that `submit` runs."""
        return tuple(commands.submit_command(submission))

    def _sbatch(self, submission: Submission, timeout_s: float, *, test: bool = False) -> Completed:
        try:
            return self._client.runner.run(
                commands.submit_command(submission, test=test),
                timeout_s=timeout_s,
                env=query.submit_environment(
                    submission.filtered_environment(self._client.environ), submission.environment
                ),
                cwd=submission.directory,
            )
        except ProgramMissing as error:
            # Raised for a missing program and for a missing working directory.
            if self._client.version() is not None:
                raise SchedulerError(
                    f"cannot submit from {submission.directory}: {error}", hint="does the directory exist here?"
                ) from error
            raise runner_error(error, "sbatch") from error
        except ProbeError as error:
            raise runner_error(error, "sbatch") from error

    # ---- querying ---------------------------------------------------------------------------------------------

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """Return a user's jobs (default: the current user's) with this token, including ended jobs for MinJobAge."""
        return self._find(token, self._client.budget(), user)

    def find_past(self, token: str, *, since: float, user: str = "") -> tuple[Job, ...]:
        """Return a user's accounting records with this token, by sbatch's command line (`SubmitLine`, since 21.08).

        Raise NotSupported if accounting is off.
        """
        budget = self._client.budget()
        text = self._client.answer(query.search_history_command(since - SETTLED_AFTER_S, user), budget)
        ids = {row.partition(SEPARATOR)[0] for row in text.splitlines() if token in row}
        found = [JobId(int(number)) for number in ids if number.isdecimal()]
        past = parse_history(self._client.answer(query.history_command(found), budget)) if found else ()
        return tuple(job for job in past if {job.raw_id, job.id.array} & {job_id.array for job_id in found})

    def _find(self, token: str, budget: Budget, user: str = "") -> tuple[Job, ...]:
        if not token:
            raise UsageError("the token is empty")
        found = self._client.queue([user] if user else None, budget, finished=True, mark=token)
        return tuple(job for job in found if carries(job, token))

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """Return the queue by one query: of the current user (None), of `users`, or (empty) of all users.

        Includes hidden partitions. Every row is validated, also of jobs that are not returned.
        """
        accepts = only(names, keep) if names or keep else None
        found = self._client.queue(users, self._client.budget(), finished=finished, accepts=accepts)
        return tuple(job for job in found if finished or job.state.is_alive)

    def job(self, job_id: JobId) -> Job:
        """Return a job in detail; for a whole array, the record of its pending tasks, else of a live task.

        Raise NoSuchJob if SLURM answers that there is no such job (ended jobs are removed after MinJobAge).
        """
        records = self._client.records(job_id, self._client.budget())
        concerned = [job for job in records if concerns(job, job_id)]
        if not concerned:
            raise NoSuchJob(f"there is no job {job_id}", hint="`resil status` lists the jobs of a run")
        return min(concerned, key=lambda job: (not job.is_array_record, not job.state.is_alive, -job.raw_id))

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """Return the accounting records, oldest first; a requeued job has one record per run.

        Exit codes of 128 and more are wrong in sacct before 26.05, and are read from slurmctld while it has the job.
        Raise NotSupported if accounting is off.
        """
        if not job_ids:
            return ()
        budget = self._client.budget()
        past = parse_history(self._client.answer(query.history_command(job_ids), budget))
        version = self._client.version(budget) or ""
        failed = {job.raw_id for job in past if job.state.is_final and job.exit_code != _SUCCESS}
        if not failed or not loses_exit_codes(version):
            return past
        try:
            remembered = self._client.queue((), budget, finished=True, accepts=lambda row: int(row[1]) in failed)
        except SchedulerError:
            return past
        return tuple(_with_true_exit_code(job, remembered) for job in past)

    def cpu_seconds(self, job_id: JobId) -> float:
        """Return the CPU seconds of the running steps, by sstat(1), which only answers the job's owner and root.

        Raise NotSupported without a JobAcctGatherType, SchedulerError if no step is running.
        """
        return records.parse_cpu_seconds(self._client.answer(query.usage_command(job_id), self._client.budget()))

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Return whether a job exists. Never raises: a failure is UNKNOWN."""
        try:
            return self._presence(job_id, self._client.budget(), mine)
        except SchedulerError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        except Exception as error:
            return Presence(Liveness.UNKNOWN, f"the check failed: {type(error).__name__}: {error}")

    def _presence(self, job_id: JobId, budget: Budget, mine: bool) -> Presence:
        for users in (None, ()):  # the current user's jobs first: a smaller answer
            answer = judge(job_id, Evidence(queue=self._rows(users, job_id, budget)))
            if answer is not None:
                return answer
        # No row. GONE requires that all other sources agree.
        try:
            past = parse_history(self._client.answer(query.history_command([job_id]), budget))
        except SchedulerError:
            past = ()
        evidence = Evidence(queue=(), past=tuple(job for job in past if concerns(job, job_id)))
        answer = judge(job_id, evidence)
        if answer is not None:
            return answer
        config = records.parse_raw_config(self._client.answer(query.CONFIG_COMMAND, budget))
        if not records.parse_ping(self._client.answer(query.PING_COMMAND, budget)):
            return Presence(
                Liveness.UNKNOWN, f"squeue does not show job {job_id}, but scontrol ping finds no controller"
            )
        age_s = records.controller_age_s(config)
        settling_s = 0.0 if age_s is None else SETTLED_AFTER_S - age_s
        waited_s = min(max(RECHECK_S, settling_s), budget.left_s())
        self._client.clock.sleep(waited_s)
        again = judge(
            job_id,
            Evidence(
                queue=self._rows((), job_id, budget),
                past=evidence.past,
                confirmed=True,
                hides_jobs=not mine and "jobs" in config.get("PrivateData", "").split(","),
                controller_age_s=None if age_s is None else age_s + waited_s,
            ),
        )
        assert again is not None
        return again

    def _rows(self, users: Collection[str] | None, job_id: JobId, budget: Budget) -> tuple[Job, ...]:
        number = str(job_id.array)

        def accepts(columns: Sequence[str]) -> bool:
            shown = columns[0]
            return columns[1] == number or re.split(r"[_+]", shown, maxsplit=1)[0] == number

        found = self._client.queue(users, budget, finished=True, accepts=accepts)
        return tuple(job for job in found if concerns(job, job_id) is not False)

    # ---- controlling ------------------------------------------------------------------------------------------

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """Cancel jobs. Ended and unknown jobs are ignored. `pending_only` excludes jobs that have started."""
        budget = self._client.budget()
        ids = sorted(set(job_ids))
        for start in range(0, len(ids), _IDS_PER_CALL):
            argv = commands.cancel_command(ids[start : start + _IDS_PER_CALL], pending_only=pending_only)
            commands.check_scancel(self._client.run(argv, budget))

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to the steps, to the batch shell only (`batch`), or to all processes of the job (`full`)."""
        argv = commands.signal_command(job_id, signal_name, batch=batch, full=full)
        commands.check_scancel(self._client.run(argv, self._client.budget()))

    def hold(self, job_id: JobId) -> None:
        """Hold a job. Running tasks of an array are marked as well, and are held after a requeue."""
        self._scontrol("hold", job_id, self._client.budget())

    def release(self, job_id: JobId) -> None:
        """Release a job after `hold` or `requeue(hold=True)`."""
        self._scontrol("release", job_id, self._client.budget())

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Requeue a job or a task; with `hold`, hold the requeued job.

        The raw id of an array's task selects that task. A whole array is rejected, because `scontrol requeue ARRAY`
        restarts all its tasks, including finished ones.
        """
        budget = self._client.budget()
        target = job_id
        if job_id.task is None:
            found = [job for job in self._client.records(job_id, budget) if concerns(job, job_id)]
            tasks = [job for job in found if job.id.task is not None or job.is_array_record]
            if any(job.id.array == job_id.array for job in tasks):
                example = next((str(job.id) for job in tasks if job.state.may_have_processes), f"{job_id}_1")
                raise SchedulerError(
                    f"{job_id} is an array: requeueing an array restarts every task, including finished ones",
                    hint=f"name the task, for instance {example}",
                )
            if tasks:
                target = tasks[0].id
        self._scontrol("requeuehold" if hold else "requeue", target, budget)

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job, or the pending tasks of an array. A throttle applies to the whole array."""
        budget = self._client.budget()
        target = job_id.whole if change.array_throttle is not None else job_id
        completed = self._client.run(commands.update_command(target, change), budget)
        if commands.check_update(completed):
            return
        if not commands.is_updated(self._client.answer(query.show_job_command(target), budget), change):
            raise commands.update_error(completed)

    def _scontrol(self, verb: str, job_id: JobId, budget: Budget) -> None:
        self._client.answer(["scontrol", verb, str(job_id)], budget, name=f"scontrol {verb}")

    # ---- the cluster ------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes with all their partitions, including hidden partitions."""
        return records.parse_nodes(self._client.answer(query.NODES_COMMAND, self._client.budget()))

    def config(self) -> ClusterConfig:
        """Return the limits and features of the cluster."""
        budget = self._client.budget()
        settings = self._client.answer(query.CONFIG_COMMAND, budget)
        partitions = self._client.answer(query.PARTITIONS_COMMAND, budget)
        return records.parse_config(settings, partitions)


def _with_true_exit_code(past: Job, remembered: Collection[Job]) -> Job:
    """Return the record with the exit code of slurmctld's record of the same run, if there is one."""
    for job in remembered:
        same = job.raw_id == past.raw_id and job.start_time == past.start_time
        if same and job.state == past.state and job.exit_code is not None:
            return replace(past, exit_code=job.exit_code)
    return past


SCHEDULER = Slurm
"""The plugin: `SCHEDULER(clock=..., runner=..., environ=..., deadline_s=60.0)`."""
