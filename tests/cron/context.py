"""A project with a cron directory of real drop-ins, a clock set by hand, and a queue that outlives its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resilience.cron.project import CronProject, open_cron
from resilience.cron.records import RunRecord
from resilience.cron.run import tick
from resilience.cron.ticker import TickResult
from resilience.errors import ResilError
from resilience.job import Job, JobId, JobState, Liveness, Presence
from resilience.runs.project import Project
from resilience.settings.load import load
from resilience.submission import Submission, Submitted, split_comment
from tests.lab.fakes import NOW, FakeClock, make_system

TOP = NOW - NOW % 3600 + 3600
"""A full hour."""

SETTINGS = """\
[run]
name = "gpt"
state_dir = "{state}"
[cron]
jitter_s = 0
{more}
"""
WRITES = '#!/bin/sh\n# resil: {options}\necho "$RESIL_CRON_SLOT" >> ran\n{body}\n'
JOB = "#!/bin/bash\n# resil: {options}\n#SBATCH --time=1:00\necho hello\n"


@dataclass
class Queue:
    """The Scheduler port over a directory: each job is a file, and so every process sees the same queue.

    As sbatch, it queues whatever it is given; that it is asked for a token first is the port's own promise.
    """

    directory: Path
    name: str = "fake"
    trouble: ResilError | None = None
    refusal: ResilError | None = None
    calls: list[str] = field(default_factory=list)
    is_deaf: bool = False
    began: float | None = None

    def submit(self, submission: Submission) -> Submitted:
        self._called("submit")
        if found := self.find(submission.token):
            return Submitted(found[0].id, recovered=True)
        if self.refusal is not None:
            raise self.refusal
        draft = self.directory.parent / f"draft.{os.urandom(6).hex()}"
        draft.write_text(f"PENDING 0 {submission.comment}")
        for number in range(101, 10**6):
            with suppress(FileExistsError):
                os.link(draft, self.directory / f"{number}")
                return Submitted(JobId(number))
        raise AssertionError("a queue without end")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        with (self.directory.parent / "calls").open("a") as file:
            file.write(f"{name}\n")
        if self.trouble is not None:
            raise self.trouble

    def all(self) -> tuple[Job, ...]:
        found = []
        for path in sorted(self.directory.iterdir()):
            state, code, comment = path.read_text().split(" ", 2)
            from resilience.job import ExitCode

            number = int(path.name)
            found.append(
                Job(
                    JobId(number), number, "x", JobState(state), comment=comment, exit_code=ExitCode(int(code)),
                    start_time=self.began, end_time=None if JobState(state).is_alive else NOW,
                )
            )  # fmt: skip
        return tuple(found)

    def find(self, token: str, *, user: str = "") -> tuple[Job, ...]:
        self._called("find")
        return tuple(job for job in self.all() if (split_comment(job.comment) or ("", ""))[1] == token)

    def jobs(self, *, finished: bool = False, keep: Any = None, **_: object) -> tuple[Job, ...]:
        self._called("jobs")
        return tuple(
            job
            for job in self.all()
            if (finished or job.state.is_alive) and (keep is None or keep(job.id.array, job.name, job.comment))
        )

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        if self.is_deaf:
            return Presence(Liveness.UNKNOWN, "no answer")
        found = [job for job in self.all() if job.id == job_id]
        if found and found[0].state.is_alive:
            return Presence(Liveness.ALIVE, "looked", found[0])
        return Presence(Liveness.GONE, "looked")

    def cancel(self, job_ids: Collection[JobId], *, pending_only: bool = False) -> None:
        self._called("cancel")
        for job_id in job_ids:
            self.set(job_id.array, "CANCELLED")

    def set(self, number: int, state: str, code: int = 0) -> None:
        path = self.directory / str(number)
        path.write_text(f"{state} {code} {path.read_text().split(' ', 2)[2]}")


@dataclass
class CronContext:
    """The project.

    Attributes:
        home: the project directory, where drop-ins run.
        clock: set by hand.
    """

    directory: Path
    settings: str = ""
    clock: FakeClock = field(default_factory=lambda: FakeClock(TOP - 30))

    def __post_init__(self) -> None:
        self.home = self.directory / "project"
        for path in (self.home / "cron", self.directory / "queue"):
            path.mkdir(parents=True, exist_ok=True)
        text = SETTINGS.format(state=self.directory / "state", more=self.settings)
        (self.home / "resil.toml").write_text(text)
        self.queue = Queue(self.directory / "queue")
        self.cron = self.open()

    def open(self, environ: Mapping[str, str] | None = None) -> CronProject:
        """Another scheduler of the same project, as a new process has it."""
        system = make_system(
            self.directory, {"PATH": os.environ["PATH"], **(environ or {})}, clock=self.clock, cwd=self.home
        )
        project = Project(system, load(system, overrides={"scheduler.name": "fake"}), {"fake": self.queue})  # type: ignore[dict-item]
        return open_cron(project)

    def drop(self, name: str, text: str = "", *, options: str = "", body: str = "") -> Path:
        """Put a drop-in there: `cron.hourly/backup` writes its slot into `ran`; `cron.hourly/x.slurm` is a job."""
        path = self.home / "cron" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        form = JOB if name.endswith(".slurm") else WRITES
        path.write_text(text or form.format(options=options, body=body))
        path.chmod(0o700)
        return path

    def crontab(self, text: str) -> None:
        path = self.home / "cron" / "crontab"
        path.write_text(text)
        path.chmod(0o600)

    def tick(self, at: float | None = None, **more: Any) -> TickResult:
        if at is not None:
            self.clock.time = at
        return tick(self.cron, driver="crontab", **more)

    def ran(self) -> list[int]:
        """The slots that were run, each as often as it was."""
        path = self.home / "ran"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def history(self, key: str) -> tuple[RunRecord, ...]:
        return self.cron.state.history(key)

    def outcomes(self, key: str) -> dict[int, str]:
        return {record.slot: str(record.outcome) for record in self.history(key)}

    def queued(self) -> list[str]:
        """The tokens of all jobs that were ever queued."""
        return [(split_comment(job.comment) or ("", ""))[1] for job in self.queue.all()]

    def names(self, directory: str) -> list[str]:
        path = self.cron.state.path / directory
        return sorted(one.name for one in path.iterdir()) if path.is_dir() else []


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Poll, with a deadline that only a broken program meets."""
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


__all__ = ["TOP", "CronContext", "Queue", "replace", "wait_until"]
