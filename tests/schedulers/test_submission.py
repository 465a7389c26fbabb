"""A submission can be found again by its comment, and only by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.submission import Submission, check_run_name, split_comment

RUN_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)


@given(RUN_NAMES, st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
def test_a_comment_gives_the_run_and_the_token_back(run: str, token: str) -> None:
    submission = Submission(token, run, "/x/job.slurm")
    assert split_comment(submission.comment) == (run, token)
    assert split_comment(submission.comment + " and a site's words") == (run, token)


@pytest.mark.parametrize("comment", ["", "resil", "resil:", "resil:run", "resil:run:", "resil::token", "other:run:tok"])
def test_a_foreign_comment_is_nobodys_run(comment: str) -> None:
    assert split_comment(comment) is None


@given(RUN_NAMES)
def test_a_plain_word_names_a_run(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-flag", "a/b", "a b", "a\n", "a:b", "a" * 101, "\u00e4", "a\x00b", "$(id)", "a;b"],
)
def test_what_could_leave_its_folder_or_its_field_names_no_run(name: str) -> None:
    with pytest.raises(UsageError):
        check_run_name(name)
