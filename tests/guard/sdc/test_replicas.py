"""Ranks that must be equal: the majority is right, and without one nobody is named who may be innocent."""

from __future__ import annotations

import itertools
import math

import pytest

from resilience.guard.agreement.messages import TEXT_LIMIT
from resilience.guard.sdc.replicas import Difference, Replica, compare, parse, parse_difference


def lines(digests: str, **largest: float) -> dict[int, str]:
    """A line of each rank: a letter for each digest."""
    return {
        rank: Replica(digest, largest.get(f"r{rank}", 2.0), "", f"n{rank}").line()
        for rank, digest in enumerate(digests)
    }


def odd(difference: Difference | None) -> list[int]:
    return [] if difference is None else [rank for rank, _ in difference.odd]


@pytest.mark.parametrize(
    ("digests", "wrong"),
    [("aaaa", []), ("aaba", [2]), ("baaaa", [0]), ("abaca", [1, 3]), ("ab", []), ("aabb", []), ("abc", []), ("a", [])],
)
def test_the_majority_names_the_odd_ranks(digests: str, wrong: list[int]) -> None:
    difference = compare(lines(digests))
    assert odd(difference) == wrong
    assert (difference is None) == (len(set(digests)) == 1)


@pytest.mark.parametrize("digests", ["ab", "aabb", "abc"])
def test_without_a_majority_all_are_suspects(digests: str) -> None:
    difference = compare(lines(digests))
    assert difference is not None and [rank for rank, _ in difference.suspects] == list(range(len(digests)))
    assert "nobody can tell" in str(difference)


@pytest.mark.parametrize("largest", [1e17, math.inf, math.nan])
def test_of_two_replicas_the_implausible_one_is_odd(largest: float) -> None:
    assert odd(compare(lines("ab", r1=largest))) == [1]


@pytest.mark.parametrize("largest", [3.0, 1e5, 1e-9])
def test_of_two_plausible_replicas_nobody_is_named(largest: float) -> None:
    assert odd(compare(lines("ab", r1=largest))) == []


def test_ranks_of_different_groups_are_not_compared() -> None:
    of_groups = {0: "ax", 1: "ay", 2: "bx", 3: "by", 4: "bx", 5: "zy", 6: "bx"}
    said = {rank: Replica(word[0], 1.0, word[1], "n").line() for rank, word in of_groups.items()}
    assert odd(compare(said)) == [0], "three of four in x; in y all three differ"
    equal = {rank: Replica(word[1], 1.0, word[1], "n").line() for rank, word in of_groups.items()}
    assert compare(equal) is None


@pytest.mark.parametrize("digests", ["".join(word) for word in itertools.product("ab", repeat=5)])
def test_of_five_replicas_the_smaller_side_is_odd(digests: str) -> None:
    smaller = min("ab", key=digests.count)
    expected = [rank for rank, digest in enumerate(digests) if digest == smaller]
    assert odd(compare(lines(digests))) == expected


def test_what_a_rank_says_survives_its_way() -> None:
    replica = Replica("0f", 1.5, "tensor parallel 1", "n17")
    assert parse(replica.line()) == replica
    difference = compare(lines("aab"))
    assert difference is not None and parse_difference(difference.text()) == difference
    assert str(difference).startswith("rank 2 on n2 has other parameters")


def test_an_answer_about_a_thousand_ranks_fits() -> None:
    said = {rank: Replica(str(rank), 1.0, "g" * 99, "n" * 99).line() for rank in range(1000)}
    difference = compare(said)
    assert difference is not None and len(difference.text()) < TEXT_LIMIT
    assert max(map(len, said.values())) < TEXT_LIMIT


@pytest.mark.parametrize("line", ["", "{}", "[]", '["a", 1, "", "n"]', '["a", "x", "", "n"]', "nonsense"])
def test_a_malformed_line_is_left_out(line: str) -> None:
    assert compare(lines("aa") | {2: line}) is None


@pytest.mark.parametrize("text", ["{}", "[1]", '[[["x", "n"]], [], 2]', "nonsense"])
def test_a_malformed_answer_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a difference"):
        parse_difference(text)
