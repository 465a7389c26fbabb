"""The SLURM client: asks squeue, scontrol, sacct, sinfo; tells sbatch, scancel, scontrol. 20.11 to 26.05.

What forms commands and what reads answers is pure, and lies in `_slurm/`; here is only the running: deadlines, what is
asked when, and what an answer is worth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from resilience.cluster import ClusterConfig, Node
from resilience.errors import NoSuchJob, ProbeError, SchedulerError, UsageError
from resilience.job import ExitCode, Job, JobId, JobUpdate, Liveness, Presence
from resilience.schedulers import Keep
from resilience.schedulers._slurm import commands, records, telling
from resilience.schedulers._slurm.accounting import loses_exit_codes, parse_history
from resilience.schedulers._slurm.asking import Asker, Budget
from resilience.schedulers._slurm.errors import diagnose, quote, runner_error
from resilience.schedulers._slurm.presence import SETTLED_AFTER_S, Evidence, judge
from resilience.schedulers._slurm.queue import concerns, only
from resilience.schedulers._slurm.submit import Submitter, carries
from resilience.submission import Submission, Submitted
from resilience.system.process import Completed, ProgramMissing
from resilience.system.world import Clock, Runner

SECOND_LOOK_S = 2.0
"""How long to wait before a queue without the job is asked again."""


class Slurm:
    """SLURM, asked through its own command-line clients.

    Args:
        clock: for deadlines and for waiting between two looks.
        runner: runs the clients.
        environ: environment of the person; what would change answers is taken out (see `client_environment`).
        deadline_s: within which every method answers. A dead host makes squeue block 29 s, a lost slurm.conf 59 s.
        lookup_deadline_s: how long `submit` looks for a job whose sbatch failed ambiguously, on top of `deadline_s`;
            three times MessageTimeout (10 s by default).
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
        self._asker = Asker(clock, runner, environ, deadline_s)
        self._lookup_deadline_s = lookup_deadline_s

    # ---- submitting -------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job, or find the one that this token already has.

        Raise SchedulerError with what to try if SLURM refused, SubmissionUncertain if it was sent and nobody can say
        what came of it, SchedulerUnavailable if it was not sent, or was found not to have come through.
        Ends within deadline_s + lookup_deadline_s.
        """
        self._asker.refuse_several_clusters()
        budget = Budget(self._asker.clock, self._asker.deadline_s + self._lookup_deadline_s)
        submitter = Submitter(
            submission,
            self._asker.clock,
            send=lambda: self._sbatch(submission, min(self._asker.deadline_s, budget.left_s())),
            look=lambda: self._find(submission.token, budget),
            cancel=lambda job_id: self.cancel([job_id]),
            until=budget.until,
            looking_s=self._lookup_deadline_s,
        )
        return submitter.submit()

    def test(self, submission: Submission) -> str:
        """SLURM's sentence on when and where it would start. Raise SchedulerError if it would be refused."""
        completed = self._sbatch(submission, self._asker.deadline_s, test=True)
        if completed.returncode != 0:
            raise diagnose(completed.stderr, completed.returncode).error("sbatch --test-only")
        return quote(completed.stderr or completed.stdout).removeprefix("sbatch: ")

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """The exact argv that `submit` runs."""
        return tuple(commands.submit_command(submission))

    def _sbatch(self, submission: Submission, timeout_s: float, *, test: bool = False) -> Completed:
        try:
            return self._asker.runner.run(
                commands.submit_command(submission, test=test),
                timeout_s=timeout_s,
                env=commands.submit_environment(submission.counted(self._asker.environ), submission.environment),
                cwd=submission.directory,
            )
        except ProgramMissing as error:
            # The same error for a program and for a working directory that does not exist.
            if self._asker.version() is not None:
                raise SchedulerError(
                    f"cannot submit from {submission.directory}: {error}", hint="does the directory exist here?"
                ) from error
            raise runner_error(error, "sbatch") from error
        except ProbeError as error:
            raise runner_error(error, "sbatch") from error

    # ---- looking ----------------------------------------------------------------------------------------------

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        """A user's jobs (empty: mine), ended ones included while SLURM remembers them (MinJobAge), with this token."""
        return self._find(token, self._asker.budget(), user)

    def _find(self, token: str, budget: Budget, user: str = "") -> tuple[Job, ...]:
        if not token:
            raise UsageError("an empty token is carried by every job")
        found = self._asker.queue([user] if user else None, budget, finished=True, mark=token)
        return tuple(job for job in found if carries(job, token))

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        """The queue by one query: mine (None), these users', or (empty) everybody's, hidden partitions included.

        Rows that are not wanted are checked, and no job is made of them.
        """
        wanted = only(names, keep) if names or keep else None
        found = self._asker.queue(users, self._asker.budget(), finished=finished, wanted=wanted)
        return tuple(job for job in found if finished or job.state.is_alive)

    def job(self, job_id: JobId) -> Job:
        """One job in detail; of an array as a whole, the record of its waiting tasks, else of a living one.

        Raise NoSuchJob when SLURM answered that it knows none (it forgets ended jobs after MinJobAge).
        """
        records = self._asker.records(job_id, self._asker.budget())
        concerned = [job for job in records if concerns(job, job_id)]
        if not concerned:
            raise NoSuchJob(f"there is no job {job_id}", hint="`resil status` lists the jobs of a run")
        return min(concerned, key=lambda job: (not job.is_array_record, not job.state.is_alive, -job.raw_id))

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """What accounting remembers, each run of a requeued job by itself, oldest first.

        Exit codes of 128 and more are wrong in sacct before 26.05: while slurmctld remembers a job, its word is taken
        instead. Raise NotSupported where accounting is off.
        """
        if not job_ids:
            return ()
        budget = self._asker.budget()
        completed = self._asker.ask(commands.history_command(job_ids), budget)
        past = parse_history(completed.stdout)
        version = self._asker.version(budget) or ""
        failed = {job.raw_id for job in past if job.state.is_final and job.exit_code != _SUCCESS}
        if not failed or not loses_exit_codes(version):
            return past
        try:
            remembered = self._asker.queue((), budget, finished=True, wanted=lambda columns: int(columns[1]) in failed)
        except SchedulerError:
            return past
        return tuple(_with_true_exit_code(job, remembered) for job in past)

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        """Whether it exists. Never raises, whatever the runner does: what could not be looked at is UNKNOWN."""
        try:
            return self._presence(job_id, self._asker.budget(), mine)
        except SchedulerError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        except Exception as error:
            return Presence(Liveness.UNKNOWN, f"looking failed: {type(error).__name__}: {error}")

    def _presence(self, job_id: JobId, budget: Budget, mine: bool) -> Presence:
        for users in (None, ()):  # my own first: the controller sends less
            answer = judge(job_id, Evidence(queue=self._look(users, job_id, budget)))
            if answer is not None:
                return answer
        # No row. From here on, everything must agree before the answer is GONE.
        try:
            past = parse_history(self._asker.ask(commands.history_command([job_id]), budget).stdout)
        except SchedulerError:
            past = ()
        evidence = Evidence(queue=(), past=tuple(job for job in past if concerns(job, job_id)))
        answer = judge(job_id, evidence)
        if answer is not None:
            return answer
        config = records.parse_raw_config(self._asker.ask(commands.CONFIG_COMMAND, budget).stdout)
        if not records.parse_ping(self._asker.ask(commands.PING_COMMAND, budget).stdout):
            return Presence(
                Liveness.UNKNOWN, f"squeue does not show job {job_id}, but scontrol ping finds no controller"
            )
        age_s = records.controller_age_s(config)
        settling_s = 0.0 if age_s is None else SETTLED_AFTER_S - age_s
        waited_s = min(max(SECOND_LOOK_S, settling_s), budget.left_s())
        self._asker.clock.sleep(waited_s)
        again = judge(
            job_id,
            Evidence(
                queue=self._look((), job_id, budget),
                past=evidence.past,
                confirmed=True,
                hides_jobs=not mine and "jobs" in config.get("PrivateData", "").split(","),
                controller_age_s=None if age_s is None else age_s + waited_s,
            ),
        )
        assert again is not None
        return again

    def _look(self, users: Collection[str] | None, job_id: JobId, budget: Budget) -> tuple[Job, ...]:
        number = str(job_id.array)

        def wanted(columns: Sequence[str]) -> bool:
            shown = columns[0]
            return columns[1] == number or re.split(r"[_+]", shown, maxsplit=1)[0] == number

        found = self._asker.queue(users, budget, finished=True, wanted=wanted)
        return tuple(job for job in found if concerns(job, job_id) is not False)

    # ---- telling ----------------------------------------------------------------------------------------------

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them; ended and unknown ones are no error. `pending_only` leaves alone what has begun."""
        telling.cancel(self._asker, job_ids, pending_only=pending_only)

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to the steps, the batch shell alone (`batch`), or everything below it (`full`)."""
        telling.signal(self._asker, job_id, signal_name, batch=batch, full=full)

    def hold(self, job_id: JobId) -> None:
        """Keep it from starting. Of an array, its running tasks are marked too and stay held if requeued."""
        telling.hold(self._asker, job_id)

    def release(self, job_id: JobId) -> None:
        """Undo `hold`, and `requeue(hold=True)`."""
        telling.release(self._asker, job_id)

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put one job or one task back into the queue; `hold` keeps it there. A whole array is refused."""
        telling.requeue(self._asker, job_id, hold=hold)

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job; of an array, its waiting tasks."""
        telling.update(self._asker, job_id, change)

    # ---- the cluster ------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Each node once, with all its partitions, hidden ones included."""
        return records.parse_nodes(self._asker.ask(commands.NODES_COMMAND, self._asker.budget()).stdout)

    def config(self) -> ClusterConfig:
        """What the cluster supports."""
        budget = self._asker.budget()
        settings = self._asker.ask(commands.CONFIG_COMMAND, budget).stdout
        partitions = self._asker.ask(commands.PARTITIONS_COMMAND, budget).stdout
        return records.parse_config(settings, partitions)


_SUCCESS = ExitCode(0)


def _with_true_exit_code(past: Job, remembered: Collection[Job]) -> Job:
    """The run with the exit code that slurmctld has for the same run of it, if it has one."""
    for job in remembered:
        same = job.raw_id == past.raw_id and job.start_time == past.start_time
        if same and job.state == past.state and job.exit_code is not None:
            return replace(past, exit_code=job.exit_code)
    return past


SCHEDULER = Slurm
"""The plugin: `SCHEDULER(clock=..., runner=..., environ=..., deadline_s=60.0)`."""
