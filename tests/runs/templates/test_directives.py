"""Directives as sbatch reads them."""

from __future__ import annotations

import pytest

from resilience.runs.templates.directives import parse_directives


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("#SBATCH --time=5", {"time": "5"}),
        ("#SBATCH --time 5", {"time": "5"}),
        ("#SBATCH -t 5 -N2", {"time": "5", "nodes": "2"}),
        ("#SBATCH -J 'a b' # a comment", {"job-name": "a b"}),
        ("#SBATCH --exclusive --nodes=2", {"exclusive": None, "nodes": "2"}),
        ("#SBATCH --exclusive=user", {"exclusive": "user"}),
        ("#SBATCH --requeue", {"requeue": None}),
        ("#SBATCH -HQ", {"hold": None, "quiet": None}),
        ("#SBATCH -s -p gpu", {"oversubscribe": None, "partition": "gpu"}),
        ("#SBATCH\t--mem=4G", {"mem": "4G"}),
        ("#SBATCH -a 1-10%1", {"array": "1-10%1"}),
        ("#SBATCH --output=%x-%j.out", {"output": "%x-%j.out"}),
        ("##SBATCH --time=5", {}),
        ("# SBATCH --time=5", {}),
        ("#SBATCHED --time=5", {}),
        ("#SBATCH", {}),
    ],
)
def test_one_line(line: str, options: dict[str, str | None]) -> None:
    assert dict(parse_directives(f"#!/bin/bash\n{line}\n").options) == options


def test_the_last_of_two_wins() -> None:
    assert parse_directives("#!/bin/sh\n#SBATCH -t 5\n#SBATCH -N 1\n#SBATCH --time=9\n").options == (
        ("nodes", "1"),
        ("time", "9"),
    )


def test_what_comes_after_the_first_command_is_reported_and_not_counted() -> None:
    directives = parse_directives("#!/bin/sh\n\n# note\n#SBATCH -t 5\nset -e\n#SBATCH -N 2\n")
    assert directives.options == (("time", "5"),)
    assert directives.late == ("#SBATCH -N 2",)


def test_dos_line_ends_are_noticed() -> None:
    directives = parse_directives("#!/bin/sh\r\n#SBATCH -t 5\r\n")
    assert directives.crlf
    assert directives.options == (("time", "5"),)


@pytest.mark.parametrize("line", ["#SBATCH --comment='open", "#SBATCH -Z 5", "#SBATCH gpu"])
def test_what_cannot_be_read_is_reported(line: str) -> None:
    assert parse_directives(f"#!/bin/sh\n{line}\n").problems
