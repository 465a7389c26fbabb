"""An array expression means the tasks that sbatch would make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience.errors import UsageError
from resilience.submission import MAX_TASKS, ArrayExpression, serial_array


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
    with pytest.raises(UsageError, match="tasks"):
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
