"""Which jobs of a run live, asked so that one empty answer never reads as dead."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import SchedulerUnavailable
from resilience.job import JobId, JobState, Liveness, Presence
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import live_jobs, submitters
from resilience.runs.status import run_statuses
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent, record_result
from resilience.submission import make_comment
from tests.fakes import ME, NOW, FakeScheduler, a_job, make_project

OURS = make_comment("gpt", "aa")


class Forgetful(FakeScheduler):
    """Its queue shows nothing, as a wrapper that swallows the answer does; `presence` says what is told."""

    told = Presence(Liveness.UNKNOWN, "the queue was empty, and nobody confirms it")

    def presence(self, job_id: JobId, *, mine: bool = False) -> Presence:
        return self.told


@pytest.fixture
def submitted(tmp_path: Path) -> tuple[Project, RunDirectory, Forgetful]:
    fake = Forgetful()
    project = make_project(tmp_path, fake)
    directory = project.directory("gpt")
    directory.create("")
    record_intent(directory, Intent("aa", "fake", "", (), NOW, by=ME))
    record_result(directory, "aa", Outcome.SUBMITTED, NOW, job_id=JobId(7))
    return project, directory, fake


def test_an_empty_queue_that_nobody_confirms_is_unknown(submitted: tuple[Project, RunDirectory, Forgetful]) -> None:
    _, directory, fake = submitted
    with pytest.raises(SchedulerUnavailable, match="cannot be confirmed"):
        live_jobs(fake, directory, ME)


def test_a_job_that_the_second_look_finds_is_alive(submitted: tuple[Project, RunDirectory, Forgetful]) -> None:
    _, directory, fake = submitted
    fake.told = Presence(Liveness.ALIVE, "a row proves it", a_job(7, comment=OURS))
    assert [job.id for job in live_jobs(fake, directory, ME)] == [JobId(7)]


def test_an_id_that_was_given_away_again_is_not_ours(submitted: tuple[Project, RunDirectory, Forgetful]) -> None:
    _, directory, fake = submitted
    fake.told = Presence(Liveness.ALIVE, "a row proves it", a_job(7, comment=make_comment("gpt", "somebody-else")))
    assert live_jobs(fake, directory, ME) == ()


def test_what_is_confirmed_to_be_gone_is_gone(submitted: tuple[Project, RunDirectory, Forgetful]) -> None:
    _, directory, fake = submitted
    fake.told = Presence(Liveness.GONE, "two looks", a_job(7, JobState.COMPLETED, comment=OURS))
    assert live_jobs(fake, directory, ME) == ()


def test_jobs_of_everyone_who_submitted_the_run_are_looked_at(
    submitted: tuple[Project, RunDirectory, Forgetful],
) -> None:
    _, directory, fake = submitted
    record_intent(directory, Intent("bb", "fake", "", (), NOW, by="nobody"))
    record_intent(directory, Intent("cc", "fake", "", (), NOW, by="who-left-us"))
    # squeue refuses to answer at all when one name of several is unknown.
    assert set(submitters(directory, read_intents(directory), ME)) == {directory.owner(), ME, "nobody"}
    fake.records.append(replace(a_job(9, comment=make_comment("gpt", "bb")), user="nobody"))
    assert [job.id for job in live_jobs(fake, directory, ME)] == [JobId(9)]


def test_a_sign_of_life_contradicts_a_queue_that_shows_nothing(
    submitted: tuple[Project, RunDirectory, Forgetful],
) -> None:
    project, directory, _ = submitted
    attempts = directory.path / "attempts"
    (attempts / "0001").write_text(f'number = 1\njob_id = 7\nlabel = "7"\nhost = "n1"\nstart = {NOW - 60}\n')
    beat = attempts / "0001.beat"
    beat.write_text("1 6 0\n")
    os.utime(beat, (NOW - 4, NOW - 4))
    (status,) = run_statuses(project, [directory], fresh=True)
    assert status.headline == "unknown" and "sign of life" in status.trouble
    assert status.attempts[0].end is None

    os.utime(beat, (NOW - 400, NOW - 400))
    (status,) = run_statuses(project, [directory], fresh=True)
    assert status.headline == "not queued" and status.attempts[0].end == "lost"


def test_a_row_that_says_it_is_over_is_believed_whatever_beat_a_moment_ago(
    submitted: tuple[Project, RunDirectory, Forgetful],
) -> None:
    project, directory, fake = submitted
    attempts = directory.path / "attempts"
    (attempts / "0001").write_text(f'number = 1\njob_id = 7\nlabel = "7"\nhost = "n1"\nstart = {NOW - 60}\n')
    (attempts / "0001.beat").write_text("1 6 0\n")
    os.utime(attempts / "0001.beat", (NOW - 4, NOW - 4))
    fake.records.append(a_job(7, JobState.CANCELLED, comment=OURS))

    (status,) = run_statuses(project, [directory], fresh=True)

    assert status.headline == "not queued" and status.attempts[0].end == "lost"
