"""Verdicts are ordered by meaning and exit as Nagios plugins do."""

from __future__ import annotations

import random

import pytest

from resilience.finding import Verdict


def test_not_knowing_is_worse_than_a_warning_and_better_than_a_disaster() -> None:
    shuffled = random.Random(1).sample(list(Verdict), 4)
    assert sorted(shuffled) == [Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL]
    assert max(Verdict.UNKNOWN, Verdict.WARNING) is Verdict.UNKNOWN
    assert Verdict.OK <= Verdict.OK < Verdict.CRITICAL


def test_the_exit_codes_are_those_of_the_plugin_api() -> None:
    assert [(verdict.value, verdict.exit_code) for verdict in Verdict] == [
        ("OK", 0), ("WARNING", 1), ("UNKNOWN", 3), ("CRITICAL", 2)
    ]  # fmt: skip


def test_a_verdict_is_not_compared_with_a_number() -> None:
    with pytest.raises(TypeError):
        _ = Verdict.OK < 3
