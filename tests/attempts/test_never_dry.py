"""A run does not run dry: what is missing behind its live job is queued, exactly once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from resilience.attempts import never_dry
from resilience.attempts.never_dry import keep_queued
from resilience.errors import ResilError, SchedulerError, SchedulerUnavailable, SubmissionUncertain
from resilience.job import JobId, JobState
from resilience.runs.breaker_file import breaker_path
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Deed, Intervention, own_script_of, read_intents, record_intervention
from resilience.runs.submit import perform, prepare
from resilience.runs.submit_plan import SubmitRequest
from resilience.settings.sections import SchedulerSettings
from resilience.submission import Submission
from tests.lab.fakes import DOWN, ME, FakeClock, FakeScheduler, make_project

SETTINGS = """
[run]
name = "gpt"
command = "python train.py"
[act]
enabled = true
keep_queued = 2
[sbatch]
time = "60"
"""


class Run:
    """A run that was submitted once, and whose job runs."""

    def __init__(self, root: Path, settings: str = SETTINGS, queue: FakeScheduler | None = None) -> None:
        self.queue = queue or FakeScheduler()
        self.clock = FakeClock()
        self.project: Project = make_project(root, self.queue, settings, clock=self.clock)
        perform(self.project, prepare(self.project, SubmitRequest(run="gpt", time="120", exclude="n7")))
        self.directory: RunDirectory = self.project.directory("gpt")
        self.becomes(JobState.RUNNING)
        self.clock.time += 600

    def becomes(self, state: JobState, index: int = 0) -> None:
        self.queue.records[index] = replace(self.queue.records[index], state=state)

    def tick(self) -> str:
        return keep_queued(self.project, self.directory)

    @property
    def submits(self) -> int:
        """How often something was queued after the first submit."""
        return len(self.queue.submissions) - 1


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_what_is_missing_is_queued_behind_the_live_job_from_the_same_script(run: Run) -> None:
    assert run.tick() == "queued 2 jobs behind 101 of run gpt"
    first, second = run.queue.submissions
    assert second.script == first.script and second.options["array"] == "1-2%1"
    assert second.options["dependency"] == "afterany:101"
    assert (second.options["time"], second.options["exclude"]) == ("120", "n7")
    assert own_script_of(run.directory, read_intents(run.directory)) == "", "it still is the run's template"
    assert run.tick() == "" and run.submits == 1


def test_only_what_is_missing(run: Run) -> None:
    run.tick()
    run.queue.records[1] = replace(run.queue.records[1], tasks="2", task_count=1)
    assert run.tick() == "queued 1 job behind 102 of run gpt"
    assert run.queue.submissions[-1].options["array"] == "1%1"


@pytest.mark.parametrize("why", ["finished", "killed", "breaker", "cancelled", "last", "no live job", "not asked"])
def test_never_when_the_run_needs_no_job(tmp_path: Path, why: str) -> None:
    run = Run(tmp_path, SETTINGS.replace("keep_queued = 2", "") if why == "not asked" else SETTINGS)
    match why:
        case "finished":
            (run.directory.path / "finished").write_text("")
        case "killed":
            (run.directory.path / "switches" / "kill").write_text("")
        case "breaker":
            breaker_path(run.directory).write_text("")
        case "cancelled" | "last":
            deed = Deed.CANCELLED if why == "cancelled" else Deed.CANCELLED_PENDING
            record_intervention(run.directory, Intervention(deed, ME, run.clock.time, (101,)))
        case "no live job":
            run.becomes(JobState.FAILED)
    assert run.tick() == "" and run.submits == 0


def test_it_is_queued_where_the_run_is_whatever_the_project_now_uses(run: Run) -> None:
    other = FakeScheduler(name="other")
    settings = replace(run.project.loaded.settings, scheduler=SchedulerSettings(name="other"))
    loaded = run.project.loaded._replace(settings=settings)
    run.project = Project(run.project.system, loaded, {"fake": run.queue, "other": other})
    assert run.tick().startswith("queued 2 jobs") and run.submits == 1 and not other.submissions


@pytest.mark.parametrize("is_own", [False, True])
def test_nothing_behind_a_job_that_requeues_itself_which_an_own_script_does_not(tmp_path: Path, is_own: bool) -> None:
    run = Run(tmp_path, SETTINGS.replace("keep_queued = 2", "keep_queued = 2\nrequeue = true"))
    if is_own:
        own = tmp_path / "own.sbatch"
        own.write_text("#!/bin/bash\npython train.py\n")
        perform(run.project, prepare(run.project, SubmitRequest(run="gpt", script=own, after=JobId(101))))
        run.becomes(JobState.FAILED)
        run.becomes(JobState.RUNNING, 1)
    before = run.submits
    assert run.tick() == ("queued 2 jobs behind 102 of run gpt" if is_own else "")
    assert run.submits == before + is_own


def test_without_leave_it_says_what_it_would_do(tmp_path: Path) -> None:
    run = Run(tmp_path, SETTINGS.replace("enabled = true", ""))
    assert run.tick() == "it would queue 2 jobs behind 101 of run gpt if [act] were enabled" and run.submits == 0


def test_ten_ticks_at_once_queue_it_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(*args: object) -> object:
        time.sleep(0.02)
        return prepare(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(never_dry, "prepare", slowly)

    def tick(_: int) -> str:
        try:
            return run.tick()
        except SchedulerUnavailable as error:
            return error.message

    with ThreadPoolExecutor(10) as pool:
        said = [*pool.map(tick, range(10))]
    assert sum("queued" in text for text in said) == 1 and run.submits == 1, said


def test_a_tick_that_looked_before_another_had_queued_yields_to_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one asks the queue, then sleeps; the other does all; then the one goes on."""

    def late(project: Project, request: SubmitRequest) -> object:
        monkeypatch.setattr(never_dry, "prepare", prepare)
        assert run.tick().startswith("queued")
        return prepare(project, request)

    monkeypatch.setattr(never_dry, "prepare", late)
    with pytest.raises(SchedulerUnavailable, match="was first"):
        run.tick()
    assert run.submits == 1 and run.tick() == ""
    run.queue.records[1] = replace(run.queue.records[1], state=JobState.RUNNING)
    assert run.tick().startswith("queued 2 jobs"), "to have yielded is no limit of the site, and no reason to wait"


def test_a_tick_that_looked_while_another_one_was_queueing_yields_to_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one has journalled and waits for sbatch; the other sees neither job nor result; then the one ends."""
    sends, looked = Event(), Event()

    def slow_sbatch(_: Submission) -> None:
        sends.set()
        assert looked.wait(30)

    def late(project: Project, request: SubmitRequest) -> object:
        looked.set()
        assert first.result(30).startswith("queued 2 jobs")
        return prepare(project, request)

    run.queue.at_submit = slow_sbatch
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run.tick)
        assert sends.wait(30)
        monkeypatch.setattr(never_dry, "prepare", late)
        with pytest.raises(SchedulerUnavailable, match="was first"):
            run.tick()
    assert run.submits == 1


def test_a_limit_of_the_site_is_said_and_not_tried_every_minute(run: Run) -> None:
    run.queue.refusals[2] = SchedulerError("QOSMaxSubmitJobPerUserLimit")
    assert "may run dry, no job could be queued: QOSMaxSubmitJobPerUserLimit" in run.tick()
    run.clock.time += 60
    assert run.tick() == "" and run.submits == 1
    run.clock.time += 1800
    assert run.tick().startswith("queued 2 jobs")


def test_an_unknown_outcome_is_looked_up_and_never_repeated(run: Run) -> None:
    run.queue.uncertain.add(2)
    with pytest.raises(SubmissionUncertain):
        run.tick()
    run.clock.time += 600
    assert run.tick() == "" and run.submits == 1


def test_a_dead_scheduler_queues_nothing(run: Run) -> None:
    run.queue.trouble = DOWN
    with pytest.raises(ResilError):
        run.tick()
    assert run.submits == 0
