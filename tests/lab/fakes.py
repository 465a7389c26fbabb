"""An in-memory scheduler that can be told to be down, to refuse, or to answer ambiguously; and a clock set by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resilience.cluster import ClusterConfig, Node
from resilience.errors import (
    NoSuchJob,
    NotSupported,
    ResilError,
    SchedulerError,
    SchedulerUnavailable,
    SubmissionUncertain,
)
from resilience.job import Job, JobId, JobState, JobUpdate, Liveness, Presence
from resilience.runs.project import Project
from resilience.schedulers import Keep
from resilience.settings.load import load
from resilience.submission import ArrayExpression, Submission, Submitted
from resilience.system.ports import Host, Runner, System
from resilience.system.process import ProcessRunner

DOWN = SchedulerUnavailable("squeue did not answer in 30 s", hint="slurmctld may be down; jobs keep running")
NOW = 1_800_000_000.0
ME = Host.current().user
"""Whoever runs the tests: the files that they write are theirs."""


@dataclass
class FakeClock:
    """Stands still until somebody sleeps, or moves it. `at_sleep` is called each time, with the seconds."""

    time: float = NOW
    at_sleep: Callable[[float], None] = lambda _: None
    _monotonic: float = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self._monotonic += seconds
        self.at_sleep(seconds)


@dataclass
class FakeScheduler:
    """The Scheduler port, in memory.

    Attributes:
        me: login name of who asks; others' jobs may be seen and not cancelled.
        records: the queue, ended jobs included.
        trouble: raised by everything that asks or tells, or None.
        troubles: by the name of a method, what only this method raises.
        refusals: by the number of the submit (from 1), what it raises; nothing is queued.
        uncertain: numbers of the submits that queue the job and do not hear the answer.
        accounting: the jobs that only accounting has.
        calls: the names of the methods called, in order.
        cluster: its nodes.
        cpu: the CPU seconds of jobs; of others they are not measured.
        ignores_cancel: whether jobs stay where they are.
    """

    me: str = ME
    name: str = "fake"
    records: list[Job] = field(default_factory=list)
    trouble: ResilError | None = None
    troubles: dict[str, ResilError] = field(default_factory=dict)
    refusals: dict[int, BaseException] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    submissions: list[Submission] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    ignores_cancel: bool = False
    accounting: list[Job] = field(default_factory=list)
    answers: ClusterConfig = field(default_factory=lambda: ClusterConfig("slurm", version="24.11"))
    cpu: dict[JobId, float] = field(default_factory=dict)
    cluster: tuple[Node, ...] = ()
    at_submit: Callable[[Submission], None] = lambda _: None
    next_id: int = 100

    def _called(self, name: str) -> None:
        self.calls.append(name)
        trouble = self.trouble or self.troubles.get(name)
        if trouble is not None:
            raise trouble

    def submit(self, submission: Submission) -> Submitted:
        self.calls.append("submit")
        self.submissions.append(submission)
        self.scripts.append(Path(submission.script).read_text(errors="replace"))
        number = len(self.submissions)
        self.at_submit(submission)
        if self.trouble is not None:
            raise self.trouble
        if number in self.refusals:
            raise self.refusals[number]
        self.next_id += 1
        job_id = JobId(self.next_id)
        tasks = submission.options.get("array") or ""
        self.records.append(
            Job(
                id=job_id,
                raw_id=job_id.array,
                name=submission.run,
                state=JobState.PENDING,
                user=self.me,
                reason="Priority",
                tasks=tasks,
                task_count=ArrayExpression.parse(tasks).count if tasks else 1,
                submit_time=NOW + self.next_id,
                comment=submission.comment,
                command=submission.script,
            )
        )
        if number in self.uncertain:
            raise SubmissionUncertain("sbatch did not answer, and neither does squeue")
        return Submitted(job_id, self.notes)

    def test(self, submission: Submission) -> str:
        self._called("test")
        self.scripts.append(Path(submission.script).read_text())
        return "it would start now"

    def command_line(self, submission: Submission) -> tuple[str, ...]:
        options = [f"--{name}" if value is None else f"--{name}={value}" for name, value in submission.options.items()]
        return ("fake-sbatch", *options, *submission.extra_args, submission.script, *submission.script_args)

    def cpu_seconds(self, job_id: JobId) -> float:
        self._called("cpu_seconds")
        if job_id not in self.cpu:
            raise NotSupported("the CPU time of jobs is not measured")
        return self.cpu[job_id]

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        self._called("find")
        return tuple(job for job in self.records if job.comment.endswith(f":{token}"))

    def find_past(self, token: str, *, since: float, user: str = "") -> tuple[Job, ...]:
        self._called("find_past")
        return tuple(job for job in self.accounting if token in job.comment)

    def jobs(
        self,
        *,
        users: Collection[str] | None = None,
        names: Collection[str] = (),
        finished: bool = False,
        keep: Keep | None = None,
    ) -> tuple[Job, ...]:
        self._called("jobs")
        wanted = {self.me} if users is None else set(users)
        return tuple(
            job
            for job in self.records
            if (not wanted or job.user in wanted)
            and (finished or job.state.is_alive)
            and (not names or job.name in names)
            and (keep is None or keep(job.id.array, job.name, job.comment))
        )

    def job(self, job_id: JobId) -> Job:
        self._called("job")
        found = [job for job in self.records if job.id == job_id] or [
            job for job in self.records if job.id.whole == job_id or (job.is_array_record and job.id == job_id.whole)
        ]
        if not found:
            raise NoSuchJob(f"there is no job {job_id}")
        return found[0]

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        try:
            job = self.job(job_id)
        except NoSuchJob as error:
            return Presence(Liveness.GONE, error.message)
        except ResilError as error:
            return Presence(Liveness.UNKNOWN, error.message)
        return Presence(Liveness.ALIVE if job.state.is_alive else Liveness.GONE, f"it is {job.state}", job)

    def history(self, job_ids: Collection[JobId]) -> tuple[Job, ...]:
        raise NotSupported("there is no accounting here")

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        self._called("cancel")
        wanted = {job_id.array for job_id in job_ids}
        foreign = [job for job in self.records if job.id.array in wanted and job.user != self.me]
        for number, job in enumerate(self.records):
            ends = job.id.array in wanted and job.user == self.me and (job.state.is_waiting or not pending_only)
            if ends and job.state.is_alive and not self.ignores_cancel:
                state = JobState.CANCELLED if job.state.is_waiting else JobState.COMPLETING
                self.records[number] = replace(job, state=state)
        if foreign:
            raise SchedulerError(f"Access/permission denied for job {foreign[0].id}")

    def hold(self, job_id: JobId) -> None:
        self._called("hold")
        self._explain(job_id, "JobHeldUser")

    def release(self, job_id: JobId) -> None:
        self._called("release")
        self._explain(job_id, "Priority")

    def _explain(self, job_id: JobId, reason: str) -> None:
        for number, job in enumerate(self.records):
            if job.state.is_waiting and job_id in (job.id, job.id.whole):
                self.records[number] = replace(job, reason=reason)
            elif job.is_array_record and job_id.whole == job.id:  # SLURM makes a record of its own for the task
                task = replace(job, id=job_id, tasks="", task_count=1, reason=reason)
                indices = [one for one in ArrayExpression.parse(job.tasks).indices() if one != job_id.task]
                rest = replace(job, tasks=",".join(map(str, indices)), task_count=len(indices))
                self.records[number : number + 1] = [task, rest]
                return

    def requeue(self, job_id: JobId, *, hold: bool = False) -> None:
        self._called("requeue")

    def update(self, job_id: JobId, change: JobUpdate) -> None:
        self._called("update")
        for number, job in enumerate(self.records):
            if change.exclude is not None and job.state.is_waiting and job_id in (job.id, job.id.whole):
                self.records[number] = replace(job, excluded=change.exclude)

    def signal(self, job_id: JobId, signal_name: str, *, batch: bool = False, full: bool = False) -> None:
        self._called("signal")

    def nodes(self) -> tuple[Node, ...]:
        self._called("nodes")
        return self.cluster

    def config(self) -> ClusterConfig:
        self._called("config")
        return self.answers


def make_system(directory: Path, environ: Mapping[str, str] | None = None, **ports: Any) -> System:
    """A system whose home and cache lie in `directory`, and whose clock is set by hand."""
    home = directory / "home"
    home.mkdir(exist_ok=True)
    clock = ports.get("clock", FakeClock())
    runner: Runner = ports.get("runner", ProcessRunner())
    cwd = ports.get("cwd", directory)
    host = Host(name=ports.get("host", "login1"), user=ME, uid=os.getuid(), home=home)
    return System(clock=clock, runner=runner, environ=environ or {}, host=host, cwd=cwd)


def make_project(
    directory: Path,
    scheduler: FakeScheduler | None = None,
    settings: str = '[run]\nname = "gpt"\ncommand = "python train.py"\n',
    environ: Mapping[str, str] | None = None,
    **ports: Any,
) -> Project:
    """A project in `directory` whose jobs go to the fake."""
    home = directory / "project"
    home.mkdir(exist_ok=True)
    if settings:
        (home / "resil.toml").write_text(settings)
    fake = scheduler or FakeScheduler()
    system = make_system(directory, environ, **{"cwd": home, **ports})
    overrides = {"scheduler.name": fake.name}
    return Project(system, load(system, overrides=overrides), {fake.name: fake})


def a_job(number: int, state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    """One record, ours unless said otherwise; `task` makes it a task of an array."""
    job_id = JobId(number, fields.pop("task", None))
    given = {"raw_id": number, "name": "gpt", "user": ME, **fields}
    return Job(id=job_id, state=state, **given)
