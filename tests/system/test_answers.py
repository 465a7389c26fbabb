"""Answers of several nodes through one srun, which cuts and mixes what they write."""

from __future__ import annotations

from itertools import chain, zip_longest

from resilience.system.answers import answer_lines, parse_answers

PASSED_ON = 1024
"""So many bytes slurmstepd passes on at once, in whole lines if they are not longer."""


def test_long_answers_of_two_nodes_are_whole_although_their_lines_are_mixed() -> None:
    sent = [
        {"host": host, "stacks": [f'"main" in {number} \u2713\n' for number in range(500)]} for host in ("n1", "n2")
    ]
    written = [answer_lines(one, str(one["host"])).splitlines(keepends=True) for one in sent]
    assert max(len(line) for line in chain(*written)) < PASSED_ON
    mixed = ["Welcome to n1", *(line[:-1] for pair in zip_longest(*written) for line in pair if line)]
    assert list(parse_answers(mixed)) == sent


def test_an_answer_that_is_cut_off_is_none() -> None:
    lines = answer_lines({"host": "n1", "text": "x" * 3000}).splitlines()
    assert list(parse_answers(lines[:-1])) == [] and len(list(parse_answers(lines))) == 1
