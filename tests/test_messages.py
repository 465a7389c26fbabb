"""Counted nouns, nearest names and cut texts, as all messages use them."""

from __future__ import annotations

import pytest

from resilience.messages import cut, nearest, plural, suggest


@pytest.mark.parametrize(
    ("count", "noun", "many", "expected"),
    [
        (0, "rank", "", "0 ranks"),
        (1, "rank", "", "1 rank"),
        (2, "rank", "", "2 ranks"),
        (1200, "run", "", "1,200 runs"),
        (1, "entry", "entries", "1 entry"),
        (2, "entry", "entries", "2 entries"),
    ],
)
def test_a_count_comes_with_its_noun(count: int, noun: str, many: str, expected: str) -> None:
    assert plural(count, noun, many) == expected


def test_a_mistyped_word_gets_the_nearest_and_a_strange_one_the_list() -> None:
    assert nearest("slrum", ["slurm", "local"]) == "slurm"
    assert suggest("slrum", ["slurm", "local"]) == "did you mean slurm?"
    assert nearest("xyz", ["slurm", "local"]) == ""
    assert suggest("xyz", iter(["slurm", "local"])) == "there are: slurm, local"
    assert nearest("x" * 10**6, ["slurm"]) == ""


@pytest.mark.parametrize(
    ("text", "limit", "expected"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("", 3, ""), ("abcd", 0, "…")]
)
def test_a_long_text_is_cut_and_shows_it(text: str, limit: int, expected: str) -> None:
    assert cut(text, limit) == expected
