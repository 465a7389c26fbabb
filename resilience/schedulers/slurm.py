"""The SLURM client: asks squeue, scontrol, sacct, sinfo; tells sbatch, scancel, scontrol. 20.11 to 26.05.

Forming (`_slurm_commands`) and reading (`_slurm_queue`, `_slurm_records`, `_slurm_accounting`, `_slurm_json`) are pure;
here is only the running: deadlines, what is asked when, and what an answer is worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from resilience.errors import NoSuchJob, ProbeError, SchedulerError, SchedulerUnavailable, UsageError
from resilience.hostlist import expand
from resilience.model.cluster_config import ClusterConfig
from resilience.model.job import ExitCode, Job, JobId, JobUpdate
from resilience.model.node import Node
from resilience.model.presence import Liveness, Presence
from resilience.model.submission import Submission, Submitted
from resilience.schedulers import _slurm_commands as commands
from resilience.schedulers import _slurm_json, _slurm_records
from resilience.schedulers._slurm_accounting import loses_exit_codes, parse_history
from resilience.schedulers._slurm_errors import complains, diagnose, quote, runner_error
from resilience.schedulers._slurm_presence import SETTLED_AFTER_S, Evidence, judge
from resilience.schedulers._slurm_queue import REST, Wanted, concerns, scan_jobs
from resilience.schedulers._slurm_submit import Submitter, carries
from resilience.system.ports import Clock, Runner
from resilience.system.process import CommandFailed, Completed, ProgramMissing

SECOND_LOOK_S = 2.0
"""How long to wait before a queue without the job is asked again."""
_IDS_PER_CALL = 500


class _Budget:
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
        self._clock = clock
        self._runner = runner
        self._environ = dict(environ)
        self._deadline_s = deadline_s
        self._lookup_deadline_s = lookup_deadline_s
        self._release: str | None = None

    # ---- submitting -------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> Submitted:
        """Queue exactly one job, or find the one that this token already has.

        Raise SchedulerError with what to try if SLURM refused, SubmissionUncertain if it was sent and nobody can say
        what came of it, SchedulerUnavailable if it was not sent, or was found not to have come through.
        Ends within deadline_s + lookup_deadline_s.
        """
        self._refuse_several_clusters()
        budget = _Budget(self._clock, self._deadline_s + self._lookup_deadline_s)
        submitter = Submitter(
            submission,
            self._clock,
            send=lambda: self._sbatch(submission, min(self._deadline_s, budget.left_s())),
            look=lambda: self._find(submission.token, budget),
            cancel=lambda job_id: self.cancel([job_id]),
            until=budget.until,
            looking_s=self._lookup_deadline_s,
        )
        return submitter.submit()

    def test(self, submission: Submission) -> str:
        """SLURM's sentence on when and where it would start. Raise SchedulerError if it would be refused."""
        completed = self._sbatch(submission, self._deadline_s, test=True)
        if completed.returncode != 0:
            raise diagnose(completed.stderr, completed.returncode).error("sbatch --test-only")
        return quote(completed.stderr or completed.stdout).removeprefix("sbatch: ")

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        """The exact argv that `submit` runs."""
        return tuple(commands.submit_command(submission))

    def _sbatch(self, submission: Submission, timeout_s: float, *, test: bool = False) -> Completed:
        try:
            return self._runner.run(
                commands.submit_command(submission, test=test),
                timeout_s=timeout_s,
                env=commands.submit_environment(self._environ, submission.environment),
                cwd=submission.directory,
            )
        except ProgramMissing as error:
            # The same error for a program and for a working directory that does not exist.
            if self._version() is not None:
                raise SchedulerError(
                    f"cannot submit from {submission.directory}: {error}", hint="does the directory exist here?"
                ) from error
            raise runner_error(error, "sbatch") from error
        except ProbeError as error:
            raise runner_error(error, "sbatch") from error

    def _refuse_several_clusters(self) -> None:
        clusters = self._environ.get("SLURM_CLUSTERS", "")
        if "," in clusters or clusters == "all":
            raise SchedulerError(
                f"SLURM_CLUSTERS={clusters} names several clusters, and a job id says nothing across clusters",
                hint="export SLURM_CLUSTERS with one name, or unset it",
            )

    # ---- looking ----------------------------------------------------------------------------------------------

    def find(self, token: str) -> tuple[Job, ...]:
        """My jobs, finished ones included for as long as SLURM remembers them (MinJobAge), that carry this token."""
        return self._find(token, self._budget())

    def _find(self, token: str, budget: _Budget) -> tuple[Job, ...]:
        if not token:
            raise UsageError("an empty token is carried by every job")
        found = self._queue(None, budget, finished=True, wanted=lambda columns: token in columns[REST])
        return tuple(job for job in found if carries(job, token))

    def jobs(
        self, *, users: Collection[str] | None = None, names: Collection[str] = (), finished: bool = False
    ) -> tuple[Job, ...]:
        """The queue by one query: mine (None), these users', or (empty) everybody's, hidden partitions included."""
        names = frozenset(names)
        found = self._queue(users, self._budget(), finished=finished)
        return tuple(job for job in found if (finished or job.state.is_alive) and (not names or job.name in names))

    def _queue(
        self, users: Collection[str] | None, budget: _Budget, *, finished: bool, wanted: Wanted | None = None
    ) -> tuple[Job, ...]:
        argv = commands.queue_command(users, finished=finished)
        env = commands.client_environment(self._environ)
        try:
            return tuple(scan_jobs(self._runner.stream(argv, timeout_s=budget.left_s(), env=env), wanted))
        except CommandFailed as error:
            completed = error.completed
            if completed.returncode != 0 or complains(completed.stderr):
                raise diagnose(completed.stderr, completed.returncode).error("squeue") from error
            # Somebody else's words on standard error; the rows may be whole, but were not kept: ask once more, whole.
            completed = self._ask(argv, budget)
            return tuple(scan_jobs(_lines(completed.stdout), wanted))
        except ProbeError as error:
            raise runner_error(error, "squeue") from error

    def job(self, job_id: JobId) -> Job:
        """One job in detail; of an array as a whole, the record of its waiting tasks, else of a living one.

        Raise NoSuchJob when SLURM answered that it knows none (it forgets ended jobs after MinJobAge).
        """
        records = self._records(job_id, self._budget())
        concerned = [job for job in records if concerns(job, job_id)]
        if not concerned:
            raise NoSuchJob(f"there is no job {job_id}", hint="`resil status` lists the jobs of a run")
        return min(concerned, key=lambda job: (not job.is_array_record, not job.state.is_alive, -job.raw_id))

    def _records(self, job_id: JobId, budget: _Budget) -> tuple[Job, ...]:
        version = self._version(budget)
        if version is not None and _at_least(version, (23, 11)):
            # Exact where names hold anything. An empty list is no answer: 24.11 gives it when the controller is down.
            try:
                completed = self._ask(commands.show_job_command(job_id, json=True), budget)
                if found := _slurm_json.parse_document(completed.stdout):
                    return found
            except SchedulerError:
                pass
        completed = self._ask(commands.show_job_command(job_id), budget)
        return _slurm_records.parse_jobs(completed.stdout)

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        """What accounting remembers, each run of a requeued job by itself, oldest first.

        Exit codes of 128 and more are wrong in sacct before 26.05: while slurmctld remembers a job, its word is taken
        instead. Raise NotSupported where accounting is off.
        """
        if not job_ids:
            return ()
        budget = self._budget()
        completed = self._ask(commands.history_command(job_ids), budget)
        past = parse_history(completed.stdout)
        version = self._version(budget) or ""
        failed = {job.raw_id for job in past if job.state.is_final and job.exit_code != _SUCCESS}
        if not failed or not loses_exit_codes(version):
            return past
        try:
            remembered = self._queue((), budget, finished=True, wanted=lambda columns: int(columns[1]) in failed)
        except SchedulerError:
            return past
        return tuple(_with_true_exit_code(job, remembered) for job in past)

    def presence(self, job_id: JobId) -> Presence:
        """Whether it exists. Never raises, whatever the runner does: what could not be looked at is UNKNOWN."""
        try:
            return self._presence(job_id, self._budget())
        except SchedulerError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        except Exception as error:
            return Presence(Liveness.UNKNOWN, f"looking failed: {type(error).__name__}: {error}")

    def _presence(self, job_id: JobId, budget: _Budget) -> Presence:
        for users in (None, ()):  # my own first: the controller sends less
            answer = judge(job_id, Evidence(queue=self._look(users, job_id, budget)))
            if answer is not None:
                return answer
        # No row. From here on, everything must agree before the answer is GONE.
        try:
            past = parse_history(self._ask(commands.history_command([job_id]), budget).stdout)
        except SchedulerError:
            past = ()
        evidence = Evidence(queue=(), past=tuple(job for job in past if concerns(job, job_id)))
        answer = judge(job_id, evidence)
        if answer is not None:
            return answer
        config = _slurm_records.parse_raw_config(self._ask(commands.CONFIG_COMMAND, budget).stdout)
        if not _slurm_records.parse_ping(self._ask(commands.PING_COMMAND, budget).stdout):
            return Presence(
                Liveness.UNKNOWN, f"squeue does not show job {job_id}, but scontrol ping finds no controller"
            )
        age_s = _slurm_records.controller_age_s(config)
        settling_s = 0.0 if age_s is None else SETTLED_AFTER_S - age_s
        waited_s = min(max(SECOND_LOOK_S, settling_s), budget.left_s())
        self._clock.sleep(waited_s)
        again = judge(
            job_id,
            Evidence(
                queue=self._look((), job_id, budget),
                past=evidence.past,
                confirmed=True,
                hides_jobs="jobs" in config.get("PrivateData", "").split(","),
                controller_age_s=None if age_s is None else age_s + waited_s,
            ),
        )
        assert again is not None
        return again

    def _look(self, users: Collection[str] | None, job_id: JobId, budget: _Budget) -> tuple[Job, ...]:
        number = str(job_id.array)

        def wanted(columns: Sequence[str]) -> bool:
            shown = columns[0]
            return columns[1] == number or re.split(r"[_+]", shown, maxsplit=1)[0] == number

        found = self._queue(users, budget, finished=True, wanted=wanted)
        return tuple(job for job in found if concerns(job, job_id) is not False)

    # ---- telling ----------------------------------------------------------------------------------------------

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        """End them; ended and unknown ones are no error. `pending_only` leaves alone what has begun."""
        budget = self._budget()
        ids = sorted(set(job_ids))
        for start in range(0, len(ids), _IDS_PER_CALL):
            self._scancel(
                commands.cancel_command(ids[start : start + _IDS_PER_CALL], pending_only=pending_only), budget
            )

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        """Send a signal to the steps, the batch shell alone (`batch`), or everything below it (`full`)."""
        self._scancel(commands.signal_command(job_id, signal_name, batch=batch, full=full), self._budget())

    def _scancel(self, argv: list[str], budget: _Budget) -> None:
        completed = self._run(argv, budget)
        harmless = re.compile(r"Invalid job id specified|already complet|Job already finished|not pending|not running")
        bad = [line for line in completed.stderr.splitlines() if line.strip() and not harmless.search(line)]
        if bad and (completed.returncode != 0 or complains("\n".join(bad))):
            raise diagnose("\n".join(bad), completed.returncode).error("scancel")
        if completed.returncode != 0 and not completed.stderr.strip():
            raise diagnose("", completed.returncode).error("scancel")

    def hold(self, job_id: JobId) -> None:
        """Keep it from starting. Of an array, its running tasks are marked too and stay held if requeued."""
        self._scontrol(["scontrol", "hold", str(job_id)])

    def release(self, job_id: JobId) -> None:
        """Undo `hold`, and `requeue(hold=True)`."""
        self._scontrol(["scontrol", "release", str(job_id)])

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        """Put one job or one task back into the queue; `hold` keeps it there until released.

        A raw id of an array's task means that task. A whole array is refused: `scontrol requeue ARRAY` starts all its
        tasks again, those that finished too.
        """
        budget = self._budget()
        target = job_id
        if job_id.task is None:
            records = self._records(job_id, budget)
            tasks = [job for job in records if job.id.task is not None or job.is_array_record]
            if any(job.id.array == job_id.array for job in tasks):
                example = next((str(job.id) for job in tasks if job.state.may_have_processes), f"{job_id}_1")
                raise SchedulerError(
                    f"{job_id} is an array: requeueing it as a whole would start every task again, finished ones too",
                    hint=f"name the task, for instance {example}",
                )
            if tasks:
                target = tasks[0].id
        self._scontrol(["scontrol", "requeuehold" if hold else "requeue", str(target)], budget)

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        """Change a queued or running job.

        An array's throttle is the whole array's. Tasks that have ended or started make scontrol end with 1 although
        the waiting ones were changed: that is verified, and is no error then.
        """
        budget = self._budget()
        target = job_id.whole if change.array_throttle is not None else job_id
        completed = self._run(commands.update_command(target, change), budget)
        said = [line.strip() for line in completed.stderr.splitlines() if line.strip()]
        bad = [line for line in said if not line.endswith(": No error")]
        if not bad and completed.returncode == 0:
            return
        partial = re.compile(r"\d[\d_,-]*: Job (has already finished|is no longer pending execution)")
        if bad and all(partial.match(line) for line in bad) and self._is_done(target, change, budget):
            return
        raise diagnose("\n".join(bad), completed.returncode).error("scontrol update")

    def _is_done(self, job_id: JobId, change: JobUpdate, budget: _Budget) -> bool:
        """Whether the waiting tasks show the change, and there are some."""
        text = self._ask(commands.show_job_command(job_id), budget).stdout
        waiting = [job for job in _slurm_records.parse_settings(text) if job["JobState"] == "PENDING"]
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

    def _scontrol(self, argv: list[str], budget: _Budget | None = None) -> None:
        completed = self._run(argv, budget or self._budget())
        if completed.returncode != 0 or complains(completed.stderr):
            raise diagnose(completed.stderr, completed.returncode).error(" ".join(argv[:2]))

    # ---- the cluster ------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """Each node once, with all its partitions, hidden ones included."""
        return _slurm_records.parse_nodes(self._ask(commands.NODES_COMMAND, self._budget()).stdout)

    def config(self) -> ClusterConfig:
        """What the cluster supports."""
        budget = self._budget()
        settings = self._ask(commands.CONFIG_COMMAND, budget).stdout
        partitions = self._ask(commands.PARTITIONS_COMMAND, budget).stdout
        return _slurm_records.parse_config(settings, partitions)

    # ---- running ----------------------------------------------------------------------------------------------

    def _budget(self) -> _Budget:
        return _Budget(self._clock, self._deadline_s)

    def _run(self, argv: Sequence[str], budget: _Budget) -> Completed:
        """Run a client to its end, whatever its exit code. Raise SchedulerUnavailable if it gave no result."""
        self._refuse_several_clusters()
        env = commands.client_environment(self._environ)
        try:
            return self._runner.run(argv, timeout_s=budget.left_s(), env=env)
        except ProbeError as error:
            raise runner_error(error, argv[0]) from error

    def _ask(self, argv: Sequence[str], budget: _Budget) -> Completed:
        """Run a client and return its answer. Raise what its error text means if it failed, or complained."""
        completed = self._run(argv, budget)
        if completed.returncode != 0 or complains(completed.stderr):
            # `scontrol show job 3_9` says "Job 3_9 not found" on its standard output
            said = completed.stderr if completed.stderr.strip() else completed.stdout[:1000]
            raise diagnose(said, completed.returncode).error(argv[0])
        return completed

    def _version(self, budget: _Budget | None = None) -> str | None:
        """The clients' release, asked once; None if there are no clients. Asks no controller."""
        if self._release is None:
            try:
                completed = self._run(["scontrol", "--version"], budget or self._budget())
            except SchedulerUnavailable:
                return None
            match = re.search(r"\d+\.\d+[\w.-]*", completed.stdout)
            self._release = match[0] if match else ""
        return self._release


_SUCCESS = ExitCode(0)


def _lines(text: str) -> list[str]:
    """As a runner's stream gives them: without newlines, and no empty line after the last."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _at_least(version: str, wanted: tuple[int, int]) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= wanted


def _with_true_exit_code(past: Job, remembered: Collection[Job]) -> Job:
    """The run with the exit code that slurmctld has for the same run of it, if it has one."""
    for job in remembered:
        same = job.raw_id == past.raw_id and job.start_time == past.start_time
        if same and job.state == past.state and job.exit_code is not None:
            return replace(past, exit_code=job.exit_code)
    return past


SCHEDULER = Slurm
"""The plugin: `SCHEDULER(clock=..., runner=..., environ=..., deadline_s=60.0)`."""
