"""Durations and counts that nobody can mean are refused with the option's name, everywhere."""

from __future__ import annotations

import re

import pytest

from tests.lab.shell import SETTINGS, Shell

BAD = ("nan", "inf", "-inf", "-1", "1e999", "", "²", "9" * 30 + "w")
OPTIONS = [
    ("status", "--watch", "--interval"),
    ("status", "--interval"),
    ("watch", "fs", "--every"),
    ("watch", "fs", "--deadline"),
    ("watch", "--all", "--every"),
    ("watch", "--all", "--deadline"),
    ("watch", "fs", "--top", "--deadline"),
    ("watch", "job", "--churn"),
    ("cron", "test", "--wait"),
    ("alert", "silence", "--subject", "x", "--why", "x", "--for"),
]


CASES = [
    (words, value) for words in OPTIONS for value in BAD if value or words[-1] not in ("--every", "--deadline")
]  # for these two an empty text is as without the option


@pytest.mark.parametrize(("words", "value"), CASES, ids=str)
def test_a_duration_that_is_none_is_refused(shell: Shell, words: tuple[str, ...], value: str) -> None:
    said = shell.resil(*words[:-1], f"{words[-1]}={value}")
    assert said.code in (2, 3)
    assert "internal error" not in said.err
    assert said.err.startswith("resil: ")


@pytest.mark.parametrize(
    "words",
    [
        ("watch", "fs", "--every", "0"),
        ("watch", "fs", "--deadline", "0s"),
        ("status", "--watch", "--interval", "86401"),
    ],
)
def test_an_interval_has_bounds(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell.resil(*words)
    assert said.code in (2, 3)
    assert re.search(rf"{words[-2]} {words[-1]}(\.0)? must be at least .* and at most", said.err)


@pytest.mark.parametrize("line", ["warn_free = nan", "warn_percent = nan", "grace_s = inf", 'grace_s = "9999999999w"',
             "churn_count = -1", "min_queued = -1", "factor = -5", "purge_days = 1e9"])  # fmt: skip
def test_a_setting_that_is_no_number_is_refused(shell: Shell, line: str) -> None:
    name = {"grace_s": "job", "churn_count": "job", "min_queued": "job", "factor": "log"}.get(line.split(" ")[0], "fs")
    shell.settings(f"{SETTINGS}[watch.{name}]\n{line}\n")
    said = shell.resil("watch", name, "--no-alert")
    assert said.code == 3
    assert "internal error" not in said.err + said.out
    assert line.split(" ", 1)[0] in said.err + said.out
