"""Array expressions, dependencies and submissions: written as people write them, sent as sbatch takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.submission import (
    MAX_TASKS,
    TYPES,
    ArrayExpression,
    Submission,
    check_run_name,
    serial_array,
    split_comment,
    write_dependency,
)


def oracle(text: str) -> tuple[list[int], int | None]:
    """The same, as simple as can be: every index by itself."""
    body, _, limit = text.partition("%")
    found: set[int] = set()
    for part in body.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found |= {i for i in range(int(first), int(last or first) + 1) if (i - int(first)) % int(step or 1) == 0}
    return sorted(found), int(limit) if limit else None


@st.composite
def expressions(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, 60))
        last = draw(st.integers(first, first + 40))
        shapes = [str(first), f"{first}-{last}", f"{first}-{last}:{draw(st.integers(1, 9))}"]
        parts.append(draw(st.sampled_from(shapes)))
    limit = draw(st.none() | st.integers(0, 20))
    return ",".join(parts) + ("" if limit is None else f"%{limit}")


@given(expressions())
def test_an_expression_has_the_tasks_that_counting_one_by_one_finds(text: str) -> None:
    array = ArrayExpression.parse(text)
    indices, throttle = oracle(text)
    assert (list(array.indices()), array.throttle) == (indices, throttle)
    assert array.count == len(indices)
    assert array.largest == indices[-1]


@given(expressions())
def test_a_written_expression_reads_back_to_the_same_tasks(text: str) -> None:
    array = ArrayExpression.parse(text)
    again = ArrayExpression.parse(str(array))
    assert (again.indices(), again.throttle, str(again)) == (array.indices(), array.throttle, str(array))


@pytest.mark.parametrize(
    "text",
    ["", " ", "a", "1-", "-1", "5-1", "1-5:0", "1-5:", "1,,2", "1-2-3", "1%", "1%a", "%1", "1-5%-1", "1 - 5", "1;2",
     "\u0661", "1%\u00b2", "\u00b2", "9" * 5000, "0-" + "9" * 18, "[1-5]"],
)  # fmt: skip
def test_what_sbatch_would_refuse_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ArrayExpression.parse(text)
    assert "--array 10" in caught.value.hint
    with pytest.raises(UsageError):
        serial_array(text)


def test_a_slip_of_millions_of_tasks_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="indices end"):
        ArrayExpression.parse(f"0-{MAX_TASKS}")


SERIAL = [
    ("10", "1-10%1"),
    ("1", "1%1"),
    (" 7 ", "1-7%1"),
    ("1-10", "1-10%1"),
    ("1-10%2", "1-10%2"),
    ("3,5,9", "3,5,9%1"),
    ("0-20:5%4", "0-20:5%4"),
    ("1-10%0", "1-10%0"),
]


@pytest.mark.parametrize(("typed", "meant"), SERIAL)
def test_jobs_run_one_after_another_unless_somebody_says_otherwise(typed: str, meant: str) -> None:
    assert str(serial_array(typed)) == meant


@pytest.mark.parametrize("text", ["0", "00"])
def test_an_array_of_no_jobs_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="0 jobs would queue nothing"):
        serial_array(text)


def test_an_index_written_twice_is_one_task() -> None:
    assert ArrayExpression.parse("1-3,2,3-4").count == 4


WRITTEN = [
    ("12", "afterany:12"),
    (" 12 ", "afterany:12"),
    ("12_3", "afterany:12_3"),
    ("12_*", "afterany:12_*"),
    ("12,13", "afterany:12,afterany:13"),
    ("12:13", "afterany:12:13"),
    ("12?13", "afterany:12?afterany:13"),
    ("afterok:12:13,singleton", "afterok:12:13,singleton"),
    ("afterok:12, afternotok:13", "afterok:12,afternotok:13"),
    ("AfterOK:12,Singleton", "afterok:12,singleton"),
    ("afterok:12\n", "afterok:12"),
    ("after:12+5", "after:12+5"),
    ("after:12+5:13", "after:12+5:13"),
    ("aftercorr:7_2", "aftercorr:7_2"),
]


@pytest.mark.parametrize(("typed", "written"), WRITTEN)
def test_every_type_is_spelt_out(typed: str, written: str) -> None:
    assert write_dependency(typed) == written
    assert write_dependency(written) == written


REFUSED = [
    ("", "not a job id"),
    (",", "not a job id"),
    ("12,", "not a job id"),
    ("afterok:", "not a job id"),
    ("afterok:12:", "not a job id"),
    ("afterok:0", "not a job id"),
    ("0", "not a job id"),
    ("last", "not a job id"),
    ("\u0661", "not a job id"),
    ("afterok:12,13?14", "cannot be mixed"),
    ("whenever:12", "no type 'whenever'"),
    ("afterany:12+5", "only `after`"),
    ("12+5", "only `after`"),
    ("singleton:12", "no type 'singleton'"),
    ("afterok:12;rm -rf", "not a job id"),
    ("afterok:-12", "not a job id"),
]


@pytest.mark.parametrize(("typed", "why"), REFUSED)
def test_what_slurm_would_refuse_is_refused_with_the_types(typed: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_dependency(typed)
    assert why in caught.value.message
    assert all(kind in caught.value.hint for kind in TYPES)


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
def test_what_could_leave_its_directory_or_its_field_names_no_run(name: str) -> None:
    with pytest.raises(UsageError):
        check_run_name(name)
