"""A spool of its own for each test of the embedded scheduler, and its end: no daemon and no job is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from resilience.job import Job, JobId
from resilience.schedulers._local.processes import carrying, start_ticks
from resilience.schedulers._local.spool import Spool
from resilience.schedulers.local import LocalScheduler
from resilience.submission import Submission
from resilience.system.ports import SystemClock
from resilience.system.process import ProcessRunner
from tests.lab.waiting import until

T = TypeVar("T")


@dataclass
class Lab:
    """One spool and what tests do with it."""

    directory: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work = self.directory / "work"
        self.work.mkdir()
        self.spool = self.directory / "spool"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "RESIL"))}
        self.environ = {
            **own,
            "RESIL_LOCAL_SPOOL": str(self.spool),
            "RESIL_LOCAL_KILL_WAIT_S": "1",
            "RESIL_LOCAL_CPUS": "8",
            **self.environ,
        }

    @property
    def scheduler(self) -> LocalScheduler:
        """A client as a new process would have it."""
        return LocalScheduler(clock=SystemClock(), runner=ProcessRunner(), environ=self.environ, deadline_s=20.0)

    def submission(self, body: str, *extra: str, **options: str | None) -> Submission:
        """A script with this body, and sbatch's options with `_` for `-`."""
        token = secrets.token_hex(6)
        script = self.work / f"{token}.sh"
        script.write_text("#!/bin/bash\n" + body + "\n")
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return Submission(token, "run", str(script), options=named, extra_args=extra, directory=str(self.work))

    def submit(self, body: str, *extra: str, **options: str | None) -> JobId:
        """Queue it and return its id."""
        return self.scheduler.submit(self.submission(body, *extra, **options)).id

    def one(self, job_id: JobId) -> Job:
        """The one job of that id."""
        (job,) = self.scheduler.history([job_id])
        return job

    def ended(self, job_id: JobId, timeout_s: float = 20.0) -> tuple[Job, ...]:
        """Wait until all of it has ended."""

        def look() -> tuple[Job, ...]:
            jobs = self.scheduler.history([job_id])
            return jobs if jobs and all(job.state.is_final for job in jobs) else ()

        return until(look, timeout_s=timeout_s, what=f"the end of {job_id}")

    def end_of(self, body: str, *extra: str, **options: str | None) -> Job:
        """Queue it, wait for its end, and return it."""
        return self.ended(self.submit(body, *extra, **options))[0]

    def says(self, job_id: JobId, word: str) -> None:
        """Wait until the job's output holds this word."""
        until(lambda: word in self.output(self.one(job_id)), what=f"{word!r} in the output of {job_id}")

    def output(self, job: Job) -> str:
        """What it wrote so far."""
        path = Path(job.stdout)
        return path.read_text() if job.stdout and path.is_file() else ""

    def run(self, body: str, *extra: str, **options: str | None) -> str:
        """Queue it, wait for its end, and return its output."""
        return self.output(self.end_of(body, *extra, **options))

    def daemon_pid(self) -> int:
        """The pid of the daemon, 0 when there is none."""
        return Spool(self.spool).daemon_pid()

    def record(self, raw: int) -> Mapping[str, object]:
        """task.json of a job."""
        found: Mapping[str, object] = json.loads((self.spool / "jobs" / str(raw) / "task.json").read_text())
        return found

    def watcher_pid(self, raw: int) -> int:
        """The pid of the process that watches a job."""
        return int(str(self.record(raw)["supervisor"]))

    def processes(self, job_id: JobId | int) -> list[int]:
        """The pids of a plain job's processes."""
        return carrying(SLURM_JOB_ID=str(job_id), RESIL_LOCAL_SPOOL=str(self.spool))

    def kill_daemon(self) -> None:
        """As the kernel does when memory runs out."""
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: not start_ticks(pid), what="the daemon's end")

    def lose(self, raw: int) -> None:
        """As a power cut does it to one job: its processes and its watcher are gone, and so is the daemon."""
        watcher = self.watcher_pid(raw)
        self.kill_daemon()
        for pid in (watcher, *self.processes(raw)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not start_ticks(watcher), what="the watcher's end")

    def close(self) -> None:
        """End the daemon, the watchers and the jobs, by pid."""
        aside = self.directory / "closed"
        watchers = []
        for path in self.spool.glob("jobs/*/task.json"):
            with contextlib.suppress(ValueError, KeyError, OSError):
                data = json.loads(path.read_text())
                if data["supervisor"] and start_ticks(data["supervisor"]) == data["supervisor_ticks"]:
                    watchers.append(data["supervisor"])
        daemon = self.daemon_pid()
        if self.spool.exists():
            self.spool.rename(aside)  # so that nobody starts another

        def none_is_left() -> bool:
            """Kill all: a shell may have started its program since the last look."""
            left = [
                *filter(start_ticks, filter(None, (daemon, *watchers))),
                *carrying(RESIL_LOCAL_SPOOL=str(self.spool)),
            ]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        until(none_is_left, what="the end of all processes")


@contextlib.contextmanager
def lab(directory: Path, **environ: str) -> Iterator[Lab]:
    """A Lab that is closed at the end."""
    opened = Lab(directory, environ)
    try:
        yield opened
    finally:
        opened.close()
