"""A job belongs to a run by its token; a name in common is nothing."""

from __future__ import annotations

import pytest

from resilience.errors import RunAlive
from resilience.job import JobId
from resilience.runs.run_jobs import jobs_of_run, newest, refuse_if_live
from resilience.runs.submissions import Intent, Outcome
from resilience.submission import make_comment
from tests.fakes import a_job


def intent(token: str, job: int | None = None) -> Intent:
    outcome = Outcome.OPEN if job is None else Outcome.SUBMITTED
    return Intent(token, "fake", "", (), 0.0, outcome, None if job is None else JobId(job))


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


def test_a_living_run_is_refused_with_three_ways_out() -> None:
    refuse_if_live("gpt", [])
    with pytest.raises(RunAlive, match=r"run gpt is live already: job 7$") as caught:
        refuse_if_live("gpt", [a_job(7, task=1), a_job(7, task=2)])
    assert all(word in caught.value.hint for word in ("--after auto", "--force", "resil cancel gpt"))
