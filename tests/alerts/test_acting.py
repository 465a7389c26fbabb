"""An incident of a run that nobody acknowledges holds or cancels the jobs of the run, once, if that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.alerts.notify import notify
from resilience.alerts.state import open_alert_state
from resilience.finding import Finding, Report, Verdict
from resilience.job import JobId, JobState
from resilience.runs.breaker_file import read_breaker
from resilience.runs.project import Project
from resilience.runs.submissions import Intent, Outcome, read_journal, record_intent, record_result
from resilience.submission import make_comment
from tests.lab.fakes import DOWN, ME, NOW, FakeClock, FakeScheduler, a_job, make_project

HOUR = 3600.0
SETTINGS = """
[run]
name = "gpt"
[act]
enabled = {enabled}
[alert]
channels = ["console"]
reminder_s = "4d"
act = ["6h: hold", "1d: cancel"]
[channel.console]
"""


class Night:
    """A run with a job that runs and one that waits, and a fault that nobody looks at."""

    def __init__(self, directory: Path, *, enabled: bool = True) -> None:
        self.queue, self.clock = FakeScheduler(), FakeClock()
        settings = SETTINGS.format(enabled=str(enabled).lower())
        self.project: Project = make_project(directory, self.queue, settings=settings, clock=self.clock)
        self.directory = self.project.directory("gpt")
        self.directory.create("")
        record_intent(self.directory, Intent("token", "fake", "train.sh", ("sbatch",), NOW, by=ME))
        record_result(self.directory, "token", Outcome.SUBMITTED, NOW, job_id=JobId(50))
        for number, state in ((49, JobState.RUNNING), (50, JobState.PENDING)):
            self.queue.records.append(a_job(number, state, comment=make_comment("gpt", "token"), reason="Priority"))

    def tick(self, after_s: float = 0.0, verdict: Verdict = Verdict.CRITICAL, run: str = "gpt") -> str:
        """Find the fault, and return what is printed and sent about it."""
        self.clock.time += after_s
        finding = Finding(subject="gpt", verdict=verdict, fault="silent", summary="no line for 40 min", run=run)
        said = notify(self.project, [Report(check="log", findings=(finding,), time=self.clock.time)])
        return "\n".join(said)

    @property
    def did(self) -> str:
        (incident,) = open_alert_state(self.project).ledger.incidents(self.clock.time)
        return incident.did

    @property
    def reasons(self) -> list[str]:
        return [job.reason for job in self.queue.records]


def test_after_its_time_the_queued_jobs_are_held_once_and_it_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    night = Night(tmp_path)
    night.tick()
    night.tick(5 * HOUR)
    assert night.did == "" and night.reasons == ["Priority", "Priority"]
    capfd.readouterr()
    night.tick(HOUR)
    assert night.reasons == ["Priority", "JobHeldUser"] and "held (50)" in night.did
    sent = "".join(capfd.readouterr())
    assert "its queued jobs were held (50); to go on: resil breaker close gpt" in sent
    breaker = read_breaker(night.directory)
    assert breaker is not None and breaker.acting and breaker.is_by_hand and breaker.by.startswith("alert ")
    assert breaker.why == "nobody acknowledged for 6 h: log no line for 40 min"
    night.tick(60)
    assert night.queue.calls.count("hold") == 1 and "".join(capfd.readouterr()) == ""


def test_later_its_jobs_are_cancelled_as_by_resil_cancel(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick()
    night.tick(6 * HOUR)
    night.tick(18 * HOUR)
    assert [job.state for job in night.queue.records] == [JobState.COMPLETING, JobState.CANCELLED]
    assert "its jobs were cancelled (49, 50), because nobody acknowledged" in night.did
    assert read_journal(night.directory).done is not None, "no watchdog reports that its jobs are gone"
    night.tick(60)
    assert night.queue.calls.count("cancel") == 1


def test_without_leave_it_is_named_once_and_not_done(tmp_path: Path) -> None:
    night = Night(tmp_path, enabled=False)
    night.tick()
    night.tick(6 * HOUR)
    assert night.did == "its queued jobs would be held now if [act] were enabled"
    night.tick(18 * HOUR)
    assert night.did == "its jobs would be cancelled now if [act] were enabled"
    assert not {"hold", "cancel"} & {*night.queue.calls} and read_breaker(night.directory) is None


def test_an_unknown_is_no_reason_to_act(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick()
    night.tick(6 * HOUR, Verdict.UNKNOWN)
    assert night.did == "" and night.reasons == ["Priority", "Priority"]


def test_an_acknowledged_incident_and_one_of_no_run_are_left_alone(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick(run="")
    night.tick(25 * HOUR, run="")
    assert night.did == ""
    state = open_alert_state(night.project)
    (incident,) = state.ledger.incidents(night.clock.time)
    state.ledger.acknowledge(incident, ME, "", night.clock.time)
    night.tick(HOUR)
    assert night.did == "" and not {"hold", "cancel"} & {*night.queue.calls}


def test_while_the_scheduler_is_silent_it_is_tried_again(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick()
    night.queue.trouble = DOWN
    assert "cannot hold the jobs of run gpt: squeue did not answer" in night.tick(6 * HOUR)
    assert night.did == ""
    night.queue.trouble = None
    night.tick(60)
    assert "held (50)" in night.did


def test_a_run_without_jobs_or_whose_jobs_are_held_by_hand_needs_nothing(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick()
    night.tick(6 * HOUR)
    night.queue.records.clear()
    night.tick(18 * HOUR)
    assert night.did == "it had no job to cancel"


def test_a_run_that_is_gone_is_an_error_and_no_crash(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.tick(run="bert")
    assert "there is no run 'bert'" in night.tick(6 * HOUR, run="bert")
