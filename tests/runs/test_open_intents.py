"""A submission whose fate is not known is looked up before anything is queued: exactly one job per intent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilience.errors import RunAlive, SchedulerUnavailable
from resilience.job import Job, JobId, JobState
from resilience.runs import submit
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent, record_result
from resilience.runs.submit import IN_FLIGHT_S, reconcile_intents
from resilience.runs.submit_plan import SubmitRequest
from resilience.submission import make_comment
from tests.fakes import DOWN, NOW, FakeClock, FakeScheduler, a_job, make_project


@pytest.fixture
def fake() -> FakeScheduler:
    return FakeScheduler()


@pytest.fixture
def project(tmp_path: Path, fake: FakeScheduler) -> Project:
    return make_project(tmp_path, fake)


def go(project: Project, said: list[str] | None = None, **asked: Any) -> submit.SubmitResult:
    request = SubmitRequest(run="gpt", **asked)
    return submit.perform(project, submit.prepare(project, request), ([] if said is None else said).append)


def outcomes(project: Project) -> list[tuple[Outcome, JobId | None]]:
    return [(intent.outcome, intent.job_id) for intent in read_intents(project.directory("gpt"))]


def the_job(state: JobState = JobState.PENDING) -> Job:
    return a_job(55, state, comment=make_comment("gpt", "feed"))


def cut_off(project: Project, fake: FakeScheduler, *, age_s: float, queued: bool) -> RunDirectory:
    """A submit that was killed between its intent and its answer."""
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("feed", "fake", "/x", (), NOW - age_s, by="alice"))
    if queued:
        fake.records.append(a_job(55, JobState.PENDING, comment=make_comment("gpt", "feed")))
    return directory


def test_an_intent_that_is_found_is_recorded_and_the_run_is_alive(project: Project, fake: FakeScheduler) -> None:
    cut_off(project, fake, age_s=1.0, queued=True)
    said: list[str] = []
    with pytest.raises(RunAlive, match="job 55"):
        go(project, said)
    assert outcomes(project) == [(Outcome.SUBMITTED, JobId(55))]
    assert said == ["a submit whose end was not journalled did queue job 55"] and fake.submissions == []


def test_a_given_up_intent_gets_a_second_look_and_no_waiting(tmp_path: Path, fake: FakeScheduler) -> None:
    """A controller that has just come back takes the old request up a moment after it answers a new question."""
    clock = FakeClock(at_sleep=lambda _: fake.records.append(the_job()))
    project = make_project(tmp_path, fake, clock=clock)
    directory = cut_off(project, fake, age_s=1.0, queued=False)
    record_result(directory, "feed", Outcome.UNCERTAIN, NOW)
    assert list(reconcile_intents(project, directory, fake, lambda _: None)) == [JobId(55)]
    assert fake.calls == ["find", "find"]


def test_a_given_up_intent_that_two_looks_do_not_find_is_closed(project: Project, fake: FakeScheduler) -> None:
    directory = cut_off(project, fake, age_s=1.0, queued=False)
    record_result(directory, "feed", Outcome.UNCERTAIN, NOW)
    assert go(project).ids == (JobId(101),)
    assert outcomes(project)[0] == (Outcome.REFUSED, None)


def test_an_intent_from_a_clock_that_goes_ahead_is_told_as_such(project: Project, fake: FakeScheduler) -> None:
    cut_off(project, fake, age_s=-7200.0, queued=False)
    with pytest.raises(SchedulerUnavailable, match="dated 2 h in the future") as caught:
        go(project)
    assert "date" in caught.value.hint


def test_what_went_to_another_scheduler_is_not_asked_for_here(project: Project, fake: FakeScheduler) -> None:
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("feed", "slurm", "/x", (), NOW, by="alice"))
    assert list(reconcile_intents(project, directory, fake, lambda _: None)) == []
    assert fake.calls == []


@pytest.mark.parametrize("age_s", [0.0, IN_FLIGHT_S - 1, -5.0])
def test_a_young_intent_that_is_not_found_may_be_another_submit_at_work(
    project: Project, fake: FakeScheduler, age_s: float
) -> None:
    cut_off(project, fake, age_s=age_s, queued=False)
    for force in (False, True):
        with pytest.raises(SchedulerUnavailable, match=r"another submit of run gpt began \d+ s ago") as caught:
            go(project, force=force)
        assert caught.value.exit_code == 75
    assert outcomes(project) == [(Outcome.OPEN, None)] and fake.submissions == []


def test_an_old_intent_that_is_not_found_never_reached_the_queue_and_the_submit_goes_on(
    project: Project, fake: FakeScheduler
) -> None:
    cut_off(project, fake, age_s=IN_FLIGHT_S + 1, queued=False)
    assert go(project).ids == (JobId(101),)
    assert outcomes(project) == [(Outcome.REFUSED, None), (Outcome.SUBMITTED, JobId(101))]


def test_an_intent_cannot_be_settled_while_the_scheduler_is_silent(project: Project, fake: FakeScheduler) -> None:
    cut_off(project, fake, age_s=1e6, queued=True)
    fake.trouble = DOWN
    with pytest.raises(SchedulerUnavailable):
        go(project, force=True)
    assert outcomes(project) == [(Outcome.OPEN, None)]


def test_a_cut_off_job_that_is_over_already_does_not_keep_the_run_from_going_on(
    project: Project, fake: FakeScheduler
) -> None:
    cut_off(project, fake, age_s=1.0, queued=False)
    fake.records.append(a_job(55, JobState.FAILED, comment=make_comment("gpt", "feed")))
    said: list[str] = []
    assert go(project, said).ids == (JobId(101),)
    assert "queueing anew" in said[-1]
