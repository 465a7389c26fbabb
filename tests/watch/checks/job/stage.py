"""A project with a fake queue, and the job watchdog run tick by tick as by the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilience.finding import Finding, Verdict
from resilience.job import Job, JobId, JobState
from resilience.records import from_record, to_record
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, record_intent, record_result
from resilience.runs.switches import write_switch
from resilience.submission import make_comment
from resilience.switch import Switch
from resilience.watch.checks._job.reading import JobReading
from resilience.watch.checks._job.settings import JobSettings
from resilience.watch.checks.job import CHECK
from resilience.watch.reading import Timed
from resilience.watch.watchdogs import context_of
from tests.lab.fakes import ME, NOW, FakeClock, FakeScheduler, a_job, make_project
from tests.watch.checks.outcome import outcome

OK, WARNING, UNKNOWN, CRITICAL = Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL
HOUR = 3600.0
QUEUE = "queue of fake"


@dataclass
class Stage:
    """One project, and the watchdog's readings of it."""

    directory: Path
    queue: FakeScheduler = field(default_factory=FakeScheduler)
    environ: Mapping[str, str] = field(default_factory=dict)
    memory: dict[str, Timed[JobReading]] = field(default_factory=dict)
    readings: dict[str, JobReading] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.project: Project = make_project(self.directory, self.queue, environ=self.environ, clock=self.clock)

    def tick(self, **settings: Any) -> list[Finding]:
        """Run one tick: targets, probe, judge; readings pass through JSON as when they are stored."""
        chosen = JobSettings(**settings)
        context = context_of(self.project)
        found: list[Finding] = []
        for target in CHECK.targets(chosen, context):
            self.readings = dict(CHECK.probe(target, chosen, context, self.memory))
            now = self.clock.now()
            for subject, reading in self.readings.items():
                record = json.loads(json.dumps(to_record(reading)))
                timed = Timed(now, from_record(JobReading, record))
                self.memory[subject] = timed
                found += CHECK.judge(subject, (timed,), chosen, now)
        return found

    def finding(self, subject: str = "gpt", **settings: Any) -> Finding:
        """Run one tick; return the only finding about this subject."""
        (one,) = [finding for finding in self.tick(**settings) if finding.subject == subject]
        return one

    def expect(self, expected: str, *words: str, subject: str = "gpt", **settings: Any) -> Finding:
        """Run one tick; expect this verdict, fault and text of the finding about this subject."""
        finding = self.finding(subject, **settings)
        assert outcome(finding) == expected and all(word in finding.summary for word in words), finding
        return finding

    def verdicts(self, **settings: Any) -> dict[str, Verdict]:
        """Run one tick; return the verdict by subject."""
        return {finding.subject: finding.verdict for finding in self.tick(**settings)}

    def faults(self, subject: str = "gpt", **settings: Any) -> dict[str, Verdict]:
        """Run one tick; return the verdicts of this subject by fault."""
        return {f.fault: f.verdict for f in self.tick(**settings) if f.subject == subject}

    def add(self, *jobs: Job) -> None:
        """Add jobs to the queue that are not of a run."""
        self.queue.records += jobs

    def finish(self, directory: RunDirectory) -> None:
        (directory.path / "finished").write_text("")
        os.utime(directory.path / "finished", (NOW, NOW))

    def wait(self, seconds: float) -> None:
        self.clock.time += seconds

    def run(
        self, name: str = "gpt", *ids: int, by: str = ME, scheduler: str = "fake", argv: Sequence[str] = ()
    ) -> RunDirectory:
        """Add a submitted run with these jobs; `argv` is the command if a script of the user's own was submitted."""
        directory = self.project.directory(name)
        directory.create("")
        for number in ids:
            token = f"{name}-{number}"
            record_intent(directory, Intent(token, scheduler, argv[-1] if argv else "", tuple(argv), NOW - HOUR, by=by))
            record_result(directory, token, Outcome.SUBMITTED, NOW - HOUR, job_id=JobId(number))
        return directory

    def job(self, number: int, state: JobState = JobState.RUNNING, run: str = "gpt", **fields: Any) -> Job:
        """Add a job of a run to the queue."""
        given = {"comment": make_comment(run, f"{run}-{number}"), "name": run, **fields}
        job = a_job(number, state, **given)
        self.queue.records.append(job)
        return job

    def attempt(self, directory: RunDirectory, number: int, began: float, end: str = "", code: int = 1) -> None:
        """Add an attempt that started then; `end` is how it ended 10 s later."""
        path = directory.path / "attempts" / f"{number:04d}"
        path.write_text(
            f'job_id = "7"\nlabel = "7_{number}"\nrestart = "0"\nhost = "n1"\npid = "1"\nstart = "{began}"\n'
        )
        os.utime(path, (began, began))
        if end:
            ended = path.with_name(f"{path.name}.end")
            ended.write_text(f'end = "{end}"\ntime = "{began + 10}"\nexit_code = "{code}"\n')
            os.utime(ended, (began + 10, began + 10))

    def kill(self, directory: RunDirectory, who: str = ME, **fields: Any) -> None:
        write_switch(directory, Switch("kill", who, fields.pop("when", NOW), **fields))


def running(**fields: Any) -> dict[str, Any]:
    """Return the usual fields of a running job."""
    return {"start_time": NOW - HOUR, "end_time": NOW + 19 * HOUR, "partition": "gpu", "nodes": "n[1-4]", **fields}
