"""Whose a job is, for many runs at once; and who may have submitted them."""

from __future__ import annotations

from pathlib import Path

from resilience.job import JobId
from resilience.runs.run_directory import RunDirectory
from resilience.runs.run_jobs import Owners, scheduler_of, submitters
from resilience.runs.submissions import Intent, Outcome
from resilience.submission import make_comment
from tests.fakes import ME


def intent(token: str, job: int, *, by: str = "", scheduler: str = "slurm", refused: bool = False) -> Intent:
    outcome = Outcome.REFUSED if refused else Outcome.SUBMITTED
    return Intent(token, scheduler, "", (), 0.0, outcome, None if refused else JobId(job), by)


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
    journal = [intent("aa", 1), intent("bb", 2, scheduler="local"), intent("cc", 3, scheduler="pbs", refused=True)]
    assert scheduler_of(journal) == "local"
    assert scheduler_of([]) == ""


def test_those_who_have_left_are_not_asked_for(tmp_path: Path) -> None:
    journal = [intent("aa", 1, by="ann"), intent("bb", 2, by="who-left"), intent("cc", 3, by="ann")]
    found = submitters(RunDirectory(tmp_path), journal, ME, lambda name: name == "ann")
    assert set(found) == {ME, "ann"}
