"""A job belongs to a run by its token, not by its name; one empty answer of the queue never reads as dead."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from resilience.errors import RunAlive, SchedulerUnavailable
from resilience.job import JobId, JobState, Liveness, Presence
from resilience.runs.project import Project
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import Owners, jobs_of_run, live_jobs, newest, refuse_if_live, scheduler_of, submitters
from resilience.runs.status import run_statuses
from resilience.runs.submissions import Intent, Outcome, read_intents, record_intent, record_result
from resilience.submission import make_comment
from tests.lab.fakes import ME, NOW, FakeScheduler, a_job, make_project


def intent(
    token: str, job: int | None = None, *, by: str = "", scheduler: str = "slurm", outcome: Outcome | None = None
) -> Intent:
    outcome = outcome or (Outcome.OPEN if job is None else Outcome.SUBMITTED)
    return Intent(token, scheduler, "", (), 0.0, outcome, None if job is None else JobId(job), by)


QUEUE = {
    "mine": a_job(1, comment=make_comment("gpt", "aa")),
    "mine, not yet journalled": a_job(2, comment=make_comment("gpt", "bb")),
    "mine, with the site's words behind": a_job(3, comment=make_comment("gpt", "aa") + " site text"),
    "of another project's run of this name": a_job(4, comment=make_comment("gpt", "zz")),
    "of a colleague's run of this name": a_job(5, comment=make_comment("gpt", "yy"), user="bob"),
    "mine, its comment taken away by the site": a_job(6),
    "a stranger": a_job(7, comment="nightly build"),
    "another run's, under an id that we remember": a_job(8, comment=make_comment("llama", "cc")),
}


def test_a_runs_jobs_are_those_with_its_tokens_and_those_known_by_id() -> None:
    intents = [intent("aa", 1), intent("bb"), intent("ee", 6), intent("ff", 8)]
    ours = jobs_of_run(QUEUE.values(), "gpt", intents)
    assert [name for name, job in QUEUE.items() if job in ours] == [
        "mine",
        "mine, not yet journalled",
        "mine, with the site's words behind",
        "mine, its comment taken away by the site",
    ]


def test_where_the_journal_is_lost_the_name_must_do() -> None:
    assert [job.id.array for job in jobs_of_run(QUEUE.values(), "gpt", [])] == [1, 2, 3, 4, 5]


def test_the_newest_job_is_the_one_submitted_last_whatever_its_number() -> None:
    jobs = [a_job(9, submit_time=1.0), a_job(3, submit_time=5.0), a_job(5)]
    found = newest(jobs)
    assert found is not None and found.id.array == 3
    assert newest([]) is None


def test_a_requeued_job_whose_submit_time_slurm_has_reset_is_not_the_newest() -> None:
    intents = [intent("aa", 7), intent("bb", 3), intent("cc")]
    requeued, last, unknown = a_job(7, submit_time=9.0), a_job(3, submit_time=5.0), a_job(8, submit_time=6.0)
    assert newest([requeued, last], intents) == last
    assert newest([requeued, last, unknown], intents) == unknown, "its answer is not in the journal yet"


def test_a_living_run_is_refused_with_three_ways_out() -> None:
    refuse_if_live("gpt", [], ME)
    with pytest.raises(RunAlive, match=r"run gpt is already live: job 7$") as caught:
        refuse_if_live("gpt", [a_job(7, task=1), a_job(7, task=2)], ME)
    assert all(word in caught.value.hint for word in ("--after auto", "--force", "resil cancel gpt"))


OWNERS = Owners(
    {
        "gpt": [intent("aa", 1), intent("bb", 2)],
        "llama": [intent("cc", 3), intent("dd", 2)],
        "by-hand": [],
    }
)


def test_a_job_is_of_the_run_whose_token_it_carries_whatever_its_id() -> None:
    assert list(OWNERS.runs_of(99, make_comment("gpt", "aa"))) == ["gpt"]
    assert list(OWNERS.runs_of(3, make_comment("gpt", "bb"))) == ["gpt"]
    assert list(OWNERS.runs_of(1, make_comment("gpt", "somebody-elses"))) == []


def test_where_the_site_took_the_comment_away_the_id_counts() -> None:
    assert list(OWNERS.runs_of(1, "")) == ["gpt"]
    assert sorted(OWNERS.runs_of(2, "the site")) == ["gpt", "llama"], "an id that was given away twice"
    assert list(OWNERS.runs_of(7, "")) == []


def test_the_name_counts_only_where_the_journal_knows_nothing() -> None:
    assert list(OWNERS.runs_of(7, make_comment("by-hand", "zz"))) == ["by-hand"]
    assert list(OWNERS.runs_of(7, make_comment("gpt", "zz"))) == []


def test_the_scheduler_is_that_of_the_newest_submission_that_was_not_refused() -> None:
    journal = [
        intent("aa", 1),
        intent("bb", 2, scheduler="local"),
        intent("cc", scheduler="pbs", outcome=Outcome.REFUSED),
    ]
    assert scheduler_of(journal) == "local"
    assert scheduler_of([]) == ""


def test_those_who_have_left_are_not_asked_for(tmp_path: Path) -> None:
    journal = [intent("aa", 1, by="ann"), intent("bb", 2, by="who-left"), intent("cc", 3, by="ann")]
    found = submitters(RunDirectory(tmp_path), journal, ME, lambda name: name == "ann")
    assert set(found) == {ME, "ann"}


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
    assert status.headline == "unknown" and "sent a heartbeat" in status.trouble
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
